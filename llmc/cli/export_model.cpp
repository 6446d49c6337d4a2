#include "llmc/cli/export_model.h"

#include <filesystem>

#include "llmc/base/log.h"
#include "llmc/base/refuse.h"
#include "llmc/checkpoint/model_export.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/io/folder_lock.h"

namespace {

template <class T>
void write_tensors(SafetensorsWriter& writer, const ParamTable& table, const WeightSource& weights) {
    for (const ParamInfo& info : table.all()) {
        const std::vector<float> values = weights.read(info);
        const std::vector<T> stored(values.begin(), values.end());
        write_hugging_face<T>(writer, table, info, stored);
    }
}

void write_hugging_face(FileSystem& files, const std::string& folder, const WeightSource& weights, DType dtype,
                        const std::optional<Tokenizer>& tokenizer) {
    const ParamTable table(weights.config());
    const TensorType type = dtype == DType::bf16 ? TensorType::BF16 : TensorType::F32;
    if (tokenizer) tokenizer->save(folder);
    for (const auto& [name, content] : hugging_face_files(weights.config(), type, tokenizer ? &*tokenizer : nullptr)) {
        write_whole(files, folder + "/" + name, content);
    }
    std::vector<TensorEntry> entries;
    for (const ParamInfo& info : table.all()) {
        for (TensorEntry& entry : hugging_face_entries(table, info)) {
            entry.type = type;
            entries.push_back(std::move(entry));
        }
    }
    SafetensorsWriter writer(files.create(folder + "/model.safetensors"), entries, TensorMetadata{{"format", "pt"}});
    if (dtype == DType::bf16) {
        write_tensors<bf16>(writer, table, weights);
    } else {
        write_tensors<float>(writer, table, weights);
    }
    writer.finish();
    files.sync_folder(folder);
}

void write_llmc(FileSystem& files, const std::string& path, const WeightSource& weights, DType dtype) {
    const ParamTable table(weights.config());
    write_llmc_model(files, path, weights.config(), dtype, [&](int param) { return weights.read(table[param]); });
}

}   // namespace

int export_model(FileSystem& files, const Options& options) {
    const ExportOptions& wish = options.exported;
    refuse_if(is_descriptor(options.model),
              text("--model ", options.model, ": a size by name has no weights to export"),
              "Give a model that has been trained.");
    const Log log;
    const std::string output = std::filesystem::path(wish.output + "/").parent_path().string();   // no slash at its end
    std::string model = options.model;
    const std::unique_ptr<WeightSource> weights =
        only_finite(find_weights(files, model, log, {}, state_of(options.weights), options.ignore_tensors));
    const bool to_llmc = wish.to == ExportFormat::llmc, is_known = !is_only_ours(family_of(weights->config()));
    const std::string beyond = to_llmc ? beyond_llmc(weights->config()) : beyond_hugging_face(weights->config());
    refuse_if(!beyond.empty(), text("--to ", to_llmc ? "llmc" : "hf", ": the model in ", model, " has ", beyond),
              is_known ? "llm.c's files hold no such model: export it with --to hf."
                       : "Other programs know no such model; its checkpoints can be copied as they are.");
    const std::string where = tokenizer_of_model(files, model, options.generate.tokenizer);
    std::optional<Tokenizer> tokenizer;
    if (!where.empty() && wish.to == ExportFormat::hugging_face) tokenizer = load_tokenizer(where, weights->config());
    const DType dtype = wish.dtype.value_or(weights->type());
    const std::string unfinished = output + ".unfinished",
                      parent = std::filesystem::path(output).parent_path().string();
    if (!parent.empty()) files.make_folders(parent);
    const OutputLock lock(unfinished + ".lock", "--output " + output);
    refuse_if(files.exists(output), text("--output ", output, ": there is something by that name already"),
              "Give another name, or remove it.");
    refuse_if(files.exists(unfinished), text(unfinished, ": an export to ", output, " was cut and has left this"),
              "Remove it, or give another --output.");
    try {
        if (wish.to == ExportFormat::llmc) {
            write_llmc(files, unfinished, *weights, dtype);
        } else {
            files.make_folders(unfinished);
            write_hugging_face(files, unfinished, *weights, dtype, tokenizer);
        }
        files.rename(unfinished, output);
    } catch (...) {
        files.remove_all(unfinished);
        throw;
    }
    files.sync_folder(parent);
    if (where.empty() && wish.to == ExportFormat::hugging_face) {
        log.warning("there is no tokenizer beside %s: the folder has none either (--tokenizer names one)",
                    model.c_str());
    }
    log.line("%s: %s in %s, from %s", output.c_str(), describe(weights->config()).c_str(), name_of(dtype),
             weights->description().c_str());
    return 0;
}
