#include "llmc/checkpoint/model_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/checkpoint/saved_tensors.h"

namespace {

// Returns the path of the newest checkpoint of a run whose model verifies.
std::string newest_model(const FileSystem& files, const std::string& run, const Log& log, const CheckpointRanks& ranks,
                         CheckpointUse use) {
    std::vector<PassedOver> passed_over;
    const std::optional<FoundCheckpoint> found = newest_checkpoint(files, run, passed_over, ranks, use);
    warn_of(passed_over, log);
    if (found) return found->path;
    throw Error(
        ErrorKind::bad_data,
        text("--model ", run, ": this folder holds no config.json and no checkpoint",
             passed_over.empty() ? "" : " that can be used"),
        "Give a Hugging Face folder, a checkpoint (step_...), or the output folder of a run that has saved one.");
}

class FiniteWeights : public WeightSource {
public:
    explicit FiniteWeights(std::unique_ptr<WeightSource> all) : all_(std::move(all)) {}
    const ModelConfig& config() const override { return all_->config(); }
    std::string description() const override { return all_->description(); }
    std::string file_of(const ParamInfo& param, std::int64_t element) const override {
        return all_->file_of(param, element);
    }
    DType type() const override { return all_->type(); }
    std::vector<float> read(const ParamInfo& param) const override {
        std::vector<float> values = all_->read(param);
        const auto wrong = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
        if (wrong == values.end()) return values;
        const std::int64_t element = wrong - values.begin();
        throw Error(ErrorKind::bad_data,
                    text(file_of(param, element), ": ", param.name, ": element ", element, " is ", *wrong),
                    "The file is damaged, or training has gone wrong: take an earlier checkpoint.");
    }

    std::vector<float> router_bias() const override { return all_->router_bias(); }

private:
    std::unique_ptr<WeightSource> all_;
};

}   // namespace

std::unique_ptr<WeightSource> only_finite(std::unique_ptr<WeightSource> weights) {
    if (weights == nullptr) return nullptr;
    return std::make_unique<FiniteWeights>(std::move(weights));
}

std::unique_ptr<WeightSource> find_weights(const FileSystem& files, std::string& model, const Log& log,
                                           const CheckpointRanks& ranks, const std::string& state,
                                           const std::string& ignored) {
    if (is_descriptor(model)) {
        if (state.empty()) return nullptr;
        throw Error(ErrorKind::usage, text("--weights ", state, ": --model ", model, " has random weights"),
                    "Give a checkpoint of a run with --ema.");
    }
    const bool is_run = files.exists(model + "/.") && !files.exists(model + "/config.json");
    const auto open = [&](const std::string& path) {
        return state.empty() ? open_weights(files, path, ignored) : open_saved_state(files, path, state);
    };
    if (ranks.gather(is_run ? "a run" : "")[0] == "a run") {
        const auto newest = [&, run = model] {
            return newest_model(files, run, log, ranks, state.empty() ? CheckpointUse::model : CheckpointUse::resume);
        };
        std::unique_ptr<WeightSource> weights;
        model = read_while_there(
            files, newest(), ranks, [&](const std::string& path) { weights = open(path); }, newest);
        return weights;
    }
    if (const std::string damage = find_damage(files, model, CheckpointUse::any_model, ranks); !damage.empty()) {
        throw Error(ErrorKind::bad_data, "--model: " + damage, "Restore it from a copy, or take another one.");
    }
    return open(model);
}

std::string tokenizer_of_model(const FileSystem& files, const std::string& model, const std::string& requested) {
    if (!requested.empty() || is_descriptor(model)) return requested;
    const std::filesystem::path folder =
        files.exists(model + "/.") ? std::filesystem::path(model) : std::filesystem::absolute(model).parent_path();
    return Tokenizer::file_in(files, folder.string()).empty() ? "" : folder.string();
}

Tokenizer load_tokenizer(const std::string& where, const ModelConfig& model) {
    Tokenizer tokenizer = Tokenizer::load(where);
    if (tokenizer.vocab_size() <= model.vocab_size) return tokenizer;
    throw Error(ErrorKind::bad_data,
                text("tokenizer ", where == "bytes" ? where : Tokenizer::file_of(where), " has ",
                     tokenizer.vocab_size(), " ids, the model ", model.vocab_size),
                "Name the tokenizer that the model was trained with by --tokenizer.");
}
