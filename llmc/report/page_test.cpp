#include "llmc/report/page.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "llmc/base/error.h"
#include "llmc/io/faulty_files_testing.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/report/plot.h"
#include "llmc/report/report_writer.h"
#include "llmc/report/run_log.h"

namespace {

double loss_at(int step) { return 3 + 6 * std::exp(-step / 50.0) + 0.1 * std::sin(step * 7.0); }

std::string metrics_of(int steps) {
    std::string lines;
    for (int i = 1; i <= steps; i++) {
        lines += text("{\"step\":", i, ",\"loss\":", loss_at(i), ",\"grad_norm\":", i == 3 ? "null" : text(1.0 / i),
                      ",\"lr\":0.001,\"tokens_per_s\":", 1000 + i,
                      ",\"step_ms\":2000,\"exposed_ms\":{\"dp\":3,\"tp\":0.5}}\n");
        if (i % 10 == 0) {
            lines += text("{\"step\":", i, ",\"val_loss\":", loss_at(i) + 0.1,
                          ",\"val_loss_of\":{\"a\":1,\"b\":2.5}}\n{\"step\":", i,
                          ",\"hellaswag\":0.25,\"hellaswag_sum\":0.125}\n{\"step\":", i,
                          ",\"arc_challenge\":0.5,\"arc_challenge_sum\":0.375}\n{\"step\":", i,
                          ",\"lambada\":0.75,\"lambada_perplexity\":", 1000 - i, "}\n");
        }
    }
    return lines;
}

void put(const std::string& path, const std::string& content) {
    real_files().make_folders(std::filesystem::path(path).parent_path());
    write_whole(real_files(), path, content);
}

std::string between(const std::string& page, const std::string& begin, const std::string& end) {
    const std::size_t at = page.find(begin);
    if (at == std::string::npos) return "";
    return page.substr(at + begin.size(), page.find(end, at + begin.size()) - at - begin.size());
}

Json numbers_of(const std::string& page) {
    return parse_json(between(page, "<script type='application/json' id='numbers'>", "</script>"));
}

std::string page_of(const std::string& folder) {
    RunReader reader(folder + "/metrics.jsonl");
    return report_page({{&reader.read(), folder}}, true);
}

bool holds(const std::string& page, const std::string& part) { return page.find(part) != std::string::npos; }

}   // namespace

TEST_CASE("report: its numbers are those of metrics.jsonl, and its curves stand where these say") {
    TemporaryFolder folder;
    put(folder / "a/metrics.jsonl", metrics_of(400));
    const std::string page = page_of(folder / "a");
    const Json numbers = numbers_of(page);
    const auto points = [&](const char* figure, std::size_t curve) {
        return numbers.at("figures").at(figure).elements().at(curve).at("points").elements();
    };
    const std::vector<Json> losses = points("loss", 0);
    REQUIRE(losses.size() == 400);
    for (int i = 1; i <= 400; i++) {
        const Json& point = losses[static_cast<std::size_t>(i - 1)];
        CHECK(point.elements()[0].as_number() == i);
        CHECK(point.elements()[1].as_number() == std::stod(text(loss_at(i))));   // to the digits of the file
    }
    CHECK(points("loss", 1).size() == 40);
    CHECK(points("loss", 1)[3].elements()[1].as_number() == std::stod(text(loss_at(40) + 0.1)));
    CHECK(points("grad_norm", 0).size() == 399);   // one was null
    CHECK(points("val_loss_of", 1)[39].elements()[1].as_number() == 2.5);
    CHECK(points("exposed_ms", 1)[399].elements()[1].as_number() == 0.5);
    const auto last_of = [&](const char* figure, const char* name) {
        for (const Json& curve : numbers.at("figures").at(figure).elements()) {
            if (curve.at("name").as_text() == name)
                return curve.at("points").elements().at(39).elements()[1].as_number();
        }
        return -1.0;
    };
    CHECK(last_of("scores", "hellaswag") == 0.25);
    CHECK(last_of("scores", "arc_challenge") == 0.5);
    CHECK(last_of("scores", "lambada") == 0.75);
    CHECK(numbers.at("figures").at("scores").elements().size() == 3);
    CHECK(last_of("scores_by_sum", "hellaswag") == 0.125);
    CHECK(last_of("scores_by_sum", "arc_challenge") == 0.375);
    CHECK(points("lambada_perplexity", 0)[39].elements()[1].as_number() == 600);
    CHECK(holds(page, "LAMBADA: perplexity of the last word"));
    CHECK(holds(page, text("<b>", loss_at(400), "</b>")));   // the last one, in words

    // the loss's axis is logarithmic: equal ratios are equally far apart
    const std::string line = between(page, "<polyline class='raw c0' stroke='currentColor' points='", "'");
    std::vector<double> x, y;
    for (const char* at = line.c_str(); *at != '\0';) {
        char* next = nullptr;
        x.push_back(std::strtod(at, &next));
        y.push_back(std::strtod(next + 1, &next));
        at = *next == ' ' ? next + 1 : next;
    }
    REQUIRE(y.size() == 400);
    const double per_log = (y[199] - y[0]) / std::log(loss_at(200) / loss_at(1));
    for (std::size_t i : {10, 50, 100, 399}) {
        CHECK(y[i] - y[0] ==
              doctest::Approx(per_log * std::log(loss_at(static_cast<int>(i) + 1) / loss_at(1))).epsilon(0.02));
        CHECK(x[i] - x[0] == doctest::Approx((x[399] - x[0]) * static_cast<double>(i) / 399).epsilon(0.01));
    }
}

TEST_CASE("report: long runs are thinned, what is highest and lowest stays") {
    Points points;
    for (int i = 1; i <= 100'000; i++) points.push_back({1.0 * i, i == 54'321 ? 99.0 : i == 777 ? -5.0 : std::sin(i)});
    const Points few = thinned(points, 1000);
    CHECK(few.size() <= 1002);
    CHECK(few.front().x == 1);
    CHECK(few.back().x == 100'000);
    CHECK(std::ranges::any_of(few, [](const Point& p) { return p.x == 54'321 && p.y == 99; }));
    CHECK(std::ranges::any_of(few, [](const Point& p) { return p.x == 777 && p.y == -5; }));
    CHECK(std::ranges::is_sorted(few, {}, &Point::x));
}

TEST_CASE("report: a picture of many points is as small as any, and shows its spike") {
    Points points;
    for (int i = 0; i <= 200000; i++) points.push_back({static_cast<double>(i), i == 77777 ? 9.0 : 1.0 + i % 2});
    Panel panel({0, 700, 0, 200}, 200000, {0, 10});
    panel.line(points, "mean", "black");
    CHECK(panel.svg().size() < 20000);
    CHECK(panel.svg().find(",20 ") != std::string::npos);   // 9 on a scale of 10
    Panel dotted({0, 700, 0, 200}, 200000, {0, 10});
    dotted.dots(points, "black");
    CHECK(dotted.svg().size() < 60000);
}

TEST_CASE("report: starts, warnings, rewinds and the end stand on the time line, samples of undone steps go") {
    TemporaryFolder folder;
    const std::string run = folder / "<i>run";
    put(run + "/metrics.jsonl", metrics_of(40));
    put(run + "/options.json",
        R"({"options":{"pp":"2","tp":"2","pp-schedule":"1f1b","lr":"</script>"},"starts":[{"processes":8,"device":"X","precision":"bf16"}]})");
    RunLog log(real_files(), run, true);
    log.add(0, "start", Json::object({{"max_steps", 50}, {"memory", Json::object({{"parameters", 3 << 20}})}}));
    log.add(10, "sample", "of step ten");
    log.add(20, "sample", "undone <b>");
    log.add(20, "warning", "hot & <loud>");
    CHECK(holds(page_of(run), "http-equiv='refresh'"));
    CHECK(holds(page_of(run), "undone &lt;b&gt;"));
    CHECK(holds(page_of(run), "20s left"));   // 10 steps of 2 s
    log.add(15, "start", Json::object({{"max_steps", 50}, {"memory", Json::object({{"parameters", 3 << 20}})}}));
    log.add(30, "rewind", 33);
    log.add(50, "end", "finished");
    real_files().append(run + "/report.jsonl")->write(bytes_of("{\"step\":51,\"warn"));   // torn by a kill
    RunLog(real_files(), run, false).add(52, "warning", "after the torn line");
    const std::string page = page_of(run);
    for (const char* part :
         {"begins", "goes on after step 15", "hot &amp; &lt;loud&gt;", "back from step 33", "finished",
          "after the torn line", "of step ten", "3.00 MiB", "pipeline 2 x data 2 x context 1 x tensor 2",
          "<title>rank 7: stage 1, replica 1, part 0 of the sequence, tensor-parallel rank 1</title>",
          "<td>--lr</td><td>&lt;/script&gt;", "&lt;i&gt;run"}) {
        CHECK_MESSAGE(holds(page, part), part);
    }
    CHECK(!holds(page, "undone"));
    CHECK(!holds(page, "<i>run"));
    CHECK(!holds(page, "http-equiv='refresh'"));
    for (const char* from_elsewhere : {"http://", "https://", "src=", "url(", "@import"}) {
        CHECK_MESSAGE(!holds(page, from_elsewhere), from_elsewhere);
    }
}

TEST_CASE("report: several runs on one page, a curve of each") {
    TemporaryFolder folder;
    for (const char* name : {"a", "b"})
        put(folder / (text(name, "/metrics.jsonl")), metrics_of(name[0] == 'a' ? 20 : 30));
    RunReader a(folder / "a/metrics.jsonl"), b(folder / "b/metrics.jsonl");
    const std::string page = report_page({{&a.read(), folder / "a"}, {&b.read(), folder / "b"}}, false);
    const Json numbers = numbers_of(page);
    CHECK(numbers.at("last").as_number() == 30);
    CHECK(numbers.at("figures").at("loss").elements()[1].at("name").as_text() == "b: training");
    CHECK(numbers.at("figures").at("loss").elements()[1].at("points").elements().size() == 30);
    CHECK(numbers.at("figures").at("scores").elements().size() == 6);
}

TEST_CASE("report: a reader goes on where it was, and begins anew with a file that was written anew") {
    TemporaryFolder folder;
    const std::string path = folder / "a/metrics.jsonl", content = metrics_of(40);
    put(path, content.substr(0, 1000));   // in the midst of a line
    RunReader reader(path);
    const std::size_t first = reader.read().of("loss").size();
    CHECK(first > 5);
    real_files().append(path)->write(bytes_of(std::string_view(content).substr(1000)));
    CHECK(reader.read().of("loss").size() == 40);
    CHECK(reader.read().of("loss").size() == 40);
    put(path, metrics_of(60));   // another file, and longer
    CHECK(reader.read().of("loss").size() == 60);
    CHECK(reader.read().of("loss")[0].x == 1);
}

TEST_CASE("report: records are regular files with short lines, whatever stands in their place") {
    TemporaryFolder folder;
    const std::string path = folder / "report.jsonl";
    std::uint64_t from = 0;
    auto lines = [&] {
        int count = 0;
        for_whole_lines(path, from, [&](const std::string&) { count++; });
        return count;
    };
    CHECK(lines() == 0);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    CHECK_THROWS_WITH_AS(lines(), doctest::Contains("report.jsonl: is a pipe"), Error);
    CHECK_THROWS_WITH_AS(RunReader(path).read(), doctest::Contains("report.jsonl: is a pipe"), Error);
    std::filesystem::remove(path);
    write_whole(real_files(), path, "a\n\n" + std::string((1 << 20) - 1, 'b') + "\nc");
    CHECK(lines() == 3);
    CHECK(from == 3 + (1 << 20));
    from = 0;   // one after the other: what comes later is not read where the one before is refused
    CHECK_THROWS_AS(
        for_whole_lines(path, from, [](const std::string&) { throw Error(ErrorKind::bad_data, "this one"); }), Error);
    CHECK(from == 2);
    CHECK(lines() == 2);
    std::filesystem::resize_file(path, std::uintmax_t{1} << 40);   // a terabyte, on the disk hardly more than before
    CHECK_THROWS_WITH_AS(lines(), doctest::Contains("report.jsonl: byte 1048579: a line of more than 1048576 bytes"),
                         Error);
}

TEST_CASE("report: files of a run that are empty or of another kind are named") {
    TemporaryFolder folder;
    const std::string run = folder / "run";
    put(run + "/metrics.jsonl", metrics_of(1));
    const char* cases[][3] = {
        {"options.json", "", "options.json: byte 2: not JSON"},
        {"options.json", "[]", "options.json: found [], expected a JSON object"},
        {"options.json", "{}", "options.json: there is no \"options\""},
        {"options.json", R"({"options":[]})", "options.json: found [], expected an object"},
        {"options.json", R"({"options":{"pp":"2000000000"},"starts":[{}]})", "options.json: --pp 1048576, --cp 1"},
        {"options.json", R"({"options":{},"starts":[]})", ""},
        {"report.jsonl", R"({"step":1,"start":{"memory":[]}})", "report.jsonl: found [], expected an object"},
        {"report.jsonl", R"({"step":1,"start":{"memory":{"a":""}}})", "report.jsonl: found \"\", expected a number"},
        {"report.jsonl", R"({"step":1,"start":{"memory":{}}})", ""},
        {"report.jsonl", R"({"step":1,"start":[]})", ""},
        {"report.jsonl", "\n[]\n{}", ""}};
    for (const auto& [name, content, told] : cases) {
        CAPTURE(content);
        put(run + "/" + name, text(content, "\n"));
        std::string message;
        try {
            page_of(run);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::bad_data);
            message = error.what();
        }
        CAPTURE(message);
        CHECK(message.empty() == std::string_view(told).empty());
        CHECK(message.find(told) != std::string::npos);
        std::filesystem::remove(run + "/" + name);
    }
}

TEST_CASE("report: whatever operation fails or is the last before a kill, the old page or the new one is there") {
    TemporaryFolder folder;
    const std::string run = folder / "a", path = run + "/report.html";
    put(run + "/metrics.jsonl", metrics_of(20));
    { ReportWriter(real_files(), run); }
    const auto steps_of = [](const std::string& page) {
        CHECK(page.ends_with("</html>\n"));
        return numbers_of(page).at("last").as_number();
    };
    CHECK(steps_of(read_whole(real_files(), path)) == 20);
    const std::string old = read_whole(real_files(), path);
    put(run + "/metrics.jsonl", metrics_of(30));
    FaultyFiles counter(real_files());
    { ReportWriter(counter, run); }
    const std::uint64_t operations = counter.operations();
    CHECK(operations >= 4);
    int kept = 0, replaced = 0;
    for (const FileFault fault : {FileFault::fail, FileFault::tear, FileFault::stop}) {
        for (std::uint64_t at = 0; at < operations; at++) {
            put(path, old);
            FaultyFiles faulty(real_files(), at, fault);
            { ReportWriter(faulty, run); }
            const double steps = steps_of(read_whole(real_files(), path));
            (steps == 20 ? kept : replaced)++;
            CHECK((steps == 20 || steps == 30));
        }
    }
    CHECK(kept > 0);
    CHECK(replaced > 0);
}

TEST_CASE("report: a page that cannot be written is told once, but not where the run's folder was moved away") {
    const auto told = [](bool moves) {
        TemporaryFolder folder;
        const std::string run = folder / "a", said = folder / "said";
        put(run + "/metrics.jsonl", metrics_of(20));
        const int own = ::dup(STDERR_FILENO), file = ::open(said.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        ::dup2(file, STDERR_FILENO);
        {
            FaultyFiles faulty(real_files(), 0, FileFault::stop);
            if (moves) std::filesystem::rename(run, folder / "b");
            ReportWriter writer(faulty, run);
        }
        ::dup2(own, STDERR_FILENO);
        ::close(own);
        ::close(file);
        return read_whole(real_files(), said);
    };
    const std::string once = told(false);
    CHECK(once.find("a/report.html was not written: ") != std::string::npos);
    CHECK(std::ranges::count(once, '\n') == 1);
    CHECK(told(true).empty());
}
