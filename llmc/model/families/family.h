// Describes families of models that Hugging Face's transformers knows: what their config.json says of a model, and the
// names of tensors in their files. Besides them there is one that only this program knows, with GPT-2's names and keys
// for every field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/model/families/layer_windows.h"
#include "llmc/model/parameters/param_table.h"

struct ModelFamily {
    const char* model_type;   // in config.json
    const char* architecture;
    bool llama;            // keys and names are Llama's; else GPT-2's
    ModelConfig implied;   // values of fields that config.json never has, or that it leaves out
    struct Setting {
        const char* key;
        Json value;
        bool written = true;   // false: it is what files without it mean
    };
    // Fields of config.json that are alike in all its models. `activation_function` is that of the model's MLP.
    std::vector<Setting> settings;
    // Fields with another key than in most of Llama's kind; a null key: config.json does not have the field. A width of
    // an MLP that no layer has is not said. Numbers must be said, unless `implied` has a meaning for files without
    // them.
    struct Key {
        const char *field, *key;
        bool may_be_left_out = false;
    };
    std::vector<Key> keys = {};

    LayerTypes layer_types = LayerTypes::none;
    bool has_rope_by_layer = false;   // rope_scaling.h

    const char* key(const ModelField& field) const;      // in config.json; null: it does not say the field
    const Key* own_key(const ModelField& field) const;   // null: it has none of its own
    // Returns the first field of the model that the family cannot have, as an option ("--norm rms"); empty: the model
    // is of the family.
    std::string beyond(const ModelConfig& config) const;
};

// Returns the family that the model was read as, where it has the model still, else the first one that has it; the last
// one has every model.
const ModelFamily& family_of(const ModelConfig& config);
// Returns the family of this model_type; null: there is none.
const ModelFamily* find_family(const std::string& model_type);
bool is_only_ours(const ModelFamily& family);
// Returns why the model is of no family but our own, as an option ("--norm rms"); empty where it is of another one.
std::string beyond_hugging_face(const ModelConfig& config);

// Returns the family that a config.json names. Error(bad_data) where there is none of that name.
const ModelFamily& family_named(const Json& json, const std::string& path);
// Returns the model that a config.json describes; `path` is for messages. Error(bad_data) naming what is not supported.
ModelConfig read_hugging_face_config(const Json& json, const std::string& path);
// Returns a config.json without the ids of tokens.
Json hugging_face_config(const ModelConfig& config, const char* torch_dtype);

// How files of Llama's kind hold a mixture's experts.
enum class ExpertForm : std::uint8_t {
    apart,     // a tensor for each matrix of each expert: how files are written
    stacked,   // all experts of a layer in one tensor (experts, rows, cols): how transformers 5 holds them in memory
};

// Tensor of a file that holds rows of a parameter: q, k and v of Llama's files are parts of one.
struct FileTensor {
    std::string name;
    std::int64_t first_row, rows;
    bool transposed;                   // stored [in, out]
    std::vector<std::int64_t> shape;   // in the file
};
// Returns the tensors of files that make up a parameter, without rows that pad the vocabulary. `prefixed`: GPT-2's
// names begin with "transformer.". `family`: whose names to use; null: of the family that files of such a model are
// written as.
std::vector<FileTensor> file_tensors(const ParamTable& table, const ParamInfo& param, bool prefixed = false,
                                     const ModelFamily* family = nullptr, ExpertForm form = ExpertForm::apart);
