// What a GPT is: its sizes, where they come from by name, and the counts that follow from them.
//
// A descriptor names a model: `gpt2:124M`, `gpt3:350M`, llm.c's `d12` (layers) and `gpt3:c768` (channels). GPT-3's
// sizes are those of Table 2.1 of Brown et al., "Language models are few-shot learners" (2020), with dense attention in
// every layer: the paper alternates with banded sparse attention, so the sizes match and the results are no
// reproduction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// A branch of the residual stream (sublayer.h).
enum class SublayerKind : std::uint8_t { attention, mlp };

// The norm before a sublayer and before the classifier.
enum class NormKind : std::uint8_t { layer, rms };

struct ModelConfig {
    std::int64_t layers = 0;                  // L, transformer blocks
    std::int64_t heads = 0;                   // NH, attention heads of a block
    std::int64_t channels = 0;                // C, width of the residual stream
    std::int64_t max_seq_len = 1024;          // maxT, number of learned positions
    std::int64_t vocab_size = 50257;          // V
    std::int64_t padded_vocab_size = 50304;   // Vp, V rounded up to a multiple of 128
    bool tied = true;                         // the classifier is the token embedding; else a tensor of its own
    NormKind norm = NormKind::layer;

    std::int64_t head_size() const { return channels / heads; }   // HS
    std::int64_t mlp_width() const { return 4 * channels; }       // F
    // Of every layer, in order.
    std::vector<SublayerKind> sublayers() const { return {SublayerKind::attention, SublayerKind::mlp}; }
    friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// A field of ModelConfig, and where else it stands. Import, export and its refusals, and the options and the settings
// of fields that are no sizes iterate over one table of them; whoever adds a field adds a row.
struct ModelField {
    const char* name;   // the option's, without dashes
    const char* help;
    const char* key;   // in config.json
    std::int64_t (*get)(const ModelConfig&);
    void (*set)(ModelConfig&, std::int64_t);
    std::vector<const char*> values = {};   // names of 0, 1, ...; none: a size. A flag has "0" and "1".
    // Where other programs' files have it. Such a file without the field holds only models that have GPT-2's value.
    bool hugging_face = true;   // a GPT-2's config.json
    int llmc = -1;              // the int32 of an llm.c model file's header

    bool is_size() const { return values.empty(); }
    bool is_flag() const { return !is_size() && values[0][0] == '0'; }
    std::string value_of(const ModelConfig& config) const;
    bool read(ModelConfig& config,
              const std::string& value) const;   // of one that is no size; false: there is none such
};
const std::vector<ModelField>& model_fields();

// What a format cannot hold of a model, as an option ("--norm rms"); empty where it can.
std::string beyond_hugging_face(const ModelConfig& config);
std::string beyond_llmc(const ModelConfig& config);

// Rows of the embedding come in multiples of this, so that the classifier's matmuls stay aligned (as in llm.c).
constexpr std::int64_t vocab_padding = 128;
std::int64_t padded_vocab(std::int64_t vocab_size);

// The model a descriptor names, with GPT-2's vocabulary. Depths outside llm.c's table (`d10`) get 64 channels per layer
// and heads of 64. Throws Error(usage) listing the names that exist.
ModelConfig model_config(const std::string& descriptor);

// True for strings that look like a descriptor and not like a path, whether or not the model exists.
bool is_descriptor(const std::string& text);

// A model of one's own sizes. Throws Error(usage) for sizes that make no model.
ModelConfig custom_model_config(std::int64_t layers, std::int64_t heads, std::int64_t channels,
                                std::int64_t max_seq_len = 1024, std::int64_t vocab_size = 50257);

// Throws Error(usage) unless every size is positive, heads divide the channels, and the vocabulary is padded.
void check_model_config(const ModelConfig& config);

// N: all parameters, padding and positions included, as llm.c counts them.
std::int64_t parameter_count(const ModelConfig& config);

// Floating point operations of forward and backward for one token of a sequence of `seq_len`: 6N for the matmuls with
// parameters, 6LCT for causal attention. Divided by time and peak this is the MFU as llm.c reports it.
double flops_per_token(const ModelConfig& config, std::int64_t seq_len);

// One line: "12 layers, 12 heads of 64, 768 channels, 1024 positions, vocabulary 50257 (padded 50304), ... parameters".
std::string describe(const ModelConfig& config);
