// Every field of a model survives config.json, and a format that does not hold it says so.
#include "llmc/checkpoint/model_export.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "llmc/io/temporary_folder_test.h"
#include "llmc/model/families/weight_source.h"

TEST_CASE("model export: every value of every field of a model comes back from config.json") {
    TemporaryFolder folder;
    int beyond = 0;
    for (const ModelField& field : model_fields()) {
        const int values = field.is_size() ? 2 : static_cast<int>(field.values.size());
        for (int value = 0; value < values; value++) {
            ModelConfig config = custom_model_config(3, 2, 32, 24, 101);
            field.set(config, field.is_size() ? (value + 1) * field.get(config) : value);
            INFO(field.name, " ", field.value_of(config));
            const auto files = hugging_face_files(config, TensorType::F32, nullptr);
            REQUIRE(files.front().name == "config.json");
            write_whole(real_files(), folder / "config.json", files.front().content);
            CHECK(hugging_face_model_config(real_files(), folder.path()) == config);
            const bool other_than_gpt2 = field.get(config) != field.get(ModelConfig{}) && !field.is_size();
            CHECK(beyond_hugging_face(config).empty() == (field.hugging_face || !other_than_gpt2));
            CHECK(beyond_llmc(config).empty() == (field.llmc >= 0 || !other_than_gpt2));
            beyond += !beyond_hugging_face(config).empty();
            // and from an option's value
            ModelConfig read = custom_model_config(3, 2, 32, 24, 101);
            if (!field.is_size()) CHECK((field.read(read, field.value_of(config)) && read == config));
            CHECK_FALSE(field.read(read, "none such"));
        }
    }
    CHECK(beyond > 0);
}
