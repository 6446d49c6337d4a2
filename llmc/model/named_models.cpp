// Models by name: the sizes that were published, and those that a descriptor counts out (config.h).

#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/model/config.h"
#include "llmc/model/named_models.h"

namespace {

struct NamedSize {
    const char* name;
    std::int64_t layers, channels, heads;
};

constexpr std::int64_t gpt2_context = 1024;
constexpr std::int64_t gpt3_context = 2048;

constexpr std::array<NamedSize, 4> gpt2_sizes{{
    {"124M", 12, 768, 12},
    {"350M", 24, 1024, 16},
    {"774M", 36, 1280, 20},
    {"1558M", 48, 1600, 25},
}};

constexpr std::array<NamedSize, 8> gpt3_sizes{{
    {"125M", 12, 768, 12},
    {"350M", 24, 1024, 16},
    {"760M", 24, 1536, 16},
    {"1300M", 24, 2048, 16},
    {"2700M", 32, 2560, 32},
    {"6700M", 32, 4096, 32},
    {"13B", 40, 5120, 40},
    {"175B", 96, 12288, 96},
}};

// llm.c's sizes by depth (`d6` ... `d84`); the first four multiples of twelve are GPT-2's
constexpr std::array<NamedSize, 8> sizes_by_depth{{
    {"d6", 6, 384, 6},
    {"d12", 12, 768, 12},
    {"d24", 24, 1024, 16},
    {"d36", 36, 1280, 20},
    {"d48", 48, 1600, 25},
    {"d60", 60, 1920, 30},
    {"d72", 72, 2880, 30},
    {"d84", 84, 3456, 36},
}};

// Models of Llama's kind as they were published. They have the positions of their first training and, unless another is
// given, GPT-2's vocabulary.
struct LlamaSize {
    NamedSize size;
    std::int64_t kv_heads, mlp_width;
    bool tied;
    std::int64_t context;
    double rope_theta;
    std::int64_t vocabulary;   // that the published model has
};
struct LlamaFamily {
    const char* prefix;
    ModelConfig like;   // fields that all its sizes share
    std::vector<LlamaSize> sizes;
};

const std::vector<LlamaFamily>& llama_families() {
    const ModelConfig llama{
        .norm = NormKind::rms, .positions = PositionKind::rotary, .mlp = MlpKind::swiglu, .bias = Bias::none};
    ModelConfig eps_1e6 = llama, mistral = llama;
    eps_1e6.norm_eps = 1e-6;
    mistral.window = 4096;
    ModelConfig qwen2 = eps_1e6, qwen3 = eps_1e6, smollm3 = eps_1e6, olmo3 = eps_1e6;
    qwen2.bias = Bias::qkv;
    qwen3.qk_norm = QkNorm::head, qwen3.own_head_size = 128;
    smollm3.rope_layers = "RRRN";
    olmo3.norm_position = NormPosition::after, olmo3.qk_norm = QkNorm::row;
    olmo3.window = 4096, olmo3.layer_pattern = "SSSL";
    static const std::vector<LlamaFamily> all = {
        // llama2.c's stories15M and stories110M, MobileLLM 125M and 350M (Liu et al., 2024; SmolLM 135M and 360M with a
        // larger vocabulary), Llama 3.2 1B, and Llama 3 8B (Grattafiori et al., "The Llama 3 herd of models", 2024)
        {"llama:",
         llama,
         {
             {{"15M", 6, 288, 6}, 6, 768, true, 256, 10000, 32000},
             {{"110M", 12, 768, 12}, 12, 2048, true, 1024, 10000, 32000},
             {{"125M", 30, 576, 9}, 3, 1536, true, 2048, 10000, 32000},
             {{"350M", 32, 960, 15}, 5, 2560, true, 2048, 10000, 32000},
             {{"1B", 16, 2048, 32}, 8, 8192, true, 8192, 500000, 128256},
             {{"8B", 32, 4096, 32}, 8, 14336, false, 8192, 500000, 128256},
         }},
        // Jiang et al., "Mistral 7B", 2023
        {"mistral:",
         mistral,
         {
             {{"7B", 32, 4096, 32}, 8, 14336, false, 8192, 10000, 32000},
         }},
        // Qwen2.5 (Yang et al., "Qwen2.5 technical report", 2024)
        {"qwen2:",
         qwen2,
         {
             {{"500M", 24, 896, 14}, 2, 4864, true, 4096, 1e6, 151936},
             {{"1500M", 28, 1536, 12}, 2, 8960, true, 4096, 1e6, 151936},
             {{"3B", 36, 2048, 16}, 2, 11008, true, 4096, 1e6, 151936},
             {{"7B", 28, 3584, 28}, 4, 18944, false, 4096, 1e6, 152064},
         }},
        // Yang et al., "Qwen3 technical report", 2025
        {"qwen3:",
         qwen3,
         {
             {{"600M", 28, 1024, 16}, 8, 3072, true, 4096, 1e6, 151936},
             {{"1700M", 28, 2048, 16}, 8, 6144, true, 4096, 1e6, 151936},
             {{"8B", 36, 4096, 32}, 8, 12288, false, 4096, 1e6, 151936},
         }},
        // Bakouch et al., "SmolLM3", 2025
        {"smollm3:",
         smollm3,
         {
             {{"3B", 36, 2048, 16}, 4, 11008, true, 4096, 50000, 128256},
         }},
        // OLMo team, "Olmo 3", 2025
        {"olmo3:",
         olmo3,
         {
             {{"7B", 32, 4096, 32}, 32, 11008, false, 8192, 500000, 100278},
             {{"32B", 64, 5120, 40}, 8, 27648, false, 8192, 500000, 100278},
         }},
    };
    return all;
}

constexpr std::int64_t channels_per_layer = 64;   // width of depths that sizes_by_depth lacks
constexpr std::int64_t longest_depth = 1000;

template <std::size_t n>
std::string list_names(const char* prefix, const std::array<NamedSize, n>& sizes) {
    std::string names;
    for (const NamedSize& size : sizes) names += text(prefix, size.name, ", ");
    return names;
}

[[noreturn]] void no_such_model(const std::string& descriptor) {
    throw Error(ErrorKind::usage, text("there is no model named '", descriptor, "'"),
                text("Known are ", model_names(), "; or give --layers, --heads and --channels."));
}

std::optional<std::int64_t> parse_number(const std::string& digits) {
    std::int64_t value = 0;
    auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (status != std::errc() || end != digits.data() + digits.size() || value <= 0) return std::nullopt;
    return value;
}

ModelConfig make(const NamedSize& size, std::int64_t context) {
    return custom_model_config(size.layers, size.heads, size.channels, context);
}

ModelConfig make(const LlamaFamily& family, const LlamaSize& from) {
    ModelConfig config = family.like;
    config.layers = from.size.layers, config.channels = from.size.channels, config.heads = from.size.heads;
    config.max_seq_len = from.context;
    config.tied = from.tied;
    config.rope_theta = from.rope_theta;
    config.own_kv_heads = from.kv_heads;
    config.own_mlp_width = from.mlp_width;
    return config;
}

ModelConfig config_by_depth(const std::string& depth_text, const std::string& descriptor) {
    std::optional<std::int64_t> depth = parse_number(depth_text);
    if (!depth || *depth > longest_depth) no_such_model(descriptor);
    for (const NamedSize& size : sizes_by_depth) {
        if (size.layers == *depth) return make(size, gpt2_context);
    }
    return custom_model_config(*depth, *depth, channels_per_layer * *depth, gpt2_context);
}

ModelConfig gpt3_by_channels(const std::string& channels_text, const std::string& descriptor) {
    if (channels_text == "384") return custom_model_config(6, 6, 384, gpt3_context);   // llm.c's gpt3-tiny
    for (const NamedSize& size : gpt3_sizes) {
        if (std::to_string(size.channels) == channels_text) return make(size, gpt3_context);
    }
    no_such_model(descriptor);
}

bool starts_with_number(const std::string& text, std::size_t position) {
    return text.size() > position && text[position] >= '0' && text[position] <= '9';
}

}   // namespace

bool is_descriptor(const std::string& text) {
    for (const char* family : {"gpt2:", "gpt3:"}) {
        if (text.starts_with(family)) return true;
    }
    for (const LlamaFamily& family : llama_families()) {
        if (text.starts_with(family.prefix)) return true;
    }
    return text.starts_with("d") && text.size() > 1 && text.find_first_not_of("0123456789", 1) == std::string::npos;
}

std::int64_t published_vocabulary(const std::string& descriptor) {
    for (const LlamaFamily& family : llama_families()) {
        for (const LlamaSize& size : family.sizes) {
            if (descriptor == text(family.prefix, size.size.name)) return size.vocabulary;
        }
    }
    return 0;
}

std::string model_names() {
    std::string names = list_names("gpt2:", gpt2_sizes) + list_names("gpt3:", gpt3_sizes);
    for (const LlamaFamily& family : llama_families()) {
        for (const LlamaSize& size : family.sizes) names += text(family.prefix, size.size.name, ", ");
    }
    return names + "dN for a GPT-2 of N layers (d12), gpt3:cN for a GPT-3 of N channels (gpt3:c768)";
}

ModelConfig model_config(const std::string& descriptor) {
    if (descriptor.starts_with("d") && starts_with_number(descriptor, 1)) {
        return config_by_depth(descriptor.substr(1), descriptor);
    }
    if (descriptor.starts_with("gpt2:d")) return config_by_depth(descriptor.substr(6), descriptor);
    if (descriptor.starts_with("gpt3:c")) return gpt3_by_channels(descriptor.substr(6), descriptor);
    for (const NamedSize& size : gpt2_sizes) {
        if (descriptor == text("gpt2:", size.name)) return make(size, gpt2_context);
    }
    for (const NamedSize& size : gpt3_sizes) {
        if (descriptor == text("gpt3:", size.name)) return make(size, gpt3_context);
    }
    for (const LlamaFamily& family : llama_families()) {
        for (const LlamaSize& size : family.sizes) {
            if (descriptor == text(family.prefix, size.size.name)) return make(family, size);
        }
    }
    no_such_model(descriptor);
}
