// Models by name: the sizes that were published, and those that a descriptor counts out (config.h).

#include <array>
#include <charconv>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/model/config.h"

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

// Models of Llama's kind as they were published: llama2.c's stories15M and stories110M, MobileLLM 125M and 350M (Liu et
// al., 2024; SmolLM 135M and 360M with a larger vocabulary), Llama 3.2 1B, and Llama 3 8B (Grattafiori et al., "The
// Llama 3 herd of models", 2024); Qwen2.5 0.5B, 1.5B, 3B and 7B (Yang et al., "Qwen2.5 technical report", 2024), which
// have biases of queries, keys and values; and Qwen3 0.6B, 1.7B and 8B (Yang et al., "Qwen3 technical report", 2025),
// which have norms of heads. They have the positions of their first training and, unless another is given, GPT-2's
// vocabulary.
struct LlamaSize {
    NamedSize size;
    std::int64_t kv_heads, mlp_width, context;
    double rope_theta;
    bool tied;
    std::int64_t head_size = 0;   // 0: channels / heads
    bool qk_norm = false, qkv_bias = false;
    double norm_eps = 1e-5;
};
constexpr std::array<LlamaSize, 6> llama_sizes{{
    {{"15M", 6, 288, 6}, 6, 768, 256, 10000, true},
    {{"110M", 12, 768, 12}, 12, 2048, 1024, 10000, true},
    {{"125M", 30, 576, 9}, 3, 1536, 2048, 10000, true},
    {{"350M", 32, 960, 15}, 5, 2560, 2048, 10000, true},
    {{"1B", 16, 2048, 32}, 8, 8192, 8192, 500000, true},
    {{"8B", 32, 4096, 32}, 8, 14336, 8192, 500000, false},
}};
constexpr std::array<LlamaSize, 4> qwen2_sizes{{
    {{"500M", 24, 896, 14}, 2, 4864, 4096, 1e6, true, 0, false, true, 1e-6},
    {{"1500M", 28, 1536, 12}, 2, 8960, 4096, 1e6, true, 0, false, true, 1e-6},
    {{"3B", 36, 2048, 16}, 2, 11008, 4096, 1e6, true, 0, false, true, 1e-6},
    {{"7B", 28, 3584, 28}, 4, 18944, 4096, 1e6, false, 0, false, true, 1e-6},
}};
constexpr std::array<LlamaSize, 3> qwen3_sizes{{
    {{"600M", 28, 1024, 16}, 8, 3072, 4096, 1e6, true, 128, true, false, 1e-6},
    {{"1700M", 28, 2048, 16}, 8, 6144, 4096, 1e6, true, 128, true, false, 1e-6},
    {{"8B", 36, 4096, 32}, 8, 12288, 4096, 1e6, false, 128, true, false, 1e-6},
}};

constexpr std::int64_t channels_per_layer = 64;   // width of depths that sizes_by_depth lacks
constexpr std::int64_t longest_depth = 1000;

const char* name_of(const NamedSize& size) { return size.name; }
const char* name_of(const LlamaSize& size) { return size.size.name; }

template <class Size, std::size_t n>
std::string list_names(const char* prefix, const std::array<Size, n>& sizes) {
    std::string names;
    for (const Size& size : sizes) names += text(names.empty() ? "" : ", ", prefix, name_of(size));
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

ModelConfig make(const LlamaSize& from) {
    ModelConfig config = make(from.size, from.context);
    config.tied = from.tied;
    config.norm = NormKind::rms;
    config.positions = PositionKind::rotary;
    config.rope_theta = from.rope_theta;
    config.norm_eps = from.norm_eps;
    config.mlp = MlpKind::swiglu;
    config.bias = from.qkv_bias ? Bias::qkv : Bias::none;
    config.own_kv_heads = from.kv_heads;
    config.own_mlp_width = from.mlp_width;
    config.own_head_size = from.head_size;
    if (from.qk_norm) config.qk_norm = QkNorm::head;
    return config;
}

template <std::size_t n>
std::optional<ModelConfig> find_llama(const std::array<LlamaSize, n>& sizes, const char* prefix,
                                      const std::string& descriptor) {
    for (const LlamaSize& size : sizes) {
        if (descriptor == text(prefix, size.size.name)) return make(size);
    }
    return std::nullopt;
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
    for (const char* family : {"gpt2:", "gpt3:", "llama:", "qwen2:", "qwen3:"}) {
        if (text.starts_with(family)) return true;
    }
    return text.starts_with("d") && text.size() > 1 && text.find_first_not_of("0123456789", 1) == std::string::npos;
}

std::string model_names() {
    return text(list_names("gpt2:", gpt2_sizes), ", ", list_names("gpt3:", gpt3_sizes), ", ",
                list_names("llama:", llama_sizes), ", ", list_names("qwen2:", qwen2_sizes), ", ",
                list_names("qwen3:", qwen3_sizes),
                ", dN for a GPT-2 of N layers (d12), gpt3:cN for a GPT-3 of N channels (gpt3:c768)");
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
    if (const auto llama = find_llama(llama_sizes, "llama:", descriptor)) return *llama;
    if (const auto qwen2 = find_llama(qwen2_sizes, "qwen2:", descriptor)) return *qwen2;
    if (const auto qwen3 = find_llama(qwen3_sizes, "qwen3:", descriptor)) return *qwen3;
    no_such_model(descriptor);
}
