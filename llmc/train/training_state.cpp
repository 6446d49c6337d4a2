#include "llmc/train/training_state.h"

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/model/weight_source.h"
#include "llmc/train/matmul_choices.h"
#include "llmc/train/model_export.h"

namespace {

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
        const std::string attention = json.at("attention").get<std::string>();
        for (AttentionKind kind : {AttentionKind::own, AttentionKind::library}) {
            if (attention == name_of(kind)) s.attention = kind;
        }
        const std::string next = json.at("next").get<std::string>();
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

void save_training_state(FileSystem& files, const std::string& folder, const RunState& state,
                         const TrainedTensors& tensors, const CheckpointExtras& extras, const Gatherer& gatherer,
                         const CheckpointRanks& ranks) {
    const ParamTable& table = tensors.storage().table();
    CheckpointWriter writer(files, folder, state.step, ranks);
    write_tensors(writer, tensors, gatherer);
    if (ranks.rank == 0) {
        const auto alone = gatherer.works_alone();
        writer.attempt([&] {
            writer.write("config.json", hugging_face_config(table.config()));
            writer.write("model.safetensors.index.json", tensor_index(table));
            if (!extras.tokenizer_file.empty()) writer.write("tokenizer.bin", read_whole(files, extras.tokenizer_file));
            writer.write("run.json", run_json(state));
            writer.write(kMatmulChoicesFile, extras.matmul_choices);
        });
    }
    writer.finish();
}

RunState load_training_state(const FileSystem& files, const std::string& path, const TrainedTensors& tensors,
                             cudaStream_t stream) {
    const RunState state = run_state_from(files, path + "/run.json");
    const ModelConfig &saved = hugging_face_model_config(files, path), &own = tensors.storage().table().config();
    if (saved != own) {
        throw Error(
            ErrorKind::bad_data,
            text(path, ": the run was of a model with ", describe(saved), "; the one asked for has ", describe(own)),
            "Resume with the same --model, or --layers, --heads and --channels, and the same --tie-embeddings.");
    }
    read_tensors(files, path, tensors, stream);
    return state;
}
