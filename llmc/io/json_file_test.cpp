#include "llmc/io/json_file.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/io/temporary_folder_testing.h"

TEST_CASE("json_file: what is empty, or no object, is refused by the file's name; an empty object is one") {
    TemporaryFolder folder;
    const std::string path = folder / "some.json";
    const std::pair<const char*, const char*> wrong[] = {{"", "byte 1: not JSON"},
                                                         {"\n", "byte 2: not JSON"},
                                                         {"{\"a\":", "byte 6: not JSON"},
                                                         {"[]", "found [], expected a JSON object"},
                                                         {"null", "found null, expected a JSON object"},
                                                         {"\"\"", "found \"\", expected a JSON object"},
                                                         {"0", "found 0, expected a JSON object"}};
    for (const auto& [content, told] : wrong) {
        write_whole(real_files(), path, content);
        const std::string message = text(path, ": ", told);
        CHECK_THROWS_WITH_AS(read_json_file(real_files(), path), doctest::Contains(message.c_str()), Error);
    }
    write_whole(real_files(), path, "{}");
    CHECK(read_json_file(real_files(), path).members().empty());
}
