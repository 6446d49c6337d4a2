// Reads and writes llm.c model files; weight_source.h has the byte table.
#include <array>
#include <bit>
#include <cstring>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/io/lfs_pointer.h"
#include "llmc/model/families/weight_source.h"

static_assert(std::endian::native == std::endian::little, "files are little-endian, and copied as they are");

namespace {

constexpr std::size_t header_ints = 256, header_bytes = header_ints * 4;
constexpr std::int32_t magic = 20240326, version_fp32 = 3, version_bf16 = 5;
using Header = std::array<std::int32_t, header_ints>;

float widen(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Rounds to the nearest bf16, ties to even; what is not a number stays so.
std::uint16_t narrow(float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if (value != value) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

[[noreturn]] void bad(const std::string& path, std::size_t index, const std::string& what,
                      const std::string& hint = "") {
    throw Error(ErrorKind::bad_data, text(path, ": byte ", index * 4, ": ", what), hint);
}

// Returns the bytes before a parameter in the file.
std::uint64_t offset_of(const ParamTable& table, const ParamInfo& param, std::uint64_t element_bytes) {
    std::int64_t elements = 0;
    for (const int i : llmc_order(table)) {
        if (table[i].name == param.name) break;
        elements += table[i].tensor.elements();
    }
    return header_bytes + static_cast<std::uint64_t>(elements) * element_bytes;
}

ModelConfig config_of(const std::string& path, const Header& header) {
    for (std::size_t i = 2; i <= 7; i++) {
        constexpr std::int32_t largest = 1 << 28;   // far beyond any model, and no product of two overflows
        if (header[i] < 1 || header[i] > largest) bad(path, i, text("a size of ", header[i], " in the header"));
    }
    ModelConfig config;
    for (const ModelField& field : model_fields()) {
        if (field.llmc >= 0) field.set(config, header[static_cast<std::size_t>(field.llmc)]);
    }
    if (header[7] != config.padded_vocab_size) {
        bad(path, 7,
            text("a padded vocabulary of ", header[7], ", expected ", config.padded_vocab_size, " for one of ",
                 config.vocab_size));
    }
    try {
        check_model_config(config);
    } catch (const Error& error) {
        bad(path, 4, error.message());
    }
    return config;
}

class LlmcModel : public WeightSource {
public:
    LlmcModel(const FileSystem& files, const std::string& path)
        : file_(files.open(path)), version_(0), table_(read_table()) {
        const std::uint64_t expected = header_bytes + static_cast<std::uint64_t>(table_.elements()) * element_bytes();
        if (file_->size() != expected) {
            throw Error(ErrorKind::bad_data,
                        text(path, ": the file has ", file_->size(), " bytes, its header (", describe(config()),
                             ") needs ", expected),
                        "The file is truncated or not what its header says: copy or write it again.");
        }
    }

    const ModelConfig& config() const override { return table_.config(); }
    DType type() const override { return version_ == version_bf16 ? DType::bf16 : DType::fp32; }
    std::string description() const override {
        return text("llm.c model ", file_->path(), " in ", version_ == version_bf16 ? "bf16" : "fp32");
    }

    std::vector<float> read(const ParamInfo& param) const override {
        std::vector<float> values(static_cast<std::size_t>(param.tensor.elements()));
        const std::uint64_t offset = offset_of(table_, param, element_bytes());
        if (version_ == version_fp32) {
            file_->read_at(offset, std::as_writable_bytes(std::span(values)));
        } else {
            std::vector<std::uint16_t> raw(values.size());
            file_->read_at(offset, std::as_writable_bytes(std::span(raw)));
            for (std::size_t i = 0; i < raw.size(); i++) values[i] = widen(raw[i]);
        }
        // llm.c's files hold whatever training left in the padding rows; here they are zero
        for (std::size_t i = static_cast<std::size_t>(param.exported_elements()); i < values.size(); i++)
            values[i] = 0.0f;
        return values;
    }

private:
    std::uint64_t element_bytes() const { return version_ == version_bf16 ? 2 : 4; }

    ParamTable read_table() {
        if (file_->size() < header_bytes) {
            refuse_lfs_pointer(*file_);
            bad(file_->path(), 0, text("the file has ", file_->size(), " bytes, a header has ", header_bytes));
        }
        Header header;
        file_->read_at(0, std::as_writable_bytes(std::span(header)));
        if (header[0] != magic) {
            bad(file_->path(), 0, text("the file begins with ", header[0], ", an llm.c model begins with ", magic),
                "Give a descriptor (d12), an llm.c model file, or a Hugging Face GPT-2 folder.");
        }
        version_ = header[1];
        if (version_ != version_fp32 && version_ != version_bf16) {
            bad(file_->path(), 1, text("version ", version_, ", expected 3 (fp32) or 5 (bf16)"),
                "Write the file again with a current llm.c.");
        }
        const ModelConfig config = config_of(file_->path(), header);
        // Refuses a model whose matrices of layers the file cannot hold, before a table of them is made. In double, for
        // no size is too large for that.
        const double channels = static_cast<double>(config.channels);
        if (12 * channels * channels * static_cast<double>(config.layers * 2) > static_cast<double>(file_->size())) {
            bad(file_->path(), 4,
                text(config.layers, " layers of ", config.channels, " channels need more than the ", file_->size(),
                     " bytes of the file"),
                "The file is truncated or not what its header says: copy or write it again.");
        }
        return ParamTable(config);
    }

    std::unique_ptr<File> file_;
    std::int32_t version_;
    ParamTable table_;
};

}   // namespace

std::unique_ptr<WeightSource> open_llmc_model(const FileSystem& files, const std::string& path) {
    return std::make_unique<LlmcModel>(files, path);
}

std::vector<int> llmc_order(const ParamTable& table) {
    ENSURE(beyond_llmc(table.config()).empty(), "llm.c's files do not hold ", beyond_llmc(table.config()));
    std::vector<int> order = table.unit_params(table.embedding_unit());
    const std::vector<int> first = table.unit_params(table.layer_unit(0));   // layers have as many, one after another
    for (const int param : first) {
        for (int layer = 0; layer < table.config().layers; layer++) {
            order.push_back(param + layer * static_cast<int>(first.size()));
        }
    }
    for (const int i : table.unit_params(table.head_unit())) order.push_back(i);
    return order;
}

void write_llmc_model(FileSystem& files, const std::string& path, const ModelConfig& config, DType type,
                      const std::function<std::vector<float>(int param)>& read) {
    ENSURE(type == DType::fp32 || type == DType::bf16, "llm.c model files hold fp32 or bf16, not ", name_of(type));
    const ParamTable table(config);
    Header header{};
    header[0] = magic;
    header[1] = type == DType::fp32 ? version_fp32 : version_bf16;
    for (const ModelField& field : model_fields()) {
        if (field.llmc >= 0)
            header[static_cast<std::size_t>(field.llmc)] = static_cast<std::int32_t>(field.get(config));
    }
    header[7] = static_cast<std::int32_t>(config.padded_vocab_size);

    const std::unique_ptr<File> file = files.create(path);
    file->write(std::as_bytes(std::span(header)));
    for (int i : llmc_order(table)) {
        const std::vector<float> values = read(i);
        ENSURE(values.size() == static_cast<std::size_t>(table[i].tensor.elements()), table[i].name, " has ",
               values.size(), " values");
        if (type == DType::fp32) {
            file->write(std::as_bytes(std::span(values)));
        } else {
            std::vector<std::uint16_t> raw(values.size());
            for (std::size_t k = 0; k < raw.size(); k++) raw[k] = narrow(values[k]);
            file->write(std::as_bytes(std::span(raw)));
        }
    }
    file->sync();
}
