#include "llmc/train/training_state.h"

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/safetensors.h"
#include "llmc/model/weight_source.h"
#include "llmc/train/matmul_choices.h"
#include "llmc/train/model_export.h"
#include "llmc/train/options.h"

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Moments and masters

struct NamedState {
    const char* prefix;
    ModelState<float>* state;
};

std::vector<NamedState> optimizer_states(Optimizer& optimizer) {
    std::vector<NamedState> states{{"m.", &optimizer.first_moments()}, {"v.", &optimizer.second_moments()}};
    if (optimizer.masters() != nullptr) states.push_back({"master.", optimizer.masters()});
    return states;
}

std::vector<std::int64_t> stored_shape(const ParamInfo& info) {
    if (!info.is_matrix) return {info.exported_rows};
    return {info.exported_rows, info.tensor.cols};
}

void save_optimizer(FileSystem& files, const std::string& path, Stage& model, Optimizer& optimizer,
                    const WholeTensors& whole) {
    const std::vector<NamedState> states = optimizer_states(optimizer);
    std::vector<TensorEntry> entries;
    for (const NamedState& named : states) {
        for (const ParamInfo& info : model.table().all()) {
            TensorEntry entry;
            entry.name = named.prefix + info.name;
            entry.type = TensorType::F32;
            entry.shape = stored_shape(info);
            entries.push_back(entry);
        }
    }
    std::optional<SafetensorsWriter> writer;
    if (whole.writes()) writer.emplace(files, path, entries, TensorMetadata{});
    for (const NamedState& named : states) {
        for (int param = 0; param < model.table().size(); param++) {
            const std::vector<float> values = whole.read(*named.state, param);
            if (!writer) continue;
            const std::size_t count = static_cast<std::size_t>(model.table()[param].exported_elements());
            writer->write_values(std::span(values).first(count));
        }
    }
    if (writer) writer->finish();
}

void load_optimizer(const FileSystem& files, const std::string& path, Stage& model, Optimizer& optimizer) {
    const SafetensorsFile file(files, path);
    const bool saved_masters = file.find("master." + model.table()[0].name) != nullptr;
    if (saved_masters != (optimizer.masters() != nullptr)) {
        throw Error(ErrorKind::bad_data,
                    text(path, ": the run was saved ", saved_masters ? "with" : "without", " master weights"),
                    text("Resume it with --master-weights ", saved_masters ? 1 : 0, "."));
    }
    for (const NamedState& named : optimizer_states(optimizer)) {
        for (int param = 0; param < model.table().size(); param++) {
            const ParamInfo& info = model.table()[param];
            const TensorEntry& entry = file.entry(named.prefix + info.name);
            if (entry.shape != stored_shape(info)) {
                throw Error(ErrorKind::bad_data, text(path, ": ", entry.name, " has another shape than the model's"));
            }
            std::vector<float> values = file.read_as<float>(entry);
            values.resize(static_cast<std::size_t>(info.tensor.elements()), 0.0f);
            upload_tensor<float>(*named.state, param, values, model.stream());
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// run.json

OrderedJson to_json(const OutlierDetector::State& s) {
    return {{"values", s.values},
            {"count", s.count},
            {"next", s.next},
            {"sum", s.sum},
            {"sum_of_squares", s.sum_of_squares}};
}

OutlierDetector::State outliers_from(const OrderedJson& json) {
    OutlierDetector::State s;
    s.values = json.at("values").get<decltype(s.values)>();
    s.count = json.at("count").get<int>();
    s.next = json.at("next").get<int>();
    s.sum = json.at("sum").get<double>();
    s.sum_of_squares = json.at("sum_of_squares").get<double>();
    return s;
}

// Numbers are written with as many digits as read back to the same bits.
std::string run_json(const RunState& s) {
    const OrderedJson json{
        {"step", s.step},
        {"seed", s.seed},
        {"precision", precision_name},
        {"loader", {{"epoch", s.loader.epoch}, {"index", s.loader.index}, {"samples", s.windows}}},
        {"loss_outliers", to_json(s.loss_outliers)},
        {"norm_outliers", to_json(s.norm_outliers)},
        {"attention", name_of(s.attention)},
        {"next", name_of(s.next)},
    };
    return to_text(json, 2) + "\n";
}

RunState run_state_from(const FileSystem& files, const std::string& path) {
    try {
        const OrderedJson json = parse_ordered_json(read_whole(files, path));
        const std::string precision = json.at("precision").get<std::string>();
        if (precision != precision_name) {
            throw Error(ErrorKind::bad_data,
                        text(path, ": the run was saved by a ", precision, " build, this one is ", precision_name),
                        text("Build with `make PRECISION=", precision,
                             "` to resume it; --model takes the folder in any build."));
        }
        RunState s;
        s.step = json.at("step").get<int>();
        s.seed = json.at("seed").get<std::uint64_t>();
        s.loader.epoch = json.at("loader").at("epoch").get<std::uint64_t>();
        s.loader.index = json.at("loader").at("index").get<std::uint64_t>();
        s.windows = json.at("loader").at("samples").get<std::uint64_t>();
        s.loss_outliers = outliers_from(json.at("loss_outliers"));
        s.norm_outliers = outliers_from(json.at("norm_outliers"));
        const std::string attention = json.value("attention", name_of(AttentionKind::auto_));
        for (AttentionKind kind : {AttentionKind::own, AttentionKind::library}) {
            if (attention == name_of(kind)) s.attention = kind;
        }
        const std::string next = json.value("next", name_of(AfterStep::next_step));   // older ones do not say
        for (s.next = AfterStep::validation; next != name_of(s.next); s.next = after(s.next)) {
            if (s.next != AfterStep::next_step) continue;
            throw Error(ErrorKind::bad_data,
                        text(path, ": \"next\" is \"", next, "\"; this program knows no such work after a step"),
                        "Resume with the program that saved it, or from another checkpoint.");
        }
        return s;
    } catch (const Json::exception& error) {
        throw Error(ErrorKind::bad_data, text(path, ": ", error.what()), "Resume from another checkpoint.");
    }
}

}   // namespace

void save_training_state(FileSystem& files, const std::string& folder, const RunState& state, Step& step,
                         const std::string& tokenizer_file, const WholeTensors& whole) {
    Stage& model = step.stage();
    Optimizer& optimizer = step.optimizer();
    step.wait_for_all_gather();
    if (!whole.writes()) {   // the same tensors in the same order
        save_hugging_face_weights(files, "", model, whole);
        save_optimizer(files, "", model, optimizer, whole);
        return;
    }
    whole.works_alone();
    CheckpointWriter writer(files, folder, state.step);
    writer.write("config.json", hugging_face_config(model.config()));
    save_hugging_face_weights(writer.files(), writer.path("model.safetensors"), model, whole);
    save_optimizer(writer.files(), writer.path("optimizer.safetensors"), model, optimizer, whole);
    if (!tokenizer_file.empty()) writer.write("tokenizer.bin", read_whole(files, tokenizer_file));
    writer.write("run.json", run_json(state));
    writer.write(kMatmulChoicesFile, matmul_choices_text(model.matmul()));
    writer.finish();
}

RunState load_training_state(const FileSystem& files, const std::string& path, Step& step) {
    Stage& model = step.stage();
    const RunState state = run_state_from(files, path + "/run.json");
    const auto weights = open_weights(files, path);
    if (weights->config() != model.config()) {
        throw Error(
            ErrorKind::bad_data,
            text(path, ": the run was of a model with ", describe(weights->config()), "; the one asked for has ",
                 describe(model.config())),
            "Resume with the same --model, or --layers, --heads and --channels, and the same --tie-embeddings.");
    }
    load_parameters(model.parameters(), *weights, model.stream());
    load_optimizer(files, path + "/optimizer.safetensors", model, step.optimizer());
    return state;
}
