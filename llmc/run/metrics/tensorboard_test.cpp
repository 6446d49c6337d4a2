#include "llmc/run/metrics/tensorboard.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "llmc/io/temporary_folder_testing.h"
#include "llmc/run/metrics/metrics.h"

namespace {

template <class Number>
Number take(std::string_view& bytes) {
    Number value;
    REQUIRE(bytes.size() >= sizeof value);
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
    return value;
}

std::string_view take_bytes(std::string_view& bytes, std::size_t count) {
    REQUIRE(bytes.size() >= count);
    const std::string_view taken = bytes.substr(0, count);
    bytes.remove_prefix(count);
    return taken;
}

std::uint64_t take_varint(std::string_view& bytes) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
        const auto byte = take<unsigned char>(bytes);
        value += std::uint64_t{byte & 127u} << shift;
        if (byte < 128) return value;
    }
}

std::uint32_t unmasked(std::uint32_t masked) {
    const std::uint32_t rotated = masked - 0xa282ead8u;
    return (rotated >> 17) | (rotated << 15);
}

// Every field of a message, in the order in which it is there: number, and the value's bytes.
std::vector<std::pair<int, std::string>> fields_of(std::string_view message) {
    std::vector<std::pair<int, std::string>> fields;
    while (!message.empty()) {
        const std::uint64_t key = take_varint(message);
        std::string value;
        switch (key & 7) {
            case 0: value = std::to_string(take_varint(message)); break;
            case 1: value = take_bytes(message, 8); break;
            case 2: value = take_bytes(message, take_varint(message)); break;
            case 5: value = take_bytes(message, 4); break;
            default: FAIL("wire type ", key & 7);
        }
        fields.emplace_back(static_cast<int>(key >> 3), value);
    }
    return fields;
}

struct ReadBack {
    std::string version;
    std::map<std::string, std::map<int, float>> curves;   // by tag and step
    std::vector<double> times;
    int doubles = 0;   // values of a step that had one already
};

ReadBack read_events(const std::string& path) {
    const std::string content = read_whole(real_files(), path);
    ReadBack result;
    std::string_view rest = content;
    while (!rest.empty()) {
        const std::string_view length_bytes = rest.substr(0, 8);
        const auto length = take<std::uint64_t>(rest);
        CHECK(unmasked(take<std::uint32_t>(rest)) == crc32c(length_bytes));
        const std::string_view data = take_bytes(rest, length);
        CHECK(unmasked(take<std::uint32_t>(rest)) == crc32c(data));
        int step = 0;
        for (const auto& [number, value] : fields_of(data)) {
            std::string_view bytes = value;
            if (number == 1) result.times.push_back(take<double>(bytes));
            if (number == 2) step = std::stoi(value);
            if (number == 3) result.version = value;
            if (number != 5) continue;
            for (const auto& [of_summary, one] : fields_of(value)) {
                const auto parts = fields_of(one);
                REQUIRE((of_summary == 1 && parts.size() == 2 && parts[0].first == 1 && parts[1].first == 2));
                std::string_view number_bytes = parts[1].second;
                const float simple = take<float>(number_bytes);
                result.doubles += !result.curves[parts[0].second].emplace(step, simple).second;
            }
        }
    }
    return result;
}

StepRecord record(int step) {
    return {step, 1.0f / static_cast<float>(step), 2.5f, 3e-4f, 1234.5, 0.25, 12.5, 1ull << 40, {}, {}, {{"dp", 3.0}}};
}

}   // namespace

TEST_CASE("tensorboard: CRC-32C of known texts") {
    CHECK(crc32c("") == 0);
    CHECK(crc32c("123456789") == 0xe3069283u);
    CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);   // RFC 3720, B.4
    CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
}

TEST_CASE("tensorboard: an event file has what metrics.jsonl has; a resumed run goes on without double steps") {
    TemporaryFolder folder;
    const std::string out = folder / "run", path = out + "/" + EventFile::name;
    auto write_steps = [&](int after, StepPhase next, int last) {
        Metrics metrics(real_files(), out, after, next, true);
        const auto measure = [&](int step) {
            metrics.validation(step, {4.0f, 1.25});
            metrics.evaluation(step, {"arc_challenge", 0.5, 0.25});
            metrics.evaluation(step, {"lambada", 0.125, {}, 90.0});
        };
        if (after == 5 && next == StepPhase::validation) measure(5);
        for (int step = after + 1; step <= last; step++) {
            metrics.step(record(step));
            if (step % 5 == 0) measure(step);
        }
        metrics.sync();
    };
    auto check = [&](int last) {
        const ReadBack read = read_events(path);
        CHECK(read.version == "brain.Event:2");
        CHECK(read.doubles == 0);
        for (const char* tag :
             {"loss", "grad_norm", "lr", "tokens_per_s", "step_ms", "mfu", "memory_bytes", "exposed_ms/dp"}) {
            REQUIRE_MESSAGE(read.curves.count(tag) == 1, tag);
            CHECK_MESSAGE(read.curves.at(tag).size() == static_cast<std::size_t>(last), tag);
        }
        CHECK(read.curves.size() == 10 + 4);
        for (const auto& [tag, value] : {std::pair("arc_challenge", 0.5f), std::pair("arc_challenge_sum", 0.25f),
                                         std::pair("lambada", 0.125f), std::pair("lambada_perplexity", 90.0f)}) {
            const std::string name(tag);
            REQUIRE_MESSAGE(read.curves.count(name) == 1, name);
            CHECK(read.curves.at(tag).size() == static_cast<std::size_t>(last / 5));
            CHECK(read.curves.at(tag).at(5) == value);
        }
        for (const auto& [step, loss] : read.curves.at("loss")) CHECK(loss == 1.0f / static_cast<float>(step));
        for (const char* tag : {"val_loss", "val_bits_per_byte"}) {
            CHECK(read.curves.at(tag).size() == static_cast<std::size_t>(last / 5));
        }
        CHECK(read.curves.at("memory_bytes").at(1) == static_cast<float>(1ull << 40));
        for (const double time : read.times) CHECK(time > 1.7e9);
        return read;
    };
    write_steps(0, StepPhase::next_step, 300);
    check(300);   // steps of more than one byte
    write_steps(0, StepPhase::next_step, 9);
    const std::vector<double> times = check(9).times;
    real_files().append(path)->write(bytes_of(read_whole(real_files(), path).substr(0, 20)));   // torn
    write_steps(7, StepPhase::next_step, 12);
    CHECK(check(12).times[6] == times[6]);       // kept as it was: the fifth step's
    write_steps(5, StepPhase::validation, 12);   // stopped before the validation of its step
    check(12);

    Metrics without(real_files(), out);   // begins anew, as with --overwrite
    CHECK(!real_files().exists(path));
}
