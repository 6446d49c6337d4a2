#include "llmc/io/safetensors.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <ctime>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

std::string file_bytes(const std::string& header, const std::string& data) {
    const std::uint64_t length = header.size();
    std::string result(8, '\0');
    std::memcpy(result.data(), &length, 8);
    return result + header + data;
}

// The error of opening a file with these bytes; empty when it opens.
std::string error_of(const TemporaryFolder& folder, const std::string& bytes) {
    const std::string path = folder / "broken.safetensors";
    real_files().create(path)->write(std::as_bytes(std::span(bytes)));
    try {
        SafetensorsFile file(real_files(), path);
        return "";
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::bad_data);
        CHECK(error.message().find("broken.safetensors: byte ") != std::string::npos);
        return error.message();
    }
}

// A small file with three tensors, one of them empty.
std::string write_sample(const TemporaryFolder& folder) {
    const std::string path = folder / "sample.safetensors";
    SafetensorsWriter writer(
        real_files().create(path),
        {{"a", TensorType::F32, {2, 3}, 0}, {"none", TensorType::F64, {0}, 0}, {"b", TensorType::I64, {}, 0}},
        {{"format", "pt"}});
    const std::vector<float> a{1, 2, 3, 4, 5, -0.5f};
    const std::vector<std::int64_t> b{-7};
    writer.write_values(std::span(a).first(2));
    writer.write_values(std::span(a).subspan(2));
    writer.write_values(std::span(b));
    writer.finish();
    return path;
}

}   // namespace

TEST_CASE("safetensors: what is written is read back") {
    TemporaryFolder folder;
    SafetensorsFile file(real_files(), write_sample(folder));
    REQUIRE(file.entries().size() == 3);
    CHECK(file.metadata() == TensorMetadata{{"format", "pt"}});
    CHECK(file.entry("a").shape == std::vector<std::int64_t>{2, 3});
    CHECK(file.entry("a").offset % 8 == 0);
    CHECK(file.read_as<double>("a") == std::vector<double>{1, 2, 3, 4, 5, -0.5});
    CHECK(file.read_as<float>("a").size() == 6);
    CHECK(file.read_as<std::int64_t>("b") == std::vector<std::int64_t>{-7});
    CHECK(file.read_as<double>("none").empty());
    CHECK(file.find("c") == nullptr);
    CHECK_THROWS_AS(file.entry("c"), Error);
    CHECK_THROWS_AS(file.read_as<float>("none"), Error);   // doubles do not fit floats
    CHECK_THROWS_AS(file.read_as<std::int64_t>("a"), Error);
}

TEST_CASE("safetensors: half precision is converted exactly") {
    TemporaryFolder folder;
    const std::string path = folder / "half.safetensors";
    SafetensorsWriter writer(real_files().create(path),
                             {{"bf16", TensorType::BF16, {3}, 0}, {"f16", TensorType::F16, {5}, 0}}, {});
    const std::vector<std::uint16_t> values{0x3f80, 0xc020, 0x0001, 0x3c00, 0xc100, 0x0001, 0x7c00, 0x8000};
    writer.write_values(std::span(values));
    writer.finish();
    SafetensorsFile file(real_files(), path);
    CHECK(file.read_as<float>("bf16") == std::vector<float>{1.0f, -2.5f, 0x1p-133f});
    CHECK(file.read_as<double>("f16") == std::vector<double>{1.0, -2.5, 0x1p-24, INFINITY, 0.0});
}

TEST_CASE("safetensors: every rule of the format is checked") {
    TemporaryFolder folder;
    const std::string good = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    CHECK(error_of(folder, file_bytes(good, "01234567")) == "");
    CHECK(error_of(folder, file_bytes(good + "   ", "01234567")) == "");

    struct Case {
        std::string header, data, must_contain;
    };
    const std::vector<Case> cases{
        {good, "0123456", "has 7"},
        {good, "0123456789", "the file has"},
        {" " + good, "01234567", "does not begin with '{'"},
        {good.substr(0, 20), "", "not JSON"},
        {"[]", "", "does not begin with '{'"},
        {R"({"t":3})", "", "has no dtype"},
        {R"({"t":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "01234567", "unknown dtype \"F31\""},
        {R"({"t":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "01234567", "no shape"},
        {R"({"t":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "01234567",
         "-2 in its shape, expected whole numbers"},
        {R"({"t":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "01234567", "needs 12"},
        {R"({"t":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "01234567", "more than"},
        {R"({"t":{"dtype":"F32","shape":[2]}})", "01234567", "has no data_offsets"},
        {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "01234567", "bytes 8 to 0"},
        {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "01234567", "not a pair"},
        {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "01234567", "gap"},
        {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"u":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
         "0123456789ab", "inside"},
        {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
         "01234567", "'t' is there twice"},
        {R"({"__metadata__":{"k":1}})", "", "byte 29: __metadata__ 'k' is not a text"},
        {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"shape":[2]}})", "01234567", "'shape' is there twice"},
        {R"({"__metadata__":{"k":"1","k":"2"}})", "", "'k' is there twice"},
        {R"({"t":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]}})", "01234567", "whole number"},
        {R"({"t":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}})", "01234567", "whole number"},
        {R"({"t":{"dtype":"F32","shape":[9223372036854775807],"data_offsets":[0,8]}})", "01234567", "more than"},
        {R"({"t":{"dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0]}})", "", "more than"},
        {R"({"t":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "01234567", "byte 36: tensor 't': 2.0 in its"},
        {R"({"t":{"dtype":"F32","shape":[true,2],"data_offsets":[0,8]}})", "01234567", "whole number"},
        {R"({"t":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}})", "01234567",
         "byte 41: the header is not JSON"},
        {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", "01234567", "-8 in its data_offsets"},
        {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", "01234567", "whole number"},
        {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,9223372036854775800]}})", "01234567", "which has 8"},
    };
    for (const Case& c : cases) {
        INFO(c.header);
        CHECK(error_of(folder, file_bytes(c.header, c.data)).find(c.must_contain) != std::string::npos);
    }
    CHECK(error_of(folder, "0123").find("4 bytes") != std::string::npos);
    CHECK(error_of(folder, std::string(8, '\xff') + good).find("does not fit") != std::string::npos);
}

TEST_CASE(
    "safetensors: types that nothing here computes with are passed over, and refused by name where they are read") {
    TemporaryFolder folder;
    struct Case {
        const char* type;
        int elements, bytes;
    };
    for (const Case& planted : {Case{"C64", 2, 16},
                                {"F8_E4M3", 5, 5},
                                {"F8_E5M2", 5, 5},
                                {"F8_E8M0", 1, 1},
                                {"F8_E4M3FNUZ", 2, 2},
                                {"F8_E5M2FNUZ", 2, 2},
                                {"F6_E2M3", 4, 3},
                                {"F6_E3M2", 8, 6},
                                {"F4", 6, 3},
                                {"F4", 0, 0}}) {
        const auto& [type, elements, bytes] = planted;
        INFO(planted.type, " ", planted.elements);
        const std::string header =
            text("{\"t\":{\"dtype\":\"", type, "\",\"shape\":[", elements, "],\"data_offsets\":[0,", bytes,
                 "]},\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[", bytes, ",", bytes + 4, "]}}");
        const std::string content =
            file_bytes(header, std::string(static_cast<std::size_t>(bytes), 'x') + std::string("\0\0\x80\x3f", 4));
        REQUIRE(error_of(folder, content) == "");
        const SafetensorsFile file(real_files(), folder / "broken.safetensors");
        CHECK(file.read_as<float>("u") == std::vector<float>{1.0f});
        CHECK(file.entry("t").elements() == elements);
        CHECK(file.entry("t").bytes() == static_cast<std::uint64_t>(bytes));
        CHECK_FALSE(is_real(file.entry("t").type));
        try {
            file.read_as<float>("t");
            FAIL("read");
        } catch (const Error& error) {
            CHECK(error.message().find(text("tensor 't' is ", type, ": type not supported")) != std::string::npos);
            CHECK(error.hint().find("not a valid") == std::string::npos);
        }
        // a byte too many or too few
        CHECK(error_of(folder, content + "x") != "");
        CHECK(error_of(folder, content.substr(0, content.size() - 1)) != "");
    }
    const char* const odd = R"({"t":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})";
    CHECK(error_of(folder, file_bytes(odd, "x")).find("'t' of F4 does not end with a whole byte") != std::string::npos);
}

TEST_CASE("safetensors: headers as the reference implementation takes them") {
    TemporaryFolder folder;
    const std::string good = R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    CHECK(error_of(folder, file_bytes(R"({"__metadata__":null,)" + good.substr(1), "0123")) == "");
    CHECK(error_of(folder, file_bytes(R"({"__metadata__":{},)" + good.substr(1), "0123")) == "");
    CHECK(error_of(folder, file_bytes(R"({"__metadata__":[],)" + good.substr(1), "0123")).find("not an object") !=
          std::string::npos);
    CHECK(error_of(folder, file_bytes(good + " \n\t ", "0123")) == "");
    for (const std::string& padding : {std::string(1, '\0'), std::string(7, '\0'), std::string(" \0 ", 3)}) {
        CHECK(error_of(folder, file_bytes(good + padding, "0123")).find("a byte 0 in the header") != std::string::npos);
    }
}

TEST_CASE("safetensors: truncated or altered files are errors or well-formed, never anything else") {
    TemporaryFolder folder;
    const std::string whole = read_whole(real_files(), write_sample(folder));
    for (std::size_t length = 0; length < whole.size(); length++) {
        INFO("cut to ", length, " of ", whole.size());
        CHECK(error_of(folder, whole.substr(0, length)) != "");
    }
    for (std::size_t i = 0; i < whole.size(); i++) {
        std::string altered = whole;
        for (unsigned char value : {0x00, 0x20, 0x22, 0x5d, 0x7d, 0xff}) {
            altered[i] = static_cast<char>(value);
            error_of(folder, altered);   // checks the kind and the message of any error
        }
    }
}

TEST_CASE("safetensors: a header of 100,000 nested arrays is an error, wherever they stand") {
    TemporaryFolder folder;
    const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
    for (const char* key : {"dtype", "shape", "data_offsets", "more"}) {
        const std::string header = text("{\"t\":{\"", key, "\":", deep, "}}");
        CHECK(error_of(folder, file_bytes(header, "")).find("nest deeper than") != std::string::npos);
    }
    const std::string long_name(1'000'000, 'n');
    CHECK(error_of(folder, file_bytes(text("{\"", long_name, "\":[\"", long_name, "\"]}"), "")).size() < 1000);
}

TEST_CASE("safetensors: the time for 40,000 tensors is not quadratic") {
    TemporaryFolder folder;
    auto processor_time = [&](int tensors) {   // to write them, to open the file, to find each
        std::vector<TensorEntry> entries;
        for (int i = 0; i < tensors; i++) entries.push_back({text("layer.", i, ".weight"), TensorType::U8, {1}, 0});
        const std::clock_t start = std::clock();
        SafetensorsWriter writer(real_files().create(folder / "many.safetensors"), entries, {});
        writer.write(std::vector<std::byte>(entries.size()));
        writer.finish();
        const SafetensorsFile file(real_files(), folder / "many.safetensors");
        for (std::size_t i = 0; i < entries.size(); i++) {
            if (file.entry(entries[i].name).offset != file.entries()[i].offset) FAIL("another tensor");
        }
        return static_cast<double>(std::clock() - start);
    };
    processor_time(1000);   // once for what only the first pays
    const double few = processor_time(1000), many = processor_time(40'000);
    CHECK(many < 120 * few);   // 40 times as many; quadratic in any of the three: several hundred times the time
}

TEST_CASE("safetensors: tensors at odd bytes are read as they are") {
    TemporaryFolder folder;
    const std::string path = folder / "odd.safetensors";
    const std::string header = R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("f":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})";
    real_files().create(path)->write(bytes_of(file_bytes(header, std::string("x\0\0\x80\x3f", 5))));
    CHECK(SafetensorsFile(real_files(), path).read_as<float>("f") == std::vector<float>{1.0f});
}

TEST_CASE("safetensors: a writer given too much or too little data is a bug") {
    TemporaryFolder folder;
    SafetensorsWriter writer(real_files().create(folder / "short.safetensors"), {{"t", TensorType::U8, {4}, 0}}, {});
    CHECK_THROWS_AS(writer.finish(), Error);
    const std::string bytes = "01234";
    CHECK_THROWS_AS(writer.write(std::as_bytes(std::span(bytes))), Error);
}

TEST_CASE("safetensors: a shape has at most 16 sizes, and what follows is not parsed") {
    TemporaryFolder folder;
    const auto header = [](int sizes) {
        std::string shape = "1";
        for (int i = 1; i < sizes; i++) shape += ",1";
        return R"({"a":{"dtype":"U8","data_offsets":[0,1],"shape":[)" + shape + "]}}";
    };
    CHECK(error_of(folder, file_bytes(header(16), "x")) == "");
    std::string long_one = header(17);
    long_one.replace(long_one.size() - 3, 3, ",1 no JSON");
    const std::string message = error_of(folder, file_bytes(long_one, "x"));
    CHECK_MESSAGE(message.find("byte 90: the header is not JSON: a list of more than 16 elements") != std::string::npos,
                  message);
}
