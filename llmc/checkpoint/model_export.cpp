#include "llmc/checkpoint/model_export.h"

#include <filesystem>

#include "llmc/base/json.h"
#include "llmc/model/families/family.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/tokenizer/files/files.h"

void save_llmc_model(FileSystem& files, const std::string& path, const Stage& model, const Gatherer& gatherer) {
    if (model.options().replica > 0) return;   // the first one writes its model
    const RankLayout& place = model.storage().place();
    const bool writes = rank_of(place.mesh, place.at) == 0;
    std::unique_ptr<Communicator::LocalWork> work;   // between one tensor and the next the file is written
    auto read = [&](int param) {
        work.reset();
        const std::vector<floatX> values = gatherer.gather_to_first(model.parameters(), param);
        if (writes) work = gatherer.local_work();
        return std::vector<float>(values.begin(), values.end());
    };
    if (!writes) {
        for (int param : llmc_order(model.table())) read(param);
        return;
    }
    const std::string temporary = path + ".tmp";
    write_llmc_model(files, temporary, model.config(), dtype_of<floatX>, read);
    files.rename(temporary, path);
    files.sync_folder(std::filesystem::path(path).parent_path().string());
}

namespace {

std::string config_json(const ModelConfig& config, TensorType type, const Tokenizer* tokenizer) {
    Json json = hugging_face_config(config, type == TensorType::BF16 ? "bfloat16" : "float32");
    // left out, they are GPT-2's: right for its vocabulary, and nothing in another one
    if (tokenizer != nullptr || config.vocab_size != 50257) {
        const SpecialIds ids = tokenizer != nullptr ? tokenizer->special() : SpecialIds{};
        json.add("bos_token_id", ids.bos ? Json(*ids.bos) : Json());
        json.add("eos_token_id", ids.eos.empty() ? Json() : json_of(ids.eos));
        if (ids.pad) json.add("pad_token_id", *ids.pad);
    }
    return to_text(json, 2) + "\n";
}

std::string tokenizer_config_json(const ModelConfig& config, const Tokenizer& tokenizer) {
    const SpecialIds& ids = tokenizer.special();
    auto token = [&](std::optional<std::uint32_t> id) { return id ? Json(tokenizer.data().spelling(*id)) : Json(); };
    Json json = Json::object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"bos_token", token(ids.bos)},
                              {"eos_token", token(ids.eos.front())},
                              {"model_max_length", config.max_seq_len},
                              {"clean_up_tokenization_spaces", false}});
    if (ids.pad) json.add("pad_token", token(ids.pad));
    return to_text(json, 2) + "\n";
}

// Returns a tokenizer_config.json whose model_max_length, if it has one, is not below `length`; else as it was.
std::string with_length(std::string content, std::int64_t length) {
    Json json;
    try {
        json = parse_json(content);
    } catch (const JsonError&) {   // other programs may read it
        return content;
    }
    const Json* const before = json.find("model_max_length");
    if (before == nullptr || !before->is_number() || before->as_number() >= static_cast<double>(length)) return content;
    const std::size_t begin = before->offset(), end = content.find_first_of(",} \t\r\n", begin);
    return content.replace(begin, end - begin, std::to_string(length));
}

}   // namespace

std::vector<HuggingFaceFile> hugging_face_files(const ModelConfig& config, TensorType type,
                                                const Tokenizer* tokenizer) {
    std::vector<HuggingFaceFile> files{{"config.json", config_json(config, type, tokenizer)}};
    if (tokenizer == nullptr) return files;
    bool has_config = false;
    for (const auto& [name, content] : files_on_texts(tokenizer->data())) {
        const bool is_config = name == "tokenizer_config.json";
        files.push_back({name, is_config ? with_length(content, config.max_seq_len) : content});
        has_config = has_config || is_config;
    }
    if (!has_config) files.push_back({"tokenizer_config.json", tokenizer_config_json(config, *tokenizer)});
    return files;
}

// Names need no prefix, except beside lm_head's.
std::vector<TensorEntry> hugging_face_entries(const ParamTable& table, const ParamInfo& info) {
    std::vector<TensorEntry> entries;
    for (FileTensor& tensor : file_tensors(table, info, !table.config().tied)) {
        entries.push_back({std::move(tensor.name), parameter_type, std::move(tensor.shape)});
    }
    return entries;
}
