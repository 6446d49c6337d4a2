#include "llmc/run/loop/step_reporter.h"

#include <cmath>

namespace {

// Progress lines where there is no terminal: the first steps, to see that the run works, then one every few seconds.
constexpr int kFirstLines = 10;
constexpr double kSecondsPerLine = 5;

}   // namespace

StepReporter::StepReporter(const TrainerParts& parts)
    : parts_(parts),
      peak_{parts.peak_flops_per_s, true},
      exposed_waits_(parts.step.stage().stream()),
      slowest_rank_(parts.step.stage(), parts.groups.everyone(),
                    parts.world != nullptr ? parts.world->mesh() : MeshShape{}, parts.arena) {}

void StepReporter::passes_begin() {
    const bool writes_records = parts_.groups.everyone() == nullptr || parts_.groups.everyone()->rank() == 0;
    if (writes_records) exposed_waits_.step_begins();
    slowest_rank_.step_begins();
}

void StepReporter::step_ends(double began_s) {
    exposed_waits_.step_ends();
    seconds_ = steady_seconds() - began_s;
}

void StepReporter::report(const StepBatch& batch, const StepResult& result, const ZScores& z, float lr) {
    const int step = batch.step();
    if (step > 1) total_s_ += seconds_, steps_++;
    StepRecord record{};
    record.step = step;
    record.loss = result.loss;
    record.grad_norm = result.grad_norm;
    record.lr = lr;
    record.tokens_per_s = static_cast<double>(batch.tokens()) / seconds_;
    const Stage& stage = parts_.step.stage();
    if (peak_.per_second > 0) {
        record.mfu = share_of_peak(peak_, record.tokens_per_s * flops_per_token(stage.config(), batch.length()) /
                                              (stage.storage().place().mesh.size() * stage.options().replicas));
    }
    record.step_ms = 1e3 * seconds_;
    record.waiting = slowest_rank_.step_ended(seconds_);
    const std::string slow = record.waiting ? slowest_streak_.warning(*record.waiting, parts_.hosts) : "";
    if (!slow.empty()) parts_.log.warning("%s", slow.c_str());
    for (const auto& [group, waited] : exposed_waits_.seconds()) record.exposed_ms[group] = 1e3 * waited;
    record.memory_bytes = parts_.arena.high_water();
    record.gpu = gpu_.state();
    record.experts = result.experts;
    parts_.metrics.step(record);

    auto z_score = [](double score) { return std::isnan(score) ? "" : formatted(" (%+.2fz)", score); };
    const std::string gpu = record.gpu ? formatted(" | GPU %u%% %.0f W %u C", record.gpu->utilization,
                                                   record.gpu->watts, record.gpu->celsius)
                                       : "";
    std::string exposed;
    for (const auto& [group, ms] : record.exposed_ms) {
        exposed += formatted("%s %s %.2f", exposed.empty() ? " | exposed" : ",", group.c_str(), ms);
    }
    if (!exposed.empty()) exposed += " ms";
    const std::string experts = record.experts ? " | " + load_text(*record.experts) : "";
    const std::string mfu = record.mfu ? formatted("%.1f%% %s MFU", 100 * *record.mfu, precision_name) : "MFU unknown";
    const double left_s = (steps_ > 0 ? mean_s() : seconds_) * (parts_.last_step() - step);
    parts_.log.progress(
        formatted(
            "step %4d/%d | loss %.6f%s | norm %.4f%s | lr %.2e | ETA %s | %.2f ms%s | %.0f tok/s | %s | %.0f MiB%s%s",
            step, parts_.max_steps, static_cast<double>(result.loss), z_score(z.loss).c_str(),
            static_cast<double>(result.grad_norm), z_score(z.norm).c_str(), static_cast<double>(lr),
            duration_text(left_s).c_str(), record.step_ms, exposed.c_str(), record.tokens_per_s, mfu.c_str(),
            static_cast<double>(record.memory_bytes) / (1 << 20), gpu.c_str(), experts.c_str()),
        line_is_due(step));
}

bool StepReporter::line_is_due(int step) {
    const double now = steady_seconds();
    const int every = parts_.options.log_every;
    const bool due =
        every > 0 ? step == 1 || step % every == 0 : lines_ < kFirstLines || now - last_line_s_ >= kSecondsPerLine;
    if (!due && step != parts_.last_step()) return false;
    lines_++;
    last_line_s_ = now;
    return true;
}
