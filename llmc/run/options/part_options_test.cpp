#include "llmc/run/options/part_options.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/model/families/family.h"

namespace {

ModelConfig rotary_model(std::int64_t positions) {
    ModelConfig config = custom_model_config(2, 4, 64, positions, 101);
    config.positions = PositionKind::rotary;
    return config;
}

ModelConfig scaled(ModelConfig config, RopeScaling scaling, double factor, std::int64_t original_len = 0) {
    config.rope_scaling = scaling, config.rope_factor = factor, config.own_rope_original_len = original_len;
    return config;
}

Options asked(int seq_len, const ModelChoices& choices = {}) {
    Options options;
    options.seq_len = seq_len;
    options.architecture = choices;
    return options;
}

std::string refused(const ModelConfig& model, const Options& options) {
    try {
        continued_model(model, options);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
        return error.message();
    }
    return "";
}

constexpr auto linear = static_cast<double>(RopeScaling::linear), llama3 = static_cast<double>(RopeScaling::llama3),
               none = static_cast<double>(RopeScaling::none);

}   // namespace

TEST_CASE("part options: a rotary model that is continued has the positions of the longer of both") {
    for (const ModelConfig& model : {rotary_model(256), scaled(rotary_model(256), RopeScaling::linear, 2),
                                     scaled(rotary_model(256), RopeScaling::llama3, 8, 64)}) {
        for (const int seq_len : {1, 256, 257, 4096}) {
            ModelConfig expected = model;
            expected.max_seq_len = std::max(256, seq_len);
            CHECK(continued_model(model, asked(seq_len)) == expected);
        }
    }
    const ModelConfig learned = custom_model_config(2, 4, 64, 256, 101);
    CHECK(continued_model(learned, asked(1024)) == learned);
}

TEST_CASE("part options: another scaling than the model's begins with its defaults, the same keeps what it has") {
    const ModelConfig plain = rotary_model(256), longer = rotary_model(1024);
    CHECK(continued_model(plain, asked(1024, {{"rope-scaling", llama3}, {"rope-factor", 4}})) ==
          scaled(longer, RopeScaling::llama3, 4, 256));
    CHECK(continued_model(plain, asked(1024, {{"rope-scaling", linear}, {"rope-factor", 4}})) ==
          scaled(longer, RopeScaling::linear, 4));
    CHECK(continued_model(plain, asked(1024, {{"rope-theta", 8e4}})).rope_theta == 8e4);
    ModelConfig model = scaled(longer, RopeScaling::llama3, 4, 256);
    model.rope_high_freq_factor = 6;
    // as a resume says again what the run began with
    CHECK(continued_model(model, asked(1024, {{"rope-scaling", llama3}, {"rope-factor", 4}})) == model);
    ModelConfig more = model;
    more.rope_factor = 16;
    CHECK(continued_model(model, asked(1024, {{"rope-scaling", llama3}, {"rope-factor", 16}})) == more);
    CHECK(continued_model(model, asked(1024, {{"rope-factor", 16}})) == more);
    CHECK(continued_model(model, asked(1024, {{"rope-original-len", 512}})).rope_original_len() == 512);
    CHECK(continued_model(model, asked(1024, {{"rope-scaling", linear}, {"rope-factor", 2}})) ==
          scaled(longer, RopeScaling::linear, 2));
    CHECK(continued_model(model, asked(1024, {{"rope-scaling", none}})) == longer);
}

TEST_CASE("part options: scaling without its numbers, and numbers without scaling, are refused by name") {
    const ModelConfig plain = rotary_model(256);
    for (const double scaling : {linear, llama3}) {
        CHECK(refused(plain, asked(1024, {{"rope-scaling", scaling}})).find("without a --rope-factor above 1") !=
              std::string::npos);
    }
    CHECK(refused(plain, asked(1024, {{"rope-factor", 4}})).find("--rope-factor 4 without") != std::string::npos);
    CHECK(refused(plain, asked(1024, {{"rope-scaling", linear}, {"rope-factor", 0.5}})).find("--rope-factor 0.5") !=
          std::string::npos);
    CHECK(refused(plain, asked(1024, {{"rope-scaling", llama3}, {"rope-factor", 4}, {"rope-original-len", 0}}))
              .find("--rope-original-len 0: expected at least 1") != std::string::npos);
    for (const char* of_llama3 : {"rope-original-len", "rope-low-freq-factor", "rope-high-freq-factor"}) {
        const Options options = asked(1024, {{"rope-scaling", linear}, {"rope-factor", 4}, {of_llama3, 2}});
        CHECK(refused(plain, options).find("without --rope-scaling llama3") != std::string::npos);
    }
}

TEST_CASE("part options: --arch with another --rope-scaling than the file's begins with its defaults") {
    TemporaryFolder folder;
    Options options = asked(256);
    options.arch = folder / "config.json";
    ModelConfig model = model_config("llama:15M");
    model = scaled(model, RopeScaling::llama3, 8, 64);
    model.rope_high_freq_factor = 6;
    write_whole(real_files(), options.arch, to_text(hugging_face_config(model, "float32")));
    REQUIRE(described_model(options, 0).rope_factor == 8);
    options.architecture = {{"rope-scaling", none}};
    CHECK(described_model(options, 0).rope_scaling == RopeScaling::none);
    options.architecture = {{"rope-scaling", linear}, {"rope-factor", 2}};
    CHECK(described_model(options, 0).rope_factor == 2);
    options.architecture = {{"rope-scaling", linear}};
    CHECK_THROWS_AS(described_model(options, 0), Error);
    options.architecture = {{"rope-scaling", llama3}};
    CHECK(described_model(options, 0).rope_high_freq_factor == 6);
}

TEST_CASE("part options: --arch of a model with windows begins without them by --window 0, whatever its pattern") {
    TemporaryFolder folder;
    Options options = asked(256);
    options.arch = folder / "config.json";
    ModelConfig model = model_config("qwen2:500M");
    model.window = 8, model.layer_pattern = "SSL";
    write_whole(real_files(), options.arch, to_text(hugging_face_config(model, "float32")));
    REQUIRE(described_model(options, 0).layer_pattern == "SSL");
    options.architecture = {{"window", 0}};
    CHECK(described_model(options, 0).window == 0);
    CHECK(described_model(options, 0).layer_pattern.empty());
    options.architecture = {{"window", 0}, {"layer-pattern", pattern_number("SL")}};
    CHECK_THROWS_AS(described_model(options, 0), Error);
}

TEST_CASE("part options: a new rotary model has at least --seq-len positions, a learned one those of its name") {
    Options options = asked(1024);
    options.model = "llama:15M";
    CHECK(described_model(options, 0).max_seq_len == 1024);
    options.seq_len = 64;
    CHECK(described_model(options, 0).max_seq_len == 256);
    options.model = "gpt2:124M", options.seq_len = 2048;
    CHECK(described_model(options, 0).max_seq_len == 1024);
}
