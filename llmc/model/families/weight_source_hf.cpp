// Hugging Face GPT-2 folders; weight_source.h says what is read.
#include <map>
#include <set>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/safetensors.h"
#include "llmc/model/families/weight_source.h"

namespace {

constexpr const char* config_name = "config.json";
constexpr const char* weights_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* prefix = "transformer.";

[[noreturn]] void bad(const std::string& path, const std::string& what, const std::string& hint = "") {
    throw Error(ErrorKind::bad_data, text(path, ": ", what), hint);
}

Json read_json(const FileSystem& files, const std::string& path) {
    try {
        Json json = parse_json(read_whole(files, path));
        if (!json.is_object()) bad(path, "expected a JSON object");
        return json;
    } catch (const JsonSyntaxError& error) {
        bad(path, text("byte ", error.byte, ": not JSON: ", error.what()));
    }
}

// The value of a field of the model, or -1 where the file does not say it.
std::int64_t value_in(const Json& json, const std::string& path, const ModelField& field) {
    constexpr std::uint64_t largest = 1 << 28;
    const bool positions = std::string_view(field.key) == "n_positions";   // older files call them n_ctx
    const Json* value = nullptr;
    std::string name;
    for (const char* key : {field.key, positions ? "n_ctx" : field.key}) {
        if (value == nullptr || value->is_null()) value = json.find(name = key);
    }
    if (value == nullptr || value->is_null()) return -1;
    try {
        if (field.is_flag()) return value->as_bool();
        if (field.is_size()) {
            if (const auto size = static_cast<std::int64_t>(value->as_whole(largest)); size > 0) return size;
        }
        for (std::size_t i = 0; i < field.values.size(); i++) {
            if (value->as_text() == field.values[i]) return static_cast<std::int64_t>(i);
        }
    } catch (const JsonError&) {
    }
    const char* const expected = field.is_flag() ? "true or false" : field.is_size() ? "a size" : "a known name";
    bad(path, text("\"", name, "\" is ", quoted(*value), ", expected ", expected));
}

// Settings that would make it another model than ours.
void require(const Json& json, const std::string& path, const char* key, const Json& expected) {
    const Json* value = json.find(key);
    if (value != nullptr && !value->is_null() && *value != expected) {
        bad(path, text("\"", key, "\" is ", quoted(*value), ", only ", to_text(expected), " is supported"));
    }
}

ModelConfig read_config(const FileSystem& files, const std::string& path) {
    const Json json = read_json(files, path);
    const Json* const type = json.find("model_type");
    const bool ours = type != nullptr && *type == Json(own_model_type);   // has fields that GPT-2's has not
    if (!ours) require(json, path, "model_type", "gpt2");
    require(json, path, "activation_function", "gelu_new");
    require(json, path, "layer_norm_epsilon", 1e-5);
    require(json, path, "scale_attn_weights", true);
    require(json, path, "scale_attn_by_inverse_layer_idx", false);
    ModelConfig config;
    for (const ModelField& field : model_fields()) {
        if (!field.hugging_face && !ours) continue;
        const std::int64_t value = value_in(json, path, field);
        if (value < 0 && field.is_size()) {
            bad(path, text("there is no \"", field.key, "\" in it"), "This must be the config.json of a GPT-2.");
        }
        if (value >= 0) field.set(config, value);
    }
    require(json, path, "n_inner", config.mlp_width());
    try {
        check_model_config(config);
        return config;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
        bad(path, error.message());
    }
}

// Names of the files that hold the weights, within the folder.
std::set<std::string> weight_files(const FileSystem& files, const std::string& folder) {
    if (files.exists(folder + "/" + weights_name)) return {weights_name};
    const std::string index = folder + "/" + index_name;
    if (!files.exists(index)) {
        const bool pickled = files.exists(folder + "/pytorch_model.bin");
        bad(folder, text("there is neither ", weights_name, " nor ", index_name),
            pickled ? "pytorch_model.bin is not read: save the model as safetensors (save_pretrained does)." : "");
    }
    const Json json = read_json(files, index);
    const Json* map = json.find("weight_map");
    if (map == nullptr || !map->is_object()) bad(index, "there is no \"weight_map\" in it");
    std::set<std::string> names;
    for (const auto& [tensor, file] : map->members()) {
        if (!file.is_text() || file.as_text().find('/') != std::string::npos) {
            bad(index,
                text("tensor '", tensor.substr(0, 200), "' is in ", quoted(file), ", expected a file of this folder"));
        }
        names.insert(file.as_text());
    }
    return names;
}

class HuggingFaceModel : public WeightSource {
public:
    HuggingFaceModel(const FileSystem& files, const std::string& folder)
        : folder_(folder), table_(hugging_face_model_config(files, folder)) {
        for (const std::string& name : weight_files(files, folder)) {
            files_.push_back(std::make_unique<SafetensorsFile>(files, folder + "/" + name));
            for (const TensorEntry& entry : files_.back()->entries()) {
                const bool prefixed = entry.name.starts_with(prefix);
                const std::string plain = prefixed ? entry.name.substr(std::string(prefix).size()) : entry.name;
                if (!places_.emplace(plain, Place{files_.back().get(), &entry}).second) {
                    bad(files_.back()->path(), text("tensor '", plain, "' is there twice"));
                }
            }
        }
        for (const ParamInfo& param : table_.all()) check_shape(param);
        if (table_.config().tied) check_same_classifier();
    }

    const ModelConfig& config() const override { return table_.config(); }
    std::string description() const override { return text("Hugging Face model ", folder_); }
    DType type() const override {
        const bool narrow = std::ranges::all_of(table_.all(), [this](const ParamInfo& param) {
            return places_.at(param.name).entry->type == TensorType::BF16;
        });
        return narrow ? DType::bf16 : DType::fp32;
    }

    std::vector<float> read(const ParamInfo& param) const override {
        const Place& place = places_.at(param.name);
        std::vector<float> values = place.file->read_as<float>(*place.entry);
        if (param.hf_transposed) {
            values = transposed<float>(values, param.tensor.cols, param.exported_rows(), 0, param.exported_rows());
        }
        values.resize(static_cast<std::size_t>(param.tensor.elements()), 0.0f);   // rows that pad the vocabulary
        return values;
    }

private:
    struct Place {
        const SafetensorsFile* file;
        const TensorEntry* entry;
    };

    void check_shape(const ParamInfo& param) const {
        const auto found = places_.find(param.name);
        if (found == places_.end()) bad(folder_, text("there is no tensor '", param.name, "' in its files"));
        const std::vector<std::int64_t> expected = param.file_shape(true);
        const TensorEntry& entry = *found->second.entry;
        if (entry.shape != expected) {
            bad(found->second.file->path(), text("byte ", entry.offset, ": tensor '", entry.name, "' has the shape ",
                                                 to_text(Json(entry.shape)), ", expected ", to_text(Json(expected))));
        }
    }

    // Where config.json ties the classifier to the embedding, a lm_head.weight beside it must be a copy.
    void check_same_classifier() const {
        const auto classifier = places_.find("lm_head.weight"), embedding = places_.find("wte.weight");
        if (classifier == places_.end()) return;
        const Place &one = classifier->second, &other = embedding->second;
        if (one.entry->shape == other.entry->shape &&
            one.file->read_as<float>(*one.entry) == other.file->read_as<float>(*other.entry)) {
            return;
        }
        bad(one.file->path(),
            text("byte ", one.entry->offset, ": tensor 'lm_head.weight' differs from 'wte.weight', but ", config_name,
                 " ties them"),
            "If the model has a classifier of its own, write \"tie_word_embeddings\": false into config.json; else "
            "remove "
            "the tensor.");
    }

    std::string folder_;
    ParamTable table_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, Place> places_;   // by name without the prefix
};

}   // namespace

ModelConfig hugging_face_model_config(const FileSystem& files, const std::string& folder) {
    return read_config(files, folder + "/" + config_name);
}

std::unique_ptr<WeightSource> open_hugging_face(const FileSystem& files, const std::string& folder) {
    return std::make_unique<HuggingFaceModel>(files, folder);
}

std::unique_ptr<WeightSource> open_weights(const FileSystem& files, const std::string& path) {
    // not there, and not spelled like a path: a name, which is none of the known ones
    if (!files.exists(path) && path.find_first_of("./") == std::string::npos) model_config(path);
    return files.exists(path + "/" + config_name) ? open_hugging_face(files, path) : open_llmc_model(files, path);
}
