// Reads a model's weights from files, for a start that is not random: llm.c model files and Hugging Face folders of the
// families in family.h.
//
// A source says what model it holds and hands out one tensor at a time, in the program's own shape: [out, in], rows
// that pad the vocabulary zero. Anything wrong with the files is Error(bad_data) naming file, place and what was
// expected.
//
// llm.c model file: 256 little-endian int32, then tensors without gaps:
//   [0] magic 20240326   [1] version: 3 fp32, 5 bf16   [2] maxT   [3] V   [4] L   [5] NH   [6] C   [7] V padded to 128
//   wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb, each stacked over layers
//
// Hugging Face folder: config.json; model.safetensors, or the files that model.safetensors.index.json lists. Names of a
// GPT-2 with or without "transformer.", its matrices of layers stored [in, out]; attention masks and rotary inverse
// frequencies are ignored, and a copy of the embedding as lm_head where config.json ties them. Any other tensor that
// the model has no place for is Error(bad_data), unless a pattern of `ignored` has its name ("A,B", * for any
// characters).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "llmc/base/dtype.h"
#include "llmc/io/file.h"
#include "llmc/io/safetensors.h"
#include "llmc/model/families/family.h"

class WeightSource {
public:
    virtual ~WeightSource() = default;
    virtual const ModelConfig& config() const = 0;
    virtual std::string description() const = 0;   // for the log: what was opened
    // Returns the file in which an element of a parameter, in the program's own shape, is.
    virtual std::string file_of(const ParamInfo&, std::int64_t /*element*/) const { return description(); }
    virtual DType type() const = 0;   // fp32 or bf16, which holds what the files hold
    virtual std::vector<float> read(const ParamInfo& param) const = 0;
    // Returns the biases with which the model's routers choose experts, (L, E) (llmc/model/layer/router_bias.h);
    // else empty.
    virtual std::vector<float> router_bias() const { return {}; }
};

// Opens a Hugging Face folder, or an llm.c model file.
std::unique_ptr<WeightSource> open_weights(const FileSystem& files, const std::string& path,
                                           const std::string& ignored = "");
std::unique_ptr<WeightSource> open_llmc_model(const FileSystem& files, const std::string& path);
std::unique_ptr<WeightSource> open_hugging_face(const FileSystem& files, const std::string& folder,
                                                const std::string& ignored = "");

// Name and read the routers' biases in a checkpoint: "h.<layer>.mlp.router.bias", (E) in fp32. Reads nothing where the
// model has none.
inline constexpr const char* kRouterBiasFile = "router_bias.safetensors";
std::vector<TensorEntry> router_bias_entries(const ModelConfig& config);
std::vector<float> read_router_bias(const FileSystem& files, const std::string& folder, const ModelConfig& config);

// Reads the model that a Hugging Face folder's config.json describes.
ModelConfig hugging_face_model_config(const FileSystem& files, const std::string& folder);

// Returns columns [first, last) of a matrix (rows, cols) as the rows of another.
template <class T>
std::vector<T> transposed(std::span<const T> values, std::int64_t rows, std::int64_t cols, std::int64_t first,
                          std::int64_t last) {
    std::vector<T> result(static_cast<std::size_t>((last - first) * rows));
    constexpr std::int64_t tile = 32;   // both sides of a tile stay in the cache
    for (std::int64_t r0 = 0; r0 < rows; r0 += tile) {
        for (std::int64_t c0 = first; c0 < last; c0 += tile) {
            for (std::int64_t r = r0; r < std::min(r0 + tile, rows); r++) {
                for (std::int64_t c = c0; c < std::min(c0 + tile, last); c++) {
                    result[static_cast<std::size_t>((c - first) * rows + r)] =
                        values[static_cast<std::size_t>(r * cols + c)];
                }
            }
        }
    }
    return result;
}

// Returns the table's indices in the order of llm.c's model files: embedding, each tensor of layers stacked over them,
// head.
std::vector<int> llmc_order(const ParamTable& table);

// Writes an llm.c model file (type fp32 or bf16, rounded to nearest) of the tensors that `read` gives by table index.
// The file is written in place: a caller that must not lose an older one gives a temporary name and renames.
void write_llmc_model(FileSystem& files, const std::string& path, const ModelConfig& config, DType type,
                      const std::function<std::vector<float>(int param)>& read);
