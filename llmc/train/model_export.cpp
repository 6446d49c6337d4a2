#include "llmc/train/model_export.h"

#include <filesystem>

#include "llmc/base/json.h"
#include "llmc/model/weight_source.h"

void save_llmc_model(FileSystem& files, const std::string& path, const Stage& model, const Gatherer& gatherer) {
    const ShardPlace& place = model.storage().place();
    const bool writes = rank_of(place.mesh, place.at) == 0;
    std::unique_ptr<Communicator::Alone> alone;   // between one tensor and the next the file is written
    auto read = [&](int param) {
        alone.reset();
        const std::vector<floatX> values = gatherer.gather_to_first(model.parameters(), param);
        if (writes) alone = gatherer.works_alone();
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

std::string hugging_face_config(const ModelConfig& config) {
    const Json json = Json::object({
        {"architectures", Json::array({"GPT2LMHeadModel"})},
        {"model_type", "gpt2"},
        {"n_layer", config.layers},
        {"n_head", config.heads},
        {"n_embd", config.channels},
        {"n_positions", config.max_seq_len},
        {"n_ctx", config.max_seq_len},
        {"vocab_size", config.vocab_size},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", 1e-5},
        {"initializer_range", 0.02},
        {"resid_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"attn_pdrop", 0.0},
        {"tie_word_embeddings", config.tied},
        {"torch_dtype", sizeof(floatX) == 2 ? "bfloat16" : "float32"},
    });
    return to_text(json, 2) + "\n";
}

// Names need no prefix, except beside lm_head's.
TensorEntry hugging_face_entry(const ParamTable& table, const ParamInfo& info) {
    const bool plain = table.config().tied || info.kind == Param::lmhead;
    return {plain ? info.name : "transformer." + info.name, parameter_type, info.file_shape(true)};
}
