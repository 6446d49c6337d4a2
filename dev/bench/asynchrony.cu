#include "dev/bench/asynchrony.h"

#include <algorithm>

#include "dev/bench/asynchrony/late_moves.h"
#include "dev/bench/asynchrony/parameter_server.h"
#include "llmc/base/json.h"
#include "llmc/base/log.h"
#include "llmc/io/file.h"
#include "llmc/report/curves.h"

namespace {

constexpr int B = 8, T = 64, vocabulary = 256, validation_batches = 16;
constexpr int worker_counts[] = {1, 2, 3, 5, 9};   // so contributions are 0, 1, 2, 4 and 8 late

// Rises over the first tenth, and falls to 0.
std::function<float(int)> rates(float highest, int steps) {
    return [=](int step) {
        const int warmup = std::max(steps / 10, 1);
        return step <= warmup ? highest * static_cast<float>(step) / static_cast<float>(warmup)
                              : highest * static_cast<float>(steps - step) / static_cast<float>(steps - warmup);
    };
}

// Puts B windows of the text that begin at the places given.
template <class Place>
void read_windows(const std::string& text, const MicroBatch& to, const Place& place) {
    for (std::size_t b = 0; b < B; b++) {
        const std::size_t begin = place(b);
        for (std::size_t t = 0; t < T; t++) {
            to.tokens[b * T + t] = static_cast<unsigned char>(text[begin + t]);
            to.targets[b * T + t] = static_cast<unsigned char>(text[begin + t + 1]);
        }
    }
}

// The first 19 of 20 bytes are trained on, the rest is the validation.
Samples samples_of(const std::string& text) {
    const std::size_t trained = text.size() / 20 * 19 - T - 1, rest = text.size() / 20 * 19;
    Samples samples;
    samples.validation_batches = validation_batches;
    samples.training = [&text, trained](std::uint64_t number, const MicroBatch& to) {
        read_windows(text, to, [&](std::size_t b) { return mix64(number * B + b) % trained; });
    };
    samples.validation = [&text, rest](std::uint64_t number, const MicroBatch& to) {
        const std::size_t room = text.size() - rest - T - 1, count = std::size_t{validation_batches} * B;
        read_windows(text, to, [&](std::size_t b) { return rest + (number * B + b) * room / count; });
    };
    return samples;
}

}   // namespace

AsynchronyTrials::AsynchronyTrials(const std::vector<std::string>& texts, bool long_run, cudaStream_t stream)
    : long_run_(long_run), stream_(stream) {
    for (const std::string& file : texts.empty() ? matching_files("--text", "docs/*.md") : texts) {
        text_ += read_whole(real_files(), file);
    }
    if (text_.size() >= 100'000) return;
    throw Error(ErrorKind::bad_data, formatted("--text: the files have %zu bytes, too few to train on", text_.size()),
                "Give files of 100,000 bytes or more together.");
}

std::vector<LateTrial> AsynchronyTrials::run(const std::function<void(const LateTrial&)>& told) {
    const int updates = long_run_ ? 1920 : 480, local_steps = 20, moves = updates / local_steps;
    const ModelConfig config = custom_model_config(2, 2, 64, T, vocabulary);
    const Samples samples = samples_of(text_);
    const auto learning_rate = rates(2e-3f, updates);
    std::vector<LateTrial> trials;
    auto tell = [&](const LateTrial& trial) {
        trials.push_back(trial);
        told(trial);
    };
    for (const int bound : {0, 4}) {
        for (const int workers : worker_counts) {
            Arena arena;
            WorkerModel model(config, B, {}, samples, 1, arena, stream_);
            const double bytes = 4.0 * static_cast<double>(model.weights().size());
            const ServerRun run = train_with_server(model, {workers, bound, 0.5, 1}, updates, learning_rate);
            tell({text("server, bound ", bound), true, workers, model.validation_loss(), run.mean_lateness, run.seconds,
                  2 * bytes, 2 * bytes * (workers - 1) / workers / workers});
        }
    }
    struct Rule {
        const char* way;
        LateMoves how;
    };
    for (const auto& [way, how] :
         {Rule{"average", {local_steps, 0.7f, 0, 0}}, Rule{"Nesterov", {local_steps, 0.7f, 0.9f, 0}},
          Rule{"Nesterov, gate 0.3", {local_steps, 0.7f, 0.9f, 0.3f}}}) {
        for (const int workers : worker_counts) {
            Arena arena;
            std::vector<std::unique_ptr<WorkerModel>> models;
            for (int w = 0; w < workers; w++) {
                models.push_back(
                    std::make_unique<WorkerModel>(config, B, OptimizerOptions{}, samples, 1, arena, stream_));
            }
            const std::vector<float> weights = train_with_late_moves(models, how, moves, learning_rate);
            models[0]->set_weights(weights);
            const double bytes = 4.0 * static_cast<double>(weights.size());
            tell({way, false, workers, models[0]->validation_loss(), workers - 1.0, 0, 2 * bytes,
                  2 * bytes * (workers - 1) / workers / workers});
        }
    }
    return trials;
}

std::string late_trial_row(const LateTrial& trial) {
    return formatted(
        "%-20s %d workers: loss %.3f, %.2f %s late%s, %.0f bytes through the server for each, %.0f in a ring",
        trial.way.c_str(), trial.workers, trial.loss, trial.mean_lateness, trial.of_server ? "updates" : "moves",
        trial.of_server ? formatted(", %.0f steps long", trial.seconds).c_str() : "", trial.bytes, trial.bytes_of_ring);
}

std::string late_trials_json(const std::vector<LateTrial>& trials) {
    Json rows = Json::array();
    for (const LateTrial& trial : trials) {
        Json row = Json::object({{"way", trial.way},
                                 {"workers", trial.workers},
                                 {"loss", trial.loss},
                                 {"mean_lateness", trial.mean_lateness},
                                 {"bytes", trial.bytes},
                                 {"bytes_of_ring", trial.bytes_of_ring}});
        if (trial.of_server) row.add("seconds", trial.seconds);
        rows.append(std::move(row));
    }
    return to_text(rows, 1);
}

std::string late_trials_picture(const std::vector<LateTrial>& trials) {
    std::vector<CurvePanel> panels{{"last loss with a parameter server", true, {}},
                                   {"last loss with late moves of local steps", true, {}},
                                   {"bytes through a link for each worker's gradient", true, {}}};
    auto add = [](CurvePanel& panel, const std::string& name, double x, double y) {
        if (panel.curves.empty() || panel.curves.back().name != name) panel.curves.push_back({name, {}});
        panel.curves.back().points.push_back({x, y});
    };
    for (const LateTrial& trial : trials) add(panels[trial.of_server ? 0 : 1], trial.way, trial.workers, trial.loss);
    for (const bool ring : {false, true}) {
        for (const LateTrial& trial : trials) {
            if (trial.way != trials.front().way || (ring && trial.workers == 1)) continue;
            add(panels[2], ring ? "of a rank in a ring" : "of the server", trial.workers,
                ring ? trial.bytes_of_ring : trial.bytes);
        }
    }
    std::vector<Tick> ticks;
    for (const int workers : worker_counts) ticks.push_back({static_cast<double>(workers), text(workers)});
    return curves_picture(panels, "workers; each contribution is as many others late", ticks);
}
