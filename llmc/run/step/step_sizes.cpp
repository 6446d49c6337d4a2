#include "llmc/run/step/step_sizes.h"

#include <algorithm>
#include <cmath>

#include "llmc/base/log.h"
#include "llmc/base/refuse.h"

namespace {

// Most micro-batches in a step, times pipeline stages and their chunks: a rank makes the lists of actions of all
// stages.
constexpr std::int64_t kMostMicroBatches = 1 << 24;
constexpr double kMostCounted = 1e16;   // numbers that a model keeps: their bytes, several times, fit into 64 bits

}   // namespace

void check_total_batch(const Options& o) {
    constexpr std::int64_t most_rows = INT32_MAX;   // kernels count the rows of a micro-batch in int
    refuse_if(std::int64_t{o.micro_batch} * o.seq_len > most_rows,
              text("--micro-batch ", o.micro_batch, " --seq-len ", o.seq_len, ": ",
                   std::int64_t{o.micro_batch} * o.seq_len, " tokens, expected at most ", most_rows),
              text("--micro-batch ", most_rows / o.seq_len, " is the largest that works."));
    const std::int64_t unit = o.tokens_per_micro_step();
    const std::vector<std::int64_t> batches = o.tokens_by_step().values();
    const std::int64_t largest = o.tokens_by_step().largest();
    refuse_if(!o.batch_schedule.empty() && largest > kMostTokensOfStep,
              text("--batch-schedule: ", largest, " tokens in a step, expected at most ", kMostTokensOfStep));
    refuse_if(std::max(o.max_steps, o.samples_of) > INT64_MAX / largest,
              text("--max-steps ", std::max(o.max_steps, o.samples_of), ": with ", largest,
                   " tokens a step, expected at most ", INT64_MAX / largest));
    const auto wrong = std::ranges::find_if(batches, [unit](std::int64_t tokens) { return tokens % unit != 0; });
    if (wrong == batches.end()) return;
    const std::int64_t below = *wrong / unit * unit, above = below + unit;
    throw Error(ErrorKind::usage,
                text(wrong == batches.begin() ? "--total-batch " : "--batch-schedule: ", *wrong,
                     ": expected a multiple of --micro-batch * --seq-len",
                     o.data_ranks() > 1 ? " * data-parallel ranks" : "", " = ", o.micro_batch, " * ", o.seq_len,
                     o.data_ranks() > 1 ? text(" * ", o.data_ranks()) : "", " = ", unit),
                below > 0 ? text("The nearest values that work are ", below, " and ", above, ".")
                          : text("The smallest value that works is ", above, "; or lower --micro-batch."));
}

void check_micro_batches(const Options& o, const char* flag) {
    const std::int64_t unit = o.tokens_per_micro_step(), m = o.tokens_per_step() / unit, p = o.pp;
    const std::int64_t most = kMostMicroBatches / (p * o.pipeline.chunks);
    refuse_if(m > most,
              text(flag, o.tokens_per_step(), ": ", m, " micro-batches of ", unit,
                   " tokens in a step, expected at most ", most),
              text(flag, most * unit, " is the largest that works; or raise --micro-batch."));
    const std::int64_t below = m / p * p, above = below + p;
    refuse_if(takes_groups(o.pipeline.kind) && m != below,
              text("--pp-schedule ", name_of(o.pipeline.kind), ": a step of ", m,
                   " micro-batches, expected a multiple of --pp ", p),
              below > 0 ? text(flag, below * unit, " and ", above * unit, " are nearest.")
                        : text(flag, above * unit, " is the smallest that works."));
}

// Refuses more activations than 64 bits can count in bytes, under every layout.
void check_activations(const Options& o, const ModelConfig& c) {
    const std::int64_t of_mlp =
        c.experts == 0 ? c.fc_width() : (c.experts_per_token() + c.shared_experts) * c.hidden_width(c.expert_width());
    const double widths = static_cast<double>(c.channels + c.qkv_width() + of_mlp) * static_cast<double>(c.layers) +
                          static_cast<double>(c.padded_vocab_size);   // for one token, each kept a few times
    const double each = widths * o.seq_len;
    refuse_if(
        each * o.micro_batch > kMostCounted,
        text("--micro-batch ", o.micro_batch, " --seq-len ", o.seq_len, ": ", formatted("%.3g", each * o.micro_batch),
             " activations, expected at most ", formatted("%.3g", kMostCounted)),
        each > kMostCounted
            ? text("Give a smaller model, or at most --seq-len ", std::floor(kMostCounted / widths), ".")
            : text("--micro-batch ", std::floor(kMostCounted / each), " is the largest that works."));
}
