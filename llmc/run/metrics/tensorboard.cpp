#include "llmc/run/metrics/tensorboard.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

template <class Number>
std::string bytes_as_they_lie(Number value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class Number>
Number number_at(std::string_view bytes, std::size_t offset) {
    Number value;
    std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
}

std::uint32_t masked_crc(std::string_view bytes) {
    const std::uint32_t crc = crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string record_of(const std::string& data) {
    const std::string length = bytes_as_they_lie<std::uint64_t>(data.size());
    return length + bytes_as_they_lie(masked_crc(length)) + data + bytes_as_they_lie(masked_crc(data));
}

// ---- protobuf: a field is a key, number << 3 | kind of the value (0 varint, 1 eight bytes, 2 with its length, 5 four)

std::string varint(std::uint64_t value) {
    std::string bytes;
    for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
    return bytes + static_cast<char>(value);
}

std::string with_length(char key, const std::string& bytes) { return key + varint(bytes.size()) + bytes; }

std::string event(const std::string& what) {
    const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    return record_of("\x09" + bytes_as_they_lie(now) + what);
}

std::uint64_t take_varint(std::string_view& bytes) {
    std::uint64_t value = 0;
    for (int shift = 0; !bytes.empty() && shift < 64; shift += 7) {
        const auto byte = static_cast<unsigned char>(bytes.front());
        bytes.remove_prefix(1);
        value |= std::uint64_t{byte & 127u} << shift;
        if (byte < 128) break;
    }
    return value;
}

// The step and the first value's tag, which add() writes first; none for other events.
struct Head {
    int step;
    std::string tag;
};
std::optional<Head> head_of(std::string_view event) {
    if (event.size() < 10 || event[9] != '\x10') return std::nullopt;
    event.remove_prefix(10);
    Head head{static_cast<int>(take_varint(event)), ""};
    for (const char key : {'\x2a', '\x0a', '\x0a'}) {   // summary, value, tag
        if (event.empty() || event.front() != key) return std::nullopt;
        event.remove_prefix(1);
        event = event.substr(0, take_varint(event));
    }
    head.tag = event;
    return head;
}

// Returns the records to keep, up to where the file ends or is torn.
std::string kept_records(const std::string& content, const EventFile::Keep& keep) {
    constexpr std::size_t before = 12, behind = 4;   // bytes of a record before and after its data
    std::string kept;
    std::string_view rest = content;
    while (rest.size() >= before + behind) {
        const auto length = number_at<std::uint64_t>(rest, 0);
        if (number_at<std::uint32_t>(rest, 8) != masked_crc(rest.substr(0, 8))) break;
        if (length > rest.size() - before - behind) break;
        const std::string_view data = rest.substr(before, length);
        if (number_at<std::uint32_t>(rest, before + length) != masked_crc(data)) break;
        const std::optional<Head> head = head_of(data);
        if (head && keep(head->step, head->tag)) kept += rest.substr(0, before + length + behind);
        rest.remove_prefix(before + length + behind);
    }
    return kept;
}

}   // namespace

std::uint32_t crc32c(std::string_view bytes) {
    static constexpr auto table = [] {
        std::array<std::uint32_t, 256> entries{};
        for (std::uint32_t i = 0; i < 256; i++) {
            std::uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
            entries[i] = crc;
        }
        return entries;
    }();
    std::uint32_t crc = 0xffffffffu;
    for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 255];
    return ~crc;
}

EventFile::EventFile(FileSystem& files, const std::string& folder, const Keep& keep) {
    const std::string path = folder + "/" + name;
    const std::string kept = files.exists(path) ? kept_records(read_large(files, path), keep) : "";
    write_whole(files, path, event(with_length('\x1a', "brain.Event:2")) + kept);
    file_ = files.append(path);
}

void EventFile::add(int step, const std::vector<Value>& values) {
    std::string summary;
    for (const Value& value : values) {
        summary += with_length(
            '\x0a', with_length('\x0a', value.tag) + "\x15" + bytes_as_they_lie(static_cast<float>(value.value)));
    }
    const std::string record = event("\x10" + varint(static_cast<std::uint64_t>(step)) + with_length('\x2a', summary));
    file_->write(bytes_of(record));
}
