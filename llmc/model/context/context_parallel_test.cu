// Attention over a sequence that ranks share, alone: against double precision, and what it sends.
#include "llmc/model/context/context_parallel.h"

#include <doctest/doctest.h>

#include <mutex>

#include "llmc/base/rng.h"
#include "llmc/kernels/attention/attention_reference_testing.h"
#include "llmc/kernels/rows/embedding.cuh"
#include "llmc/parallel/training_groups.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

using Doubles = std::vector<double>;

struct Case {
    int cp, ulysses, T;
    int B = 2, NH = 2, HS = 16;
    AttentionKind attention = AttentionKind::auto_;
    int group = 1;   // heads of queries that share one of keys and values
    std::string name() const {
        return text("cp ", cp, ", ulysses ", ulysses, ", T ", T, ", B ", B, ", NH ", NH, ", HS ", HS, ", groups of ",
                    group);
    }
    AttentionShape whole() const { return self_attention_shape(B, T, NH, HS, true, group); }
    // Channels of a token of queries, or of keys or values.
    std::size_t token(bool of_keys = false) const {
        return static_cast<std::size_t>(of_keys ? NH / group : NH) * static_cast<std::size_t>(HS);
    }
};

// (B, T, NH or kv heads, HS), rounded to the element type.
Doubles random_tensor(const Case& c, std::uint64_t key, bool of_keys = false) {
    Doubles values(static_cast<std::size_t>(c.B) * static_cast<std::size_t>(c.T) * c.token(of_keys));
    for (std::size_t i = 0; i < values.size(); i++) {
        values[i] = static_cast<double>(static_cast<float>(static_cast<floatX>(normal(key, i))));
    }
    return values;
}

struct Inputs {
    Doubles q, k, v, dout;
    explicit Inputs(const Case& c)
        : q(random_tensor(c, 1)),
          k(random_tensor(c, 2, true)),
          v(random_tensor(c, 3, true)),
          dout(random_tensor(c, 4)) {}
};

// Tensors (B, own tokens, parts, NH HS) of the whole ones' tokens, and what attention makes of them.
class RankOfCase {
public:
    RankOfCase(const Case& c, World& world, Arena& arena, cudaStream_t stream)
        : c_(c),
          arena_(arena),
          stream_(stream),
          positions_(token_positions(token_ranges({c.cp, c.ulysses, world.at().cp}, c.T))) {
        sizes_ = RankSizes{c.B, c.T / c.cp, c.NH * c.HS, c.NH, c.NH / c.group, c.HS, 0, 0, 0, 0, 1, c.ulysses, {}};
        groups_ = stage_groups(world, c.ulysses);
        context_.emplace(ContextCut{c.cp, c.ulysses, world.at().cp}, groups_.ring, groups_.ulysses, arena, stream);
        context_->set_sizes(sizes_);
        attention_.emplace(c.attention, sizes_.attention(), arena, AttentionUse{c.ulysses < c.cp});
    }

    struct Found {
        Doubles out, dq, dk, dv;
    };
    Found run(const Inputs& inputs) {
        const auto rows = static_cast<std::size_t>(sizes_.rows()), token = c_.token(), keys = c_.token(true);
        const auto qkv = upload({&inputs.q, &inputs.k, &inputs.v}), dout = upload({&inputs.dout});
        const auto attended = arena_.allocate<floatX>("test/attended", rows * token);
        const auto out = c_.ulysses > 1 ? arena_.allocate<floatX>("test/out", rows * token) : attended;
        const auto dqkv = arena_.allocate<floatX>("test/dqkv", qkv.size());
        const auto lse = arena_.allocate<float>("test/lse", rows * static_cast<std::size_t>(c_.NH));
        const auto delta = arena_.allocate<float>("test/delta", rows * static_cast<std::size_t>(c_.NH));
        const AttentionShape s = sizes_.attention();
        auto part = [&](auto* packed, int i) { return packed_heads(packed, i, s.Tq, s.NH, s.HS, s.kv_heads()); };
        const floatX *q = qkv.data(), *y = attended.data(), *dy = dout.data();
        const auto attended_heads = contiguous_heads(attended.data(), s.Tq, s.NH, s.HS);
        const AttentionForward<floatX> forward{attended_heads, lse.data(), part(q, 0), part(q, 1), part(q, 2), s};
        context_->attend(*attention_, forward, qkv.data(), out.data());
        const auto y_heads = contiguous_heads(y, s.Tq, s.NH, s.HS), dy_heads = contiguous_heads(dy, s.Tq, s.NH, s.HS);
        const AttentionBackward<floatX> backward{
            part(dqkv.data(), 0), part(dqkv.data(), 1), part(dqkv.data(), 2), delta.data(), dy_heads, y_heads,
            lse.data(),           part(q, 0),           part(q, 1),           part(q, 2),   s};
        WeightGradientQueue queue;
        context_->attend_backward(*attention_, backward, dqkv.data(), dout.data(), {}, queue);
        const std::size_t row = token + 2 * keys;
        const std::vector<floatX> gradients = dqkv.download(stream_, 0, rows * row);
        return {widened(out.download(stream_), token, 0, token), widened(gradients, row, 0, token),
                widened(gradients, row, token, keys), widened(gradients, row, token + keys, keys)};
    }

    // This rank's tokens of a whole tensor.
    Doubles own(const Doubles& whole) const {
        const std::size_t token = whole.size() / static_cast<std::size_t>(c_.B * c_.T);
        Doubles values;
        for (int b = 0; b < c_.B; b++) {
            for (int position : positions_) {
                const auto first = whole.begin() + static_cast<std::ptrdiff_t>(
                                                       (static_cast<std::size_t>(b) * static_cast<std::size_t>(c_.T) +
                                                        static_cast<std::size_t>(position)) *
                                                       token);
                values.insert(values.end(), first, first + static_cast<std::ptrdiff_t>(token));
            }
        }
        return values;
    }
    const ContextParallel& context() const { return *context_; }
    const StageGroups& groups() const { return groups_; }
    const std::vector<int>& positions() const { return positions_; }

private:
    // Rows of all parts' channels.
    DeviceBuffer<floatX> upload(const std::vector<const Doubles*>& parts) {
        std::vector<Doubles> mine;
        for (const Doubles* part : parts) mine.push_back(own(*part));
        const auto rows = static_cast<std::size_t>(sizes_.rows());
        std::vector<floatX> values;
        for (std::size_t row = 0; row < rows; row++) {
            for (const Doubles& part : mine) {
                const std::size_t token = part.size() / rows;
                for (std::size_t i = 0; i < token; i++)
                    values.push_back(static_cast<floatX>(static_cast<float>(part[row * token + i])));
            }
        }
        values.resize(
            std::max(values.size(), rows * static_cast<std::size_t>(sizes_.attended_width())));   // copies too
        DeviceBuffer<floatX> buffer = arena_.allocate<floatX>("test/values", values.size());
        buffer.upload(values, stream_);
        return buffer;
    }
    // `count` channels from `first` on of rows of `row`.
    static Doubles widened(const std::vector<floatX>& values, std::size_t row, std::size_t first, std::size_t count) {
        Doubles result;
        for (std::size_t at = first; at < values.size(); at += row) {
            for (std::size_t i = 0; i < count; i++)
                result.push_back(static_cast<double>(static_cast<float>(values[at + i])));
        }
        return result;
    }

    Case c_;
    Arena& arena_;
    cudaStream_t stream_;
    std::vector<int> positions_;
    RankSizes sizes_{};
    StageGroups groups_;
    std::optional<ContextParallel> context_;
    std::optional<AttentionChoice<floatX>> attention_;
};

// Distances from double precision, by tensor norm over all ranks: of the output, dq, dk, dv.
using Errors = std::array<double, 4>;

Errors errors_of(const Case& c, const Inputs& inputs, const AttentionReference& expected) {
    const MeshShape mesh{1, 1, c.cp, 1};
    Errors result{};
    std::mutex mutex;
    on_ranks(mesh, [&](TestRank& me) {
        RankOfCase rank(c, me.world, me.arena, me.stream);
        const RankOfCase::Found found = rank.run(inputs);
        std::vector<double> sums;
        auto add = [&](const Doubles& values, const Doubles& whole) {
            const Doubles reference = rank.own(whole);
            double difference = 0, norm = 0;
            for (std::size_t i = 0; i < values.size(); i++) {
                difference += (values[i] - reference[i]) * (values[i] - reference[i]);
                norm += reference[i] * reference[i];
            }
            sums.push_back(difference);
            sums.push_back(norm);
        };
        add(found.out, expected.out), add(found.dq, expected.dq);
        add(found.dk, expected.dk), add(found.dv, expected.dv);
        const DeviceBuffer<double> device = me.on_device(sums);
        me.all.all_reduce(device.data(), sums.size(), ReduceOp::sum, me.stream);
        sums = device.download(me.stream);
        const std::lock_guard lock(mutex);
        for (std::size_t i = 0; i < 4; i++) result[i] = std::sqrt(sums[2 * i] / sums[2 * i + 1]);
    });
    return result;
}

// The distance that rounding to the element type alone makes.
double rounding_error(const Doubles& values) {
    double difference = 0, norm = 0;
    for (const double x : values) {
        const double error = static_cast<double>(static_cast<float>(static_cast<floatX>(static_cast<float>(x)))) - x;
        difference += error * error, norm += x * x;
    }
    return std::sqrt(difference / norm);
}

// fp32: within 1e-5 of double precision. bf16: at most 1.2 times as far from it as one rank's. Copies of a head have
// gradients of their own, each rounded before they are added and rounded again: if these roundings are independent,
// their squares add up to those of one more rounding of the whole.
void check_modes(const std::vector<std::pair<int, int>>& modes, Case c) {
    const Inputs inputs(c);
    const AttentionReference expected = reference_attention(c.whole(), inputs.q, inputs.k, inputs.v, inputs.dout);
    c.cp = c.ulysses = 1;
    const Errors alone = errors_of(c, inputs, expected);
    for (const auto& [cp, ulysses] : modes) {
        c.cp = cp, c.ulysses = ulysses;
        CAPTURE(c.name());
        const Errors errors = errors_of(c, inputs, expected);
        const char* names[] = {"out", "dq", "dk", "dv"};
        for (std::size_t i = 0; i < 4; i++) {
            CAPTURE(names[i]);
            if (sizeof(floatX) == 4) CHECK(errors[i] < 1e-5);
            const bool added = i >= 2 && ulysses > c.NH / c.group;
            const double rounding = i == 2 ? rounding_error(expected.dk) : rounding_error(expected.dv);
            if (sizeof(floatX) == 2) CHECK(errors[i] < 1.2 * std::hypot(alone[i], added ? rounding : 0));
        }
    }
}

}   // namespace

TEST_CASE("context parallel: attention is that of double precision, own and library") {
    for (AttentionKind kind : {AttentionKind::own, AttentionKind::library}) {
        Case c{1, 1, 96};
        c.NH = 8, c.attention = kind;
        const std::string refusal = LibraryAttention::refusal<floatX>(c.whole());
        if (kind == AttentionKind::library && !refusal.empty()) {
            MESSAGE("SKIPPED library attention: ", refusal);
            continue;
        }
        check_modes({{2, 1}, {3, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}, {8, 1}, {8, 2}, {8, 4}, {8, 8}}, c);
    }
    Case grouped{1, 1, 96};
    grouped.NH = 12, grouped.group = 3;
    check_modes({{2, 1}, {3, 1}, {2, 2}, {4, 2}, {4, 4}}, grouped);
    grouped.group = 12;   // one head of keys: all ranks of a group have copies
    check_modes({{2, 1}, {2, 2}, {4, 2}, {4, 4}, {6, 6}}, grouped);
    grouped.group = 6;
    check_modes({{4, 4}, {8, 4}, {6, 6}}, grouped);
    Case shortest{1, 1, 8};
    shortest.NH = 4;
    check_modes({{4, 1}, {4, 2}, {4, 4}}, shortest);
    Case one_sequence{1, 1, 48};
    one_sequence.B = 1, one_sequence.NH = 3;
    check_modes({{3, 1}, {3, 3}, {8, 1}}, one_sequence);
}

TEST_CASE("context parallel: attention over long sequences is that of double precision" * doctest::skip()) {
    for (int T : {1024, 4096}) {
        Case c{1, 1, T};
        c.B = 1, c.NH = 8;
        check_modes({{2, 1}, {4, 1}, {8, 1}, {2, 2}, {4, 4}, {8, 8}, {4, 2}, {8, 2}, {8, 4}}, c);
    }
}

TEST_CASE("context parallel: bytes sent are those that ring.h states, and kept positions those of the tokens") {
    for (const auto& [cp, u] :
         std::vector<std::pair<int, int>>{{2, 1}, {3, 1}, {8, 1}, {2, 2}, {4, 4}, {4, 2}, {8, 4}}) {
        for (const int sharing : {1, 2, 8}) {   // the last: copies of one head
            Case c{cp, u, 48};
            c.NH = 8, c.group = sharing;
            const Inputs inputs(c);
            on_ranks(MeshShape{1, 1, cp, 1}, [&, cp = cp, u = u](TestRank& me) {
                RankOfCase rank(c, me.world, me.arena, me.stream);
                rank.run(inputs);
                auto sent = [](const Communicator* group) { return group ? group->traffic().total() : 0.0; };
                const double s = static_cast<double>(c.B) * c.T / cp * c.NH * c.HS,
                             kv = s * std::max(c.NH / c.group, u) / c.NH, e = sizeof(floatX);
                const int ring = cp / u;   // ranks of a ring
                me.require(sent(rank.groups().ring) == 4 * (ring - 1) * kv * e + 2 * (ring - 1) * kv * 4,
                           "ring: ", sent(rank.groups().ring));
                me.require(sent(rank.groups().ulysses) == 2 * 2 * (s + kv) * (u - 1) / u * e,
                           "ulysses: ", sent(rank.groups().ulysses));
                const Positions positions = rank.context().positions();
                std::vector<int> list(rank.positions().size());
                CUDA_CHECK(cudaMemcpyAsync(list.data(), positions.list, list.size() * sizeof(int),
                                           cudaMemcpyDeviceToHost, me.stream));
                CUDA_CHECK(cudaStreamSynchronize(me.stream));
                me.require(list == rank.positions(), "positions");
            });
        }
    }
}
