#include "llmc/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/lfs_pointer.h"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian, and copied as it is");

namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t longest_header = 100'000'000;   // set by the format
constexpr JsonLimits header_limits{.values = std::size_t{1} << 21, .elements = 16};
constexpr std::uint64_t data_alignment = 8;   // headers are padded so that data begins at a multiple
constexpr std::size_t buffer_bytes = std::size_t{1} << 22;

struct TypeName {
    TensorType type;
    const char* name;
    std::size_t bits;
};
constexpr TypeName type_names[] = {
    {TensorType::F64, "F64", 64},
    {TensorType::F32, "F32", 32},
    {TensorType::F16, "F16", 16},
    {TensorType::BF16, "BF16", 16},
    {TensorType::I64, "I64", 64},
    {TensorType::I32, "I32", 32},
    {TensorType::I16, "I16", 16},
    {TensorType::I8, "I8", 8},
    {TensorType::U64, "U64", 64},
    {TensorType::U32, "U32", 32},
    {TensorType::U16, "U16", 16},
    {TensorType::U8, "U8", 8},
    {TensorType::BOOL, "BOOL", 8},
    {TensorType::C64, "C64", 64},
    {TensorType::F8_E4M3, "F8_E4M3", 8},
    {TensorType::F8_E5M2, "F8_E5M2", 8},
    {TensorType::F8_E8M0, "F8_E8M0", 8},
    {TensorType::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8},
    {TensorType::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8},
    {TensorType::F6_E2M3, "F6_E2M3", 6},
    {TensorType::F6_E3M2, "F6_E3M2", 6},
    {TensorType::F4, "F4", 4},
};

const TypeName& row_of(TensorType type) {
    const TypeName& row = type_names[static_cast<std::size_t>(type)];
    ENSURE(row.type == type, "type_names is not in the order of TensorType");
    return row;
}

[[noreturn]] void bad(const std::string& path, std::uint64_t byte, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(path, ": byte ", byte, ": ", what),
                "The file is not a valid safetensors file: copy or write it again.");
}

// Product of the sizes and `factor`, or nothing if it does not fit into a file.
std::optional<std::uint64_t> product(const std::vector<std::int64_t>& shape, std::uint64_t factor) {
    std::uint64_t result = factor;
    for (std::int64_t size : shape) {
        if (__builtin_mul_overflow(result, static_cast<std::uint64_t>(size), &result)) return std::nullopt;
    }
    return result <= std::uint64_t{INT64_MAX} ? std::optional(result) : std::nullopt;
}

// Bytes of a tensor, or nothing if a file cannot hold it. Elements smaller than a byte must fill the last byte.
std::optional<std::uint64_t> bytes_of_tensor(const std::vector<std::int64_t>& shape, const TypeName& type) {
    const bool whole = type.bits % 8 == 0;
    const std::optional<std::uint64_t> size = product(shape, whole ? type.bits / 8 : type.bits);
    return whole || !size ? size : std::optional(*size / 8);
}

// Returns the header's text, after checking its length against the file's.
std::string read_header(const File& file) {
    const std::uint64_t size = file.size();
    if (size < length_bytes) bad(file.path(), 0, text("the file has ", size, " bytes, a header begins with 8"));
    std::uint64_t length = 0;
    file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > longest_header || length > size - length_bytes || length < 2) {
        refuse_lfs_pointer(file);
        bad(file.path(), 0,
            text("a header of ", length, " bytes does not fit: the file has ", size, " and the format allows ",
                 longest_header));
    }
    std::string header(length, '\0');
    file.read_at(length_bytes, std::as_writable_bytes(std::span(header)));
    if (header[0] != '{') bad(file.path(), length_bytes, "the header does not begin with '{'");
    if (const std::size_t position = header.find('\0'); position != std::string::npos) {   // a C string would end here
        bad(file.path(), length_bytes + position, "a byte 0 in the header, which only spaces may fill up");
    }
    return header;
}

// The parsed header and the position of the data in the file; errors name the byte.
struct Header {
    std::string path, content;
    Json json;
    std::uint64_t data_begin = 0, data_bytes = 0;

    explicit Header(const File& file) : path(file.path()), content(read_header(file)) {
        try {
            json = parse_json(content, header_limits);
        } catch (const JsonSyntaxError& error) {
            bad(path, length_bytes + error.byte - 1, text("the header is not JSON: ", error.what()));
        }
        data_begin = length_bytes + content.size();
        data_bytes = file.size() - data_begin;
    }

    [[noreturn]] void fail(const Json& value, const std::string& what) const {
        bad(path, length_bytes + value.offset(), what);
    }
};

// Returns the whole numbers of a list.
std::vector<std::int64_t> sizes_from(const Header& header, const std::string& tensor, const char* key,
                                     const Json& list) {
    std::vector<std::int64_t> sizes;
    for (const Json& value : list.elements()) {
        try {
            sizes.push_back(static_cast<std::int64_t>(value.as_whole(INT64_MAX)));
        } catch (const JsonError&) {
            header.fail(list,
                        text(tensor, ": ", quoted(value), " in its ", key, ", expected whole numbers below 2^63"));
        }
    }
    return sizes;
}

TensorEntry parse_entry(const Header& header, const std::string& name, const Json& json) {
    const std::string tensor = text("tensor '", name.substr(0, 200), "'");
    auto field = [&](const char* key) -> const Json& {
        const Json* value = json.find(key);
        if (value == nullptr) header.fail(json, text(tensor, " has no ", key));
        return *value;
    };
    const Json& type = field("dtype");
    const auto row = std::find_if(std::begin(type_names), std::end(type_names),
                                  [&](const TypeName& known) { return type == known.name; });
    if (row == std::end(type_names)) {
        throw Error(ErrorKind::bad_data,
                    text(header.path, ": byte ", length_bytes + type.offset(), ": ", tensor, " has the unknown dtype ",
                         quoted(type)),
                    "No type of the format as of safetensors 0.8 is called so: save the file in another type.");
    }

    const Json& shape = field("shape");
    if (!shape.is_array()) header.fail(shape, text(tensor, " has no shape but ", quoted(shape)));
    const std::vector<std::int64_t> sizes = sizes_from(header, tensor, "shape", shape);

    const Json& pair = field("data_offsets");   // begin and end, in bytes of the data
    if (!pair.is_array() || pair.elements().size() != 2)
        header.fail(pair, text(tensor, ": data_offsets is not a pair"));
    const std::vector<std::int64_t> offsets = sizes_from(header, tensor, "data_offsets", pair);
    const auto begin = static_cast<std::uint64_t>(offsets[0]), end = static_cast<std::uint64_t>(offsets[1]);
    if (begin > end || end > header.data_bytes) {
        header.fail(pair,
                    text(tensor, " lies in bytes ", begin, " to ", end, " of the data, which has ", header.data_bytes));
    }
    const std::optional<std::uint64_t> bytes = bytes_of_tensor(sizes, *row);
    if (bytes && row->bits % 8 != 0 && *product(sizes, row->bits) % 8 != 0) {
        header.fail(shape, text(tensor, " of ", row->name, " does not end with a whole byte"));
    }
    if (!bytes || *bytes != end - begin) {
        bad(header.path, header.data_begin + begin,
            text(tensor, " has ", end - begin, " bytes, its shape ", quoted(shape), " of ", row->name, " needs ",
                 bytes ? text(*bytes) : "more than a file can hold"));
    }
    return {.name = name, .type = row->type, .shape = sizes, .offset = header.data_begin + begin};
}

TensorMetadata parse_metadata(const Header& header, const Json& json) {
    TensorMetadata metadata;
    if (json.is_null()) return metadata;
    if (!json.is_object()) header.fail(json, "__metadata__ is not an object");
    for (const auto& [key, value] : json.members()) {
        if (!value.is_text()) header.fail(value, text("__metadata__ '", key, "' is not a text"));
        metadata[key] = value.as_text();
    }
    return metadata;
}

float half_to_float(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 31u, mantissa = bits & 1023u;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
    if (exponent > 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;   // subnormal
    return sign ? -magnitude : magnitude;
}

// Converts raw elements of type Raw to T.
template <class Raw, class T, class Convert>
void convert(std::span<const std::byte> bytes, T* out, Convert to_value) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(Raw); i++) {
        Raw raw;
        std::memcpy(&raw, bytes.data() + i * sizeof(Raw), sizeof(Raw));
        out[i] = static_cast<T>(to_value(raw));
    }
}

// Returns false if T does not hold every value of the type.
template <class T>
bool convert_type(TensorType type, std::span<const std::byte> bytes, T* out) {
    auto same = [](auto value) { return value; };
    if constexpr (std::is_floating_point_v<T>) {
        switch (type) {
            case TensorType::F32: convert<float>(bytes, out, same); return true;
            case TensorType::F16: convert<std::uint16_t>(bytes, out, half_to_float); return true;
            case TensorType::BF16:
                convert<std::uint16_t>(bytes, out,
                                       [](std::uint16_t b) { return std::bit_cast<float>(std::uint32_t{b} << 16); });
                return true;
            case TensorType::F64:
                if constexpr (sizeof(T) == 8) convert<double>(bytes, out, same);
                return sizeof(T) == 8;
            default: return false;
        }
    } else {
        switch (type) {
            case TensorType::I64: convert<std::int64_t>(bytes, out, same); return true;
            case TensorType::I32: convert<std::int32_t>(bytes, out, same); return true;
            case TensorType::I16: convert<std::int16_t>(bytes, out, same); return true;
            case TensorType::I8: convert<std::int8_t>(bytes, out, same); return true;
            case TensorType::U32: convert<std::uint32_t>(bytes, out, same); return true;
            case TensorType::U16: convert<std::uint16_t>(bytes, out, same); return true;
            case TensorType::U8:
            case TensorType::BOOL: convert<std::uint8_t>(bytes, out, same); return true;
            default: return false;
        }
    }
}

}   // namespace

std::size_t bytes_of(TensorType type) { return row_of(type).bits / 8; }
const char* name_of(TensorType type) { return row_of(type).name; }
bool is_real(TensorType type) { return type <= TensorType::BF16; }

std::int64_t TensorEntry::elements() const {
    const std::optional<std::uint64_t> result = product(shape, 1);
    ENSURE(result.has_value(), "tensor '", name, "' has more elements than a file can hold");
    return static_cast<std::int64_t>(*result);
}

std::uint64_t TensorEntry::bytes() const {
    const std::optional<std::uint64_t> result = bytes_of_tensor(shape, row_of(type));
    ENSURE(result.has_value(), "tensor '", name, "' has more bytes than a file can hold");
    return *result;
}

SafetensorsFile::SafetensorsFile(const FileSystem& files, const std::string& path) : file_(files.open(path)) {
    const Header header(*file_);
    const std::uint64_t file_bytes = header.data_begin + header.data_bytes;
    for (const auto& [name, value] : header.json.members()) {
        if (name == "__metadata__") {
            metadata_ = parse_metadata(header, value);
        } else {
            entries_.push_back(parse_entry(header, name, value));
        }
    }
    // the end is compared too, so that a tensor without elements comes before the one that begins at the same byte
    std::stable_sort(entries_.begin(), entries_.end(), [](const TensorEntry& a, const TensorEntry& b) {
        return std::pair(a.offset, a.offset + a.bytes()) < std::pair(b.offset, b.offset + b.bytes());
    });
    std::uint64_t next = header.data_begin;
    for (const TensorEntry& entry : entries_) {
        if (entry.offset != next) {
            bad(path, std::min(entry.offset, next),
                text("tensor '", entry.name, "' begins at byte ", entry.offset,
                     entry.offset < next ? ", inside" : ", after a gap behind", " the one before, which ends at ",
                     next));
        }
        next += entry.bytes();
    }
    if (next != file_bytes) bad(path, next, text("the last tensor ends here, the file has ", file_bytes, " bytes"));
    for (std::size_t i = 0; i < entries_.size(); i++) index_[entries_[i].name] = i;
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &entries_[found->second];
}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
    const TensorEntry* found = find(name);
    if (!found) throw Error(ErrorKind::bad_data, text(path(), ": there is no tensor '", name, "' in it"));
    return *found;
}

void SafetensorsFile::read(const TensorEntry& entry, std::uint64_t first, std::span<std::byte> into) const {
    ENSURE(first + into.size() <= entry.bytes(), "bytes ", first, " + ", into.size(), " of tensor '", entry.name, "'");
    file_->read_at(entry.offset + first, into);
}

template <class T>
std::vector<T> SafetensorsFile::read_as(const TensorEntry& entry) const {
    std::vector<T> values(static_cast<std::size_t>(entry.elements()));
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(buffer_bytes, entry.bytes())));
    const std::size_t width = bytes_of(entry.type);
    if (!convert_type<T>(entry.type, {}, values.data())) {
        throw Error(ErrorKind::bad_data, text(path(), ": byte ", entry.offset, ": tensor '", entry.name, "' is ",
                                              name_of(entry.type), ": type not supported here"));
    }
    for (std::uint64_t first = 0; first < entry.bytes(); first += buffer.size()) {
        const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), entry.bytes() - first));
        read(entry, first, std::span(buffer).first(count));
        convert_type<T>(entry.type, std::span(buffer).first(count), values.data() + first / width);
    }
    return values;
}

template std::vector<double> SafetensorsFile::read_as(const TensorEntry&) const;
template std::vector<float> SafetensorsFile::read_as(const TensorEntry&) const;
template std::vector<std::int64_t> SafetensorsFile::read_as(const TensorEntry&) const;

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<File> file, const std::vector<TensorEntry>& entries,
                                     const TensorMetadata& metadata)
    : file_(std::move(file)) {
    Json json = Json::object();
    if (!metadata.empty()) {
        Json& texts = *json.add("__metadata__", Json::object());
        for (const auto& [key, value] : metadata) texts.add(key, value);
    }
    for (const TensorEntry& entry : entries) {
        const Json offsets = Json::array({expected_, expected_ + entry.bytes()});
        const Json* added =
            json.add(entry.name,
                     Json::object({{"dtype", name_of(entry.type)}, {"shape", entry.shape}, {"data_offsets", offsets}}));
        ENSURE(added != nullptr, "tensor '", entry.name, "' twice");
        expected_ += entry.bytes();
    }
    std::string header = to_text(json);
    header.resize((header.size() + data_alignment - 1) / data_alignment * data_alignment, ' ');
    const std::uint64_t length = header.size();
    file_->write(std::as_bytes(std::span(&length, 1)));
    file_->write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
    ENSURE(written_ + bytes.size() <= expected_, file_->path(), ": more data than the header announces");
    file_->write(bytes);
    written_ += bytes.size();
}

void SafetensorsWriter::finish() {
    ENSURE(written_ == expected_, file_->path(), ": ", written_, " bytes of data, the header announces ", expected_);
    file_->sync();
}
