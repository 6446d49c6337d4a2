// Kernels of a mixture of experts against plain double loops.
#include <algorithm>
#include <numeric>

#include "llmc/kernels/experts/expert_rows.cuh"
#include "llmc/kernels/experts/grouped_matmul.cuh"
#include "llmc/kernels/experts/grouped_testing.h"
#include "llmc/kernels/experts/router.cuh"
#include "llmc/kernels/experts/router_bias.cuh"
#include "llmc/kernels/kernel_testing.h"

namespace {

using Index = std::size_t;

// Errors of `terms` products added in fp32, and of one rounding to Real.
template <class Real>
Doubles sum_errors(const Doubles& sums, const Doubles& sizes, double terms) {
    Doubles errors(sums.size());
    for (Index i = 0; i < sums.size(); i++) {
        errors[i] = unit<Real> * std::abs(sums[i]) + (terms + 2) * unit<float> * sizes[i] + 1e-30;
    }
    return errors;
}

// Groups of rows: none, one, a tile and one more, many.
const std::vector<std::vector<int>> kGroups = {{0, 1, 65, 0, 7}, {64, 0, 0}, {130}, {0, 3}};

template <class Real>
void check_grouped(const std::vector<int>& groups, int N, int K) {
    KernelTest test;
    const std::vector<int> offsets = offsets_of(groups);
    const auto M = static_cast<Index>(offsets.back()), G = groups.size(), n_ = static_cast<Index>(N),
               k_ = static_cast<Index>(K);
    const Doubles in = random_values<Real>(M * k_, 1, 1), weight = random_values<Real>(G * n_ * k_, 1, 2),
                  dout = random_values<Real>(M * n_, 1, 3), before = random_values<float>(G * n_ * k_, 1, 4);
    Doubles out(M * n_), dinp(M * k_), dweight = before, out_size(M * n_), dinp_size(M * k_),
                                       dweight_size(G * n_ * k_, 4);
    for (Index g = 0; g < G; g++) {
        for (auto m = static_cast<Index>(offsets[g]); m < static_cast<Index>(offsets[g + 1]); m++) {
            for (Index n = 0; n < n_; n++) {
                for (Index k = 0; k < k_; k++) {
                    const Index w = (g * n_ + n) * k_ + k;
                    auto add = [](double& sum, double& size, double x) { sum += x, size += std::abs(x); };
                    add(out[m * n_ + n], out_size[m * n_ + n], in[m * k_ + k] * weight[w]);
                    add(dinp[m * k_ + k], dinp_size[m * k_ + k], dout[m * n_ + n] * weight[w]);
                    add(dweight[w], dweight_size[w], dout[m * n_ + n] * in[m * k_ + k]);
                }
            }
        }
    }
    const DeviceBuffer<int> on_device = test.ints(offsets);
    const GroupedShape shape{static_cast<int>(G), static_cast<int>(M), N, K, on_device.data()};
    auto in_d = test.tensor<Real>(in), weight_d = test.tensor<Real>(weight), dout_d = test.tensor<Real>(dout);
    auto out_d = test.output<Real>(out.size()), dinp_d = test.output<Real>(dinp.size());
    auto dweight_d = test.tensor<float>(before), fresh_d = test.output<float>(before.size());
    grouped_forward(out_d.data(), in_d.data(), weight_d.data(), shape, test.stream);
    check_close(out_d.values(), out, sum_errors<Real>(out, out_size, K), "grouped forward");
    grouped_input_gradient(dinp_d.data(), dout_d.data(), weight_d.data(), shape, false, test.stream);
    check_close(dinp_d.values(), dinp, sum_errors<Real>(dinp, dinp_size, N), "grouped input gradient");
    grouped_weight_gradient(dweight_d.data(), dout_d.data(), in_d.data(), shape, true, test.stream);
    check_close(dweight_d.values(), dweight, sum_errors<float>(dweight, dweight_size, static_cast<double>(M)), "added");
    grouped_weight_gradient(fresh_d.data(), dout_d.data(), in_d.data(), shape, false, test.stream);
    for (Index i = 0; i < dweight.size(); i++) dweight[i] -= before[i];
    check_close(fresh_d.values(), dweight, sum_errors<float>(dweight, dweight_size, static_cast<double>(M)), "weights");
}

}   // namespace

TEST_CASE_TEMPLATE("experts: grouped matmuls match double loops, groups without rows included", Real, float, bf16) {
    for (const std::vector<int>& groups : kGroups) {
        for (const auto& [N, K] : {std::pair(24, 40), std::pair(72, 65), std::pair(5, 8)})
            check_grouped<Real>(groups, N, K);
    }
}

TEST_CASE("experts: a row's results do not depend on the rows and groups beside it") {
    KernelTest test;
    const int C = 48, F = 40;
    auto in = test.random<float>(100 * C, 1, 1), weight = test.random<float>(2 * F * C, 1, 2);
    auto together = test.output<float>(100 * F), alone = test.output<float>(30 * F);
    const DeviceBuffer<int> two = test.ints({0, 70, 100}), one = test.ints({0, 30});
    grouped_forward(together.data(), in.data(), weight.data(), {2, 100, F, C, two.data()}, test.stream);
    grouped_forward(alone.data(), in.data() + 70 * C, weight.data() + F * C, {1, 30, F, C, one.data()}, test.stream);
    const auto all = together.raw(), own = alone.raw();
    CHECK(std::equal(own.begin(), own.end(), all.begin() + 70 * F));
}

namespace {

struct Routed {
    std::vector<std::vector<int>> chosen;
    Doubles weights;   // (rows, K)
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Scores that choose, and those that weigh.
Routed route(const Doubles& logits, const Doubles& bias, Index E, Index K, RouterKind kind) {
    Routed result;
    for (Index row = 0; row < logits.size() / E; row++) {
        const double* const l = &logits[row * E];
        Doubles score(E), order(E);
        double sum = 0;
        for (Index e = 0; e < E; e++) sum += std::exp(l[e]);
        for (Index e = 0; e < E; e++) {
            score[e] = kind.sigmoid ? sigmoid(l[e]) : std::exp(l[e]) / sum;
            order[e] = (kind.sigmoid ? score[e] : l[e]) + (bias.empty() ? 0 : bias[e]);
        }
        std::vector<int> all(E);
        std::iota(all.begin(), all.end(), 0);
        std::stable_sort(all.begin(), all.end(),
                         [&](int a, int b) { return order[static_cast<Index>(a)] > order[static_cast<Index>(b)]; });
        all.resize(K);
        std::ranges::sort(all);
        double chosen = 0;
        for (int e : all) chosen += score[static_cast<Index>(e)];
        for (int e : all) {
            result.weights.push_back(kind.scale * score[static_cast<Index>(e)] / (kind.normalized ? chosen : 1));
        }
        result.chosen.push_back(all);
    }
    return result;
}

// Computes the loss that backward differentiates: sum of d x weight, and the two losses with fixed counts.
double router_loss(const Doubles& logits, const Routed& routed, const Doubles& d, const std::vector<int>& counts,
                   Index E, Index K, RouterKind kind, Index T, double balance, double z) {
    double loss = 0;
    for (Index row = 0; row < logits.size() / E; row++) {
        const double* const l = &logits[row * E];
        double exps = 0, sigmoids = 0, chosen = 0;
        for (Index e = 0; e < E; e++) exps += std::exp(l[e]), sigmoids += sigmoid(l[e]);
        auto score = [&](Index e) { return kind.sigmoid ? sigmoid(l[e]) : std::exp(l[e]) / exps; };
        for (int e : routed.chosen[row]) chosen += score(static_cast<Index>(e));
        for (Index k = 0; k < K; k++) {
            const double s = score(static_cast<Index>(routed.chosen[row][k]));
            loss += d[row * K + k] * kind.scale * s / (kind.normalized ? chosen : 1);
        }
        for (Index e = 0; e < E; e++) {
            loss += balance * counts[row / T * E + e] * score(e) / (kind.sigmoid ? sigmoids : 1);
        }
        loss += z / 2 * std::log(exps) * std::log(exps);
    }
    return loss;
}

void check_router(int E, int K, RouterKind kind, bool biased) {
    CAPTURE(E);
    CAPTURE(K);
    CAPTURE(kind.sigmoid);
    CAPTURE(kind.normalized);
    CAPTURE(kind.scale);
    KernelTest test;
    const int rows = 150, T = 50;
    const auto e_ = static_cast<Index>(E), k_ = static_cast<Index>(K), r_ = static_cast<Index>(rows);
    Doubles logits = random_values<float>(r_ * e_, 1.5, 7), bias = random_values<float>(e_, 1, 8);
    for (Index e = 0; e < e_; e++) logits[e] = 0.5;   // all equal: the lowest indices
    if (E > 2) logits[e_ + 1] = logits[e_ + 2] = 9;   // two equal ones lead
    if (!biased) bias.clear();
    const Routed expected = route(logits, bias, e_, k_, kind);
    auto logits_d = test.tensor<float>(logits), weight_d = test.output<float>(r_ * k_);
    auto bias_d = test.tensor<float>(biased ? bias : Doubles(1, 0.0));
    DeviceBuffer<int> index_d = test.ints(std::vector<int>(r_ * k_, -1));
    RouterForward forward{
        index_d.data(), weight_d.data(), logits_d.data(), biased ? bias_d.data() : nullptr, rows, E, K, kind, false};
    router_forward(forward, test.stream);
    std::vector<int> flat;
    for (const auto& of_row : expected.chosen) flat.insert(flat.end(), of_row.begin(), of_row.end());
    REQUIRE(index_d.download(test.stream) == flat);
    Doubles errors(expected.weights.size());
    for (Index i = 0; i < errors.size(); i++) errors[i] = 40 * unit<float> * expected.weights[i];
    check_close(weight_d.values(), expected.weights, errors, "weights");
    const auto weights = weight_d.raw();
    forward.again = true, forward.bias = nullptr;
    router_forward(forward, test.stream);
    CHECK(same_bits(weight_d.raw(), weights));
    CHECK(index_d.download(test.stream) == flat);

    std::vector<int> counts(3 * e_, 0);
    for (Index i = 0; i < flat.size(); i++) counts[i / k_ / 50 * e_ + static_cast<Index>(flat[i])]++;
    const DeviceBuffer<int> counts_d = test.ints(std::vector<int>(counts.size(), 0));
    const RowSequences sequences{T, rows, rows, 0};
    count_experts(counts_d.data(), index_d.data(), rows, E, K, sequences, test.stream);
    CHECK(counts_d.download(test.stream) == counts);

    const DeviceBuffer<int> offsets_d = test.ints(std::vector<int>(e_ + 1, -1)),
                            source_d = test.ints(std::vector<int>(flat.size(), -1)),
                            row_d = test.ints(std::vector<int>(flat.size(), -1));
    order_by_expert(offsets_d.data(), source_d.data(), row_d.data(), index_d.data(), rows, E, K, test.stream);
    std::vector<int> order(flat.size()), offsets(e_ + 1, 0), row_of(flat.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return flat[static_cast<Index>(a)] < flat[static_cast<Index>(b)]; });
    for (int e : flat) {
        for (Index later = static_cast<Index>(e) + 1; later <= e_; later++) offsets[later]++;
    }
    for (Index row = 0; row < order.size(); row++) row_of[static_cast<Index>(order[row])] = static_cast<int>(row);
    CHECK(source_d.download(test.stream) == order);
    CHECK(offsets_d.download(test.stream) == offsets);
    CHECK(row_d.download(test.stream) == row_of);

    const Doubles d = random_values<float>(flat.size(), 1, 9);
    for (const auto& losses : {std::pair(0.0, 0.0), std::pair(0.01, 0.0), std::pair(0.0, 0.3), std::pair(0.02, 0.1)}) {
        const double balance = losses.first, z = losses.second;
        auto d_d = test.tensor<float>(d), dlogits = test.tensor<float>(logits), made = test.output<float>(2 * r_);
        router_backward({.dlogits = dlogits.data(),
                         .logits = dlogits.data(),
                         .dweight = d_d.data(),
                         .index = index_d.data(),
                         .counts = balance > 0 ? counts_d.data() : nullptr,
                         .rows = rows,
                         .E = E,
                         .K = K,
                         .kind = kind,
                         .sequences = sequences,
                         .balance = static_cast<float>(balance),
                         .z = static_cast<float>(z),
                         .losses = made.data()},
                        test.stream);
        const Doubles found = dlogits.values(), losses_found = made.values();
        double error = 0, norm = 0;
        for (Index row = 0; row < r_; row++) {   // losses: the loss without weights, and with one factor alone
            const Doubles l(logits.begin() + static_cast<std::ptrdiff_t>(row * e_),
                            logits.begin() + static_cast<std::ptrdiff_t>((row + 1) * e_));
            const std::vector<int> n(counts.begin() + static_cast<std::ptrdiff_t>(row / 50 * e_),
                                     counts.begin() + static_cast<std::ptrdiff_t>((row / 50 + 1) * e_));
            auto loss = [&](double b, double c) {
                return router_loss(l, {{expected.chosen[row]}, {}}, Doubles(k_), n, e_, k_, kind, 50, b, c);
            };
            CHECK(losses_found[row] == doctest::Approx(loss(balance, 0)).epsilon(1e-5));
            CHECK(losses_found[r_ + row] == doctest::Approx(loss(0, z)).epsilon(1e-5));
        }
        for (Index i = 0; i < logits.size(); i += 7) {
            Doubles moved = logits;
            auto loss = [&](double h) {
                moved[i] = logits[i] + h;
                // the row alone: others do not change
                const Index row = i / e_;
                const Doubles l(moved.begin() + static_cast<std::ptrdiff_t>(row * e_),
                                moved.begin() + static_cast<std::ptrdiff_t>((row + 1) * e_));
                const Doubles own(d.begin() + static_cast<std::ptrdiff_t>(row * k_),
                                  d.begin() + static_cast<std::ptrdiff_t>((row + 1) * k_));
                const std::vector<int> n(counts.begin() + static_cast<std::ptrdiff_t>(row / 50 * e_),
                                         counts.begin() + static_cast<std::ptrdiff_t>((row / 50 + 1) * e_));
                return router_loss(l, {{expected.chosen[row]}, {}}, own, n, e_, k_, kind, 50, balance, z);
            };
            const double slope = (loss(1e-4) - loss(-1e-4)) / 2e-4;
            error += (found[i] - slope) * (found[i] - slope);
            norm += slope * slope;
        }
        CHECK(std::sqrt(error) <= 3e-6 * std::sqrt(norm) + 1e-6);
    }
}

}   // namespace

TEST_CASE(
    "experts: the router chooses, weighs, orders and is differentiated as double loops do, ties to the lower index") {
    for (const bool sigmoid : {false, true}) {
        for (const bool normalized : {false, true}) {
            check_router(8, 2, {sigmoid, normalized}, sigmoid);
            check_router(8, 2, {sigmoid, normalized, 2.5f}, sigmoid);
            check_router(5, 3, {sigmoid, normalized, 0.3f}, false);
            check_router(1, 1, {sigmoid, normalized}, false);
        }
    }
}

// A router whose logits give the scores with the bias added chooses as the biased one does, and weighs with the bias.
TEST_CASE("experts: a bias inside the weights is further from double loops than their bounds allow") {
    KernelTest test;
    const int rows = 20, E = 6, K = 2;
    const Doubles logits = random_values<float>(rows * E, 1, 7), bias = {0.1, -0.1, 0.01, 0, -0.01, 0.05};
    for (const bool normalized : {false, true}) {
        const RouterKind kind{true, normalized};
        const Routed expected = route(logits, bias, E, K, kind);
        Doubles biased = logits;
        for (Index i = 0; i < biased.size(); i++) {
            const double score = std::clamp(sigmoid(logits[i]) + bias[i % E], 1e-3, 1 - 1e-3);
            biased[i] = std::log(score / (1 - score));
        }
        auto logits_d = test.tensor<float>(biased), weight = test.output<float>(rows * K);
        const DeviceBuffer<int> index = test.ints(std::vector<int>(rows * K, -1));
        router_forward({index.data(), weight.data(), logits_d.data(), nullptr, rows, E, K, kind, false}, test.stream);
        std::vector<int> flat;
        for (const auto& of_row : expected.chosen) flat.insert(flat.end(), of_row.begin(), of_row.end());
        REQUIRE(index.download(test.stream) == flat);
        const Doubles found = weight.values();
        int far = 0;
        for (Index i = 0; i < found.size(); i++) {
            far += std::abs(found[i] - expected.weights[i]) > 40 * unit<float> * expected.weights[i];
        }
        CHECK(far > rows);
    }
}

TEST_CASE("experts: biases rise by a fixed amount where an expert got fewer tokens than its layer's mean, and fall") {
    KernelTest test;
    auto bias = test.tensor<float>({0, 0, 0.5, 0, 0, 0});
    const DeviceBuffer<int> counts = test.ints({1, 2, 3, 4, 4, 5});   // means of 2, and of 13/3
    const DeviceBuffer<GradNorm> norm = test.arena.allocate<GradNorm>("norm", 1);
    norm.upload(std::vector<GradNorm>{{1, 1, 1}}, test.stream);
    update_router_bias(bias.data(), counts.data(), norm.data(), 2, 3, test.stream);   // this step is skipped
    CHECK(bias.values() == Doubles{0, 0, 0.5, 0, 0, 0});
    norm.upload(std::vector<GradNorm>{{1, 1, 0}}, test.stream);
    update_router_bias(bias.data(), counts.data(), norm.data(), 2, 3, test.stream);
    const double up = kRouterBiasRate;
    CHECK(bias.values() == Doubles{up, 0, 0.5f - kRouterBiasRate, up, up, -up});
}

TEST_CASE("experts: chosen in turn each gets equally many rows, whatever the logits, and is weighed by them") {
    KernelTest test;
    for (const auto& [rows, E, K] :
         {std::tuple(12, 4, 1), std::tuple(12, 8, 2), std::tuple(10, 5, 3), std::tuple(7, 3, 3), std::tuple(9, 1, 1)}) {
        const auto e_ = static_cast<Index>(E), k_ = static_cast<Index>(K), r_ = static_cast<Index>(rows);
        for (const RouterKind kind : {RouterKind{false, true}, RouterKind{true, false}}) {
            Doubles logits = random_values<float>(r_ * e_, 2, 7);
            auto logits_d = test.tensor<float>(logits), weight = test.output<float>(r_ * k_);
            const DeviceBuffer<int> index = test.ints(std::vector<int>(r_ * k_, -1));
            RouterForward args{index.data(), weight.data(), logits_d.data(), nullptr, rows, E, K, kind, false, true};
            router_forward(args, test.stream);
            const std::vector<int> chosen = index.download(test.stream);
            std::vector<int> counts(e_, 0);
            for (const int e : chosen) counts.at(static_cast<Index>(e))++;
            const auto [least, most] = std::ranges::minmax(counts);
            CHECK(most - least == (rows * K % E == 0 ? 0 : 1));
            for (Index i = 0; i < chosen.size(); i++) CHECK((i % k_ == 0 || chosen[i - 1] < chosen[i]));
            // as if the router had chosen them
            auto expected = test.output<float>(r_ * k_);
            args.weight = expected.data(), args.in_turn = false, args.again = true;
            router_forward(args, test.stream);
            CHECK(same_bits(weight.raw(), expected.raw()));
        }
    }
}

TEST_CASE("experts: logits that are not numbers choose different experts all the same") {
    KernelTest test;
    auto logits = test.tensor<float>({NAN, 1, NAN, 2, NAN, NAN, NAN, NAN}), weight = test.output<float>(6);
    const DeviceBuffer<int> index = test.ints(std::vector<int>(6, -1));
    router_forward({index.data(), weight.data(), logits.data(), nullptr, 2, 4, 3, {}, false}, test.stream);
    CHECK(index.download(test.stream) == std::vector<int>{0, 1, 3, 0, 1, 2});
}

TEST_CASE("experts: the balance loss's gradient is zero where load and probabilities are uniform") {
    KernelTest test;
    auto logits = test.tensor<float>(Doubles(4 * 4, 0.3)), dlogits = test.output<float>(16);
    auto dweight = test.tensor<float>(Doubles(4, 0.0));
    const DeviceBuffer<int> index = test.ints({0, 1, 2, 3}), counts = test.ints({1, 1, 1, 1});
    router_backward({dlogits.data(),
                     logits.data(),
                     dweight.data(),
                     index.data(),
                     counts.data(),
                     4,
                     4,
                     1,
                     {},
                     {4, 4, 4, 0},
                     1.0f,
                     0.0f},
                    test.stream);
    for (double x : dlogits.values()) CHECK(std::abs(x) < 1e-7);
}

namespace {

// Returns the balance loss with factor 1 of one sequence, (E/K) sum over experts of (n/T)(P/T).
double balance_loss(const Doubles& logits, const std::vector<int>& index, int E, int K, RouterKind kind) {
    KernelTest test;
    const auto rows = static_cast<int>(logits.size()) / E, T = rows;
    auto logits_d = test.tensor<float>(logits), losses = test.output<float>(static_cast<Index>(2 * rows));
    auto dweight = test.tensor<float>(Doubles(index.size(), 0.0));
    const DeviceBuffer<int> index_d = test.ints(index), counts = test.ints(std::vector<int>(static_cast<Index>(E), 0));
    const RowSequences sequences{T, rows, rows, 0};
    count_experts(counts.data(), index_d.data(), rows, E, K, sequences, test.stream);
    const auto factor = static_cast<float>(E) / static_cast<float>(K * T * T);
    router_backward({.dlogits = logits_d.data(),
                     .logits = logits_d.data(),
                     .dweight = dweight.data(),
                     .index = index_d.data(),
                     .counts = counts.data(),
                     .rows = rows,
                     .E = E,
                     .K = K,
                     .kind = kind,
                     .sequences = sequences,
                     .balance = factor,
                     .z = 0,
                     .losses = losses.data()},
                    test.stream);
    const Doubles of_rows = losses.values();
    return std::accumulate(of_rows.begin(), of_rows.begin() + rows, 0.0);
}

// Returns logits with which each row is sure of the experts that it is sent to.
Doubles sure_of(const std::vector<int>& index, int E, int K) {
    Doubles logits(index.size() / static_cast<Index>(K) * static_cast<Index>(E), -40.0);
    for (Index i = 0; i < index.size(); i++) {
        logits[i / static_cast<Index>(K) * static_cast<Index>(E) + static_cast<Index>(index[i])] = 40;
    }
    return logits;
}

}   // namespace

TEST_CASE("experts: the balance loss is 1 where load and probabilities are even, E where all surely go to one expert") {
    auto is = [](double found, double expected) { return std::abs(found - expected) < 1e-5 * expected; };
    const std::vector<int> even = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}, one(12, 4),
                           halves = {1, 1, 1, 5, 5, 5, 5, 1, 5, 1, 5, 1}, pairs = {0, 3, 0, 3, 0, 3, 0, 3, 0, 3, 0, 3};
    for (const RouterKind kind : {RouterKind{false, true}, RouterKind{true, true}}) {
        for (const double logit : {0.0, 3.0}) {   // even probabilities, whatever the load
            CHECK(is(balance_loss(Doubles(12 * 6, logit), even, 6, 1, kind), 1));
            CHECK(is(balance_loss(Doubles(6 * 6, logit), even, 6, 2, kind), 1));
            CHECK(is(balance_loss(Doubles(12 * 6, logit), one, 6, 1, kind), 1));
        }
        CHECK(is(balance_loss(sure_of(even, 6, 1), even, 6, 1, kind), 1));   // even load, each token sure
        CHECK(is(balance_loss(sure_of(even, 6, 2), even, 6, 2, kind), 1));
        CHECK(is(balance_loss(sure_of(one, 6, 1), one, 6, 1, kind), 6));
        CHECK(is(balance_loss(sure_of(one, 5, 1), one, 5, 1, kind), 5));
        CHECK(is(balance_loss(sure_of(halves, 6, 1), halves, 6, 1, kind), 3));
        CHECK(is(balance_loss(sure_of(pairs, 6, 2), pairs, 6, 2, kind), 3));
    }
}

TEST_CASE("experts: rows of which a rank has a part of every chunk belong to the right sequences") {
    // 12 rows of 3 sequences, 2 chunks, 2 ranks: the second one has rows 3 4 5 and 9 10 11
    const RowSequences second{4, 3, 6, 3};
    const int expected[] = {0, 1, 1, 2, 2, 2};
    for (int row = 0; row < 6; row++) CHECK(second.of(row) == expected[row]);
}

TEST_CASE_TEMPLATE("experts: rows are gathered and combined, weighted between the matrices, and back", Real, float,
                   bf16) {
    KernelTest test;
    const Index tokens = 5, K = 2, C = 24, F = 16, rows = tokens * K;
    const std::vector<int> source = {3, 0, 9, 1, 2, 8, 4, 7, 6, 5};
    std::vector<int> row_of(rows);
    for (Index r = 0; r < rows; r++) row_of[static_cast<Index>(source[r])] = static_cast<int>(r);
    const DeviceBuffer<int> source_d = test.ints(source), row_d = test.ints(row_of), all = test.ints({10});
    const Doubles in = random_values<Real>(tokens * C, 1, 1), parts = random_values<Real>(rows * C, 1, 2);
    auto in_d = test.tensor<Real>(in), parts_d = test.tensor<Real>(parts);
    auto gathered = test.output<Real>(rows * C), combined = test.output<Real>(tokens * C),
         more = test.output<Real>(tokens * C);
    gather_rows(gathered.data(), in_d.data(), source_d.data(), 10, 5, 2, 24, test.stream);
    combine_rows<Real>(combined.data(), parts_d.data(), nullptr, row_d.data(), all.data(), 5, 2, 24, test.stream);
    combine_rows<Real>(more.data(), parts_d.data(), in_d.data(), row_d.data(), all.data(), 5, 2, 24, test.stream);
    Doubles expected(rows * C), sum(tokens * C), size(tokens * C), with_more(tokens * C);
    for (Index i = 0; i < rows * C; i++) {
        const Index token = static_cast<Index>(source[i / C]) / K;
        expected[i] = in[token * C + i % C];
        sum[token * C + i % C] += parts[i], size[token * C + i % C] += 3 * std::abs(parts[i]) + 3;
    }
    for (Index i = 0; i < sum.size(); i++) with_more[i] = sum[i] + in[i];
    CHECK(gathered.values() == expected);
    check_close(combined.values(), sum, sum_errors<Real>(sum, size, 2), "combined");
    check_close(more.values(), with_more, sum_errors<Real>(with_more, size, 3), "combined with more");

    for (const bool gated : {false, true}) {
        const Index width = (gated ? 2 : 1) * F;
        const Doubles x = random_values<Real>(rows * width, 1.5, 3), dout = random_values<Real>(rows * F, 1, 4),
                      weight = random_values<float>(rows, 1, 5);
        auto act = [&](Index r, Index f, double dgate, double dup) {
            const double gate = x[r * width + f] + dgate;
            if (gated) return gate * sigmoid(gate) * (x[r * width + F + f] + dup);
            return gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate));
        };
        Doubles y(rows * F), dx(rows * width), dweight(rows), y_size(rows * F, 8), dx_size(rows * width, 40),
            dweight_size(rows, 100);
        for (Index i = 0; i < rows * F; i++) {
            const Index r = i / F, f = i % F;
            const double w = weight[static_cast<Index>(source[r])];
            y[i] = w * act(r, f, 0, 0);
            dweight[static_cast<Index>(source[r])] += dout[i] * act(r, f, 0, 0);
            const double h = 1e-5;
            dx[r * width + f] = w * dout[i] * (act(r, f, h, 0) - act(r, f, -h, 0)) / (2 * h);
            if (gated) dx[r * width + F + f] = w * dout[i] * (act(r, f, 0, h) - act(r, f, 0, -h)) / (2 * h);
        }
        auto x_d = test.tensor<Real>(x), y_d = test.output<Real>(rows * F), dout_d = test.tensor<Real>(dout);
        auto weight_d = test.tensor<float>(weight), dweight_d = test.output<float>(rows);
        const ExpertActivation<Real> args{x_d.data(), weight_d.data(), source_d.data(), 10, 16, gated};
        expert_activation(y_d.data(), args, test.stream);
        check_close(y_d.values(), y, sum_errors<Real>(y, y_size, 8), "weighted activation");
        expert_activation_backward(x_d.data(), dweight_d.data(), dout_d.data(), args, test.stream);   // in place
        check_close(x_d.values(), dx, sum_errors<Real>(dx, dx_size, 8), "its gradient");
        check_close(dweight_d.values(), dweight, sum_errors<float>(dweight, dweight_size, 16), "the weights' gradient");
    }
}
