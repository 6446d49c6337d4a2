#include "llmc/report/scaling_picture.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/report/curves.h"

namespace {

int count(const std::string& svg, const std::string& what) {
    int found = 0;
    for (std::size_t at = svg.find(what); at != std::string::npos; at = svg.find(what, at + 1)) found++;
    return found;
}

std::string line(const std::string& scaling, int ranks, double efficiency, const std::string& exposed = "{}") {
    return text("{\"scaling\":\"", scaling, "\",\"ranks\":", ranks, ",\"tokens_per_s\":", 1000 * ranks * efficiency,
                ",\"efficiency\":", efficiency, ",\"step_ms\":20,\"exposed_ms\":", exposed, "}\n");
}

}   // namespace

TEST_CASE("curves: x is logarithmic from the first tick to the last, a name has one color and one line of the legend") {
    const std::string svg = curves_picture({{"first", true, {{"a", {{8, 1}, {64, 10}, {512, 100}}}}},
                                            {"second", false, {{"a", {{8, 5}, {512, 5}}}, {"a", {{8, 6}}, true}}}},
                                           "bytes", {{8, "8 B"}, {64, "64 B"}, {512, "512 B"}});
    CHECK(count(svg, "<g transform=") == 1);
    CHECK(count(svg, "stroke='#1f5fb4'") == 4);   // three curves and the legend
    CHECK(count(svg, "class='mean ideal'") == 1);
    CHECK(count(svg, "<circle") == 5);   // none of the dashed one
    CHECK(count(svg, ">64 B<") == 1);    // below the last panel alone
    CHECK(svg.find("points='72,") != std::string::npos);
    CHECK(svg.find(" 424,") != std::string::npos);   // 64 is halfway
    CHECK(svg.find(" 776,") != std::string::npos);
}

TEST_CASE("curves: one place on the axis, and names with markup") {
    const std::string svg = curves_picture({{"<t>", false, {{"a & b", {{4, 1}}}}}}, "ranks", {{4, "4"}});
    CHECK(svg.find("&lt;t&gt;") != std::string::npos);
    CHECK(svg.find("a &amp; b") != std::string::npos);
    CHECK(svg.find("nan") == std::string::npos);
}

TEST_CASE("scaling picture: speed, efficiency and what is exposed, over ranks in rising order") {
    TemporaryFolder folder;
    const std::string path = folder / "scaling.jsonl";
    write_whole(real_files(), path,
                line("weak", 2, 0.5, R"({"dp":5,"all":1})") + line("weak", 1, 1) +
                    line("strong", 2, 0.25, R"({"dp":10})") + line("strong", 1, 1));
    const std::vector<ScalingPoint> points = read_scaling(path);
    REQUIRE(points.size() == 4);
    CHECK(points[0].ranks == 1);
    CHECK(points[2].exposed_ms.at("dp") == 5);
    const std::string svg = scaling_picture(points);
    for (const char* words : {"tokens per second", "efficiency, %", "exposed communication, % of a step", ">weak<",
                              ">strong<", ">weak: dp<", ">weak: all<", ">strong: dp<", ">ranks<", ">1<", ">2<"}) {
        CHECK_MESSAGE(svg.find(words) != std::string::npos, words);
    }
    CHECK(count(svg, "class='mean ideal'") == 2);
}

TEST_CASE("scaling picture: one rank has no panel of communication") {
    const std::string svg = scaling_picture({{"weak", 1, 1000, 1, 20, {}}});
    CHECK(svg.find("exposed") == std::string::npos);
    CHECK(svg.find("efficiency") != std::string::npos);
}

TEST_CASE("scaling picture: what is no point is named with its line") {
    TemporaryFolder folder;
    const std::string path = folder / "scaling.jsonl";
    const std::string good = line("weak", 1, 1);
    auto message = [&](const std::string& content) {
        write_whole(real_files(), path, content);
        try {
            read_scaling(path);
        } catch (const Error& error) {
            CHECK(error.exit_code() == 65);
            return std::string(error.what());
        }
        return std::string("no error");
    };
    CHECK(message("").find("is empty") != std::string::npos);
    CHECK(message(good + "{").find("scaling.jsonl:2: ") != std::string::npos);
    CHECK(message(good + "{\"scaling\":\"weak\"}\n").find("scaling.jsonl:2: ") != std::string::npos);
    CHECK(message(line("weak", 0, 1)).find(":1: ranks: expected 1 or more") != std::string::npos);
    CHECK(message(line("weak", 1, 0)).find(":1: tokens_per_s: expected a number above 0") != std::string::npos);
    CHECK(message(line("weak", 1, 1, "3")).find(":1: ") != std::string::npos);
    CHECK_THROWS_AS(read_scaling(folder / "none"), Error);
}
