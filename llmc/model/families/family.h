// Families of models that Hugging Face's transformers knows: what their config.json says of a model, and what their
// files call its tensors. Besides them there is one that only this program knows, with GPT-2's names and keys for every
// field.
#pragma once

#include <string>
#include <vector>

#include "llmc/base/json.h"
#include "llmc/model/parameters/param_table.h"

struct ModelFamily {
    const char* model_type;   // in config.json
    const char* architecture;
    bool llama;            // keys and names are Llama's; else GPT-2's
    ModelConfig implied;   // has the fields that config.json never says, and what others mean where it leaves them out
    struct Setting {
        const char* key;
        Json value;
        bool written = true;     // else it is what files mean that do not say it
        Json unsaid = nullptr;   // what files mean that do not say it; null: the value
    };
    std::vector<Setting> settings;   // of all its models, in config.json
    // Names of fields that it says, or does not (null), otherwise than all of Llama's kind. A width of an MLP that no
    // layer has is not said.
    struct Key {
        const char *field, *key;
    };
    std::vector<Key> keys = {};

    const char* key(const ModelField& field) const;      // in config.json; null: it does not say the field
    const Key* own_key(const ModelField& field) const;   // null: it has none of its own
    // The first field of the model that it cannot have, as an option ("--norm rms"); empty: it is of the family.
    std::string beyond(const ModelConfig& config) const;
};

// The first family that has the model; the last one has every model.
const ModelFamily& family_of(const ModelConfig& config);
// null: none is called so.
const ModelFamily* find_family(const std::string& model_type);
bool is_only_ours(const ModelFamily& family);
// Why the model is of no family but our own, as an option ("--norm rms"); empty where it is of another one.
std::string beyond_hugging_face(const ModelConfig& config);

// The family that a config.json names. Error(bad_data) where none is called so.
const ModelFamily& family_named(const Json& json, const std::string& path);
// The model that a config.json describes; `path` is for messages. Error(bad_data) for what is not supported, by name.
ModelConfig read_hugging_face_config(const Json& json, const std::string& path);
// A config.json without the ids of tokens.
Json hugging_face_config(const ModelConfig& config, const char* torch_dtype);

// A tensor of a file, which has rows of a parameter: q, k and v of Llama's files are parts of one.
struct FileTensor {
    std::string name;
    std::int64_t first_row, rows;
    bool transposed;                   // stored [in, out]
    std::vector<std::int64_t> shape;   // in the file
};
// Without rows that pad the vocabulary. `prefixed`: GPT-2's names with "transformer." before them. By the names of
// `family`, which files say; null: of the one that files of such a model are written as.
std::vector<FileTensor> file_tensors(const ParamTable& table, const ParamInfo& param, bool prefixed = false,
                                     const ModelFamily* family = nullptr);
