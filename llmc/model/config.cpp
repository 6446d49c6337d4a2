#include "llmc/model/config.h"

#include <array>
#include <charconv>
#include <optional>

#include "llmc/base/error.h"
#include "llmc/kernels/attention/attention.h"

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

constexpr std::int64_t channels_per_layer = 64;   // of depths without a size of their own
constexpr std::int64_t longest_depth = 1000;

template <std::size_t n>
std::string list_names(const char* prefix, const std::array<NamedSize, n>& sizes) {
    std::string names;
    for (const NamedSize& size : sizes) names += text(names.empty() ? "" : ", ", prefix, size.name);
    return names;
}

[[noreturn]] void no_such_model(const std::string& descriptor) {
    throw Error(ErrorKind::usage, text("there is no model named '", descriptor, "'"),
                text("Known are ", list_names("gpt2:", gpt2_sizes), ", ", list_names("gpt3:", gpt3_sizes),
                     ", dN for a GPT-2 of N layers (d12), gpt3:cN for a GPT-3 of N channels (gpt3:c768); or give "
                     "--layers, --heads and --channels."));
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

const std::vector<ModelField>& model_fields() {
    using Config = ModelConfig;
    static const std::vector<ModelField> fields = {
        {.name = "layers",
         .help = "transformer layers; with --heads and --channels instead of --model",
         .key = "n_layer",
         .get = [](const Config& c) { return c.layers; },
         .set = [](Config& c, std::int64_t value) { c.layers = value; },
         .llmc = 4},
        {.name = "heads",
         .help = "attention heads of a layer",
         .key = "n_head",
         .get = [](const Config& c) { return c.heads; },
         .set = [](Config& c, std::int64_t value) { c.heads = value; },
         .llmc = 5},
        {.name = "channels",
         .help = "width of the residual stream",
         .key = "n_embd",
         .get = [](const Config& c) { return c.channels; },
         .set = [](Config& c, std::int64_t value) { c.channels = value; },
         .llmc = 6},
        {.name = "seq-len",
         .help = "learned positions",
         .key = "n_positions",
         .get = [](const Config& c) { return c.max_seq_len; },
         .set = [](Config& c, std::int64_t value) { c.max_seq_len = value; },
         .llmc = 2},
        {.name = "vocab-size",
         .help = "token ids the model knows",
         .key = "vocab_size",
         .get = [](const Config& c) { return c.vocab_size; },
         .set =
             [](Config& c, std::int64_t value) {
                 c.vocab_size = value;
                 c.padded_vocab_size = padded_vocab(value);
             },
         .llmc = 3},
        {.name = "tie-embeddings",
         .help =
             "the classifier is the token embedding, as in GPT-2; 0: a tensor of its own. A model file says it itself",
         .key = "tie_word_embeddings",
         .get = [](const Config& c) { return std::int64_t{c.tied}; },
         .set = [](Config& c, std::int64_t value) { c.tied = value != 0; },
         .values = {"0", "1"}},
        {.name = "norm",
         .help = "layer normalisation, as in GPT-2, or RMSNorm, without mean and bias. A model file says it itself",
         .key = "norm",
         .get = [](const Config& c) { return static_cast<std::int64_t>(c.norm); },
         .set = [](Config& c, std::int64_t value) { c.norm = static_cast<NormKind>(value); },
         .values = {"layer", "rms"},
         .hugging_face = false},
    };
    return fields;
}

std::string ModelField::value_of(const ModelConfig& config) const {
    const std::int64_t value = get(config);
    return is_size() ? std::to_string(value) : values[static_cast<std::size_t>(value)];
}

bool ModelField::read(ModelConfig& config, const std::string& value) const {
    if (is_flag() && (value == "true" || value == "false")) return set(config, value == "true"), true;
    for (std::size_t i = 0; i < values.size(); i++) {
        if (value == values[i]) return set(config, static_cast<std::int64_t>(i)), true;
    }
    return false;
}

namespace {

template <class Holds>
std::string beyond(const ModelConfig& config, Holds&& holds) {
    for (const ModelField& field : model_fields()) {
        if (!holds(field) && field.get(config) != field.get(ModelConfig{})) {
            return text("--", field.name, " ", field.value_of(config));
        }
    }
    return "";
}

}   // namespace

std::string beyond_hugging_face(const ModelConfig& config) {
    return beyond(config, [](const ModelField& field) { return field.hugging_face; });
}
std::string beyond_llmc(const ModelConfig& config) {
    return beyond(config, [](const ModelField& field) { return field.llmc >= 0; });
}

std::int64_t padded_vocab(std::int64_t vocab_size) {
    return (vocab_size + vocab_padding - 1) / vocab_padding * vocab_padding;
}

bool is_descriptor(const std::string& text) {
    if (text.starts_with("gpt2:") || text.starts_with("gpt3:")) return true;
    return text.starts_with("d") && text.size() > 1 && text.find_first_not_of("0123456789", 1) == std::string::npos;
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
    no_such_model(descriptor);
}

ModelConfig custom_model_config(std::int64_t layers, std::int64_t heads, std::int64_t channels,
                                std::int64_t max_seq_len, std::int64_t vocab_size) {
    const ModelConfig config{layers, heads, channels, max_seq_len, vocab_size, padded_vocab(vocab_size)};
    check_model_config(config);
    return config;
}

void check_model_config(const ModelConfig& c) {
    auto require = [&](bool holds, const std::string& found, const char* hint) {
        if (!holds) throw Error(ErrorKind::usage, "not a model: " + found, hint);
    };
    require(c.layers > 0, text(c.layers, " layers"), "--layers must be at least 1.");
    require(c.heads > 0, text(c.heads, " heads"), "--heads must be at least 1.");
    require(c.channels > 0, text(c.channels, " channels"), "--channels must be at least 1.");
    require(c.max_seq_len > 0, text(c.max_seq_len, " positions"), "--seq-len must be at least 1.");
    require(c.vocab_size > 0, text("a vocabulary of ", c.vocab_size), "--vocab-size must be at least 1.");
    require(c.channels % c.heads == 0, text(c.heads, " heads do not divide ", c.channels, " channels"),
            "--channels must be a multiple of --heads.");
    require(c.head_size() % 8 == 0, text("heads of ", c.head_size(), " channels"),
            "--channels / --heads must be a multiple of 8; 64 and 128 are fastest.");
    require(c.head_size() <= kLargestHead, text("heads of ", c.head_size(), " channels, which no attention serves"),
            "--channels / --heads must be at most 128: give more --heads.");
    require(c.padded_vocab_size >= c.vocab_size && c.padded_vocab_size % vocab_padding == 0,
            text("a vocabulary of ", c.vocab_size, " padded to ", c.padded_vocab_size),
            "The padded vocabulary is the vocabulary rounded up to a multiple of 128.");
}

double flops_per_token(const ModelConfig& config, std::int64_t seq_len) {
    return 6.0 * static_cast<double>(parameter_count(config)) +
           6.0 * static_cast<double>(config.layers * config.channels) * static_cast<double>(seq_len);
}

std::string describe(const ModelConfig& c) {
    return text(c.layers, " layers, ", c.heads, " heads of ", c.head_size(), ", ", c.channels, " channels, ",
                c.max_seq_len, " positions, vocabulary ", c.vocab_size, " (padded ", c.padded_vocab_size, "), ",
                c.tied ? "" : "a classifier of its own, ", c.norm == NormKind::rms ? "RMSNorm, " : "",
                parameter_count(c), " parameters");
}
