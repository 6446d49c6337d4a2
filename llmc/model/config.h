// Configuration of a GPT: its sizes and kinds, models by name, and the counts that follow from them.
//
// A descriptor names a model: `gpt2:124M`, `gpt3:350M`, llm.c's `d12` (layers) and `gpt3:c768` (channels), or one of
// Llama's kind: `llama:125M`, `llama:8B` (named_models.cpp says which published configuration each is). GPT-3's sizes
// are those of Table 2.1 of Brown et al., "Language models are few-shot learners" (2020), with dense attention in every
// layer: the paper alternates with banded sparse attention, so the sizes match and the results are no reproduction.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// The norm of a sublayer and before the classifier.
enum class NormKind : std::uint8_t { layer, rms };
// Position of a sublayer's norm: x + sublayer(norm(x)), or x + norm(sublayer(x)) as in OLMo2.
enum class NormPosition : std::uint8_t { before, after };
// Kind of token positions: a learned embedding, or rotated queries and keys (llmc/kernels/rows/rotary.cuh).
enum class PositionKind : std::uint8_t { learned, rotary };
// Scaling of rotary positions' frequencies for more positions than those of the first training: all are divided by a
// factor, those with long wavelengths (Llama 3.1), or those of the later pairs of channels (YaRN), which also scales
// queries and keys (llmc/kernels/rows/rotary.cuh).
enum class RopeScaling : std::uint8_t { none, linear, llama3, yarn };
enum class MlpKind : std::uint8_t { gelu, swiglu, relu2 };
struct MlpTraits {
    MlpKind kind;
    const char* name;                   // value of --mlp
    const char* activation;             // its name in transformers
    bool gated;                         // the first layer makes F gates and F ups
    std::int64_t times = 1, over = 1;   // F = times C / over where nobody gives it,
    std::int64_t unit = 1;              // rounded up to a multiple of this
    bool in_matmul;                     // cuBLASLt's epilogues apply the activation and its derivative
    bool of_experts;                    // llmc/kernels/experts has it
};
const MlpTraits& traits_of(MlpKind kind);
// RMSNorm of queries and keys before rotation: of each head (Qwen3), or of all heads of a row (OLMo2).
enum class QkNorm : std::uint8_t { none, head, row };
// Linear layers that have biases: none, all but the classifier and the experts (GPT-2), or that of queries, keys and
// values alone (Qwen2).
enum class Bias : std::uint8_t { none, all, qkv };
// Score by which a mixture's router chooses experts (llmc/kernels/experts/router.cuh).
enum class RouterScore : std::uint8_t { softmax, sigmoid };

// Returns the letter of a layer in a pattern that repeats; of an empty one `otherwise`.
inline char letter_of_layer(const std::string& pattern, std::int64_t layer, char otherwise) {
    return pattern.empty() ? otherwise : pattern[static_cast<std::size_t>(layer) % pattern.size()];
}

struct ModelConfig {
    std::int64_t layers = 0;                  // L, transformer blocks
    std::int64_t heads = 0;                   // NH, attention heads of a block
    std::int64_t channels = 0;                // C, width of the residual stream
    std::int64_t max_seq_len = 1024;          // maxT, number of positions
    std::int64_t vocab_size = 50257;          // V
    std::int64_t padded_vocab_size = 50304;   // Vp, V rounded up to a multiple of 128
    bool tied = true;                         // the classifier is the token embedding; else a tensor of its own
    NormKind norm = NormKind::layer;
    NormPosition norm_position = NormPosition::before;
    double norm_eps = 1e-5;   // added to the variance, or to the mean of squares
    PositionKind positions = PositionKind::learned;
    double rope_theta = 10000;
    RopeScaling rope_scaling = RopeScaling::none;
    double rope_factor = 1;                                       // 1 without scaling
    double rope_low_freq_factor = 1, rope_high_freq_factor = 4;   // llama3 as in Llama 3.1
    double rope_beta_fast = 32, rope_beta_slow = 1;               // yarn: turns over the original positions
    double rope_attention_factor = 0;                             // yarn: on rotated queries and keys; 0: its default
    // Base in layers that slide, whose frequencies are not scaled then, as in OLMo 3; 0: they are as in other layers.
    double rope_window_theta = 0;
    // R: the layer rotates queries and keys, N: it has no positions (NoPE, SmolLM3); repeats over the layers. Empty:
    // all rotate, if positions are rotary.
    std::string rope_layers = {};
    MlpKind mlp = MlpKind::gelu;
    Bias bias = Bias::all;
    QkNorm qk_norm = QkNorm::none;
    std::int64_t window = 0;   // keys that a query sees in a layer that slides, its own the last; 0: none slides
    // S: the layer slides, L: its queries see all keys; repeats over the layers. Empty: all slide, if there is a
    // window.
    std::string layer_pattern = {};
    std::int64_t experts = 0;   // E, experts of every layer in place of the MLP; 0: none
    std::int64_t shared_experts = 0;
    RouterScore router = RouterScore::softmax;
    bool router_norm = true;   // weights of a token's experts add up to 1
    double router_scale = 1;   // factor on the weights after that
    double aux_loss = 0, router_z_loss = 0;
    std::int64_t own_experts_per_token = 0, own_expert_width = 0;
    // 0: the default of the functions below.
    std::int64_t own_kv_heads = 0, own_head_size = 0, own_mlp_width = 0, own_rope_original_len = 0;

    std::int64_t kv_heads() const { return own_kv_heads > 0 ? own_kv_heads : heads; }   // each serves heads / kv_heads
    // Returns how many neighbouring ranks hold copies of the same KV head, of `ranks` that share the heads.
    int kv_copies(int ranks) const { return ranks > kv_heads() ? ranks / static_cast<int>(kv_heads()) : 1; }
    // True if `ranks` ranks can share the query heads evenly, each with the KV heads that they read.
    bool shares_heads(std::int64_t ranks) const {
        return heads % ranks == 0 && (kv_heads() % ranks == 0 || ranks % kv_heads() == 0);
    }
    std::int64_t head_size() const {   // HS
        return own_head_size > 0 ? own_head_size : heads > 0 ? channels / heads : 0;
    }
    // True if a layer has the window, which cuts something off only from sequences of more tokens.
    bool slides(std::int64_t layer) const { return window > 0 && letter_of_layer(layer_pattern, layer, 'S') == 'S'; }
    // True if a layer's queries and keys are rotated by their positions.
    bool rotates(std::int64_t layer) const {
        return positions == PositionKind::rotary && letter_of_layer(rope_layers, layer, 'R') == 'R';
    }
    bool window_cuts(std::int64_t T) const { return window > 0 && window < T; }
    bool gated() const { return traits_of(mlp).gated; }
    bool norm_after() const { return norm_position == NormPosition::after; }
    std::int64_t mlp_width() const;   // F: 4C, of SwiGLU two thirds of it, rounded up to a multiple of 256 (Llama)
    // Outputs of the first layer of an MLP, or of an expert, of this width: gates too, if it has any.
    std::int64_t hidden_width(std::int64_t width) const { return (gated() ? 2 : 1) * width; }
    std::int64_t fc_width() const { return hidden_width(mlp_width()); }   // the MLP's
    // K, and the width of an expert; 0 without experts.
    std::int64_t experts_per_token() const {
        return experts == 0 ? 0 : own_experts_per_token > 0 ? own_experts_per_token : experts == 1 ? 1 : 2;
    }
    std::int64_t expert_width() const {
        return experts == 0 ? 0 : own_expert_width > 0 ? own_expert_width : mlp_width();
    }
    // Positions of the first training, by which the scalings llama3 and yarn know long wavelengths.
    std::int64_t rope_original_len() const { return own_rope_original_len > 0 ? own_rope_original_len : 8192; }
    std::int64_t qkv_width() const { return (heads + 2 * kv_heads()) * head_size(); }
    // The type in the config.json that it was read from, which families with the same models share; null: none.
    const char* model_type = nullptr;
    friend bool operator==(const ModelConfig& a, const ModelConfig& b);   // all fields of the table
};

// A field of ModelConfig with its option and its keys in files. Import, export, options and settings iterate over one
// table of these; a new field needs a new row.
struct ModelField {
    const char* name;   // name of the option, without dashes
    const char* help;
    const char* key;                   // in config.json of a GPT-2, and of models that only this program knows
    const char* llama_key = nullptr;   // in config.json of models of Llama's kind; null: it has none
    double (*get)(const ModelConfig&);
    void (*set)(ModelConfig&, double);
    std::vector<const char*> values = {};   // names of 0, 1, ...; none: a number
    // Letters of a pattern of layers, whose number pattern_number says; an empty one means the first letter for all.
    const char* letters = nullptr;
    bool whole = true;         // the number must be whole
    bool basic = false;        // a size that every model states; its option is not made from this table
    bool may_change = false;   // training goes on from a rotary model with another value
    // Scalings that read it: with them llama_key is in config.json's object "rope_scaling".
    std::vector<RopeScaling> of_scalings = {};
    bool of_training = false;   // only training reads it: a model's outputs do not depend on it
    // Place of the field in other programs' files. A file without the field holds only models with GPT-2's value.
    bool gpt2 = true;   // a GPT-2's config.json
    int llmc = -1;      // the int32 of an llm.c model file's header

    bool is_number() const { return values.empty() && letters == nullptr; }
    bool is_of(RopeScaling scaling) const;
    // True for a field whose first values are "0" and "1", in files false and true; others may follow.
    bool is_flag() const { return !values.empty() && values[0][0] == '0'; }
    std::string value_of(const ModelConfig& config) const;
    bool read(ModelConfig& config, const std::string& value) const;   // returns false if there is no such value
    // True if the models have the same value, or patterns that give the same letters to their layers.
    bool same(const ModelConfig& a, const ModelConfig& b) const;
    // True if the model has the field's default: GPT-2's value.
    bool is_default(const ModelConfig& config) const;
};
const std::vector<ModelField>& model_fields();

// Return the number that stands for a pattern of layers among values of fields, in this process alone; 0: no pattern.
// And the pattern of a number.
constexpr std::size_t longest_pattern = 4096;   // letters
double pattern_number(const std::string& pattern);
std::string pattern_of(double number);

// Values of fields given by name; they override a descriptor's.
using ModelChoices = std::map<std::string, double>;
void apply(const ModelChoices& choices, ModelConfig& config);

// Returns the first field that is not GPT-2's and for which `holds` is false, as an option ("--norm rms"); else empty.
std::string beyond(const ModelConfig& config, bool (*holds)(const ModelField&));
std::string beyond_llmc(const ModelConfig& config);   // first field that an llm.c model file cannot hold

// Rows of the embedding come in multiples of this, so that the classifier's matmuls stay aligned (as in llm.c).
constexpr std::int64_t vocab_padding = 128;
std::int64_t padded_vocab(std::int64_t vocab_size);

// Returns a list of all descriptors, for people.
std::string model_names();

// Returns the model that a descriptor names, with GPT-2's vocabulary. Depths outside llm.c's table (`d10`) get 64
// channels per layer and heads of 64. Throws Error(usage) listing the names that exist.
ModelConfig model_config(const std::string& descriptor);

// True for strings that look like a descriptor and not like a path, whether or not the model exists.
bool is_descriptor(const std::string& text);

// Makes a model of the given sizes. Throws Error(usage) for sizes that make no model.
ModelConfig custom_model_config(std::int64_t layers, std::int64_t heads, std::int64_t channels,
                                std::int64_t max_seq_len = 1024, std::int64_t vocab_size = 50257);

// Throws Error(usage) unless every size is positive, heads divide the channels, and the vocabulary is padded.
void check_model_config(const ModelConfig& config);

// Counts all parameters (N), padding and positions included, as llm.c does.
std::int64_t parameter_count(const ModelConfig& config);

// Return the mean number of keys that a query of a sequence of `seq_len` sees in a layer: T/2, or W - W^2/2T with a
// window W < T; and the mean over the layers. As in T/2, half of a query's own key is counted.
double keys_by_layer(const ModelConfig& config, std::int64_t layer, std::int64_t seq_len);
double mean_keys(const ModelConfig& config, std::int64_t seq_len);

// Returns the floating point operations of the matmuls of one layer, forward and backward, for one token of a sequence
// of `seq_len`: 3 [4C HS (NH + kv heads) + 2T NH HS + 6CF], 4CF without a gate; with experts those that a token meets,
// (K + shared) F in place of F, and the router's 2CE. With windows 2 mean_keys in place of T: the mean over the layers.
double layer_flops_per_token(const ModelConfig& config, std::int64_t seq_len);

// Returns the floating point operations of forward and backward for one token of a sequence of `seq_len`. GPT-2: 6N for
// the matmuls with parameters, 6LCT for causal attention. Divided by time and peak this is the MFU as llm.c reports it.
// Other models count the matmuls alone, those of L layers and 6CV.
double flops_per_token(const ModelConfig& config, std::int64_t seq_len);

// Returns one line: "12 layers, 12 heads of 64, 768 channels, 1024 positions, vocabulary 50257 (padded 50304), ...
// parameters".
std::string describe(const ModelConfig& config);
