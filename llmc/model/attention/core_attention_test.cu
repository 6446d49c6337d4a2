// Attention over a sequence that ranks share, alone: against double precision, and what it sends.
#include "llmc/model/attention/core_attention.h"

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
    int group = 1;    // heads of queries that share one of keys and values
    int window = 0;   // of all layers
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
        : c_(c), stream_(stream), positions_(token_positions(token_ranges({c.cp, c.ulysses, world.at().cp}, c.T))) {
        sizes_ = RankSizes{c.B, c.T / c.cp, c.NH * c.HS, c.NH, c.NH / c.group, c.HS, 0, 0, 0, 0, 1, c.ulysses, {}};
        sizes_.model.window = c.window, sizes_.whole_T = c.T;
        groups_ = stage_groups(world, c.ulysses);
        workspace_.emplace(arena, sizes_, 0);
        a_.visit(sizes_, [&](const KeptTensor& tensor, void*& address) {
            if (tensor.elements > 0) address = memory_.take<std::byte>(arena, "test/activations", tensor.bytes());
        });
        const ContextCut cut{c.cp, c.ulysses, world.at().cp};
        attention_.emplace(CoreAttentionOptions{c.attention, true, cut, groups_.ring, groups_.ulysses}, sizes_, a_,
                           *workspace_, arena, stream);
        attention_->set_sizes(sizes_);
    }

    struct Found {
        Doubles out, dq, dk, dv;
    };
    Found run(const Inputs& inputs) {
        const auto rows = static_cast<std::size_t>(sizes_.rows()), token = c_.token(), keys = c_.token(true);
        upload(a_.qkv, {&inputs.q, &inputs.k, &inputs.v});
        upload(workspace_->datty, {&inputs.dout});
        attention_->forward(a_, {}, c_.window > 0);
        WeightGradientQueue queue;
        attention_->backward(a_, {}, {}, queue, c_.window > 0);
        const std::size_t row = token + 2 * keys;
        const std::vector<floatX> gradients = download(workspace_->layer.attention.dqkv, rows * row);
        return {widened(download(a_.atty, rows * token), token, 0, token), widened(gradients, row, 0, token),
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
    const CoreAttention& attention() const { return *attention_; }
    const StageGroups& groups() const { return groups_; }
    const std::vector<int>& positions() const { return positions_; }

private:
    // Rows of all parts' channels.
    void upload(floatX* to, const std::vector<const Doubles*>& parts) {
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
        CUDA_CHECK(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(floatX), cudaMemcpyHostToDevice, stream_));
        CUDA_CHECK(cudaStreamSynchronize(stream_));
    }
    std::vector<floatX> download(const floatX* from, std::size_t count) const {
        std::vector<floatX> values(count);
        CUDA_CHECK(cudaMemcpyAsync(values.data(), from, count * sizeof(floatX), cudaMemcpyDeviceToHost, stream_));
        CUDA_CHECK(cudaStreamSynchronize(stream_));
        return values;
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
    cudaStream_t stream_;
    std::vector<int> positions_;
    RankSizes sizes_{};
    StageGroups groups_;
    Buffers memory_;
    AttentionActivations a_;
    std::optional<Workspace> workspace_;
    std::optional<CoreAttention> attention_;
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
        const std::string refusal = attention_refusal<floatX, floatX>(AttentionKind::library, c.whole());
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

TEST_CASE(
    "context parallel: keys travel on where a window hides them, and a ring of 2 and 4 sends what is said by hand") {
    // rows of keys and values that a rank sends: 2 x 24 of 16 heads' channels once, 2 x 12 three times
    for (const auto& [cp, elements] : std::vector<std::pair<int, double>>{{2, 24576}, {4, 36864}}) {
        for (const int window : {1, 13, 48}) {   // sees own keys alone, those of neighbours, all
            Case c{cp, 1, 48};
            c.NH = 16, c.window = window;
            const Inputs inputs(c);
            on_ranks(MeshShape{1, 1, cp, 1}, [&, elements = elements](TestRank& me) {
                RankOfCase rank(c, me.world, me.arena, me.stream);
                rank.run(inputs);
                const double sent = rank.groups().ring->traffic().total(), e = sizeof(floatX);
                me.require(sent == elements * (e + e + 4), "window ", window, ": ", sent);   // gradients are fp32
            });
        }
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
                const Positions positions = rank.attention().positions();
                std::vector<int> list(rank.positions().size());
                CUDA_CHECK(cudaMemcpyAsync(list.data(), positions.list, list.size() * sizeof(int),
                                           cudaMemcpyDeviceToHost, me.stream));
                CUDA_CHECK(cudaStreamSynchronize(me.stream));
                me.require(list == rank.positions(), "positions");
            });
        }
    }
}
