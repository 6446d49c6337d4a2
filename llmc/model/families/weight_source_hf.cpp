// Reads Hugging Face folders, as weight_source.h describes.
#include <fnmatch.h>

#include <map>
#include <set>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/json_file.h"
#include "llmc/io/safetensors.h"
#include "llmc/model/families/family.h"
#include "llmc/model/families/weight_source.h"

namespace {

constexpr const char* config_name = "config.json";
constexpr const char* weights_name = "model.safetensors";
constexpr const char* index_name = "model.safetensors.index.json";
constexpr const char* prefix = "transformer.";

[[noreturn]] void bad(const std::string& path, const std::string& what, const std::string& hint = "") {
    throw Error(ErrorKind::bad_data, text(path, ": ", what), hint);
}

// Returns the names of the files that hold the weights, within the folder.
std::set<std::string> weight_files(const FileSystem& files, const std::string& folder) {
    if (files.exists(folder + "/" + weights_name)) return {weights_name};
    const std::string index = folder + "/" + index_name;
    if (!files.exists(index)) {
        const bool pickled = files.exists(folder + "/pytorch_model.bin");
        bad(folder, text("there is neither ", weights_name, " nor ", index_name),
            pickled ? "pytorch_model.bin is not read: save the model as safetensors (save_pretrained does)." : "");
    }
    const Json json = read_json_file(files, index);
    const Json* map = json.find("weight_map");
    if (map == nullptr || !map->is_object()) bad(index, "there is no \"weight_map\" in it");
    std::set<std::string> names;
    for (const auto& [tensor, file] : map->members()) {
        if (!file.is_text() || file.as_text().empty() || file.as_text().find('/') != std::string::npos) {
            bad(index,
                text("tensor '", tensor.substr(0, 200), "' is in ", quoted(file), ", expected a file of this folder"));
        }
        names.insert(file.as_text());
    }
    if (names.empty())
        bad(index, "\"weight_map\" lists no tensor", "Take the file from where the model was published.");
    return names;
}

// Returns true if files have such a tensor beside those of the model and no reader needs it.
bool is_harmless(const std::string& name, const ModelFamily& family) {
    if (family.llama) return name.ends_with(".rotary_emb.inv_freq");
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");   // masks
}

bool matches_one(const std::string& patterns, const std::string& name) {
    for (std::size_t begin = 0; begin < patterns.size();) {
        const std::size_t end = std::min(patterns.find(',', begin), patterns.size());
        if (fnmatch(patterns.substr(begin, end - begin).c_str(), name.c_str(), 0) == 0) return true;
        begin = end + 1;
    }
    return false;
}

class HuggingFaceModel : public WeightSource {
public:
    HuggingFaceModel(const FileSystem& files, const std::string& folder, const std::string& ignored)
        : folder_(folder),
          table_(hugging_face_model_config(files, folder)),
          family_(family_named(read_json_file(files, folder + "/config.json"), folder + "/config.json")) {
        for (const std::string& name : weight_files(files, folder)) {
            files_.push_back(std::make_unique<SafetensorsFile>(files, folder + "/" + name));
            for (const TensorEntry& entry : files_.back()->entries()) {
                const bool prefixed = entry.name.starts_with(prefix);
                const std::string plain = prefixed ? entry.name.substr(std::string(prefix).size()) : entry.name;
                if (!sources_.emplace(plain, TensorSource{files_.back().get(), &entry}).second) {
                    bad(files_.back()->path(), text("tensor '", plain, "' is there twice"));
                }
            }
        }
        form_ = expert_form();
        for (const ParamInfo& param : table_.all()) {
            for (const FileTensor& tensor : tensors_of(param)) {
                check_type_and_shape(tensor);
                sources_.at(tensor.name).is_read = true;
            }
        }
        if (table_.config().tied) check_same_classifier();
        check_all_are_read(ignored);
        router_bias_ = read_router_bias(files, folder, table_.config());
    }

    const ModelConfig& config() const override { return table_.config(); }
    std::string description() const override { return text("Hugging Face model ", folder_); }
    std::string file_of(const ParamInfo& param, std::int64_t element) const override {
        const std::int64_t row = element / param.tensor.cols;
        const std::vector<FileTensor> tensors = tensors_of(param);
        const auto after =
            std::ranges::find_if(tensors, [row](const FileTensor& tensor) { return row < tensor.first_row; });
        return sources_.at(std::prev(after)->name).file->path();
    }
    DType type() const override {
        const bool narrow = std::ranges::all_of(table_.all(), [this](const ParamInfo& param) {
            return std::ranges::all_of(tensors_of(param), [this](const FileTensor& tensor) {
                return sources_.at(tensor.name).entry->type == TensorType::BF16;
            });
        });
        return narrow ? DType::bf16 : DType::fp32;
    }

    std::vector<float> read(const ParamInfo& param) const override {
        std::vector<float> all;
        for (const FileTensor& tensor : tensors_of(param)) {
            const TensorSource& place = sources_.at(tensor.name);
            std::vector<float> values = values_of(place);
            if (tensor.transposed) values = transposed<float>(values, param.tensor.cols, tensor.rows, 0, tensor.rows);
            if (all.empty()) {
                all = std::move(values);   // often the only ones: all experts of a layer need no second copy
            } else {
                all.insert(all.end(), values.begin(), values.end());
            }
        }
        all.resize(static_cast<std::size_t>(param.tensor.elements()), 0.0f);   // rows that pad the vocabulary
        return all;
    }

    std::vector<float> router_bias() const override { return router_bias_; }

private:
    struct TensorSource {
        const SafetensorsFile* file;
        const TensorEntry* entry;
        bool is_read = false;   // or known to hold nothing of its own
    };

    std::vector<FileTensor> tensors_of(const ParamInfo& param) const {
        return file_tensors(table_, param, false, &family_, form_);
    }

    // Returns the first tensor of experts that the files hold in this form; null: there is none.
    const TensorSource* first_of_experts(ExpertForm form) const {
        for (const ParamInfo& param : table_.all()) {
            if (param.tensor.cut != TensorCut::experts) continue;
            for (const FileTensor& tensor : file_tensors(table_, param, false, &family_, form)) {
                const auto found = sources_.find(tensor.name);
                if (found != sources_.end()) return &found->second;
            }
        }
        return nullptr;
    }

    // Returns the form in which the files hold experts. Throws if they hold some in each.
    ExpertForm expert_form() const {
        const TensorSource* const stacked = family_.llama ? first_of_experts(ExpertForm::stacked) : nullptr;
        if (stacked == nullptr) return ExpertForm::apart;
        if (const TensorSource* const one = first_of_experts(ExpertForm::apart)) {
            bad(stacked->file->path(),
                text("byte ", stacked->entry->offset, ": tensor '", stacked->entry->name,
                     "' holds all experts of its layer, but '", one->entry->name, "' in ", one->file->path(),
                     " is of one expert alone, expected one of these forms in all files"),
                "Save the model again, in one form, in an empty folder.");
        }
        return ExpertForm::stacked;
    }

    static std::vector<float> values_of(const TensorSource& place) {
        if (place.entry->type != TensorType::F64) return place.file->read_as<float>(*place.entry);
        const std::vector<double> wide = place.file->read_as<double>(*place.entry);
        return {wide.begin(), wide.end()};
    }

    void check_type_and_shape(const FileTensor& tensor) const {
        const auto found = sources_.find(tensor.name);
        if (found == sources_.end()) {
            const std::string& first = files_.front()->path();
            bad(folder_, text("there is no tensor '", tensor.name, "' in ", first.substr(first.rfind('/') + 1),
                              files_.size() > 1 ? text(" and ", files_.size() - 1, " more") : ""));
        }
        const TensorEntry& entry = *found->second.entry;
        if (!is_real(entry.type)) {
            bad(found->second.file->path(),
                text("byte ", entry.offset, ": tensor '", entry.name, "' is ", name_of(entry.type),
                     ": type not supported, expected F64, F32, F16 or BF16"),
                "Save the model in one of these types.");
        }
        if (entry.shape != tensor.shape) {
            bad(found->second.file->path(),
                text("byte ", entry.offset, ": tensor '", entry.name, "' has the shape ", to_text(Json(entry.shape)),
                     ", expected by config.json ", to_text(Json(tensor.shape))));
        }
    }

    // Throws if config.json ties the classifier to the embedding and there is a lm_head.weight that is no copy of it.
    void check_same_classifier() {
        const std::string name = tensors_of(table_[table_.index("wte.weight")]).front().name;
        const auto classifier = sources_.find("lm_head.weight"), embedding = sources_.find(name);
        if (classifier == sources_.end()) return;
        TensorSource &one = classifier->second, &other = embedding->second;
        one.is_read = true;
        if (one.entry->shape == other.entry->shape && is_real(one.entry->type) && values_of(one) == values_of(other)) {
            return;
        }
        bad(one.file->path(),
            text("byte ", one.entry->offset, ": tensor 'lm_head.weight' differs from '", name, "', but ", config_name,
                 " ties them"),
            "If the model has a classifier of its own, write \"tie_word_embeddings\": false into config.json; else "
            "remove the tensor.");
    }

    // Throws if a tensor was not read: it belongs to another model than config.json says, with layers, biases or norms
    // that this one does not have.
    void check_all_are_read(const std::string& ignored) const {
        constexpr int most_named = 8;
        const TensorSource* first = nullptr;
        std::string names;
        int unread = 0;
        for (const auto& [plain, place] : sources_) {
            const std::string& name = place.entry->name;
            if (place.is_read || is_harmless(name, family_) || matches_one(ignored, name)) continue;
            if (first == nullptr) first = &place;
            if (unread++ < most_named) names += text(names.empty() ? "'" : ", '", name.substr(0, 200), "'");
        }
        if (first == nullptr) return;
        bad(first->file->path(),
            text("byte ", first->entry->offset, ": the model of config.json has no tensor ", names,
                 unread > most_named ? text(" (nor ", unread - most_named, " more)") : ""),
            text("The file holds another model than ", config_name,
                 " says: correct that, or pass over what is not "
                 "needed with --ignore-tensors 'NAME,...' (* stands for any characters)."));
    }

    std::string folder_;
    ParamTable table_;
    const ModelFamily& family_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
    std::map<std::string, TensorSource> sources_;   // by name without the prefix
    ExpertForm form_ = ExpertForm::apart;
    std::vector<float> router_bias_;
};

}   // namespace

std::vector<TensorEntry> router_bias_entries(const ModelConfig& config) {
    std::vector<TensorEntry> entries;
    for (std::int64_t l = 0; l < config.layers && config.router == RouterScore::sigmoid; l++) {
        entries.push_back({text("h.", l, ".mlp.router.bias"), TensorType::F32, {config.experts}, 0});
    }
    return entries;
}

std::vector<float> read_router_bias(const FileSystem& files, const std::string& folder, const ModelConfig& config) {
    std::vector<float> all;
    const std::vector<TensorEntry> entries = router_bias_entries(config);
    if (entries.empty()) return all;
    const SafetensorsFile file(files, folder + "/" + kRouterBiasFile);
    for (const TensorEntry& expected : entries) {
        const TensorEntry& entry = file.entry(expected.name);
        if (entry.shape != expected.shape || entry.type != expected.type) {
            bad(file.path(),
                text("byte ", entry.offset, ": tensor '", entry.name, "' has the shape ", to_text(Json(entry.shape)),
                     ", expected ", to_text(Json(expected.shape)), " in fp32"));
        }
        const std::vector<float> values = file.read_as<float>(entry);
        all.insert(all.end(), values.begin(), values.end());
    }
    return all;
}

ModelConfig hugging_face_model_config(const FileSystem& files, const std::string& folder) {
    const std::string path = folder + "/" + config_name;
    return read_hugging_face_config(read_json_file(files, path), path);
}

std::unique_ptr<WeightSource> open_hugging_face(const FileSystem& files, const std::string& folder,
                                                const std::string& ignored) {
    return std::make_unique<HuggingFaceModel>(files, folder, ignored);
}

std::unique_ptr<WeightSource> open_weights(const FileSystem& files, const std::string& path,
                                           const std::string& ignored) {
    // a path that is not there and looks like a name: model_config refuses unknown names
    if (!files.exists(path) && path.find_first_of("./") == std::string::npos) model_config(path);
    return files.exists(path + "/" + config_name) ? open_hugging_face(files, path, ignored)
                                                  : open_llmc_model(files, path);
}
