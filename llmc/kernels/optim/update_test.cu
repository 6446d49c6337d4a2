#include "llmc/kernels/optim/delta_blocks.cuh"
#include "llmc/kernels/optim/update.cuh"

#include "llmc/kernels/kernel_testing.h"

namespace {

// The state of one tensor before an update, and what it must be after.
struct Reference {
    Doubles w, m, v;
    Doubles w_error, m_error, v_error;
};

Reference adam_reference(const Doubles& w, const Doubles& m, const Doubles& v, const Doubles& gradient,
                         double grad_scale, double decay, const UpdateStep& s) {
    Reference r;
    const double b1 = s.beta1, b2 = s.beta2, u = unit<float>;
    for (std::size_t i = 0; i < w.size(); i++) {
        const double g = gradient[i] * grad_scale;
        const double new_m = b1 * m[i] + (1 - b1) * g, m_size = b1 * std::abs(m[i]) + (1 - b1) * std::abs(g);
        const double new_v = b2 * v[i] + (1 - b2) * g * g;
        const double bottom = std::sqrt(new_v / (1 - std::pow(b2, s.step))) + s.epsilon;
        const double c1 = 1 / (1 - std::pow(b1, s.step));
        const double change = new_m * c1 / bottom + decay * w[i];
        r.m.push_back(new_m);
        r.v.push_back(new_v);
        r.w.push_back(w[i] - s.learning_rate * change);
        // roundings: m three, v four, then two corrections, a root, a sum, a quotient, and the last step
        r.m_error.push_back(4 * u * m_size);
        r.v_error.push_back(6 * u * new_v + 0x1p-149);
        r.w_error.push_back(2 * u * std::abs(w[i]) +
                            s.learning_rate * u * (16 * m_size * c1 / bottom + 3 * decay * std::abs(w[i])));
    }
    return r;
}

template <class Real, class Grad>
struct Tensor {
    TestTensor<Real> parameter;
    TestTensor<float> master, m, v;
    TestTensor<Grad> gradient;
    double decay;
};

// Tensors of several sizes, empty and misaligned ones among them.
template <class Real, class Grad>
std::vector<Tensor<Real, Grad>> make_tensors(KernelTest& test, bool masters) {
    std::vector<Tensor<Real, Grad>> tensors;
    const std::size_t counts[] = {5, 0, 8192, 1, 20000, 0, 8193};
    for (std::size_t i = 0; i < std::size(counts); i++) {
        const std::size_t n = counts[i], shift = i == 4 ? 1 : 0;
        Doubles w = masters ? random_values<float>(n, 0.1, 10 * i) : random_values<Real>(n, 0.1, 10 * i);
        Doubles v = random_values<float>(n, 0.01, 10 * i + 2);
        for (double& x : v) x *= x;
        tensors.push_back({test.tensor<Real>(w, shift), test.tensor<float>(w, shift),
                           test.random<float>(n, 0.01, 10 * i + 1, shift), test.tensor<float>(v),
                           test.random<Grad>(n, 0.02, 10 * i + 3, shift), i % 2 ? 0.0 : 0.1});
    }
    return tensors;
}

template <class Real, class Grad>
UpdateTable<Real> make_table(KernelTest& test, const std::vector<Tensor<Real, Grad>>& tensors, bool masters,
                             const UpdateStep& step) {
    std::vector<UpdateRange<Real>> ranges;
    for (const auto& t : tensors) {
        ranges.push_back({t.parameter.data(), masters ? t.master.data() : nullptr, t.gradient.data(), t.m.data(),
                          t.v.data(), static_cast<std::int64_t>(t.m.size()), static_cast<float>(t.decay)});
    }
    auto table = make_update_table<Real>(test.arena, "test/adam", ranges, test.stream);
    set_update_step(table, step, test.stream);
    return test.keep(table);
}

DeviceBuffer<GradNorm> upload_norm(KernelTest& test, GradNorm norm) {
    DeviceBuffer<GradNorm> buffer = test.arena.allocate<GradNorm>("test/norm", 1);
    buffer.upload(std::vector<GradNorm>{norm}, test.stream);
    return test.keep(buffer);
}

template <class Real, class Grad>
void check_adamw(bool masters, int step) {
    KernelTest test;
    auto tensors = make_tensors<Real, Grad>(test, masters);
    DeviceBuffer<GradNorm> norm = upload_norm(test, {4.0f, 0.25f, 0});
    UpdateStep s{1e-3f, 0.9f, 0.95f, 1e-8f, step, 0, norm.data()};
    std::vector<Reference> expected;
    for (const auto& t : tensors) {
        expected.push_back(adam_reference(masters ? t.master.values() : t.parameter.values(), t.m.values(),
                                          t.v.values(), t.gradient.values(), 0.25, static_cast<float>(t.decay), s));
    }
    update_weights<AdamW>(make_table(test, tensors, masters, s), test.stream);
    for (std::size_t i = 0; i < tensors.size(); i++) {
        const Reference& r = expected[i];
        std::string what = text("tensor ", i, " of ", r.w.size());
        check_close(tensors[i].m.values(), r.m, r.m_error, what + " m");
        check_close(tensors[i].v.values(), r.v, r.v_error, what + " v");
        Doubles parameter = tensors[i].parameter.values();
        if (!masters) {
            check_close(parameter, r.w, r.w_error, what + " parameter");
            continue;
        }
        Doubles master = tensors[i].master.values();
        check_close(master, r.w, r.w_error, what + " master");
        if (sizeof(Real) == 2) {
            for (double& x : master) x = static_cast<double>(round_half_away(static_cast<float>(x)));
        }
        CHECK(parameter == master);   // the parameter is the rounded master, exactly
    }
}

}   // namespace

TEST_CASE("adamw: matches the double loop over many tensors") {
    for (int step : {1, 2, 1000}) {
        check_adamw<float, float>(false, step);
        check_adamw<bf16, float>(true, step);
        check_adamw<bf16, bf16>(true, step);
    }
}

// Tests what a graph of a step needs: its launches are made once, and the copy of the step before them says which step
// it is.
TEST_CASE("adamw: which step it is, and its learning rate, are read on the device when the update runs") {
    KernelTest test;
    auto tensors = make_tensors<bf16, float>(test, false), same = make_tensors<bf16, float>(test, false);
    const UpdateStep first{1e-3f, 0.9f, 0.95f, 1e-8f, 3, 17}, second{1e-2f, 0.9f, 0.95f, 1e-8f, 4, 17};
    auto table = make_table(test, tensors, false, first);
    const std::vector<UpdateFactors> factors{factors_of(second)};
    table.factors.upload(factors, test.stream);   // as a graph would find it: no call of the update's knows
    update_weights<AdamW>(table, test.stream);
    update_weights<AdamW>(make_table(test, same, false, second), test.stream);
    for (std::size_t i = 0; i < tensors.size(); i++) {
        CHECK(same_bits(tensors[i].parameter.raw(), same[i].parameter.raw()));
        CHECK(same_bits(tensors[i].v.raw(), same[i].v.raw()));
    }
}

TEST_CASE("adamw: gradients or moments of two types in one table are a bug, in the norm's table too") {
    KernelTest test;
    auto wide = test.tensor<float>(Doubles(8, 1.0)), m = test.tensor<float>(Doubles(8, 0.0));
    auto narrow = test.tensor<bf16>(Doubles(8, 1.0)), w = test.tensor<bf16>(Doubles(8, 1.0));
    UpdateRange<bf16> first{w.data(), nullptr, wide.data(), m.data(), m.data(), 8, 0.0f}, second = first;
    second.gradient = narrow.data();
    CHECK_THROWS_AS(make_update_table<bf16>(test.arena, "test/adam", {first, second}, test.stream), Error);
    second = first, second.v = narrow.data();
    CHECK_THROWS_AS(make_update_table<bf16>(test.arena, "test/adam", {first, second}, test.stream), Error);
    CHECK_THROWS_AS(make_norm_table(test.arena, "test/norm", {{wide.data(), 8}, {narrow.data(), 8}}, test.stream),
                    Error);
}

TEST_CASE("adamw: without a norm gradients count as they are") {
    KernelTest test;
    auto tensors = make_tensors<float, float>(test, false), same = make_tensors<float, float>(test, false);
    DeviceBuffer<GradNorm> norm = upload_norm(test, {1.0f, 1.0f, 0});
    UpdateStep step{1e-3f, 0.9f, 0.95f, 1e-8f, 3};
    update_weights<AdamW>(make_table(test, tensors, false, step), test.stream);
    step.norm = norm.data();
    update_weights<AdamW>(make_table(test, same, false, step), test.stream);
    for (std::size_t i = 0; i < tensors.size(); i++)
        CHECK(same_bits(tensors[i].parameter.raw(), same[i].parameter.raw()));
}

TEST_CASE("adamw: the skip flag leaves everything as it was") {
    KernelTest test;
    auto tensors = make_tensors<bf16, float>(test, true), same = make_tensors<bf16, float>(test, true);
    DeviceBuffer<GradNorm> norm = upload_norm(test, {NAN, NAN, 1});
    update_weights<AdamW>(make_table(test, tensors, true, {1e-3f, 0.9f, 0.95f, 1e-8f, 3, 0, norm.data()}), test.stream);
    for (std::size_t i = 0; i < tensors.size(); i++) {
        CHECK(same_bits(tensors[i].parameter.raw(), same[i].parameter.raw()));
        CHECK(same_bits(tensors[i].master.raw(), same[i].master.raw()));
        CHECK(same_bits(tensors[i].m.raw(), same[i].m.raw()));
        CHECK(same_bits(tensors[i].v.raw(), same[i].v.raw()));
    }
}

namespace {

// One step without masters on `count` elements with the given initial weights, starting at element `first`.
std::vector<bf16> stochastic_step(const Doubles& w, std::size_t first, std::size_t count, int step, std::uint64_t seed,
                                  std::uint64_t tensor_key, double gradient) {
    KernelTest test;
    Doubles piece(w.begin() + static_cast<std::ptrdiff_t>(first),
                  w.begin() + static_cast<std::ptrdiff_t>(first + count));
    auto parameter = test.tensor<bf16>(piece);
    auto m = test.tensor<float>(Doubles(count, 0.0)), v = test.tensor<float>(Doubles(count, 0.0));
    auto g = test.tensor<float>(Doubles(count, gradient));
    UpdateRange<bf16> range{parameter.data(),
                            nullptr,
                            g.data(),
                            m.data(),
                            v.data(),
                            static_cast<std::int64_t>(count),
                            0.0f,
                            tensor_key,
                            GlobalSpan{static_cast<std::int64_t>(first)}};
    auto table = make_update_table<bf16>(test.arena, "test/adam", {range}, test.stream);
    set_update_step(table, {1e-3f, 0.9f, 0.95f, 1e-8f, step, seed}, test.stream);
    update_weights<AdamW>(table, test.stream);
    return parameter.raw();
}

}   // namespace

TEST_CASE("adamw: stochastic rounding takes a neighbour, and is right on average") {
    const std::size_t n = 100000;
    Doubles w(n, 1.0);
    // every element moves from 1 to 1 - 0.001; bf16 below 1 has steps of 2^-8, so 0.256 of a step
    std::vector<bf16> result = stochastic_step(w, 0, n, 1, 5, 9, 1.0);
    double sum = 0;
    bool neighbours = true;
    for (bf16 x : result) {
        double value = static_cast<double>(static_cast<float>(x));
        neighbours = neighbours && (value == 1.0 || value == 1.0 - 0x1p-8);
        sum += value;
    }
    CHECK(neighbours);
    const double deviation = 0x1p-8 * std::sqrt(0.256 * 0.744 / n);
    CHECK(std::abs(sum / n - 0.999) < 5 * deviation);
}

TEST_CASE("adamw: stochastic rounding depends on seed, step, tensor and global element only") {
    Doubles w = random_values<bf16>(1000, 0.1, 1);
    std::vector<bf16> whole = stochastic_step(w, 0, 1000, 3, 5, 9, 0.01);
    CHECK(same_bits(whole, stochastic_step(w, 0, 1000, 3, 5, 9, 0.01)));
    CHECK_FALSE(same_bits(whole, stochastic_step(w, 0, 1000, 3, 6, 9, 0.01)));
    CHECK_FALSE(same_bits(whole, stochastic_step(w, 0, 1000, 3, 5, 10, 0.01)));
    for (std::size_t first : {1u, 8u, 13u, 500u}) {
        std::vector<bf16> piece = stochastic_step(w, first, 1000 - first, 3, 5, 9, 0.01);
        CHECK(same_bits(piece, std::vector<bf16>(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end())));
    }
}

TEST_CASE("adamw: stochastic rounding never makes a number of what is none") {
    Doubles w(8, 1.0);
    w[1] = INFINITY;   // (no decay of it is 0 * infinity, so this becomes not-a-number too)
    w[2] = NAN;
    std::vector<bf16> result = stochastic_step(w, 0, 8, 1, 1, 1, 0.0);
    CHECK_FALSE(std::isfinite(static_cast<float>(result[1])));
    CHECK(std::isnan(static_cast<float>(result[2])));
    CHECK(static_cast<float>(result[0]) == 1.0f);
}

TEST_CASE("local steps: the outer step matches a double loop") {
    KernelTest test;
    constexpr std::size_t n = 1003;
    constexpr double lr = 0.7f, momentum = 0.9f;
    Doubles start = random_values<float>(n, 1.0, 1), m(n, 0.0);
    auto device_m = test.tensor<float>(m), device_start = test.tensor<float>(start);
    for (int step = 1; step <= 3; step++) {
        const Doubles sum = random_values<float>(n, 2.0, 1 + step);   // of two replicas' weights
        auto w = test.tensor<float>(sum);
        UpdateRange<float> range{w.data(), nullptr, w.data(), device_m.data(), device_start.data(), n, 0.1f};
        range.scale = 0.5f;
        auto table = make_update_table<float>(test.arena, text("test/outer ", step), {range}, test.stream);
        set_update_step(table, {0.7f, 0.9f, 0, 0, step}, test.stream);
        update_weights<OuterNesterov>(table, test.stream);
        for (std::size_t i = 0; i < n; i++) {
            const double d = start[i] - sum[i] / 2;
            m[i] = momentum * m[i] + d;
            start[i] -= lr * (d + momentum * m[i]);
        }
        const Doubles found = w.values(), found_m = device_m.values();
        CHECK(same_bits(w.raw(), device_start.raw()));   // the replicas go on from where they are together
        for (std::size_t i = 0; i < n; i++) {
            CHECK(std::abs(found[i] - start[i]) < 4e-6);
            CHECK(std::abs(found_m[i] - m[i]) < 4e-6);
        }
    }
}

TEST_CASE_TEMPLATE("local steps: blocks and what they leave out are the whole way, whatever the replicas and the count",
                   Block, Int8Block, Int2Block) {
    for (const std::int64_t count : {1, 255, 256, 1003}) {
        for (const int R : {1, 2, 3}) {
            KernelTest test;
            const std::int64_t piece = (rounded_blocks(count) + R - 1) / R, n = piece * kRoundedBlock;
            const auto size = static_cast<std::size_t>(count);
            const Doubles begin = random_values<float>(size, 1.0, 1);
            auto device_begin = test.tensor<float>(begin);
            // of each replica, the sender: blocks of all pieces
            std::vector<Block> sent;
            std::vector<Doubles> errors;
            Doubles ways(size, 0.0);
            for (int r = 0; r < R; r++) {
                Doubles weights = random_values<float>(size, 1.0, 10 + r);
                auto w = test.tensor<float>(weights),
                     error = test.tensor<float>(random_values<float>(size, 1e-3, 20 + r));
                const Doubles old = error.values();
                DeviceBuffer<Block> blocks =
                    test.arena.template allocate<Block>(text("test/sent ", r), static_cast<std::size_t>(piece * R));
                compress_deltas(blocks.data(), piece * R, error.data(), w.data(), device_begin.data(), count,
                                test.stream);
                const std::vector<Block> own = blocks.download(test.stream);
                sent.insert(sent.end(), own.begin(), own.end());
                errors.push_back(error.values());
                for (std::size_t i = 0; i < size; i++) {
                    ways[i] += begin[i] - weights[i] + old[i];
                    if constexpr (std::is_same_v<Block, Int8Block>) {
                        const double scale = own[i / kRoundedBlock].scale;   // x / scale is off by 127 x 2 roundings
                        CHECK(std::abs(errors.back()[i]) <= (0.5 + 1e-4) * scale);
                    }
                }
            }
            // each piece is averaged by one replica
            std::vector<Block> all;
            for (int r = 0; r < R; r++) {
                std::vector<Block> received;
                for (int from = 0; from < R; from++) {
                    for (std::int64_t b = 0; b < piece; b++) {
                        received.push_back(sent[static_cast<std::size_t>((from * R + r) * piece + b)]);
                    }
                }
                auto in = test.arena.template allocate<Block>(text("test/received ", r), received.size());
                in.upload(received, test.stream);
                auto mean = test.arena.template allocate<Block>(text("test/mean ", r), static_cast<std::size_t>(piece));
                const std::int64_t before = std::min(r * n, count), own = std::min(n, count - before);
                auto error = test.tensor<float>(errors[static_cast<std::size_t>(r)]);
                average_deltas(mean.data(), in.data(), piece, R, error.data() + before, own, test.stream);
                errors[static_cast<std::size_t>(r)] = error.values();
                for (const Block& block : mean.download(test.stream)) all.push_back(block);
            }
            auto blocks = test.arena.template allocate<Block>("test/blocks", all.size());
            blocks.upload(all, test.stream);
            auto result = test.tensor<float>(begin);
            apply_deltas(result.data(), device_begin.data(), blocks.data(), count, test.stream);
            const Doubles found = result.values();
            for (std::size_t i = 0; i < size; i++) {
                double left = 0;
                for (const Doubles& error : errors) left += error[i];
                CHECK(std::abs(R * (begin[i] - found[i]) + left - ways[i]) < 1e-5);
            }
        }
    }
}

// The least error of four uniform levels for normal numbers is 0.1188 (Max, 1960).
TEST_CASE("local steps: blocks of 2 bits have the scale of the least error, also where few values are large or exist") {
    auto share_left = [](const Doubles& values) {
        KernelTest test;
        const std::size_t n = values.size();
        auto w = test.tensor<float>(Doubles(n, 0.0)), begin = test.tensor<float>(values),
             error = test.tensor<float>(Doubles(n, 0.0));
        const std::int64_t count = static_cast<std::int64_t>(n), blocks = rounded_blocks(count);
        auto sent = test.arena.allocate<Int2Block>("test/blocks", static_cast<std::size_t>(blocks));
        compress_deltas(sent.data(), blocks, error.data(), w.data(), begin.data(), count, test.stream);
        apply_deltas(w.data(), begin.data(), sent.data(), count, test.stream);
        const Doubles found = w.values(), left = error.values();   // begin - the blocks' numbers
        double along = 0, lefts = 0, squares = 0;
        for (std::size_t i = 0; i < n; i++) {
            CHECK(std::abs(found[i] - left[i]) <= 1e-6);
            along += left[i] * (values[i] - found[i]), lefts += left[i] * left[i], squares += values[i] * values[i];
        }
        CHECK(std::abs(along) < 1e-5 * squares);   // another scale cannot leave less
        return lefts / squares;
    };
    const double normal = share_left(random_values<float>(256 * 64, 1.0, 1)),
                 few = share_left(random_values<float>(64, 1.0, 2));
    MESSAGE("of normal numbers ", normal, " is left, of few ", few);
    CHECK(normal < 0.125);
    CHECK(few < 0.2);
    Doubles spike(256, 0.0);
    spike[3] = 1;
    CHECK(share_left(spike) < 1);
    CHECK(share_left({-2.5}) < 1e-9);
    CHECK(sizeof(Int2Block) == 68);
}

TEST_CASE_TEMPLATE("local steps: a block with a value that is not finite gives none that is; zeros stay zeros", Block,
                   Int8Block, Int2Block) {
    for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY), 0.0}) {
        KernelTest test;
        Doubles values(300, 0.0);
        values[3] = bad;
        auto w = test.tensor<float>(values), begin = test.tensor<float>(Doubles(300, 0.0)),
             error = test.tensor<float>(Doubles(300, 0.0));
        auto blocks = test.arena.template allocate<Block>("test/blocks", 2);
        compress_deltas(blocks.data(), 2, error.data(), w.data(), begin.data(), 300, test.stream);
        apply_deltas(w.data(), begin.data(), blocks.data(), 300, test.stream);
        const Doubles found = w.values();
        CHECK(std::isfinite(found[3]) == (bad == 0.0));
        CHECK(std::isfinite(found[4]) == (bad == 0.0));
        CHECK(found[299] == 0.0);   // of the other block
    }
}

TEST_CASE("update: halves of a master give it back, and the upper one is the nearest bf16, of two the larger") {
    std::vector<std::uint32_t> lower{0, 1, 0x1234, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xedcb, 0xfffe, 0xffff};
    int wrong = 0, far = 0;
    for (std::uint32_t upper = 0; upper < 0x10000; upper++) {
        for (const std::uint32_t rest : lower) {
            const float x = std::bit_cast<float>(upper << 16 | rest);
            const bf16 rounded = round_half_away(x);
            if (std::isnan(x)) {
                wrong += !std::isnan(joined(rounded, lower_half(x)));
                continue;
            }
            wrong += std::bit_cast<std::uint32_t>(joined(rounded, lower_half(x))) != std::bit_cast<std::uint32_t>(x);
            if (std::isinf(static_cast<float>(rounded))) continue;   // beyond the largest, as to nearest
            const double below = static_cast<double>(std::bit_cast<float>(upper << 16)), value = static_cast<double>(x),
                         found = static_cast<double>(static_cast<float>(rounded)),
                         above = 2 * std::abs(value - below) - std::abs(found - below);   // 0 at a tie, if rounded up
            const double step = std::abs(static_cast<double>(std::bit_cast<float>((upper << 16) + 0x10000)) - below);
            far += std::abs(found - value) > step / 2 || (rest == 0x8000 && above != 0);
        }
    }
    CHECK(wrong == 0);
    CHECK(far == 0);
}

TEST_CASE_TEMPLATE("update: masters in halves are whole ones to the bit, step after step", Rule, AdamW, Sgd) {
    KernelTest test;
    const std::size_t counts[] = {5, 0, 8192, 20000, 8193};
    std::vector<UpdateRange<bf16>> whole, halves;
    std::vector<TestTensor<bf16>> parameters[2], lower;
    std::vector<TestTensor<float>> masters, moments[2], squares[2];
    for (std::size_t i = 0; i < std::size(counts); i++) {
        const std::size_t n = counts[i], shift = i == 3 ? 1 : 0;
        const Doubles w = random_values<bf16>(n, 0.1, 10 * i);   // as a run begins
        const TypedPointer gradient = test.random<float>(n, 0.02, 10 * i + 3, shift).data();
        masters.push_back(test.tensor<float>(w, shift));
        lower.push_back(test.tensor<bf16>(Doubles(n, 0.0), shift));
        for (int k = 0; k < 2; k++) {
            parameters[k].push_back(test.tensor<bf16>(w, shift));
            moments[k].push_back(test.tensor<float>(Doubles(n, 0.0), shift));
            squares[k].push_back(test.tensor<float>(Doubles(n, 0.0)));
        }
        UpdateRange<bf16> range{parameters[0][i].data(),
                                masters[i].data(),
                                gradient,
                                moments[0][i].data(),
                                squares[0][i].data(),
                                static_cast<std::int64_t>(n),
                                0.1f};
        whole.push_back(range);
        range.parameter = parameters[1][i].data(), range.m = moments[1][i].data(), range.v = squares[1][i].data();
        range.master = nullptr, range.lower = lower[i].data();
        halves.push_back(range);
    }
    auto whole_table = test.keep(make_update_table<bf16>(test.arena, "test/whole", whole, test.stream));
    auto halves_table = test.keep(make_update_table<bf16>(test.arena, "test/halves", halves, test.stream));
    int differ = 0, nonzero = 0;
    for (int step = 1; step <= 4; step++) {
        for (auto* table : {&whole_table, &halves_table}) {
            set_update_step(*table, UpdateStep{1e-3f, 0.9f, 0.95f, 1e-8f, step}, test.stream);
            update_weights<Rule>(*table, test.stream);
        }
        for (std::size_t i = 0; i < std::size(counts); i++) {
            CHECK(same_bits(parameters[0][i].raw(), parameters[1][i].raw()));
            const auto upper = parameters[1][i].raw(), rest = lower[i].raw();
            const auto master = masters[i].raw();
            for (std::size_t k = 0; k < master.size(); k++) {
                differ +=
                    std::bit_cast<std::uint32_t>(joined(upper[k], rest[k])) != std::bit_cast<std::uint32_t>(master[k]);
                nonzero += std::bit_cast<std::uint16_t>(rest[k]) != 0;
            }
        }
    }
    CHECK(differ == 0);
    CHECK(nonzero > 100000);
}

namespace {

// Parameters and moments after one step of AdamW on elements first .. end of 20,000.
template <class Real, class Moment>
struct Moments {
    Moments(std::size_t first, std::size_t end, double beta2 = 0.95, bool equal = false) {
        KernelTest test;
        auto piece = [&](Doubles all) {
            for (double& x : all) x = rounded<bf16>(x);
            return Doubles(all.begin() + static_cast<std::ptrdiff_t>(first),
                           all.begin() + static_cast<std::ptrdiff_t>(end));
        };
        const std::size_t n = 20000;
        Doubles squares = random_values<float>(n, 0.01, 2);
        for (double& x : squares) x *= x;
        auto weights = test.tensor<Real>(piece(random_values<float>(n, 0.1, 1)));
        auto masters = test.tensor<float>(weights.values());
        auto m = test.tensor<Moment>(piece(equal ? squares : random_values<float>(n, 0.01, 3)));
        auto v = test.tensor<Moment>(piece(squares));
        auto gradient = test.tensor<float>(equal ? Doubles(end - first, 1.0) : piece(random_values<float>(n, 0.02, 4)));
        const UpdateRange<Real> range{.parameter = weights.data(),
                                      .master = sizeof(Real) == 2 ? masters.data() : nullptr,
                                      .gradient = gradient.data(),
                                      .m = m.data(),
                                      .v = v.data(),
                                      .count = static_cast<std::int64_t>(end - first),
                                      .weight_decay = 0.1f,
                                      .tensor_key = 9,
                                      .span = GlobalSpan{static_cast<std::int64_t>(first)}};
        auto table = make_update_table<Real>(test.arena, "test/moments", {range}, test.stream);
        set_update_step(table, {1e-3f, 0.9f, static_cast<float>(beta2), 1e-8f, 7, 5}, test.stream);
        update_weights<AdamW>(table, test.stream);
        parameter = weights.raw(), first_moment = m.raw(), second_moment = v.raw();
    }

    std::vector<Real> parameter;
    std::vector<Moment> first_moment, second_moment;
};

// Expects neighbours of the exact values, and a mean error within five deviations.
void check_rounded(const std::vector<bf16>& found, const std::vector<float>& exact) {
    double error = 0, variance = 0;
    int far = 0, farther = 0;
    for (std::size_t i = 0; i < exact.size(); i++) {
        const auto bits = std::bit_cast<std::uint32_t>(exact[i]);
        const double low = static_cast<double>(std::bit_cast<float>(bits & 0xffff0000u)),
                     high = static_cast<double>(std::bit_cast<float>((bits & 0xffff0000u) + 0x10000u)),
                     value = static_cast<double>(static_cast<float>(found[i])), x = static_cast<double>(exact[i]);
        far += value != low && value != high;
        farther += std::abs(value - x) > std::abs(high - low) / 2;
        error += value - x, variance += (x - low) * (high - x);
    }
    CHECK(far == 0);
    CHECK(farther > static_cast<int>(exact.size()) / 8);   // a quarter takes the farther neighbour
    CHECK(std::abs(error) < 5 * std::sqrt(variance));
}

}   // namespace

TEST_CASE_TEMPLATE("update: bf16 moments are those of fp32 rounded to a neighbour, right on average", Real, bf16,
                   float) {
    const Moments<Real, bf16> narrow(0, 20000);
    const Moments<Real, float> exact(0, 20000);
    CHECK(same_bits(narrow.parameter, exact.parameter));   // the step is taken before moments are rounded
    check_rounded(narrow.first_moment, exact.first_moment);
    check_rounded(narrow.second_moment, exact.second_moment);
}

TEST_CASE("update: the rounding of moments depends on the global element and on which moment it is") {
    const Moments<bf16, bf16> whole(0, 20000), piece(777, 3000), equal(0, 20000, 0.9, true);
    auto part = [](const std::vector<bf16>& all) { return std::vector<bf16>(all.begin() + 777, all.begin() + 3000); };
    CHECK(same_bits(part(whole.first_moment), piece.first_moment));
    CHECK(same_bits(part(whole.second_moment), piece.second_moment));
    CHECK_FALSE(same_bits(equal.first_moment, equal.second_moment));
    const Moments<bf16, float> exact(0, 20000, 0.9, true);
    CHECK(same_bits(exact.first_moment, exact.second_moment));
}
