#include "llmc/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian, and copied as it is");

namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t longest_header = 100'000'000;   // the format's own limit
constexpr std::uint64_t data_alignment = 8;             // headers are padded so that data begins at a multiple
constexpr std::size_t read_piece = std::size_t{1} << 22;

struct TypeName {
    TensorType type;
    const char* name;
    std::size_t bytes;
};
constexpr TypeName type_names[] = {
    {TensorType::F64, "F64", 8},   {TensorType::F32, "F32", 4}, {TensorType::F16, "F16", 2},
    {TensorType::BF16, "BF16", 2}, {TensorType::I64, "I64", 8}, {TensorType::I32, "I32", 4},
    {TensorType::I16, "I16", 2},   {TensorType::I8, "I8", 1},   {TensorType::U64, "U64", 8},
    {TensorType::U32, "U32", 4},   {TensorType::U16, "U16", 2}, {TensorType::U8, "U8", 1},
    {TensorType::BOOL, "BOOL", 1},
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

// Product of the sizes, or nothing when it does not fit.
std::optional<std::uint64_t> product(const std::vector<std::int64_t>& shape, std::uint64_t factor) {
    std::uint64_t result = factor;
    for (std::int64_t size : shape) {
        if (__builtin_mul_overflow(result, static_cast<std::uint64_t>(size), &result)) return std::nullopt;
    }
    return result <= std::uint64_t{INT64_MAX} ? std::optional(result) : std::nullopt;
}

// The header's text, its length checked against the file's.
std::string read_header(const File& file) {
    const std::uint64_t size = file.size();
    if (size < length_bytes) bad(file.path(), 0, text("the file has ", size, " bytes, a header begins with 8"));
    std::uint64_t length = 0;
    file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > longest_header || length > size - length_bytes || length < 2) {
        bad(file.path(), 0,
            text("a header of ", length, " bytes does not fit: the file has ", size, " and the format allows ",
                 longest_header));
    }
    std::string header(length, '\0');
    file.read_at(length_bytes, std::as_writable_bytes(std::span(header)));
    if (header[0] != '{') bad(file.path(), length_bytes, "the header does not begin with '{'");
    return header;
}

// JSON allows a name twice and keeps one of them: that would hide a tensor, so it is refused.
OrderedJson parse_header(const std::string& path, const std::string& header) {
    std::vector<std::set<std::string>> names;   // of the objects being parsed, innermost last
    std::string twice;
    auto watch = [&](int, OrderedJson::parse_event_t event, OrderedJson& value) {
        if (event == OrderedJson::parse_event_t::object_start) names.emplace_back();
        if (event == OrderedJson::parse_event_t::object_end) names.pop_back();
        if (event == OrderedJson::parse_event_t::key && !names.back().insert(value.get<std::string>()).second) {
            twice = value.get<std::string>();
        }
        return true;
    };
    try {
        OrderedJson json = OrderedJson::parse(header, watch);
        if (!twice.empty()) bad(path, length_bytes, text("the header has '", twice, "' twice"));
        return json;
    } catch (const Json::parse_error& error) {
        bad(path, length_bytes + error.byte, text("the header is not JSON: ", error.what()));
    }
}

std::uint64_t unsigned_number(const OrderedJson& value, const std::string& path, const std::string& what) {
    if (!value.is_number_unsigned())
        bad(path, length_bytes, text(what, " is ", to_text(value), ", expected a whole number"));
    return value.get<std::uint64_t>();
}

TensorEntry parse_entry(const std::string& path, const std::string& name, const OrderedJson& json,
                        std::uint64_t data_begin, std::uint64_t data_bytes) {
    const std::string tensor = text("tensor '", name, "'");
    auto field = [&](const char* key) -> const OrderedJson& {
        if (!json.is_object() || !json.contains(key)) bad(path, length_bytes, text(tensor, " has no ", key));
        return json[key];
    };
    TensorEntry entry;
    entry.name = name;

    const OrderedJson& type = field("dtype");
    const auto row = std::find_if(std::begin(type_names), std::end(type_names), [&](const TypeName& known) {
        return type.is_string() && type.get<std::string>() == known.name;
    });
    if (row == std::end(type_names)) bad(path, length_bytes, text(tensor, " has the unknown dtype ", to_text(type)));
    entry.type = row->type;

    const OrderedJson& shape = field("shape");
    if (!shape.is_array()) bad(path, length_bytes, text(tensor, " has no shape but ", to_text(shape)));
    for (const OrderedJson& size : shape) {
        const std::uint64_t n = unsigned_number(size, path, tensor + ": a size in its shape");
        if (n > std::uint64_t{INT64_MAX}) bad(path, length_bytes, text(tensor, " has a size of ", n));
        entry.shape.push_back(static_cast<std::int64_t>(n));
    }

    const OrderedJson& offsets = field("data_offsets");
    if (!offsets.is_array() || offsets.size() != 2)
        bad(path, length_bytes, text(tensor, ": data_offsets is not a pair"));
    const std::uint64_t begin = unsigned_number(offsets[0], path, tensor + ": its first offset");
    const std::uint64_t end = unsigned_number(offsets[1], path, tensor + ": its last offset");
    if (begin > end || end > data_bytes) {
        bad(path, data_begin,
            text(tensor, " lies in bytes ", begin, " to ", end, " of the data, which has ", data_bytes));
    }
    const std::optional<std::uint64_t> bytes = product(entry.shape, row->bytes);
    if (!bytes || *bytes != end - begin) {
        bad(path, data_begin + begin,
            text(tensor, " has ", end - begin, " bytes, its shape ", to_text(shape), " of ", row->name, " needs ",
                 bytes ? text(*bytes) : "more than a file can hold"));
    }
    entry.offset = data_begin + begin;
    return entry;
}

TensorMetadata parse_metadata(const std::string& path, const OrderedJson& json) {
    if (!json.is_object()) bad(path, length_bytes, "__metadata__ is not an object");
    TensorMetadata metadata;
    for (const auto& [key, value] : json.items()) {
        if (!value.is_string()) bad(path, length_bytes, text("__metadata__ '", key, "' is not a text"));
        metadata[key] = value.get<std::string>();
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

// Converts `count` raw elements of type Raw.
template <class Raw, class T, class Convert>
void convert(std::span<const std::byte> bytes, T* out, Convert to_value) {
    for (std::size_t i = 0; i < bytes.size() / sizeof(Raw); i++) {
        Raw raw;
        std::memcpy(&raw, bytes.data() + i * sizeof(Raw), sizeof(Raw));
        out[i] = static_cast<T>(to_value(raw));
    }
}

// False where T does not hold every value of the type.
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

std::size_t bytes_of(TensorType type) { return row_of(type).bytes; }
const char* name_of(TensorType type) { return row_of(type).name; }

std::int64_t TensorEntry::elements() const { return static_cast<std::int64_t>(bytes() / bytes_of(type)); }

std::uint64_t TensorEntry::bytes() const {
    const std::optional<std::uint64_t> result = product(shape, bytes_of(type));
    ENSURE(result.has_value(), "tensor '", name, "' has more bytes than a file can hold");
    return *result;
}

SafetensorsFile::SafetensorsFile(const FileSystem& files, const std::string& path) : file_(files.open(path)) {
    const std::string header = read_header(*file_);
    const OrderedJson json = parse_header(path, header);
    const std::uint64_t data_begin = length_bytes + header.size(), file_bytes = file_->size();
    for (const auto& [name, value] : json.items()) {
        if (name == "__metadata__") {
            metadata_ = parse_metadata(path, value);
        } else {
            entries_.push_back(parse_entry(path, name, value, data_begin, file_bytes - data_begin));
        }
    }
    // by end as well, so that tensors without elements come before the one that begins at the same byte
    std::stable_sort(entries_.begin(), entries_.end(), [](const TensorEntry& a, const TensorEntry& b) {
        return std::pair(a.offset, a.offset + a.bytes()) < std::pair(b.offset, b.offset + b.bytes());
    });
    std::uint64_t next = data_begin;
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
}

const TensorEntry* SafetensorsFile::find(const std::string& name) const {
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const TensorEntry& e) { return e.name == name; });
    return found == entries_.end() ? nullptr : &*found;
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
    std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(read_piece, entry.bytes())));
    const std::size_t width = bytes_of(entry.type);
    if (!convert_type<T>(entry.type, {}, values.data())) {
        throw Error(ErrorKind::bad_data, text(path(), ": byte ", entry.offset, ": tensor '", entry.name, "' is ",
                                              name_of(entry.type), ", which is not expected here"));
    }
    for (std::uint64_t first = 0; first < entry.bytes(); first += piece.size()) {
        const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), entry.bytes() - first));
        read(entry, first, std::span(piece).first(count));
        convert_type<T>(entry.type, std::span(piece).first(count), values.data() + first / width);
    }
    return values;
}

template std::vector<double> SafetensorsFile::read_as(const TensorEntry&) const;
template std::vector<float> SafetensorsFile::read_as(const TensorEntry&) const;
template std::vector<std::int64_t> SafetensorsFile::read_as(const TensorEntry&) const;

SafetensorsWriter::SafetensorsWriter(FileSystem& files, const std::string& path, std::vector<TensorEntry> entries,
                                     const TensorMetadata& metadata) {
    OrderedJson json = OrderedJson::object();
    if (!metadata.empty()) json["__metadata__"] = metadata;
    for (const TensorEntry& entry : entries) {
        ENSURE(!json.contains(entry.name), "tensor '", entry.name, "' twice");
        json[entry.name] = {{"dtype", name_of(entry.type)},
                            {"shape", entry.shape},
                            {"data_offsets", {expected_, expected_ + entry.bytes()}}};
        expected_ += entry.bytes();
    }
    std::string header = to_text(json);
    header.resize((header.size() + data_alignment - 1) / data_alignment * data_alignment, ' ');
    const std::uint64_t length = header.size();
    file_ = files.create(path);
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
