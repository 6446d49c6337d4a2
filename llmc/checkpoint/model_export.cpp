#include "llmc/checkpoint/model_export.h"

#include <filesystem>

#include "llmc/base/json.h"
#include "llmc/model/families/family.h"
#include "llmc/model/families/weight_source.h"

void save_llmc_model(FileSystem& files, const std::string& path, const Stage& model, const Gatherer& gatherer) {
    const ShardPlace& place = model.storage().place();
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
        const Json end = tokenizer != nullptr ? Json(tokenizer->end_of_text()) : Json(nullptr);
        json.add("bos_token_id", end);
        json.add("eos_token_id", end);
    }
    return to_text(json, 2) + "\n";
}

}   // namespace

std::vector<HuggingFaceFile> hugging_face_files(const ModelConfig& config, TensorType type,
                                                const Tokenizer* tokenizer) {
    std::vector<HuggingFaceFile> files{{"config.json", config_json(config, type, tokenizer)}};
    if (tokenizer == nullptr) return files;
    const std::string& end = tokenizer->data().tokens[tokenizer->end_of_text()];
    const Json ids =
        Json::object({{"bos_token_id", tokenizer->end_of_text()}, {"eos_token_id", tokenizer->end_of_text()}});
    const Json of_tokenizer = Json::object({{"tokenizer_class", "PreTrainedTokenizerFast"},
                                            {"bos_token", end},
                                            {"eos_token", end},
                                            {"model_max_length", config.max_seq_len},
                                            {"clean_up_tokenization_spaces", false}});
    files.push_back({"generation_config.json", to_text(ids, 2) + "\n"});
    files.push_back({"tokenizer_config.json", to_text(of_tokenizer, 2) + "\n"});
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
