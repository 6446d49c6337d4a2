#include "llmc/run/training_state.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/model_export.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/same_weights.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/options/option_names.h"
#include "llmc/tokenizer/files/files.h"

namespace {

Json to_json(const OutlierDetector::State& s) {
    return Json::object({{"values", std::vector<Json>(s.values.begin(), s.values.end())},
                         {"count", s.count},
                         {"next", s.next},
                         {"sum", s.sum},
                         {"sum_of_squares", s.sum_of_squares}});
}

int int_from(const Json& json, std::uint64_t largest = INT_MAX) { return static_cast<int>(json.as_whole(largest)); }

OutlierDetector::State outliers_from(const Json& json) {
    OutlierDetector::State s;
    const std::vector<Json>& values = json.at("values").elements();
    if (values.size() != s.values.size()) {
        throw JsonError(text(values.size(), " values of a window, expected ", s.values.size()));
    }
    std::transform(values.begin(), values.end(), s.values.begin(), [](const Json& value) { return value.as_number(); });
    s.count = int_from(json.at("count"), values.size());
    s.next = int_from(json.at("next"), values.size() - 1);
    s.sum = json.at("sum").as_number();
    s.sum_of_squares = json.at("sum_of_squares").as_number();
    return s;
}

// Writes the run state; numbers have enough digits to read back the same bits.
std::string run_json(const RunState& s) {
    Json loader = Json::object(
        {{"epoch", s.loader.epoch}, {"index", s.loader.index}, {"samples", s.windows}, {"seq_len", s.loader.T}});
    Json sources = Json::array();
    for (const LoaderState::Source& source : s.loader.sources) {
        sources.append(Json::object({{"name", source.name},
                                     {"samples", source.samples},
                                     {"windows", source.windows},
                                     {"credit", source.credit}}));
    }
    if (!s.loader.sources.empty()) loader.add("sources", std::move(sources));
    Json json = Json::object({
        {"step", s.step},
        {"seed", s.seed},
        {"precision", precision_name},
        {"loader", loader},
        {"loss_outliers", to_json(s.loss_outliers)},
        {"norm_outliers", to_json(s.norm_outliers)},
        {"attention", name_of(s.attention)},
        {"next", name_of(s.next)},
        {"bad_steps", s.bad_steps},
        {"optimizer", name_of(s.optimizer)},
        {"best_val_loss", s.best_val_loss ? Json(*s.best_val_loss) : Json()},
    });
    add_to(json, s.of_step);
    return to_text(json, 2) + "\n";
}

std::int64_t credit_from(const Json& json) {
    constexpr double most = 1e15;   // far beyond all weights, and exact
    const double credit = json.as_number();
    if (std::abs(credit) <= most) return static_cast<std::int64_t>(credit);
    throw JsonError(text("found ", quoted(json), ", expected at most ", most, " of either sign"), json.offset());
}

LoaderState loader_from(const Json& json) {
    LoaderState state{json.at("epoch").as_whole(UINT64_MAX), json.at("index").as_whole(UINT64_MAX)};
    if (const Json* sources = json.find("sources")) {
        for (const Json& source : sources->elements()) {
            state.sources.push_back({source.at("name").as_text(), source.at("samples").as_whole(UINT64_MAX),
                                     source.at("windows").as_whole(UINT64_MAX), credit_from(source.at("credit"))});
        }
    }
    state.T = int_from(json.at("seq_len"));
    return state;
}

RunState run_state_from(const FileSystem& files, const std::string& path) {
    try {
        const Json json = parse_json(read_whole(files, path));
        const std::string precision = json.at("precision").as_text();
        if (precision != precision_name) {
            throw Error(ErrorKind::bad_data,
                        text(path, ": the run was saved by a ", precision, " build, this one is ", precision_name),
                        text("Build with `make PRECISION=", precision,
                             "` to resume it; --model takes the folder in any build."));
        }
        RunState s;
        s.step = int_from(json.at("step"));
        s.seed = json.at("seed").as_whole(UINT64_MAX);
        const Json& loader = json.at("loader");
        s.loader = loader_from(loader);
        s.windows = loader.at("samples").as_whole(UINT64_MAX);
        s.loss_outliers = outliers_from(json.at("loss_outliers"));
        s.norm_outliers = outliers_from(json.at("norm_outliers"));
        const std::string attention = json.at("attention").as_text();
        const auto& kinds = EnumNames<AttentionKind>::list;
        const auto kind = std::ranges::find(kinds, attention, &EnumName<AttentionKind>::name);
        if (kind == std::end(kinds)) throw JsonError(text("this program knows no attention \"", attention, "\""));
        s.attention = kind->value;
        const std::string next = json.at("next").as_text();
        for (s.next = StepPhase::validation; next != name_of(s.next); s.next = phase_after(s.next)) {
            if (s.next != StepPhase::next_step) continue;
            throw Error(ErrorKind::bad_data,
                        text(path, ": \"next\" is \"", next, "\"; this program knows no such work after a step"),
                        "Resume with the program that saved it, or from another checkpoint.");
        }
        s.bad_steps = int_from(json.at("bad_steps"));
        const std::string optimizer = json.at("optimizer").as_text();
        const auto known = std::ranges::find(EnumNames<OptimizerKind>::list, optimizer,
                                             [](const auto& named) { return std::string(named.name); });
        if (known == std::end(EnumNames<OptimizerKind>::list)) {
            throw JsonError(text("this program knows no optimizer ", optimizer));
        }
        s.optimizer = known->value;
        s.of_step = step_state_from(json, s.step);
        if (const Json& best = json.at("best_val_loss"); !best.is_null()) s.best_val_loss = best.as_number();
        return s;
    } catch (const JsonError& error) {
        throw Error(ErrorKind::bad_data, text(path, ": ", error.what()), "Resume from another checkpoint.");
    }
}

// Writes the model's and tokenizer's description for other programs. tokenizer.json can encode; data prepared by
// llm.c's scripts have only tokenizer.bin, models of other programs only tokenizer.json.
void write_description(CheckpointWriter& writer, const ModelConfig& config, const std::string& tokenizer_file) {
    const FileSystem& files = writer.files();
    std::optional<Tokenizer> tokenizer;
    if (!tokenizer_file.empty()) {
        const std::filesystem::path path = tokenizer_file;
        const bool is_llmc = path.extension() == ".bin";
        tokenizer.emplace(is_llmc ? load_llmc_tokenizer(files, path) : load_huggingface(files, path));
        writer.write("tokenizer.bin", is_llmc ? read_whole(files, path) : to_llmc_tokenizer(tokenizer->data()));
        const std::string json = (path.parent_path() / "tokenizer.json").string();
        if (files.exists(json)) writer.write("tokenizer.json", read_whole(files, json));
    }
    for (const auto& [name, content] : hugging_face_files(config, parameter_type, tokenizer ? &*tokenizer : nullptr)) {
        writer.write(name, content);
    }
}

void write_router_bias(CheckpointWriter& writer, const ModelConfig& config, const std::vector<float>& bias) {
    const std::vector<TensorEntry> entries = router_bias_entries(config);
    if (entries.empty()) return;
    SafetensorsWriter file = writer.create(kRouterBiasFile, entries, {});
    file.write_values(std::span(bias));
    file.finish();
}

}   // namespace

void start_save(CheckpointWriter& writer, const RunState& state, const TrainedTensors& tensors, HostTensors& memory,
                const CheckpointExtras& extras, const Gatherer& gatherer) {
    memory.fill(tensors, gatherer);
    const ParamTable& table = tensors.storage().table();
    auto work = [&writer, &memory, &table, state, extras] {
        if (writer.rank() == 0) extras.before();
        memory.write(writer);
        if (writer.rank() > 0) return;
        write_description(writer, table.config(), extras.tokenizer_file);
        writer.write("model.safetensors.index.json", tensor_index(table));
        write_router_bias(writer, table.config(), state.router_bias);
        writer.write("run.json", run_json(state));
        writer.write(kMatmulChoicesFile, extras.matmul_choices);
    };
    writer.start(work, extras.afterwards);
}

void link_training_state(FileSystem& files, const std::string& folder, const RunState& state, const std::string& saved,
                         const CheckpointExtras& extras) {
    CheckpointWriter writer(files, folder, state.step);
    writer.attempt([&] {
        writer.link_files(saved, {"run.json", kMatmulChoicesFile});
        writer.write("run.json", run_json(state));
        writer.write(kMatmulChoicesFile, extras.matmul_choices);
    });
    writer.finish();
}

LoaderState saved_loader(const FileSystem& files, const std::string& checkpoint) {
    const std::string path = checkpoint + "/run.json";
    try {
        return loader_from(parse_json(read_whole(files, path)).at("loader"));
    } catch (const JsonError& error) {
        throw Error(ErrorKind::bad_data, text(path, ": ", error.what()));
    }
}

RunState load_training_state(const FileSystem& files, const std::string& path, const TrainedTensors& tensors,
                             cudaStream_t stream, OptimizerKind optimizer, bool reset_moments) {
    RunState state = run_state_from(files, path + "/run.json");
    if (path.substr(path.rfind('/') + 1) != checkpoint_name(state.step)) {
        throw Error(ErrorKind::bad_data, text(path, "/run.json: it says step ", state.step, ", the folder another"),
                    "Resume from another checkpoint.");
    }
    const ModelConfig &saved = hugging_face_model_config(files, path), &own = tensors.storage().table().config();
    if (!have_same_weights(saved, own)) {
        throw Error(
            ErrorKind::bad_data,
            text(path, ": the run was of a model with ", describe(saved), "; the one asked for has ", describe(own)),
            "Resume with the same --model, or --layers, --heads, --channels and --seq-len, and the same "
            "--tie-embeddings.");
    }
    if (state.optimizer != optimizer && !reset_moments) {
        throw Error(ErrorKind::bad_data,
                    text(path, ": the run was saved with --optimizer ", name_of(state.optimizer),
                         ", the one asked for is ", name_of(optimizer)),
                    text("Resume with --optimizer ", name_of(state.optimizer),
                         ", or begin with new moments: --reset-optimizer 1."));
    }
    read_tensors(files, path, tensors, stream, reset_moments);
    if (reset_moments) state.of_step.reset_moments(state.step);
    state.router_bias = read_router_bias(files, path, own);
    return state;
}
