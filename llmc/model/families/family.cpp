#include "llmc/model/families/family.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/model/families/rope_scaling.h"

namespace {

[[noreturn]] void bad(const std::string& path, const std::string& what, const std::string& hint = "") {
    throw Error(ErrorKind::bad_data, text(path, ": ", what), hint);
}

// Values of fields of Llama's kind that config.json leaves out: those in the family's configuration class of
// transformers 5.24 (and of 4). 0: as many KV heads as attention heads, channels / heads, or the width of an MLP that
// no layer has. dev/reference/config_defaults.py compares them with the classes.
struct LeftOut {
    const char* model_type;
    double rms_norm_eps;
    std::int64_t num_key_value_heads, head_dim, intermediate_size;
    double rope_theta;
    bool tied = false;
};
constexpr LeftOut left_out[] = {
    {"llama", 1e-6, 0, 0, 11008, 10000},             // LlamaConfig
    {"mistral", 1e-6, 8, 0, 14336, 10000},           // MistralConfig
    {"qwen2", 1e-6, 32, 0, 22016, 10000},            // Qwen2Config
    {"qwen3", 1e-6, 32, 128, 22016, 10000},          // Qwen3Config
    {"olmo2", 1e-5, 0, 0, 11008, 10000},             // Olmo2Config
    {"olmo3", 1e-5, 0, 0, 11008, 500000},            // Olmo3Config
    {"smollm3", 1e-6, 4, 0, 11008, 2000000, true},   // SmolLM3Config
    {"mixtral", 1e-5, 8, 0, 0, 1000000},             // MixtralConfig
    {"qwen3_moe", 1e-6, 4, 0, 0, 10000},             // Qwen3MoeConfig
    {"olmoe", 1e-5, 0, 0, 0, 10000},                 // OlmoeConfig
};

std::vector<ModelFamily> with_fields_left_out(std::vector<ModelFamily> families) {
    for (ModelFamily& family : families) {
        for (const LeftOut& row : left_out) {
            if (std::string_view(row.model_type) != family.model_type) continue;
            family.implied.tied = row.tied;
            family.implied.norm_eps = row.rms_norm_eps;
            family.implied.own_kv_heads = row.num_key_value_heads;
            family.implied.own_head_size = row.head_dim;
            family.implied.own_mlp_width = row.intermediate_size;
            family.implied.rope_theta = row.rope_theta;
        }
    }
    return families;
}

const std::vector<ModelFamily>& families() {
    const ModelConfig llama{
        .norm = NormKind::rms, .positions = PositionKind::rotary, .mlp = MlpKind::swiglu, .bias = Bias::none};
    const std::vector<ModelFamily::Setting> of_gpt2 = {{"activation_function", "gelu_new"},
                                                       {"scale_attn_weights", true, false},
                                                       {"scale_attn_by_inverse_layer_idx", false, false}};
    const std::vector<ModelFamily::Setting> of_llama = {
        {"hidden_act", "silu"}, {"attention_bias", false}, {"mlp_bias", false}};
    ModelConfig qwen2 = llama;
    qwen2.bias = Bias::qkv;
    ModelConfig qwen3 = llama;
    qwen3.qk_norm = QkNorm::head;
    ModelConfig olmo2 = llama;
    olmo2.norm_position = NormPosition::after;
    olmo2.qk_norm = QkNorm::row;
    const std::vector<ModelFamily::Setting> silu = {{"hidden_act", "silu"}},
                                            silu_unbiased = {{"hidden_act", "silu"}, {"attention_bias", false}};
    // for mixtures of experts; their number and width are always said
    auto of_experts = [](ModelConfig like, bool router_norm) {
        like.experts = 1, like.router_norm = router_norm;
        return like;
    };
    ModelConfig olmoe = llama;
    olmoe.qk_norm = QkNorm::row;
    const std::vector<ModelFamily::Setting> of_mixtral = {{"hidden_act", "silu"}, {"router_jitter_noise", 0.0}};
    std::vector<ModelFamily::Setting> of_qwen3_moe = silu_unbiased, of_olmoe = silu_unbiased;
    of_qwen3_moe.push_back({"use_sliding_window", false});
    of_qwen3_moe.push_back({"decoder_sparse_step", 1});
    of_qwen3_moe.push_back({"mlp_only_layers", Json::array()});
    of_olmoe.push_back({"clip_qkv", nullptr});
    auto keys = [](const char* experts, const char* width) {
        return std::vector<ModelFamily::Key>{{"mlp-width", nullptr},
                                             {"experts", experts},
                                             {"experts-per-token", "num_experts_per_tok"},
                                             {"expert-width", width}};
    };
    auto with_norm = [](std::vector<ModelFamily::Key> all_keys) {
        all_keys.push_back({"router-norm", "norm_topk_prob"});
        return all_keys;
    };
    const ModelFamily::Key window{"window", "sliding_window", true}, layers{"layer-pattern", "layer_types", true},
        window_theta{"rope-window-theta", "rope_window_theta", true},
        rope_layers{"rope-layers", "no_rope_layers", true};
    auto with_window = [&](std::vector<ModelFamily::Key> all_keys) {
        all_keys.push_back(window);
        return all_keys;
    };
    ModelConfig mistral = llama;
    mistral.window = 4096;
    const std::vector<ModelFamily::Key> mixtral_keys = with_window(keys("num_local_experts", "intermediate_size")),
                                        qwen3_moe_keys = with_norm(keys("num_experts", "moe_intermediate_size")),
                                        olmoe_keys = with_norm(keys("num_experts", "intermediate_size"));
    static const std::vector<ModelFamily> all = with_fields_left_out({
        {"gpt2", "GPT2LMHeadModel", false, {}, of_gpt2},
        {"llama", "LlamaForCausalLM", true, llama, of_llama},
        {"mistral", "MistralForCausalLM", true, mistral, silu, {window}},
        {"qwen2", "Qwen2ForCausalLM", true, qwen2, silu, {window, layers}, LayerTypes::qwen},
        {"qwen3", "Qwen3ForCausalLM", true, qwen3, silu_unbiased, {window, layers}, LayerTypes::qwen},
        {"olmo2", "Olmo2ForCausalLM", true, olmo2, silu_unbiased},
        {"olmo3",
         "Olmo3ForCausalLM",
         true,
         olmo2,
         silu_unbiased,
         {window, layers, window_theta},
         LayerTypes::olmo3,
         true},
        {"smollm3", "SmolLM3ForCausalLM", true, llama, of_llama, {window, layers, rope_layers}, LayerTypes::smollm3},
        {"mixtral", "MixtralForCausalLM", true, of_experts(llama, true), of_mixtral, mixtral_keys},
        {"qwen3_moe", "Qwen3MoeForCausalLM", true, of_experts(qwen3, false), of_qwen3_moe, qwen3_moe_keys},
        {"olmoe", "OlmoeForCausalLM", true, of_experts(olmoe, false), of_olmoe, olmoe_keys},
        {"train_gpt", "TrainGptModel", false, {}, of_gpt2},
    });
    return all;
}

// Returns the value that null gives to a field, or none where null says nothing: to a flag the family's default; 0 to a
// size that follows from the model's others, and to a window.
std::optional<double> value_of_null(const ModelFamily& family, const ModelField& field) {
    if (!field.is_number()) return field.get(family.implied);
    const std::string_view name = field.name;
    const bool follows = name == "kv-heads" || name == "window" ||
                         (name == "head-size" && family.implied.own_head_size == 0) ||
                         (name == "mlp-width" && family.implied.own_mlp_width == 0);
    return follows ? std::optional(0.0) : std::nullopt;
}

// Returns the value of a field, or none where the file does not say it.
std::optional<double> value_in(const Json& json, const std::string& path, const ModelFamily& family,
                               const ModelField& field) {
    const char* key = family.key(field);
    constexpr double largest = 1 << 28;
    const Json* value = json.find(key);
    if ((value == nullptr || value->is_null()) && std::string_view(key) == "n_positions") {
        value = json.find(key = "n_ctx");   // its name in older files
    }
    if (value == nullptr && std::string_view(key) == "num_experts") {
        value = json.find(key = "num_local_experts");   // its name in a Qwen3-MoE by transformers 5
    }
    if (value == nullptr || (value->is_null() && field.basic)) return std::nullopt;
    const bool has_more = field.values.size() > 2;   // than false and true: names
    try {
        const std::optional<double> of_null = value_of_null(family, field);
        if (value->is_null() && of_null) return of_null;
        if (field.is_flag() && !(has_more && value->is_text())) return value->as_bool();
        if (field.is_number()) {
            const double number =
                field.whole ? static_cast<double>(value->as_whole(std::uint64_t{1} << 28)) : value->as_number();
            if (number > 0 && number <= largest) return number;
        }
        if (ModelConfig read; field.read(read, value->as_text())) return field.get(read);
    } catch (const JsonError&) {
    }
    const char* const expected = field.is_flag()            ? has_more ? "true, false or a known name" : "true or false"
                                 : field.letters != nullptr ? "letters of layers"
                                 : !field.is_number()       ? "a known name"
                                 : field.whole              ? "a size"
                                                            : "a number above 0";
    bad(path, text("\"", key, "\" is ", quoted(*value), ", expected ", expected));
}

// Names that Llama's files give to a parameter of a layer: one for each block of its rows, or one for all stacked
// experts. OLMo2's norms are named after their place. `*` is the number of an expert.
using FileNames = std::map<std::string, std::vector<std::string>, std::less<>>;
const FileNames& llama_names(const ModelFamily& family, ExpertForm form) {
    static const FileNames names = {
        {"wte.weight", {"model.embed_tokens.weight"}},
        {"ln_f.weight", {"model.norm.weight"}},
        {"lm_head.weight", {"lm_head.weight"}},
        {"ln_1.weight", {"input_layernorm.weight"}},
        {"attn.c_attn.weight", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
        {"attn.c_attn.bias", {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}},
        {"attn.c_proj.weight", {"self_attn.o_proj.weight"}},
        {"attn.q_norm.weight", {"self_attn.q_norm.weight"}},
        {"attn.k_norm.weight", {"self_attn.k_norm.weight"}},
        {"ln_2.weight", {"post_attention_layernorm.weight"}},
        {"mlp.c_fc.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}},
        {"mlp.c_proj.weight", {"mlp.down_proj.weight"}},
        {"mlp.router.weight", {"mlp.gate.weight"}},
        {"mlp.experts.c_fc.weight", {"mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"}},
        {"mlp.experts.c_proj.weight", {"mlp.experts.*.down_proj.weight"}},
    };
    static const FileNames with_norms_after = [] {
        FileNames changed = names;
        changed["ln_1.weight"] = {"post_attention_layernorm.weight"};
        changed["ln_2.weight"] = {"post_feedforward_layernorm.weight"};
        return changed;
    }();
    static const FileNames of_mixtral = [] {
        FileNames changed = names;
        changed["mlp.router.weight"] = {"block_sparse_moe.gate.weight"};
        changed["mlp.experts.c_fc.weight"] = {"block_sparse_moe.experts.*.w1.weight",
                                              "block_sparse_moe.experts.*.w3.weight"};
        changed["mlp.experts.c_proj.weight"] = {"block_sparse_moe.experts.*.w2.weight"};
        return changed;
    }();
    static const FileNames with_experts_stacked = [] {   // alike in all families that have experts
        FileNames changed = names;
        changed["mlp.experts.c_fc.weight"] = {"mlp.experts.gate_up_proj"};
        changed["mlp.experts.c_proj.weight"] = {"mlp.experts.down_proj"};
        return changed;
    }();
    if (form == ExpertForm::stacked) return with_experts_stacked;
    if (std::string_view(family.model_type) == "mixtral") return of_mixtral;
    return family.implied.norm_position == NormPosition::after ? with_norms_after : names;
}

// Returns one name for each block of rows of a parameter.
std::vector<std::string> block_names(const std::vector<std::string>& names, std::int64_t experts) {
    if (names.front().find('*') == std::string::npos) return names;
    std::vector<std::string> all;
    for (std::int64_t e = 0; e < experts; e++) {
        for (std::string name : names) all.push_back(name.replace(name.find('*'), 1, std::to_string(e)));
    }
    return all;
}

}   // namespace

const ModelFamily::Key* ModelFamily::own_key(const ModelField& field) const {
    const auto found =
        std::ranges::find_if(keys, [&](const Key& row) { return std::string_view(row.field) == field.name; });
    return found == keys.end() ? nullptr : &*found;
}

const char* ModelFamily::key(const ModelField& field) const {
    if (const Key* own = own_key(field)) return own->key;
    if (llama) return field.of_training && implied.experts > 0 ? field.key : field.llama_key;
    return field.gpt2 || is_only_ours(*this) ? field.key : nullptr;
}

std::string ModelFamily::beyond(const ModelConfig& config) const {
    if (!is_only_ours(*this) && (config.experts > 0) != (implied.experts > 0)) {
        return text("--experts ", config.experts);
    }
    for (const ModelField& field : model_fields()) {
        if (own_key(field) != nullptr) continue;
        if (key(field) == nullptr && !field.same(config, implied) &&
            !(field.is_default(config) && (!llama || field.letters != nullptr))) {
            return text("--", field.name, " ", field.value_of(config));
        }
    }
    return "";
}

const ModelFamily& family_of(const ModelConfig& config) {
    const ModelFamily* const read_as = config.model_type != nullptr ? find_family(config.model_type) : nullptr;
    if (read_as != nullptr && !is_only_ours(*read_as) && read_as->beyond(config).empty()) return *read_as;
    return *std::ranges::find_if(families(), [&](const ModelFamily& family) { return family.beyond(config).empty(); });
}
const ModelFamily* find_family(const std::string& model_type) {
    const auto found =
        std::ranges::find_if(families(), [&](const ModelFamily& family) { return family.model_type == model_type; });
    return found == families().end() ? nullptr : &*found;
}
bool is_only_ours(const ModelFamily& family) { return std::string_view(family.model_type) == "train_gpt"; }
std::string beyond_hugging_face(const ModelConfig& config) {
    const bool like_llama = config.positions == PositionKind::rotary;
    if (!is_only_ours(family_of(config))) return "";
    const bool like_olmo = config.norm_position == NormPosition::after && config.qk_norm == QkNorm::row;
    const bool experts = config.experts > 0;
    return find_family(!like_llama                                        ? "gpt2"
                       : like_olmo                                        ? (config.window > 0 ? "olmo3" : "olmo2")
                       : config.bias == Bias::qkv && !experts             ? "qwen2"
                       : config.qk_norm == QkNorm::head                   ? (experts ? "qwen3_moe" : "qwen3")
                       : experts && config.qk_norm == QkNorm::row         ? "olmoe"
                       : experts                                          ? "mixtral"
                       : config.window > 0 || !config.rope_layers.empty() ? "smollm3"
                                                                          : "llama")
        ->beyond(config);
}

const ModelFamily& family_named(const Json& given, const std::string& path) {
    const Json* const type = given.find("model_type");
    std::string known;
    for (const ModelFamily& one : families()) known += text(known.empty() ? "\"" : ", \"", one.model_type, "\"");
    if (type == nullptr || type->is_null()) {
        for (const char* key : {"n_layer", "n_head", "n_embd"}) {
            if (given.contains(key)) continue;
            bad(path, text("there is no \"model_type\" in it, nor the \"", key, "\" of a GPT-2"),
                text("Write the type of the model into it, one of ", known,
                     "; without it only a GPT-2 is read, by \"n_layer\", \"n_head\" and \"n_embd\"."));
        }
        return families().front();
    }
    const ModelFamily* const family = type->is_text() ? find_family(type->as_text()) : nullptr;
    if (family == nullptr) bad(path, text("\"model_type\" is ", quoted(*type), ", only ", known, " are supported"));
    return *family;
}

namespace {

// Returns the value of a setting in the file of a model.
Json setting_of(const ModelFamily::Setting& setting, const ModelConfig& config) {
    if (std::string_view(setting.key) == "activation_function") return traits_of(config.mlp).activation;
    return setting.value;
}

// Refuses settings that would make it a model of another kind.
void check_settings(const Json& json, const std::string& path, const ModelFamily& family, const ModelConfig& config) {
    for (const ModelFamily::Setting& setting : family.settings) {
        const char* const key = setting.key;
        const Json* const value = json.find(key);
        const Json expected = setting_of(setting, config);
        if (value == nullptr || value->is_null() || *value == expected) continue;
        bad(path, text("\"", key, "\" is ", quoted(*value), ", only ", to_text(expected), " is supported"));
    }
}

// Puts the file's names of fields into a message in place of options.
std::string with_keys(std::string message, const ModelFamily& family) {
    for (const ModelField& field : model_fields()) {
        const char* const key = family.key(field);
        if (key == nullptr) continue;
        const std::string option = text("--", field.name);
        for (std::size_t position = 0; (position = message.find(option, position)) != std::string::npos; position++) {
            const std::size_t end = position + option.size();
            const bool is_longer =
                end < message.size() && (message[end] == '-' || std::islower(static_cast<unsigned char>(message[end])));
            if (!is_longer) message.replace(position, option.size(), text("\"", key, "\""));
        }
    }
    return message;
}

}   // namespace

ModelConfig read_hugging_face_config(const Json& given, const std::string& path) {
    const ModelFamily* const family = &family_named(given, path);
    Json json = given;
    if (family->layer_types != LayerTypes::none) json = with_layer_windows_flat(family->layer_types, json, path);
    if (family->has_rope_by_layer) json = with_rope_by_layer_flat(json, path);
    if (family->llama) json = with_rope_scaling_flat(json, path);
    ModelConfig config = family->implied;
    config.model_type = family->model_type;
    for (const ModelField& field : model_fields()) {
        const char* const key = family->key(field);
        if (key == nullptr) continue;
        const std::optional<double> value = value_in(json, path, *family, field);
        const ModelFamily::Key* const own = family->own_key(field);
        if (!value && (field.basic || (own != nullptr && field.is_number() && !own->may_be_left_out))) {
            const bool says_type = given.contains("model_type");
            bad(path, text("there is no \"", key, "\" in it", says_type ? "" : ", nor a \"model_type\""),
                text("This must be the config.json of a model of the type \"", family->model_type, "\"."));
        }
        if (value) field.set(config, *value);
    }
    check_settings(json, path, *family, config);
    try {
        check_model_config(config);
        return config;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::usage) throw;
        bad(path, with_keys(error.message(), *family),
            text(with_keys(error.hint(), *family),
                 " A field that is left out is what transformers' configuration has (docs/models.md)."));
    }
}

Json hugging_face_config(const ModelConfig& config, const char* torch_dtype) {
    const ModelFamily& family = family_of(config);
    Json json =
        Json::object({{"architectures", Json::array({family.architecture})}, {"model_type", family.model_type}});
    auto add = [&](const ModelField& field) {
        const char* const key = family.key(field);
        if (key == nullptr) return;
        const double value = field.get(config);
        const ModelFamily::Key* const own = family.own_key(field);
        const bool is_none = value == 0 && own != nullptr && own->may_be_left_out;   // left out it may mean another
        json.add(key, is_none                         ? Json(nullptr)
                      : field.is_flag() && value <= 1 ? Json(value != 0)
                      : !field.is_number()            ? Json(field.value_of(config))
                      : field.whole                   ? Json(static_cast<std::int64_t>(value))
                                                      : Json(value));
        if (std::string_view(key) == "n_positions") json.add("n_ctx", static_cast<std::int64_t>(value));
    };
    const auto is_apart = [&](const ModelField& field) {
        const bool of_layers = field.letters != nullptr || std::string_view(field.name) == "window";
        return (family.llama && !field.of_scalings.empty()) ||
               (field.name == std::string_view("rope-window-theta") && family.has_rope_by_layer) ||
               (of_layers && family.layer_types != LayerTypes::none);
    };
    for (const ModelField& field : model_fields()) {
        if (field.basic) add(field);
    }
    for (const ModelFamily::Setting& setting : family.settings) {
        if (setting.written) json.add(setting.key, setting_of(setting, config));
    }
    if (family.layer_types != LayerTypes::none) add_layer_windows(family.layer_types, json, config);
    for (const ModelField& field : model_fields()) {
        if (!field.whole && field.get(config) != 0 && !is_apart(field)) add(field);
    }
    json.add("initializer_range", 0.02);
    if (!family.llama) {
        for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) json.add(dropout, 0.0);
    }
    for (const ModelField& field : model_fields()) {
        const bool goes_without_saying = !family.llama && field.values.empty() && field.is_default(config);
        if (!field.basic && field.whole && !goes_without_saying && !is_apart(field)) add(field);
    }
    if (family.llama) json.add("pad_token_id", nullptr);   // else token 1 of an OLMo2
    if (family.llama && config.rope_scaling != RopeScaling::none) json.add("rope_scaling", rope_scaling_json(config));
    if (family.has_rope_by_layer) json.add("rope_parameters", rope_by_layer_json(config));
    json.add("torch_dtype", torch_dtype);
    return json;
}

std::vector<FileTensor> file_tensors(const ParamTable& table, const ParamInfo& param, bool prefixed,
                                     const ModelFamily* of_files, ExpertForm form) {
    const ModelFamily& family = of_files ? *of_files : family_of(table.config());
    if (!family.llama) {
        const bool plain = !prefixed || param.name == "lm_head.weight";
        const std::int64_t rows = param.exported_rows();
        return {
            {plain ? param.name : "transformer." + param.name, 0, rows, param.hf_transposed, param.file_shape(true)}};
    }
    const std::string in_layer = param.layer < 0 ? "" : text("h.", param.layer, ".");
    const FileNames& all_names = llama_names(family, form);
    const auto found = all_names.find(std::string_view(param.name).substr(in_layer.size()));
    ENSURE(found != all_names.end(), "files of Llama's kind have no name for ", param.name);
    const std::string where = param.layer < 0 ? "" : text("model.layers.", param.layer, ".");
    if (form == ExpertForm::stacked && param.tensor.cut == TensorCut::experts) {
        const std::int64_t rows = param.tensor.rows, experts = table.config().experts;
        return {{where + found->second.front(), 0, rows, false, {experts, rows / experts, param.tensor.cols}}};
    }
    std::vector<std::int64_t> blocks = param.tensor.blocks;
    if (blocks.empty()) blocks.push_back(param.exported_rows());
    const std::vector<std::string> names = block_names(found->second, table.config().experts);
    ENSURE(blocks.size() == names.size(), param.name, " has ", blocks.size(), " blocks");
    std::vector<FileTensor> tensors;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < blocks.size(); i++) {
        std::vector<std::int64_t> shape{blocks[i]};
        if (param.is_matrix()) shape.push_back(param.tensor.cols);
        tensors.push_back({where + names[i], first, blocks[i], false, std::move(shape)});
        first += blocks[i];
    }
    return tensors;
}
