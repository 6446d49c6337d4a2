#include "llmc/data/mixture.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <set>

#include "llmc/base/error.h"
#include "llmc/data/loader.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/temporary_folder_testing.h"

namespace {

constexpr std::int64_t T = 4;
constexpr std::uint64_t kSeed = 42, kSteps = 40, kSamplesOfStep = 24;
const std::vector<std::string> names = {"web", "code", "wiki", "books", "maths"};

std::string complaint(const std::function<void()>& action) {
    try {
        action();
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

// Five sources of other sizes, whose windows begin with tokens that no other has.
struct FiveSources {
    TemporaryFolder folder;
    FiveSources() {
        std::uint32_t next = 0;
        for (std::size_t i = 0; i < names.size(); i++) {
            std::vector<std::uint32_t> tokens((7 + 30 * i) * T + 1);
            for (std::uint32_t& token : tokens) token = next++;
            real_files().make_folders(folder / names[i]);
            write_token_file(real_files(), folder / (names[i] + "/a_train.bin"), TokenFormat::llama3, tokens);
        }
    }
    TokenSet open(const std::vector<double>& weights) const {
        std::string list;
        for (std::size_t i = 0; i < weights.size(); i++) {
            list += text(i == 0 ? "" : ",", folder / names[i], "/*train*.bin:", weights[i]);
        }
        return {real_files(), "--train-data", list, T, 1 << 20};
    }
};

// Who reads which samples of a step is a matter of data-parallel ranks and sequences of a micro-batch alone.
struct Layout {
    std::uint64_t dp, micro_batch;
};
constexpr Layout layouts[] = {{1, 24}, {1, 1}, {1, 6}, {2, 12}, {2, 3},  {3, 8},
                              {3, 1},  {4, 2}, {6, 4}, {8, 3},  {12, 2}, {24, 1}};

// The first tokens of a step's samples in their order, as the ranks of a layout read them.
std::vector<std::int32_t> read_step(const Loader& loader, const Layout& layout) {
    std::vector<std::int32_t> firsts(kSamplesOfStep), inputs(layout.micro_batch * T), targets(inputs.size());
    for (std::uint64_t first = 0; first < kSamplesOfStep; first += layout.dp * layout.micro_batch) {
        for (std::uint64_t rank = 0; rank < layout.dp; rank++) {
            const std::uint64_t own = first + rank * layout.micro_batch;
            loader.read(own, layout.micro_batch, inputs, targets);
            for (std::uint64_t b = 0; b < layout.micro_batch; b++) firsts[own + b] = inputs[b * T];
        }
    }
    return firsts;
}

const std::vector<double> weights_at_first = {0.5, 0.2, 0.15, 0.15, 0}, weights_then = {0, 1, 1, 1, 1},
                          weights_last = {3, 0.25, 0, 1.1, 7};
constexpr std::uint64_t kThen = 14, kLast = 27;   // the steps from which on they are in force

const std::vector<double>& weights_of(std::uint64_t step) {
    return step < kThen ? weights_at_first : step < kLast ? weights_then : weights_last;
}

}   // namespace

TEST_CASE("mixture: lists, names and what is wrong with them") {
    CHECK(data_sources("--train-data", "a/b/*.bin").size() == 1);
    CHECK(data_sources("--train-data", "a/b/*.bin")[0].name.empty());
    CHECK(data_sources("--train-data", "odd,name:x/*.bin")[0].pattern == "odd,name:x/*.bin");
    const std::vector<DataSource> three = data_sources("--train-data", "a/web/*.bin:2,b/code/*.bin:1,wiki.bin:1e0");
    REQUIRE(three.size() == 3);
    CHECK(three[0].name == "web");
    CHECK(three[0].pattern == "a/web/*.bin");
    CHECK(three[0].weight == 500'000'000);
    CHECK(three[2].name == "wiki.bin");
    CHECK(data_sources("-", "x/a:1,x/y/b:1,z/c:1")[0].weight + 2 * 333'333'333 == kWeightSum);   // all add up
    auto of = [](const char* list) { return complaint([=] { data_sources("--train-data", list); }); };
    CHECK(of("a/x/*.bin:1,b/x/*.bin:1").find("two sources are called x") != std::string::npos);
    CHECK(of("a/x:1,b/y").find("b/y has no weight") != std::string::npos);
    CHECK(of("a/x:0,b/y:0").find("all weights are 0") != std::string::npos);
    CHECK(of("a/x:-1,b/y:2").find("expected a weight") != std::string::npos);
    CHECK(of("a/x:nan").find("expected a weight") != std::string::npos);
}

TEST_CASE("mixture: schedules, and what is wrong with them") {
    TemporaryFolder folder;
    auto read = [&](const std::string& content) {
        write_whole(real_files(), folder / "schedule", content);
        return read_data_schedule(real_files(), folder / "schedule", {"web", "code"},
                                  [](int step) { return static_cast<std::uint64_t>(step - 1) * 8; });
    };
    const auto phases = read("# step weights\n1 web:1\n\n  101 code:3,web:1 # more code\n");
    REQUIRE(phases.size() == 2);
    CHECK(phases[0].first == 0);
    CHECK(phases[0].weights == std::vector<std::int64_t>{kWeightSum, 0});
    CHECK(phases[1].first == 800);
    CHECK(phases[1].weights == std::vector<std::int64_t>{kWeightSum / 4, kWeightSum / 4 * 3});
    auto of = [&](const char* content) { return complaint([&] { read(content); }); };
    CHECK(of("1 web:1\n1 code:1\n").find("schedule: line 2: step 1 does not come after") != std::string::npos);
    CHECK(of("0 web:1\n").find("line 1: '0 web:1' is not a step and weights") != std::string::npos);
    CHECK(of("5 web:1 code:1\n").find("is not a step and weights") != std::string::npos);
    CHECK(of("5 web\n").find("web has no weights") != std::string::npos);
    for (const char* empty : {"", "\n", "# step weights\n\n"}) {
        CHECK(of(empty).find("schedule: no line with a step and weights") != std::string::npos);
    }
    CHECK(of("5 wiki:1\n").find("line 1: --train-data has no source wiki") != std::string::npos);
}

TEST_CASE("mixture: counts stay within two samples of the sums of weights, no sample comes twice in an epoch") {
    FiveSources data;
    const TokenSet tokens = data.open(weights_at_first);
    std::vector<MixturePhase> phases;
    for (const std::uint64_t step : {kThen, kLast}) {
        phases.push_back({(step - 1) * kSamplesOfStep, {}});
        const TokenSet then = data.open(weights_of(step));
        for (const TokenSet::Source& source : then.sources()) phases.back().weights.push_back(source.data.weight);
    }
    Loader loader(tokens, kSeed, phases);
    std::vector<double> sums(names.size()), counts(names.size());
    std::vector<std::vector<std::set<std::uint64_t>>> epochs(names.size());   // windows of each
    for (std::uint64_t sample = 0; sample < kSteps * kSamplesOfStep; sample++) {
        const std::vector<double>& weights = weights_of(sample / kSamplesOfStep + 1);
        double all = 0;
        for (double weight : weights) all += weight;
        // the rule in its own words
        std::size_t expected = 0;
        for (std::size_t i = 0; i < names.size(); i++) {
            sums[i] += weights[i] / all;
            if (sums[i] - counts[i] > sums[expected] - counts[expected] + 1e-6) expected = i;
        }
        const SampleId id = loader.samples(sample, 1)[0];
        CHECK(id.source == expected);
        counts[id.source]++;
        for (std::size_t i = 0; i < names.size(); i++) CHECK(std::abs(sums[i] - counts[i]) < 2);
        auto& of_source = epochs[id.source];
        CHECK((id.epoch + 1 == of_source.size() || id.epoch == of_source.size()));
        of_source.resize(id.epoch + 1);
        CHECK(of_source.back().insert(id.window).second);
    }
    for (std::size_t i = 0; i < names.size(); i++) {
        for (std::size_t epoch = 0; epoch + 1 < epochs[i].size(); epoch++) CHECK(epochs[i][epoch].size() == 7 + 30 * i);
    }
    CHECK(epochs[0].size() > 10);   // the smallest source was read again and again
}

TEST_CASE(
    "mixture: cut after any step and resumed on another layout, with weights changed twice, it is the uncut run") {
    FiveSources data;
    std::vector<MixturePhase> phases;
    for (const std::uint64_t step : {kThen, kLast}) {
        phases.push_back({(step - 1) * kSamplesOfStep, {}});
        const TokenSet then = data.open(weights_of(step));
        for (const TokenSet::Source& source : then.sources()) phases.back().weights.push_back(source.data.weight);
    }
    const TokenSet at_first = data.open(weights_at_first);
    Loader uncut(at_first, kSeed, phases);
    std::vector<std::vector<std::int32_t>> expected;
    for (std::uint64_t step = 1; step <= kSteps; step++) {
        expected.push_back(read_step(uncut, layouts[0]));
        uncut.advance(kSamplesOfStep);
    }
    for (std::size_t first_layout = 0; first_layout < std::size(layouts); first_layout++) {
        LoaderState saved = Loader(at_first, kSeed).state();
        for (std::uint64_t step = 1; step <= kSteps; step++) {   // every step is a run of its own
            const TokenSet tokens = data.open(weights_of(step));
            Loader loader(tokens, kSeed);
            loader.seek(saved);
            const Layout& layout = layouts[(first_layout + step * 5) % std::size(layouts)];
            CHECK(read_step(loader, layout) == expected[step - 1]);
            loader.advance(kSamplesOfStep);
            saved = loader.state();
        }
        CHECK(saved == uncut.state());
    }
    // and a cut at each step alone, the weights then those of a schedule
    for (std::uint64_t cut = 1; cut < kSteps; cut++) {
        Loader before(at_first, kSeed, phases);
        before.advance(cut * kSamplesOfStep);
        Loader after(at_first, kSeed, phases);
        after.seek(before.state());
        for (std::uint64_t step = cut + 1; step <= kSteps; step++) {
            CHECK(read_step(after, layouts[(cut + step) % std::size(layouts)]) == expected[step - 1]);
            after.advance(kSamplesOfStep);
        }
    }
}

TEST_CASE("mixture: one batch is the first windows of the sources in their order") {
    FiveSources data;
    const TokenSet tokens = data.open(weights_at_first);
    const std::vector<SampleId> ids = Loader(tokens, kSeed, {}, true).samples(0, tokens.windows() + 1);
    for (std::uint64_t window = 0; window < tokens.windows(); window++) {
        const TokenSet::Source& source = tokens.sources()[ids[window].source];
        CHECK(ids[window].window == window);
        CHECK((source.first_window <= window && window < source.first_window + source.windows));
    }
    CHECK(ids.back() == SampleId{0, 0, 0});
}

TEST_CASE("mixture: what a state does not fit is refused, sources may be added") {
    FiveSources data;
    const TokenSet two = data.open({1, 1}), three = data.open({1, 1, 1});
    const TokenSet one(real_files(), "--train-data", data.folder / "web/*.bin", T, 1 << 20);
    Loader of_two(two, kSeed), of_three(three, kSeed), of_one(one, kSeed);
    of_two.advance(5);
    of_three.seek(of_two.state());
    CHECK(of_three.state().index == 5);
    CHECK(of_three.state().sources[2] == LoaderState::Source{"wiki", 0, 67, 0});
    CHECK(of_three.state().sources[0] == of_two.state().sources[0]);
    CHECK(complaint([&] {
              of_two.seek(of_three.state());
          }).find("0 samples of wiki, which --train-data does not name") != std::string::npos);
    CHECK(complaint([&] { of_one.seek(of_two.state()); }).find("read a mixture, --train-data is one source") !=
          std::string::npos);
    CHECK(complaint([&] { of_two.seek(of_one.state()); }).find("read one source, --train-data is a mixture") !=
          std::string::npos);
    LoaderState other = of_two.state();
    other.sources[1].windows++;
    CHECK(complaint([&] { of_two.seek(other); }).find("had 38 samples an epoch of code") != std::string::npos);
    other = of_two.state();
    other.sources[1].samples = 1'000'000'000'000'000'000;
    CHECK(complaint([&] {
              of_two.seek(other);
          }).find("run.json: the saved position is sample 1000000000000000000 of code, expected at most") !=
          std::string::npos);
}

TEST_CASE("mixture: samples of another length begin a new epoch of every source that was read") {
    FiveSources data;
    const TokenSet longer = data.open({1, 1, 1});
    std::string list;
    for (std::size_t i = 0; i < 3; i++) list += text(i == 0 ? "" : ",", data.folder / names[i], "/*train*.bin:1");
    const TokenSet shorter(real_files(), "--train-data", list, T / 2, 1 << 20);
    Loader before(longer, kSeed), after(shorter, kSeed);
    before.advance(25);   // 9, 8 and 8 samples: of 7 of the first source, 37 of the second, 67 of the third an epoch
    after.seek(before.state());
    CHECK(after.state().index == 50);
    CHECK(after.state().sources[0].samples == 2 * 14);
    CHECK(after.state().sources[1].samples == 74);
    CHECK(after.state().sources[2].samples == 134);
    for (std::size_t i = 0; i < 3; i++) {
        CHECK(after.state().sources[i].windows == shorter.sources()[i].windows);
        CHECK(after.state().sources[i].credit == before.state().sources[i].credit);
    }
    for (const SampleId& id : after.samples(0, 6)) CHECK(id.epoch == (id.source == 0 ? 2 : 1));
}
