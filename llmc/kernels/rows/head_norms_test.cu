#include "llmc/kernels/rows/head_norms.cuh"

#include <array>

#include "llmc/kernels/kernel_testing.h"

namespace {

constexpr float epsilon = 1e-2f;
constexpr RotaryFrequencies frequencies{.theta = 10000};
constexpr int first_position = 5;

struct Shape {
    int rows, queries, keys, HS;
    bool turns = true;
    int row() const { return (queries + 2 * keys) * HS; }
    int count(int i) const { return i == 0 ? queries : keys; }
};
const Shape
    shapes[] =
        {
            {3, 4, 2, 64},        {70, 5, 1, 64},        {3, 7, 7, 128},     {37, 16, 8, 128},
            {5, 2, 2, 16},        {9, 3, 1, 96},         {4, 2, 1, 256},     {1, 1, 1, 128},
            {5, 3, 3, 24, false}, {6, 4, 2, 128, false}, {13'000, 1, 1, 64},   // more rows than blocks take at once
};

// Both directions in double: what is written over rows of queries, keys and values, and the weights' gradients. Sizes:
// of the terms that were added.
struct Reference {
    Shape shape;
    Doubles x, dy;
    std::array<Doubles, 2> weight;
    Doubles y{}, dx{}, y_size{}, dx_size{};
    std::array<Doubles, 2> rstd{}, dweight{}, dweight_size{};

    // Turns the pairs of a head by `direction` times their angles.
    void turn(double* head, int row, double direction) const {
        const int half = shape.HS / 2;
        for (int c = 0; c < half && shape.turns; c++) {
            const double a = direction * (first_position + row) * std::pow(10000.0, -2.0 * c / shape.HS);
            const double left = head[c], right = head[c + half];
            head[c] = left * std::cos(a) - right * std::sin(a);
            head[c + half] = right * std::cos(a) + left * std::sin(a);
        }
    }

    template <class Real>
    void compute() {
        const auto HS = static_cast<std::size_t>(shape.HS);
        y = x, dx = dy;
        y_size.assign(x.size(), 0.0), dx_size = y_size;
        for (int i = 0; i < 2; i++) {
            dweight[i].assign(HS, 0.0), dweight_size[i].assign(HS, 0.0);
            const Doubles& w = weight[i];
            for (int row = 0; row < shape.rows; row++) {
                for (int head = 0; head < shape.count(i); head++) {
                    const std::size_t at =
                        static_cast<std::size_t>(row * shape.row() + (i * shape.queries + head) * shape.HS);
                    double squares = 0, products = 0, size = 0;
                    for (std::size_t c = at; c < at + HS; c++) squares += x[c] * x[c] / shape.HS;
                    const double r = 1 / std::sqrt(squares + static_cast<double>(epsilon));
                    rstd[i].push_back(r);
                    Doubles d(dy.begin() + at, dy.begin() + at + HS);
                    turn(d.data(), row, -1);
                    for (std::size_t c = 0; c < HS; c++) {
                        const double normal = x[at + c] * r;
                        y[at + c] = normal * w[c];
                        products += w[c] * d[c] * normal / shape.HS;
                        dweight[i][c] += d[c] * normal;
                        dweight_size[i][c] += (std::abs(d[c]) + 1) * std::abs(normal);
                        size += std::abs(w[c]) * (std::abs(d[c]) + 1) * (std::abs(normal) + 1);
                    }
                    for (std::size_t c = 0; c < HS; c++) {
                        dx[at + c] = r * (w[c] * d[c] - x[at + c] * r * products);
                        dx_size[at + c] = r * size / shape.HS * (std::abs(x[at + c] * r) + 4) + std::abs(dx[at + c]);
                    }
                    for (std::size_t c = 0; c < HS; c++) {
                        const std::size_t pair = (c + HS / 2) % HS;
                        y_size[at + c] = std::abs(y[at + c]) + (shape.turns ? std::abs(y[at + pair]) : 0.0);
                    }
                    turn(&y[at], row, 1);
                }
            }
        }
    }
};

// Angles are rounded to floats.
double angle_error(const Shape& shape) { return shape.turns ? 4.0 * (first_position + shape.rows) : 0.0; }

}   // namespace

TEST_CASE_TEMPLATE("norms of heads: both directions match double loops, with rotary positions and without", Real, float,
                   bf16) {
    for (const Shape& shape : shapes) {
        const std::string what = text(shape.rows, " rows, heads ", shape.queries, " + ", shape.keys, " of ", shape.HS);
        const auto n = static_cast<std::size_t>(shape.rows * shape.row()), HS = static_cast<std::size_t>(shape.HS);
        Reference expected{shape,
                           random_values<Real>(n, 1.5, 1),
                           random_values<Real>(n, 1.0, 2),
                           {random_values<Real>(HS, 1.0, 3), random_values<Real>(HS, 1.0, 4)}};
        expected.compute<Real>();
        KernelTest test;
        auto heads = test.tensor<Real>(expected.x), gradient = test.tensor<Real>(expected.dy);
        auto of = [&](int i, auto& weight, auto& raw, auto& rstd) {
            return NormedHeads<Real>{shape.count(i), weight.data(), raw.data(), rstd.data()};
        };
        const auto queries = static_cast<std::size_t>(shape.rows * shape.queries),
                   keys = static_cast<std::size_t>(shape.rows * shape.keys);
        auto q_weight = test.tensor<Real>(expected.weight[0]), k_weight = test.tensor<Real>(expected.weight[1]);
        auto q_raw = test.output<Real>(queries * HS), k_raw = test.output<Real>(keys * HS);
        auto q_rstd = test.output<float>(queries), k_rstd = test.output<float>(keys);
        // positions by number, or by a list of more tokens
        const bool listed = shape.keys % 2 == 0;
        const int before = listed ? 3 : 0, tokens = shape.rows + before;
        std::vector<int> list(static_cast<std::size_t>(tokens));
        for (int t = 0; t < tokens; t++) list[static_cast<std::size_t>(t)] = first_position + t - before;
        const auto device_list = test.ints(list);
        const Positions positions = listed ? Positions{.list = device_list.data()} : Positions{.first = first_position};
        HeadNorms<Real> args{.heads = heads.data(),
                             .row = shape.row(),
                             .rows = shape.rows,
                             .HS = shape.HS,
                             .queries = of(0, q_weight, q_raw, q_rstd),
                             .keys = of(1, k_weight, k_raw, k_rstd),
                             .turns = shape.turns,
                             .angles = {before, tokens, positions, frequencies, false}};
        head_norms_forward(args, epsilon, true, test.stream);
        const Doubles rstd[] = {q_rstd.values(), k_rstd.values()}, raw[] = {q_raw.values(), k_raw.values()};
        for (int i = 0; i < 2; i++) {
            check_close(rstd[i], expected.rstd[i], rounding_error<float>(expected.rstd[i], expected.rstd[i], 32), what);
            for (std::size_t c = 0; c < raw[i].size(); c++) {
                const std::size_t in_row = static_cast<std::size_t>(shape.count(i)) * HS, row = c / in_row;
                const std::size_t at = row * static_cast<std::size_t>(shape.row()) + c % in_row +
                                       static_cast<std::size_t>(i * shape.queries) * HS;
                if (raw[i][c] != expected.x[at]) FAIL(what, ": the norm's input is not kept");
            }
        }
        // bf16 rounds x r, and its product with the weight, before it is turned
        auto error = [&](const Doubles& values, const Doubles& size, double roundings) {
            Doubles all = rounding_error<Real>(values, size, 64 + angle_error(shape));
            for (std::size_t c = 0; c < all.size(); c++) all[c] += roundings * unit<Real> * size[c];
            return all;
        };
        check_close(heads.values(), expected.y, error(expected.y, expected.y_size, 2.1), what);

        for (const bool accumulate : {false, true}) {
            auto dy = test.tensor<Real>(expected.dy);
            auto dq = test.tensor<float>(Doubles(HS, 1.0)), dk = test.tensor<float>(Doubles(HS, 1.0));
            auto scratch = test.output<float>(head_norms_scratch(shape.rows, shape.HS));
            args.heads = dy.data();
            head_norms_backward(args, dq.data(), dk.data(), scratch.data(), accumulate, test.stream);
            check_close(dy.values(), expected.dx, error(expected.dx, expected.dx_size, 0), what);
            const Doubles found[] = {dq.values(), dk.values()};
            for (int i = 0; i < 2; i++) {
                Doubles dw = expected.dweight[i];
                for (double& value : dw) value += accumulate ? 1 : 0;
                check_close(found[i], dw, rounding_error<float>(dw, expected.dweight_size[i], 64 + angle_error(shape)),
                            what);
            }
        }
    }
}

TEST_CASE("norms of heads: heads that no thread can hold, or that cannot be turned, are refused") {
    HeadNorms<float> args{};
    args.rows = 1, args.row = 3 * 264, args.HS = 264;
    CHECK_THROWS_AS(head_norms_forward(args, epsilon, true, nullptr), Error);
    args.row = 3 * 24, args.HS = 24, args.turns = true;   // half a head is no whole eights
    CHECK_THROWS_AS(head_norms_forward(args, epsilon, true, nullptr), Error);
}
