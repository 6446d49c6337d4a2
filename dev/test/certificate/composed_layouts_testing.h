// For tests: layouts of several axes, and the certificate of each against one process, with its row of a table.
#pragma once

#include <iostream>
#include <map>
#include <tuple>

#include "dev/test/certificate/layout_cover_testing.h"
#include "llmc/base/log.h"

namespace certificate {

constexpr bool is_fp32 = sizeof(floatX) == 4;

// One process's runs of the models of layouts.
class Alone {
public:
    explicit Alone(int steps) : steps_(steps) {}
    const Result& result(const Layout& layout) {
        const auto key = std::tuple(layout.heads, layout.layers, layout.tied, layout.kind, layout.kv_heads,
                                    layout.targets, layout.seq_len, layout.sequences());
        const auto [at, is_new] = results_.try_emplace(key);
        if (is_new) {
            Layout alone;
            alone.heads = layout.heads, alone.layers = layout.layers, alone.tied = layout.tied;
            alone.kind = layout.kind, alone.kv_heads = layout.kv_heads;
            alone.targets = layout.targets, alone.seq_len = layout.seq_len;
            alone.step_sequences = layout.sequences();
            at->second = Rank(alone).train(steps_);
        }
        return at->second;
    }

private:
    int steps_;
    std::map<std::tuple<int, int, bool, ModelKind, int, Targets, int, int>, Result> results_;
};

inline std::string row_name(const Layout& layout) {
    constexpr const char* recompute[] = {"none", "gelu", "gelu+norm", "block"};
    return text(layout.name(), layout.tp_chunks > 1 ? text(", ", layout.tp_chunks, " tp chunks") : "", ", recompute ",
                recompute[static_cast<int>(layout.recompute)]);
}

// The certificate of a layout, and a row of the table.
inline void certify(Layout layout, Alone& alone, int steps, bool prints = false) {
    if (is_fp32) layout.grad_dtype = DType::fp32;   // never narrower than parameters
    const Result& expected = alone.result(layout);
    const ParamTable table(model(layout));
    std::string row;
    on_layout(layout, [&](Rank& rank, TestRank& me) {
        const Result found = rank.train(steps);
        require_same_everywhere(found, me);
        require_equal_copies(rank, me);
        const std::string story = difference(found, expected, table);
        if (me.rank() == 0) {
            const Tolerance far = distances(found, expected);
            row =
                formatted("%2d ranks  %8.1e %8.1e %8.1e %8.1e  %s%s", me.ranks(), far.first_loss, far.losses, far.norm,
                          far.gradients, row_name(layout).c_str(), story.empty() ? "" : "  OUT OF TOLERANCE");
        }
        me.require(story.empty(), story);
    });
    if (prints && !row.empty()) std::cout << row << std::endl;
}

inline void print_head() {
    std::cout << formatted("%-8s  %8s %8s %8s %8s  %s\n%8s  %8.0e %8.0e %8.0e %8.0e", is_fp32 ? "fp32" : "bf16",
                           "loss 1", "losses", "norm 1", "gradient", "layout", "allowed", tolerance.first_loss,
                           tolerance.losses, tolerance.norm, tolerance.gradients)
              << std::endl;
}

inline Layout composed(int tp, const Pipe& pipe, int cp, int ulysses, int dp, int zero, int micro_batches,
                       Recompute recompute = Recompute::gelu, bool sequence_parallel = true) {
    Layout layout{dp, zero, micro_batches};
    layout.tp = tp, layout.sequence_parallel = sequence_parallel && tp > 1;
    layout.pipe = pipe, layout.cp = cp, layout.ulysses = ulysses;
    layout.recompute = recompute;
    layout.heads = 12, layout.layers = std::max(3, pipe.stages * pipe.chunks);
    layout.seq_len = cover_seq_len, layout.step_sequences = cover_sequences;
    return layout;
}

constexpr auto gpipe = PipelineKind::gpipe, one_f_one_b = PipelineKind::one_f_one_b,
               interleaved = PipelineKind::interleaved, zb = PipelineKind::zero_bubble;

}   // namespace certificate
