// Runs that are resumed: every bit of the state, windows of losses and norms, algorithms of matmuls; and what is
// refused.
#include <cmath>
#include <map>
#include <set>

#include "llmc/base/json.h"
#include "llmc/io/safetensors.h"
#include "llmc/run/loop/trainer_testing.h"
#include "llmc/run/stopping/health.h"

using namespace trainer_testing;

bool operator==(const OutlierDetector::State& a, const OutlierDetector::State& b) {
    return a.values == b.values && a.count == b.count && a.next == b.next && a.sum == b.sum &&
           a.sum_of_squares == b.sum_of_squares;
}

TEST_CASE("trainer: a checkpoint brings back every bit of weights, moments, masters and the run's state") {
    TestRun saved, loaded;
    saved.options.stop_after = 4;
    CHECK(saved.train(real_files()) == RunEnd::stop_requested);
    RunState state;
    state.step = 99;
    state.seed = 0xfedcba9876543210u;
    state.loader = {3, (std::uint64_t{1} << 60) + 1};
    state.windows = (std::uint64_t{1} << 61) + 1;
    OutlierDetector losses, norms;
    for (int i = 0; i < 200; i++) losses.update(std::sin(i)), norms.update(1.0 / (i + 3));
    state.loss_outliers = losses.state();
    state.norm_outliers = norms.state();
    saved.save(state);
    const RunState found = loaded.load(real_files(), saved.output / "step_00000099");
    CHECK(found.step == state.step);
    CHECK(found.seed == state.seed);
    CHECK(found.loader.epoch == state.loader.epoch);
    CHECK(found.loader.index == state.loader.index);
    CHECK(found.windows == state.windows);
    CHECK(found.loss_outliers == state.loss_outliers);
    CHECK(found.norm_outliers == state.norm_outliers);
    CHECK(loaded.weights() == saved.weights());
    auto same = [&](const ModelState<float>& a, const ModelState<float>& b) {
        for (int i = 0; i < saved.model.table().size(); i++) {
            const std::vector<float> values = download_tensor(a, i, saved.stream.get());
            CHECK(values == download_tensor(b, i, loaded.stream.get()));
            if (i == 0) CHECK(std::any_of(values.begin(), values.end(), [](float x) { return x != 0; }));
        }
    };
    const std::vector<OptimizerState>& states = saved.step->optimizer().states();
    CHECK(states.size() == (sizeof(floatX) == 2 ? 3 : 2));
    for (const OptimizerState& kept : states) same(kept.values.as<float>(), loaded.step->optimizer().state(kept.name));
}

#if defined(PRECISION_BF16)
TEST_CASE(
    "trainer: whole masters go on as halves and halves as whole ones, to the bit, with averages that begin there") {
    auto use = [](TestRun& run, MasterWeights masters, float ema) {
        run.options.master_weights = masters, run.options.ema = ema, run.options.stop_after = 4;
        run.use(OptimizerKind::adamw);
    };
    TestRun all;
    use(all, MasterWeights::fp32, 0);
    all.train(real_files());
    const MasterWeights kinds[] = {MasterWeights::fp32, MasterWeights::compact};
    std::vector<std::vector<float>> averages;
    for (const MasterWeights first : kinds) {
        for (const MasterWeights second : kinds) {
            TestRun cut, rest;
            use(cut, first, 0);
            cut.options.stop_after = 2;
            cut.train(real_files());
            use(rest, second, 0.5f);
            rest.train(real_files(), cut.output / checkpoint_name(2));
            CHECK(rest.weights() == all.weights());
            averages.push_back(download_tensor(rest.step->optimizer().state("ema"),
                                               rest.model.table().index("wte.weight"), rest.stream.get()));
            CHECK(averages.back() == averages.front());
        }
    }
    TestRun halves, none;
    use(halves, MasterWeights::compact, 0);
    halves.train(real_files());
    use(none, MasterWeights::none, 0);
    CHECK_THROWS_WITH_AS(none.load(real_files(), halves.output / checkpoint_name(4)),
                         doctest::Contains("the run was saved with master weights"), Error);
}
#endif

TEST_CASE("trainer: moments go on in the type of the run that resumes, to nearest from fp32 and exact from bf16") {
    auto use = [](TestRun& run, DType moments) {
        run.options.moments = moments;
        run.use(OptimizerKind::adamw);
    };
    auto values = [](TestRun& run, const char* state, DType type) {
        return with_gradient_type<bf16>(type, [&]<class T> {
            return download_tensor(run.step->optimizer().buffers(state).as<T>(), run.model.table().index("wte.weight"),
                                   run.stream.get());
        });
    };
    const DType types[] = {DType::fp32, DType::bf16};
    for (const DType saved : types) {
        TestRun run;
        use(run, saved);
        run.options.stop_after = 2;
        run.train(real_files());
        for (const DType kept : types) {
            TestRun resumed;
            use(resumed, kept);
            resumed.load(real_files(), run.output / checkpoint_name(2));
            CHECK(resumed.weights() == run.weights());
            for (const char* state : {"m", "v"}) {
                std::vector<float> expected = values(run, state, saved);
                if (kept == DType::bf16) {
                    for (float& x : expected) x = static_cast<float>(static_cast<bf16>(x));
                }
                CHECK(values(resumed, state, kept) == expected);
            }
        }
    }
}

TEST_CASE("trainer: a run of another optimizer is resumed with new moments only, which count from there") {
    TestRun began;
    began.use(OptimizerKind::lamb);
    began.options.stop_after = 2;
    began.train(real_files());
    const std::string folder = began.output / checkpoint_name(2);
    const auto resumed = [](TestRun& run, int stop_after, const std::string& from) {
        run.use(OptimizerKind::adamw);
        run.options.stop_after = stop_after;
        run.options.reset_optimizer = from.ends_with(checkpoint_name(2));
        run.train(real_files(), from);
        return run.output / checkpoint_name(stop_after);
    };
    TestRun refused, whole, cut, rest;
    try {
        refused.load(real_files(), folder);
        FAIL("another optimizer's moments were taken");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::bad_data);
        CHECK(std::string(error.what()).find("was saved with --optimizer lamb, the one asked for is adamw") !=
              std::string::npos);
        CHECK(error.hint().find("--reset-optimizer 1") != std::string::npos);
    }
    resumed(whole, 6, folder);
    CHECK(whole.step->optimizer().began() == 2);
    resumed(rest, 6, resumed(cut, 4, folder));   // the second time without a reset
    CHECK(rest.weights() == whole.weights());
    CHECK(rest.step->optimizer().began() == 2);
}

TEST_CASE("trainer: a checkpoint's manifest tells type and shape of every tensor, as the files do") {
    TestRun run;
    RunState state;
    state.step = 1;
    run.save(state);
    const std::string folder = run.output / "step_00000001";
    const Json manifest = parse_json(read_whole(real_files(), folder + "/manifest.json"));
    int tensors = 0;
    for (const auto& held_file : manifest.at("files").members()) {
        const auto& [name, file] = held_file;
        INFO(held_file.first);
        REQUIRE((file.find("tensors") != nullptr) == name.ends_with(".safetensors"));
        if (file.find("tensors") == nullptr) continue;
        const SafetensorsFile held(real_files(), folder + "/" + name);
        const auto& told = file.at("tensors").members();
        REQUIRE(told.size() == held.entries().size());
        for (std::size_t i = 0; i < told.size(); i++, tensors++) {
            const TensorEntry& entry = held.entries()[i];
            CHECK(told[i].first == entry.name);
            CHECK(told[i].second.at("dtype").as_text() == name_of(entry.type));
            CHECK(to_text(told[i].second.at("shape")) == to_text(Json(entry.shape)));
        }
    }
    CHECK(tensors == 4 * run.model.table().size());   // the parameter in two forms, m and v
}

TEST_CASE("trainer: a run.json with numbers out of range is refused, and says what was found") {
    TestRun run;
    RunState state;
    state.step = 7;
    run.save(state);
    const std::string folder = run.output / checkpoint_name(7), path = folder + "/run.json";
    const std::string sound = read_whole(real_files(), path);
    auto complaint = [&](const std::string& from, const std::string& to) -> std::string {
        std::string content = sound;
        REQUIRE(content.find(from) != std::string::npos);
        write_whole(real_files(), path, content.replace(content.find(from), from.size(), to));
        try {
            run.load(real_files(), folder);
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::bad_data);
            return error.what();
        }
        return "";
    };
    CHECK(complaint("\"step\": 7", "\"step\": 7") == "");
    const char* wrong[][3] = {{"\"step\": 7", "\"step\": 8", "it says step 8"},
                              {"\"step\": 7", "\"step\": -7", "found -7"},
                              {"\"step\": 7", "\"step\": 7.0", "found 7.0"},
                              {"\"count\": 0", "\"count\": -20", "found -20, expected a whole number from 0 to 128"},
                              {"\"next\": 0", "\"next\": 128", "found 128, expected a whole number from 0 to 127"},
                              {"\"next\": 0", "\"next\": -5", "found -5"},
                              {"\"values\": [", "\"values\": [0, ", "129 values of a window, expected 128"},
                              {"\"epoch\": 0", "\"epoch\": true", "found true"},
                              {"\"epoch\": 0",
                               "\"sources\": [{\"name\": \"a\", \"samples\": 0, \"windows\": 1, \"credit\": 1e300}], "
                               "\"epoch\": 0",
                               "found 1e+300, expected at most 1e+15 of either sign"},
                              {"\"seed\"", "\"sEed\"", "there is no \"seed\""},
                              {"\"auto\"", "\"\"", "no attention \"\""},
                              {"\"adamw\"", "\"nadam\"", "no optimizer nadam"}};
    for (const auto& change : wrong) {
        const auto& [from, to, expected] = change;
        const std::string found = complaint(from, to);
        INFO(change[1]);
        CHECK(found.find(path) != std::string::npos);
        CHECK(found.find(expected) != std::string::npos);
    }
}

TEST_CASE("trainer: biases of routers lie beside the weights in checkpoints, and a resumed run goes on with them") {
    ModelConfig config = tiny_model();
    config.experts = 4, config.router = RouterScore::sigmoid;
    TestRun whole(config), cut(config), resumed(config);
    CHECK(whole.train(real_files()) == RunEnd::finished);
    cut.options.stop_after = 3;
    CHECK(cut.train(real_files()) == RunEnd::stop_requested);
    const std::string checkpoint = cut.output / "step_00000003";
    const std::vector<float> bias = cut.model.router_bias().values();
    CHECK(std::ranges::any_of(bias, [](float b) { return b != 0; }));
    CHECK(open_weights(real_files(), checkpoint)->router_bias() == bias);
    CHECK(resumed.train(real_files(), checkpoint) == RunEnd::finished);
    CHECK(resumed.weights() == whole.weights());
    CHECK(resumed.model.router_bias().values() == whole.model.router_bias().values());
    config.layers = 3;
    CHECK_THROWS_AS(read_router_bias(real_files(), checkpoint, config), Error);
    real_files().remove_all(checkpoint + "/" + kRouterBiasFile);
    CHECK_THROWS_AS(open_weights(real_files(), checkpoint), Error);
}

TEST_CASE("trainer: a resumed run goes on with the windows of past losses and norms") {
    OutlierDetector low;   // full of values far below any loss or norm of this model
    for (int i = 0; i < 2 * OutlierDetector::kWindow; i++) low.update(1e-3 * (1 + i % 2));
    for (bool of_loss : {true, false}) {
        for (bool window : {true, false}) {
            TestRun run;
            (of_loss ? run.options.skip_loss_z : run.options.skip_norm_z) = 3.0f;
            run.options.stop_after = 2;
            RunState state;
            state.step = 1;
            state.windows = run.tokens.windows();
            if (window) (of_loss ? state.loss_outliers : state.norm_outliers) = low.state();
            run.save(state);
            const auto before = run.weights();
            CHECK(run.train(real_files(), run.output / "step_00000001") == RunEnd::stop_requested);
            CHECK((run.weights() == before) == window);   // with its window the update is an outlier's
        }
    }
}

TEST_CASE(
    "trainer: outliers take a run back to its checkpoint so often as it is told, then end it; without one they are "
    "skipped") {
    OutlierDetector low;
    for (int i = 0; i < OutlierDetector::kWindow; i++) low.update(1e-3 * (1 + i % 2));
    for (bool has_checkpoint : {true, false}) {
        TestRun run;
        run.options.skip_loss_z = 3.0f, run.options.spike_rewind = 2;
        RunState state;
        state.step = 1;
        state.windows = run.tokens.windows();
        state.loss_outliers = low.state();
        run.save(state);
        const auto before = run.weights();
        if (!has_checkpoint) run.options.output_dir = run.data / "other", run.options.max_steps = 3;
        const RunEnd end = run.train(real_files(), run.output / "step_00000001");
        CHECK(end == (has_checkpoint ? RunEnd::bad_steps : RunEnd::finished));
        CHECK(run.weights() == before);
        const std::string records = read_whole(real_files(), run.options.output_dir + "/metrics.jsonl");
        int rewinds = 0;
        for (std::size_t at = 0; (at = records.find("{\"step\":1,\"rewind_from\":2,", at)) != std::string::npos; at++)
            rewinds++;
        CHECK(rewinds == (has_checkpoint ? 2 : 0));
        // each time past one more step's samples
        if (has_checkpoint) CHECK(records.find("\"skipped_samples\":4}") != std::string::npos);
    }
}

// The algorithms of a run, as if a search had found the second of those offered for every problem.
std::vector<MatmulAlgorithm> other_algorithms() {
    TestRun run;
    run.options.stop_after = 1;
    run.train(real_files());
    std::vector<MatmulAlgorithm> algorithms = run.model.matmul().algorithms();
    REQUIRE(algorithms.size() > 10);
    for (MatmulAlgorithm& algorithm : algorithms) algorithm.words[1] = 1;
    return algorithms;
}

TEST_CASE("trainer: a resumed run multiplies with the algorithms of the run it continues") {
    SKIP_ON_A_GPU("other algorithms are made up");
    const std::vector<MatmulAlgorithm> chosen = other_algorithms();
    TestRun first, second;
    first.model.matmul().use_algorithms(chosen);
    first.options.stop_after = 2;
    CHECK(first.train(real_files()) == RunEnd::stop_requested);
    CHECK(second.train(real_files(), first.output / "step_00000002") == RunEnd::finished);
    CHECK(second.model.matmul().algorithms() == chosen);
    CHECK(second.model.matmul().refused_algorithms().empty());
}

TEST_CASE("trainer: algorithms that do not fit are chosen anew, and it is said why") {
    SKIP_ON_A_GPU("other algorithms are made up");
    std::vector<MatmulAlgorithm> chosen = other_algorithms();
    chosen[0].words[0] = 99;                              // unknown to the library
    chosen[1].workspace_bytes = std::uint64_t{1} << 40;   // more than there is
    TestRun run;
    run.options.stop_after = 1;
    run.model.matmul().use_algorithms(chosen);
    CHECK(run.train(real_files()) == RunEnd::stop_requested);
    const std::vector<std::string> refused = run.model.matmul().refused_algorithms();
    REQUIRE(refused.size() == 2);
    for (const std::string& why : refused) {
        const bool unknown = why.starts_with(chosen[0].problem);
        CHECK(why.find(unknown ? "CUBLAS_STATUS_NOT_SUPPORTED" : "1099511627776 bytes of workspace") !=
              std::string::npos);
    }
    const std::vector<MatmulAlgorithm> used = run.model.matmul().algorithms();
    CHECK(used[0].words[1] == 0);   // the heuristic's first
    CHECK(used[1].words[1] == 0);
    CHECK(used[2] == chosen[2]);

    const std::string file = run.output / "step_00000001/matmul.json";
    std::string content = read_whole(real_files(), file);
    CHECK(restore_matmul_choices(real_files(), file, run.model.matmul()) == "");
    content.replace(content.find("\"cublaslt\": "), 12, "\"cublaslt\": 9");
    write_whole(real_files(), file, content);
    CHECK(restore_matmul_choices(real_files(), file, run.model.matmul()).find("of another machine") !=
          std::string::npos);
    write_whole(real_files(), file, content.substr(0, content.size() / 2));
    CHECK_THROWS_WITH_AS(restore_matmul_choices(real_files(), file, run.model.matmul()),
                         doctest::Contains("matmul.json"), Error);
}
