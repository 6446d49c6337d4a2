#include "llmc/model/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <type_traits>

#include "llmc/base/ensure.h"
#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/kernels/attention/attention.h"

namespace {

constexpr MlpTraits mlp_kinds[] = {
    {.kind = MlpKind::gelu,
     .name = "gelu",
     .activation = "gelu_new",
     .gated = false,
     .times = 4,
     .in_matmul = true,
     .of_experts = true},
    {.kind = MlpKind::swiglu,
     .name = "swiglu",
     .activation = "silu",
     .gated = true,
     .times = 8,
     .over = 3,
     .unit = 256,
     .in_matmul = false,
     .of_experts = true},
    {.kind = MlpKind::relu2,
     .name = "relu2",
     .activation = "relu2",
     .gated = false,
     .times = 4,
     .in_matmul = false,
     .of_experts = false},
};
static_assert(mlp_kinds[0].kind == MlpKind{0} && mlp_kinds[1].kind == MlpKind{1} && mlp_kinds[2].kind == MlpKind{2});

constexpr const char* kScalings[] = {"none", "linear", "llama3", "yarn"};   // values of RopeScaling

template <auto kMember>
double get_member(const ModelConfig& config) {
    return static_cast<double>(config.*kMember);
}
template <auto kMember>
void set_member(ModelConfig& config, double value) {
    using Member = std::remove_reference_t<decltype(config.*kMember)>;
    config.*kMember = static_cast<Member>(value);
}
// Makes the row of a member. `get` returns the default of a member that is computed unless it is given.
template <auto kMember>
ModelField field(const char* name, const char* key, const char* help, double (*get)(const ModelConfig&) = nullptr) {
    return {.name = name, .help = help, .key = key, .get = get ? get : get_member<kMember>, .set = set_member<kMember>};
}

std::vector<ModelField> make_fields() {
    using Config = ModelConfig;
    std::vector<ModelField> all;
    auto add = [&](ModelField row) -> ModelField& { return all.emplace_back(std::move(row)); };
    auto basic = [&](ModelField row, const char* llama_key, int llmc) {
        row.llama_key = llama_key, row.basic = true, row.llmc = llmc;
        add(std::move(row));
    };
    basic(field<&Config::layers>("layers", "n_layer", "transformer layers"), "num_hidden_layers", 4);
    basic(field<&Config::heads>("heads", "n_head", "attention heads of a layer"), "num_attention_heads", 5);
    basic(field<&Config::channels>("channels", "n_embd", "width of the residual stream"), "hidden_size", 6);
    basic(field<&Config::max_seq_len>("seq-len", "n_positions", "positions"), "max_position_embeddings", 2);
    all.back().may_change = true;
    basic({.name = "vocab-size",
           .help = "token ids the model knows",
           .key = "vocab_size",
           .get = get_member<&Config::vocab_size>,
           .set =
               [](Config& c, double value) {
                   c.vocab_size = static_cast<std::int64_t>(value);
                   c.padded_vocab_size = padded_vocab(c.vocab_size);
               }},
          "vocab_size", 3);
    auto named = [&](ModelField row, std::vector<const char*> values, bool gpt2, const char* llama_key = nullptr) {
        row.values = std::move(values), row.gpt2 = gpt2, row.llama_key = llama_key;
        add(std::move(row));
    };
    named(field<&Config::tied>("tie-embeddings", "tie_word_embeddings",
                               "the classifier is the token embedding, as in GPT-2; 0: a tensor of its own"),
          {"0", "1"}, true, "tie_word_embeddings");
    named(field<&Config::norm>("norm", "norm", "layer normalisation, as in GPT-2, or RMSNorm, without mean and bias"),
          {"layer", "rms"}, false);
    named(field<&Config::norm_position>("norm-position", "norm_position",
                                        "the norm of a sublayer is of what it reads, or of what it adds, as in OLMo2"),
          {"before", "after"}, false);
    named(field<&Config::positions>("positions", "positions",
                                    "an embedding that is learned, as in GPT-2, or rotary (RoPE), as in Llama"),
          {"learned", "rotary"}, false);
    std::vector<const char*> mlp_names;
    for (const MlpTraits& kind : mlp_kinds) mlp_names.push_back(kind.name);
    named(field<&Config::mlp>("mlp", "mlp",
                              "the MLP's activation: GELU, as in GPT-2, SwiGLU, as in Llama, or squared ReLU"),
          mlp_names, false);
    named(field<&Config::bias>("bias", "bias",
                               "biases of all linear layers, as in GPT-2, of none, or of queries, keys and values "
                               "alone, as in Qwen2"),
          {"0", "1", "qkv"}, false);
    named(field<&Config::qk_norm>("qk-norm", "qk_norm",
                                  "RMSNorm of each head of queries and keys, as in Qwen3, or of whole rows of them, "
                                  "as in OLMo2"),
          {"none", "head", "row"}, false);
    auto number = [&](ModelField row, bool gpt2, bool whole, const char* llama_key) {
        row.gpt2 = gpt2, row.whole = whole, row.llama_key = llama_key;
        add(std::move(row));
    };
    add({.name = "layer-pattern",
         .help = "layers with the --window (S) and with all keys (L), repeated over the layers, as in SSSL; by default "
                 "all have it",
         .key = "layer_pattern",
         .get = [](const Config& c) { return pattern_number(c.layer_pattern); },
         .set = [](Config& c, double value) { c.layer_pattern = pattern_of(value); },
         .letters = "SL",
         .gpt2 = false});
    add({.name = "rope-layers",
         .help = "layers with rotary positions (R) and without positions (N), repeated over the layers, as in RRRN, "
                 "which SmolLM3 has; by default all have them",
         .key = "rope_layers",
         .get = [](const Config& c) { return pattern_number(c.rope_layers); },
         .set = [](Config& c, double value) { c.rope_layers = pattern_of(value); },
         .letters = "RN",
         .gpt2 = false});
    number(field<&Config::window>("window", "attention_window",
                                  "keys that a query sees at most, itself the last (sliding window); 0: all before it"),
           false, true, nullptr);
    number(field<&Config::own_kv_heads>(
               "kv-heads", "n_kv_head",
               "heads of keys and values, which groups of --heads share (grouped queries); 0: as many as --heads",
               [](const Config& c) { return static_cast<double>(c.kv_heads()); }),
           false, true, "num_key_value_heads");
    number(field<&Config::own_head_size>("head-size", "head_dim", "channels of a head; 0: --channels / --heads",
                                         [](const Config& c) { return static_cast<double>(c.head_size()); }),
           false, true, "head_dim");
    number(
        field<&Config::own_mlp_width>("mlp-width", "n_inner",
                                      "width inside the MLP; 0: 4 x --channels, of SwiGLU two thirds of that, "
                                      "rounded up to a multiple of 256",
                                      [](const Config& c) {   // the experts' width if they replace the MLP
                                          return static_cast<double>(c.experts > 0 ? c.expert_width() : c.mlp_width());
                                      }),
        true, true, "intermediate_size");
    number(field<&Config::norm_eps>("norm-eps", "layer_norm_epsilon", "what norms add before the root"), true, false,
           "rms_norm_eps");
    auto of_rotary = [&](ModelField row, bool whole, const char* llama_key, std::vector<RopeScaling> of_scalings = {}) {
        row.may_change = true, row.of_scalings = std::move(of_scalings);
        number(std::move(row), false, whole, llama_key);
    };
    constexpr auto linear = RopeScaling::linear, llama3 = RopeScaling::llama3, yarn = RopeScaling::yarn;
    of_rotary(field<&Config::rope_theta>("rope-theta", "rope_theta", "base of rotary positions' frequencies"), false,
              "rope_theta");
    of_rotary(field<&Config::rope_window_theta>(
                  "rope-window-theta", "rope_window_theta",
                  "base in layers with the --window, without --rope-scaling there, as in OLMo 3; 0: as in all layers"),
              false, nullptr);
    ModelField scaling = field<&Config::rope_scaling>(
        "rope-scaling", "rope_scaling",
        "frequencies for more positions: linear divides all by --rope-factor, llama3 those of long wavelengths, as in "
        "Llama 3.1, yarn those with few turns over --rope-original-len, and scales queries and keys");
    scaling.values.assign(std::begin(kScalings), std::end(kScalings));
    of_rotary(std::move(scaling), true, "rope_type", {linear, llama3, yarn});
    of_rotary(field<&Config::rope_factor>("rope-factor", "rope_factor", "divisor of --rope-scaling, at least 1"), false,
              "factor", {linear, llama3, yarn});
    of_rotary(field<&Config::rope_low_freq_factor>(
                  "rope-low-freq-factor", "rope_low_freq_factor",
                  "llama3: wavelengths above --rope-original-len over this get the whole divisor"),
              false, "low_freq_factor", {llama3});
    of_rotary(field<&Config::rope_high_freq_factor>("rope-high-freq-factor", "rope_high_freq_factor",
                                                    "llama3: wavelengths below --rope-original-len over this get none"),
              false, "high_freq_factor", {llama3});
    of_rotary(field<&Config::rope_beta_fast>(
                  "rope-beta-fast", "rope_beta_fast",
                  "yarn: frequencies with at least this many turns over --rope-original-len are not divided"),
              false, "beta_fast", {yarn});
    of_rotary(field<&Config::rope_beta_slow>(
                  "rope-beta-slow", "rope_beta_slow",
                  "yarn: frequencies with at most this many turns over --rope-original-len are divided"),
              false, "beta_slow", {yarn});
    of_rotary(
        field<&Config::rope_attention_factor>("rope-attention-factor", "rope_attention_factor",
                                              "yarn: factor on rotated queries and keys; 0: 0.1 ln(--rope-factor) + 1"),
        false, "attention_factor", {yarn});
    of_rotary(field<&Config::own_rope_original_len>(
                  "rope-original-len", "rope_original_len",
                  "llama3 and yarn: positions before scaling; by default those of a model that is continued, of a new "
                  "one 8192",
                  [](const Config& c) { return static_cast<double>(c.rope_original_len()); }),
              true, "original_max_position_embeddings", {llama3, yarn});
    number(field<&Config::experts>("experts", "n_expert", "experts of a layer, in place of its MLP; 0: none"), false,
           true, nullptr);
    number(field<&Config::own_experts_per_token>(
               "experts-per-token", "n_expert_per_token", "experts that each token goes to; 0: 2",
               [](const Config& c) {
                   return static_cast<double>(c.experts > 0 ? c.experts_per_token() : c.own_experts_per_token);
               }),
           false, true, nullptr);
    number(
        field<&Config::own_expert_width>(
            "expert-width", "n_expert_inner", "width inside an expert; 0: --mlp-width",
            [](const Config& c) { return static_cast<double>(c.experts > 0 ? c.expert_width() : c.own_expert_width); }),
        false, true, nullptr);
    number(field<&Config::shared_experts>("shared-experts", "n_shared_expert",
                                          "experts besides, of the same width, that every token goes to"),
           false, true, nullptr);
    named(field<&Config::router>("router", "router",
                                 "scores of experts: softmax over all of them, or a sigmoid for each"),
          {"softmax", "sigmoid"}, false);
    named(field<&Config::router_norm>("router-norm", "router_norm", "weights of a token's experts add up to 1"),
          {"0", "1"}, false);
    number(field<&Config::router_scale>("router-scale", "routed_scaling_factor",
                                        "factor on the weights of a token's experts, after --router-norm"),
           false, false, nullptr);
    auto of_training = [&](ModelField row) {
        row.of_training = true;
        number(std::move(row), false, false, nullptr);
    };
    of_training(field<&Config::aux_loss>("aux-loss", "router_aux_loss",
                                         "factor of the loss that balances experts, sequence by sequence; 0: none"));
    of_training(field<&Config::router_z_loss>(
        "router-z-loss", "router_z_loss", "factor of the router's z-loss, the mean squared log-sum-exp of its logits"));
    return all;
}

}   // namespace

const std::vector<ModelField>& model_fields() {
    static const std::vector<ModelField> fields = make_fields();
    return fields;
}

namespace {

// Patterns that fields have had in this process; their numbers are their places.
struct KnownPatterns {
    std::mutex mutex;
    std::vector<std::string> all{""};
};
KnownPatterns& known_patterns() {
    static KnownPatterns known;
    return known;
}

}   // namespace

double pattern_number(const std::string& pattern) {
    KnownPatterns& known = known_patterns();
    const std::lock_guard lock(known.mutex);
    const auto found = std::ranges::find(known.all, pattern);
    const auto number = static_cast<double>(found - known.all.begin());
    if (found == known.all.end()) known.all.push_back(pattern);
    return number;
}
std::string pattern_of(double number) {
    KnownPatterns& known = known_patterns();
    const std::lock_guard lock(known.mutex);
    return known.all.at(static_cast<std::size_t>(number));
}

void apply(const ModelChoices& choices, ModelConfig& config) {
    for (const ModelField& field : model_fields()) {
        if (const auto given = choices.find(field.name); given != choices.end()) field.set(config, given->second);
    }
}

std::string ModelField::value_of(const ModelConfig& config) const {
    const double value = get(config);
    return letters != nullptr ? pattern_of(value) : is_number() ? text(value) : values[static_cast<std::size_t>(value)];
}

bool ModelField::read(ModelConfig& config, const std::string& value) const {
    if (is_flag() && (value == "true" || value == "false")) return set(config, value == "true"), true;
    for (std::size_t i = 0; i < values.size(); i++) {
        if (value == values[i]) return set(config, static_cast<double>(i)), true;
    }
    if (letters != nullptr) {
        const bool is_one = value.size() <= longest_pattern && value.find_first_not_of(letters) == std::string::npos;
        return is_one && (set(config, pattern_number(value)), true);
    }
    double number = 0;
    const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (!is_number() || status != std::errc() || end != value.data() + value.size()) return false;
    if (!(number >= 0 && number <= 1e9) || (whole && number != std::floor(number))) return false;
    return set(config, number), true;
}

bool ModelField::same(const ModelConfig& a, const ModelConfig& b) const {
    if (get(a) == get(b)) return true;
    if (letters == nullptr || a.layers != b.layers) return false;
    const std::string of_a = value_of(a), of_b = value_of(b);
    std::int64_t layer = 0;
    while (layer < a.layers && letter_of_layer(of_a, layer, *letters) == letter_of_layer(of_b, layer, *letters))
        layer++;
    return layer == a.layers;
}

bool ModelField::is_of(RopeScaling scaling) const {
    return std::ranges::find(of_scalings, scaling) != of_scalings.end();
}

bool ModelField::is_default(const ModelConfig& config) const {
    ModelConfig plain = config;
    set(plain, is_number() && whole ? 0 : get(ModelConfig{}));
    return !basic && same(plain, config);
}

bool operator==(const ModelConfig& a, const ModelConfig& b) {
    return a.padded_vocab_size == b.padded_vocab_size &&
           std::ranges::all_of(model_fields(), [&](const ModelField& field) { return field.same(a, b); });
}

std::string beyond(const ModelConfig& config, bool (*holds)(const ModelField&)) {
    for (const ModelField& field : model_fields()) {
        if (!holds(field) && !field.is_default(config)) return text("--", field.name, " ", field.value_of(config));
    }
    return "";
}
std::string beyond_llmc(const ModelConfig& config) {
    return beyond(config, [](const ModelField& field) { return field.llmc >= 0; });
}

const MlpTraits& traits_of(MlpKind kind) {
    const auto index = static_cast<std::size_t>(kind);
    ENSURE(index < std::size(mlp_kinds), "MLP kind ", index, " has no row in the table");
    return mlp_kinds[index];
}

std::int64_t ModelConfig::mlp_width() const {
    if (own_mlp_width > 0) return own_mlp_width;
    const MlpTraits& kind = traits_of(mlp);
    const std::int64_t width = kind.times * channels / kind.over;
    return (width + kind.unit - 1) / kind.unit * kind.unit;
}

std::int64_t padded_vocab(std::int64_t vocab_size) {
    return (vocab_size + vocab_padding - 1) / vocab_padding * vocab_padding;
}

ModelConfig custom_model_config(std::int64_t layers, std::int64_t heads, std::int64_t channels,
                                std::int64_t max_seq_len, std::int64_t vocab_size) {
    const ModelConfig config{.layers = layers,
                             .heads = heads,
                             .channels = channels,
                             .max_seq_len = max_seq_len,
                             .vocab_size = vocab_size,
                             .padded_vocab_size = padded_vocab(vocab_size)};
    check_model_config(config);
    return config;
}

// Returns the names of the kinds of MLP that experts have: "a or b".
static std::string mlps_of_experts() {
    std::string names;
    for (const MlpTraits& kind : mlp_kinds) {
        if (kind.of_experts) names += text(names.empty() ? "" : " or ", kind.name);
    }
    return names;
}

// Sizes up to which products of them, the bytes of their tensors and sums of these fit into 64 bits.
static constexpr std::int64_t kMostOfSize = 1 << 24;
static constexpr double kMostParameters = 1e16;
static constexpr std::int64_t kMostExperts = 1 << 20;   // in all layers: each has tensors of its own

// Returns the number of parameters without that of norms and biases.
static double most_parameters(const ModelConfig& c) {
    const auto C = static_cast<double>(c.channels), q = static_cast<double>(c.heads * c.head_size());
    const std::int64_t width = c.experts == 0 ? c.mlp_width() : c.expert_width();
    const double mlps = static_cast<double>(c.hidden_width(width) + width) *
                        static_cast<double>(c.experts == 0 ? 1 : c.experts + c.shared_experts);
    return static_cast<double>(c.layers) * C * (static_cast<double>(c.qkv_width()) + q + mlps) +
           C * static_cast<double>(2 * c.padded_vocab_size + c.max_seq_len);
}

void check_model_config(const ModelConfig& c) {
    auto require = [&](bool holds, const std::string& found, const std::string& hint) {
        if (!holds) throw Error(ErrorKind::usage, "not a model: " + found, hint);
    };
    for (const ModelField& field : model_fields()) {
        if (!field.whole || !field.is_number()) continue;
        require(field.get(c) <= kMostOfSize, text("--", field.name, " ", field.value_of(c)),
                text("It must be at most ", kMostOfSize, "."));
    }
    require(c.layers > 0, text(c.layers, " layers"), "--layers must be at least 1.");
    require(c.heads > 0, text(c.heads, " heads"), "--heads must be at least 1.");
    require(c.channels > 0, text(c.channels, " channels"), "--channels must be at least 1.");
    require(c.max_seq_len > 0, text(c.max_seq_len, " positions"), "--seq-len must be at least 1.");
    require(c.vocab_size > 0, text("a vocabulary of ", c.vocab_size), "--vocab-size must be at least 1.");
    require(c.own_head_size > 0 || c.channels % c.heads == 0,
            text(c.heads, " heads do not divide ", c.channels, " channels"),
            "--channels must be a multiple of --heads, or --head-size given.");
    require(c.head_size() % 8 == 0, text("heads of ", c.head_size(), " channels"),
            "--channels / --heads (or --head-size) must be a multiple of 8; 64 and 128 are fastest.");
    require(c.positions == PositionKind::learned || c.head_size() % 16 == 0,
            text("heads of ", c.head_size(), " channels with rotary positions"),
            "With --positions rotary --channels / --heads (or --head-size) must be a multiple of 16.");
    require(c.channels % 8 == 0, text(c.channels, " channels"), "--channels must be a multiple of 8.");
    require(c.kv_heads() > 0 && c.heads % c.kv_heads() == 0,
            text(c.kv_heads(), " heads of keys and values for ", c.heads, " heads of queries"),
            "--kv-heads must divide --heads.");
    require(c.mlp_width() > 0 && c.mlp_width() % 8 == 0, text("an MLP of width ", c.mlp_width()),
            "--mlp-width must be a multiple of 8.");
    for (const ModelField& field : model_fields()) {
        if (field.letters == nullptr) continue;
        const std::string pattern = field.value_of(c);
        require(pattern.size() <= static_cast<std::size_t>(c.layers),
                text("--", field.name, " ", pattern, " of ", pattern.size(), " layers for ", c.layers),
                "It repeats, and must not be longer than the layers.");
    }
    const std::string& pattern = c.layer_pattern;
    require(pattern.empty() || c.window > 0, text("--layer-pattern ", pattern, " without a --window"),
            "Give --window, the keys that a layer S sees, or leave --layer-pattern out.");
    require(pattern.empty() || pattern.find('S') != std::string::npos,
            text("--layer-pattern ", pattern, ", in which no layer slides"),
            "Give at least one S, or leave --window and --layer-pattern out.");
    const bool experts = c.experts > 0;
    require(!experts || c.experts_per_token() <= c.experts,
            text(c.experts_per_token(), " experts a token of ", c.experts),
            "--experts-per-token must be at most --experts.");
    require(!experts || c.norm_position == NormPosition::before, "experts with --norm-position after",
            "Experts go with norms before sublayers.");
    require(!experts || traits_of(c.mlp).of_experts, text("experts with --mlp ", traits_of(c.mlp).name),
            text("Experts go with --mlp ", mlps_of_experts(), "."));
    require(!experts || (c.expert_width() > 0 && c.expert_width() % 8 == 0),
            text("experts of width ", c.expert_width()), "--expert-width must be a multiple of 8.");
    require(
        experts || (c.own_experts_per_token == 0 && c.own_expert_width == 0 && c.shared_experts == 0 &&
                    c.router == RouterScore::softmax && c.router_norm && c.router_scale == 1 && c.aux_loss == 0 &&
                    c.router_z_loss == 0),
        "--experts-per-token, --expert-width, --shared-experts, --router, --router-norm, --router-scale, --aux-loss or "
        "--router-z-loss without --experts",
        "Give --experts, or none of the options that go with it.");
    const auto router_scale = static_cast<float>(c.router_scale);   // as the router multiplies
    require(router_scale > 0 && std::isfinite(router_scale), text("--router-scale ", c.router_scale),
            "It must be above 0, in fp32 too: 1 leaves the weights as they are, DeepSeek-V3 has 2.5.");
    require(c.norm_eps > 0 && c.norm_eps < 1, text("--norm-eps ", c.norm_eps), "It must be between 0 and 1.");
    require(c.rope_theta >= 1 && c.rope_factor >= 1,
            text("--rope-theta ", c.rope_theta, " --rope-factor ", c.rope_factor), "Both must be at least 1.");
    const bool is_rotary = c.positions == PositionKind::rotary;
    require(is_rotary || c.rope_scaling == RopeScaling::none, "--rope-scaling with learned positions",
            "Scaling is of rotary positions: give --positions rotary, or leave --rope-scaling out.");
    require(is_rotary || c.rope_layers.empty(), "--rope-layers with learned positions",
            "Give --positions rotary, or leave --rope-layers out.");
    require(c.rope_window_theta == 0 || (c.rope_window_theta >= 1 && is_rotary && c.window > 0),
            text("--rope-window-theta ", c.rope_window_theta, is_rotary ? "" : " with learned positions",
                 c.window > 0 ? "" : " without a --window"),
            "It must be 0, or at least 1 in a model with --positions rotary and a --window.");
    for (const ModelField& field : model_fields()) {
        if (field.of_scalings.empty() || field.is_of(c.rope_scaling) || field.is_default(c)) continue;
        std::string scalings;
        for (const RopeScaling one : field.of_scalings) {
            scalings += text(scalings.empty() ? "" : " or ", kScalings[static_cast<std::size_t>(one)]);
        }
        require(false, text("--", field.name, " ", field.value_of(c), " without --rope-scaling ", scalings),
                text("Give --rope-scaling ", scalings, ", or leave --", field.name, " out."));
    }
    require(c.rope_scaling != RopeScaling::yarn || c.rope_theta > 1, "--rope-scaling yarn with --rope-theta 1",
            "YaRN divides by the base's logarithm: give a --rope-theta above 1.");
    require(c.rope_beta_slow > 0 && c.rope_beta_fast >= c.rope_beta_slow,
            text("--rope-beta-slow ", c.rope_beta_slow, " --rope-beta-fast ", c.rope_beta_fast),
            "The slow one must be above 0, and the fast one at least as large.");
    require(
        c.rope_low_freq_factor > 0 && c.rope_high_freq_factor > c.rope_low_freq_factor,
        text("--rope-low-freq-factor ", c.rope_low_freq_factor, " --rope-high-freq-factor ", c.rope_high_freq_factor),
        "The low one must be above 0, and the high one above it.");
    require(c.head_size() <= kLargestHead, text("heads of ", c.head_size(), " channels, which no attention serves"),
            text("--channels / --heads (or --head-size) must be at most ", kLargestHead, ": give more --heads."));
    require(c.padded_vocab_size >= c.vocab_size && c.padded_vocab_size % vocab_padding == 0,
            text("a vocabulary of ", c.vocab_size, " padded to ", c.padded_vocab_size),
            "The padded vocabulary is the vocabulary rounded up to a multiple of 128.");
    require(c.layers * c.experts <= kMostExperts, text(c.layers, " layers of ", c.experts, " experts"),
            text("It may have at most ", kMostExperts, " experts in all its layers."));
    require(most_parameters(c) <= kMostParameters, formatted("about %.3g parameters", most_parameters(c)),
            formatted("It may have at most %.3g: give smaller sizes.", kMostParameters));
}

double keys_by_layer(const ModelConfig& c, std::int64_t layer, std::int64_t seq_len) {
    const auto T = static_cast<double>(seq_len), W = static_cast<double>(c.window);
    return c.slides(layer) && c.window_cuts(seq_len) ? W - W * W / (2 * T) : T / 2;
}
double mean_keys(const ModelConfig& c, std::int64_t seq_len) {
    if (!c.window_cuts(seq_len)) return static_cast<double>(seq_len) / 2;
    double keys = 0;
    for (std::int64_t layer = 0; layer < c.layers; layer++) keys += keys_by_layer(c, layer, seq_len);
    return keys / static_cast<double>(c.layers);
}

double layer_flops_per_token(const ModelConfig& c, std::int64_t seq_len) {
    const auto C = static_cast<double>(c.channels);
    const auto q = static_cast<double>(c.heads * c.head_size()), kv = static_cast<double>(c.kv_heads() * c.head_size());
    const double of_width = c.gated() ? 3 : 2;
    const auto width = static_cast<double>(
        c.experts == 0 ? c.mlp_width() : (c.experts_per_token() + c.shared_experts) * c.expert_width());
    const double matrices = of_width * width + static_cast<double>(c.experts);   // that a token meets, C each
    return 3.0 * (4.0 * C * (q + kv) + 4.0 * mean_keys(c, seq_len) * q + 2.0 * C * matrices);
}

double flops_per_token(const ModelConfig& c, std::int64_t seq_len) {
    const auto L = static_cast<double>(c.layers), C = static_cast<double>(c.channels), T = static_cast<double>(seq_len);
    if (beyond(c, [](const ModelField& field) { return field.gpt2; }).empty()) {
        return 6.0 * static_cast<double>(parameter_count(c)) + 6.0 * L * C * T;
    }
    return L * layer_flops_per_token(c, seq_len) + 6.0 * C * static_cast<double>(c.vocab_size);
}

std::string describe(const ModelConfig& c) {
    std::string kinds;
    for (const ModelField& field : model_fields()) {
        if (!field.basic && !field.is_default(c)) kinds += text(field.name, " ", field.value_of(c), ", ");
    }
    return text(c.layers, " layers, ", c.heads, " heads of ", c.head_size(), ", ", c.channels, " channels, ",
                c.max_seq_len, " positions, vocabulary ", c.vocab_size, " (padded ", c.padded_vocab_size, "), ", kinds,
                parameter_count(c), " parameters");
}
