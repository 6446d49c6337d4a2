// The training loop on a tiny model in one process: what must be decided on the device, in which order things reach the
// disk, what a checkpoint brings back, and that the memory table tells the truth. Whole runs are in dev/test.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "llmc/base/json.h"
#include "llmc/base/stream.h"
#include "llmc/data/write_token_file_testing.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/io/safetensors.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/io/throttled_files_testing.h"
#include "llmc/model/download_testing.h"
#include "llmc/run/choices/matmul_choices.h"
#include "llmc/run/loop/trainer.h"
#include "llmc/run/save_training_state_testing.h"
#include "llmc/run/stopping/health.h"
#include "llmc/run/telling_files_testing.h"

// Defined by the stand-in, null on a GPU: there the words of algorithms are the library's secret, and an allocation
// takes whole granules, beside which a tiny model is nothing.
extern "C" __attribute__((weak)) void turn_on_device_checks();
#define SKIP_ON_A_GPU(why)                  \
    if (turn_on_device_checks == nullptr) { \
        MESSAGE("SKIPPED on a GPU: ", why); \
        return;                             \
    }

namespace {

constexpr int kVocab = 61;

Options tiny_options(const std::string& folder) {
    Options options;
    options.layers = 2, options.heads = 2, options.channels = 32;
    options.seq_len = 16, options.micro_batch = 2, options.total_batch = 64, options.max_steps = 6;
    options.lr = 1e-2f;
    options.val_every = 3, options.val_max_batches = 2, options.sample_every = 0;
    options.output_dir = folder;
    return options;
}

std::string write_tokens(const std::string& path) {
    std::vector<std::uint32_t> ids;
    for (std::uint32_t i = 0; i < 2000; i++) ids.push_back(i * i % kVocab);
    write_token_file(real_files(), path, TokenFormat::gpt2, ids);
    return path;
}

StageOptions shape_of(const Options& o) {
    StageOptions result;
    result.B = o.micro_batch;
    result.T = o.seq_len;
    result.attention = o.attention;
    result.recompute = o.recompute.value_or(Recompute::gelu);
    return result;
}

ModelConfig tiny_model() {
    const Options options = tiny_options("");
    return custom_model_config(options.layers, options.heads, options.channels, options.seq_len, kVocab);
}

// A run as main makes it, on data of its own.
struct TestRun {
    ModelConfig config;
    TemporaryFolder data;
    TemporaryFolder output;
    Options options = tiny_options(output.path());
    double peak_flops_per_s = 0;   // unknown
    OwnedStream stream;
    Arena arena;
    Stage model{config, shape_of(options), arena, stream.get()};
    std::optional<Step> step;
    TokenSet tokens{real_files(), "--train-data", write_tokens(data / "tokens.bin"), options.seq_len, kVocab};
    StopSignals signals;
    std::FILE* nowhere = std::fopen("/dev/null", "w");
    std::optional<Log> log{std::in_place, true, nowhere, nowhere};
    void log_to(std::FILE* out) { log.emplace(true, out, out); }

    explicit TestRun(const ModelConfig& of = tiny_model()) : config(of) {
        initialize_parameters(model.parameters(), options.seed, model.stream());
        step.emplace(model, OptimizerOptions{}, arena);
    }
    ~TestRun() { std::fclose(nowhere); }

    RunState load(const FileSystem& files, const std::string& folder) {
        return load_training_state(files, folder, tensors_of(*step), stream.get(), options.optimizer,
                                   options.reset_optimizer);
    }
    void use(OptimizerKind kind) {
        options.optimizer = kind;
        step.emplace(model, options, arena);
    }
    void save(const RunState& state) {
        save_training_state(real_files(), output.path(), state, tensors_of(*step),
                            {"", matmul_choices_text(model.matmul())},
                            Gatherer(model.storage(), nullptr, false, arena, stream.get()));
    }

    // Continues from `folder`, unless empty.
    RunEnd train(FileSystem& files, const std::string& folder = "") {
        RunState state;
        if (!folder.empty()) {
            state = load(files, folder);
            CHECK(restore_matmul_choices(files, folder + "/" + kMatmulChoicesFile, model.matmul()) == "");
        }
        Metrics metrics(files, options.output_dir, state.step);
        Trainer trainer({options, *log, arena, *step, tokens, &tokens, files, metrics, signals, nullptr, nullptr, "",
                         options.max_steps, peak_flops_per_s});
        if (!folder.empty()) trainer.restore(state);
        return trainer.run();
    }

    std::vector<std::vector<float>> weights() const {
        std::vector<std::vector<float>> result;
        for (int i = 0; i < model.table().size(); i++) {
            result.push_back(download_tensor(model.parameters(), i, model.stream()));
        }
        return result;
    }
};

// Remembers what was done to files, in order: "write NAME", "sync NAME", "rename NAME". The run and the thread that
// writes its checkpoints are remembered together.
class RecordingFiles : public ForwardingFiles {
public:
    using ForwardingFiles::ForwardingFiles;
    std::vector<std::string> calls;

    std::unique_ptr<File> create(const std::string& path) override { return record(inner_.create(path)); }
    std::unique_ptr<File> append(const std::string& path) override { return record(inner_.append(path)); }
    void rename(const std::string& from, const std::string& to) override {
        remember("rename " + name_of(to));
        inner_.rename(from, to);
    }
    void sync_folder(const std::string& path) override {
        remember("sync " + name_of(path));
        inner_.sync_folder(path);
    }
    static std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

private:
    class RecordingFile : public File {
    public:
        RecordingFile(std::unique_ptr<File> inner, RecordingFiles& files) : inner_(std::move(inner)), files_(files) {}
        const std::string& path() const override { return inner_->path(); }
        std::uint64_t size() const override { return inner_->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override { inner_->read_at(offset, into); }
        void write(std::span<const std::byte> bytes) override {
            if (!bytes.empty()) files_.remember("write " + name_of(path()));
            inner_->write(bytes);
        }
        void sync() override {
            files_.remember("sync " + name_of(path()));
            inner_->sync();
        }

    private:
        std::unique_ptr<File> inner_;
        RecordingFiles& files_;
    };
    std::unique_ptr<File> record(std::unique_ptr<File> file) {
        return std::make_unique<RecordingFile>(std::move(file), *this);
    }
    void remember(const std::string& call) {
        std::lock_guard lock(mutex_);
        calls.push_back(call);
    }
    std::mutex mutex_;
};

// Files of checkpoints to which something happens when they are made.
class DisturbedFiles : public ForwardingFiles {
public:
    DisturbedFiles(FileSystem& inner, std::function<void(const std::string& path)> disturb)
        : ForwardingFiles(inner), disturb_(std::move(disturb)) {}
    std::unique_ptr<File> create(const std::string& path) override {
        if (path.find(".tmp/") != std::string::npos) disturb_(path);
        return inner_.create(path);
    }

private:
    std::function<void(const std::string& path)> disturb_;
};

// Files to read of which every read is told first, and may be made to fail.
class ReadingFiles : public ForwardingFiles {
public:
    ReadingFiles(FileSystem& inner, std::function<void()> before_read)
        : ForwardingFiles(inner), before_read_(std::move(before_read)) {}
    std::unique_ptr<File> open(const std::string& path) const override {
        return std::make_unique<ReadFile>(inner_.open(path), before_read_);
    }

private:
    struct ReadFile : File {
        ReadFile(std::unique_ptr<File> its_inner, std::function<void()> its_before)
            : inner(std::move(its_inner)), before_read(std::move(its_before)) {}
        const std::string& path() const override { return inner->path(); }
        std::uint64_t size() const override { return inner->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
            before_read();
            inner->read_at(offset, into);
        }
        void write(std::span<const std::byte> bytes) override { inner->write(bytes); }
        void sync() override { inner->sync(); }
        std::unique_ptr<File> inner;
        std::function<void()> before_read;
    };
    std::function<void()> before_read_;
};

// Bytes of the device in use, by any process.
double device_bytes_taken() {
    std::size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return static_cast<double>(total_bytes - free_bytes);
}

}   // namespace

TEST_CASE("trainer: a loss that is not finite stops the update on the device, even where the norm is finite") {
    TestRun run;
    const std::size_t count = static_cast<std::size_t>(run.options.tokens_per_micro_step());
    auto all_sevens = [](int, const MicroBatch& to) {
        std::fill(to.tokens.begin(), to.tokens.end(), 7);
        std::fill(to.targets.begin(), to.targets.end(), 7);
    };
    // written over the loss between backward and the decision, as no kernel can be made to do with a finite norm
    void* loss = nullptr;   // the first of the step's numbers
    for (const Allocation& held : run.arena.allocations()) {
        if (held.name == "step/numbers") loss = const_cast<void*>(held.address);
    }
    REQUIRE(loss != nullptr);
    const auto before = run.weights();
    for (double planted : {static_cast<double>(NAN), static_cast<double>(INFINITY), -1e300, 1.0}) {
        INFO("loss ", planted);
        run.step->gradients(one_stage_schedule(1), all_sevens, 1.0f / static_cast<float>(count), [&] {
            CUDA_CHECK(cudaMemcpyAsync(loss, &planted, sizeof planted, cudaMemcpyHostToDevice, run.stream.get()));
            return StopVotes{};
        });
        run.step->update(1, 1e-2f);
        CHECK(std::isfinite(run.step->result().grad_norm));
        const bool unchanged = run.weights() == before;
        CHECK(unchanged == (planted != 1.0));
    }
}

TEST_CASE(
    "trainer: the next step's first samples are read before this step's end; a fault of theirs is the next step's") {
    TestRun run;   // a step: two micro-batches of two samples
    run.options.max_steps = 3, run.options.val_every = 0;
    std::string events;   // r: a sample is read; |: a step's record is written, which waits for its end
    int good_reads = 1000;
    ReadingFiles data(real_files(), [&] {
        if (good_reads-- <= 0) throw Error(ErrorKind::io, "a read that fails", "");
        events += 'r';
    });
    run.tokens = TokenSet(data, "--train-data", run.data / "tokens.bin", run.options.seq_len, kVocab, 0);
    TellingFiles files(real_files(), [&] { events += '|'; });
    events.clear();
    CHECK(run.train(files) == RunEnd::finished);
    CHECK(events == "rrrrrr|rrrr|rr|");   // the last step reads nothing that no step needs

    events.clear();
    good_reads = 5;   // the second sample of step 2 cannot be read
    CHECK_THROWS_WITH_AS(run.train(files), "a read that fails", Error);
    CHECK(events == "rrrrr|");
}

// Computes the loss of step 1 by hand over the remaining positions; each of its samples has two ends of documents.
TEST_CASE("trainer: without a loss at the ends of documents the mean is over the other positions") {
    TestRun run, by_hand;
    run.options.boundary_loss = by_hand.options.boundary_loss = false;
    run.options.max_steps = 1, run.options.val_every = 1, run.options.val_max_batches = 3;
    run.tokens.tell_documents_apart({4, false});
    run.train(real_files());
    const std::string metrics = read_whole(real_files(), run.output / "metrics.jsonl");
    auto number = [&](const std::string& name) {
        const std::size_t at = metrics.find("\"" + name + "\":");
        REQUIRE(at != std::string::npos);
        return std::stod(metrics.substr(at + name.size() + 3));
    };

    // the loss of a micro-batch's positions that are not the ends of documents, added up, and how many there are
    const Loader loader(by_hand.tokens, by_hand.options.seed);
    auto add_up = [&](auto read_sample, std::uint64_t samples) {
        double sum = 0, count = 0;
        Stage& stage = by_hand.model;
        const std::size_t T = 16;
        for (std::uint64_t i = 0; i < samples; i += 2) {
            std::vector<float> losses(2 * T);
            std::vector<std::int32_t> wanted;
            by_hand.step->forward(
                [&](int, const MicroBatch& to) {
                    for (std::uint64_t b = 0; b < 2; b++) {
                        read_sample(std::min(i + b, samples - 1), to.tokens.subspan(b * T, T),
                                    to.targets.subspan(b * T, T));
                    }
                    wanted.assign(to.targets.begin(), to.targets.end());
                },
                Purpose::loss);
            CUDA_CHECK(cudaMemcpyAsync(losses.data(), stage.losses(), losses.size() * sizeof(float),
                                       cudaMemcpyDeviceToHost, stage.stream()));
            CUDA_CHECK(cudaStreamSynchronize(stage.stream()));
            for (std::size_t t = 0; t < (i + 1 < samples ? 2 * T : T); t++) {
                if (wanted[t] == 4) continue;
                sum += static_cast<double>(losses[t]), count++;
            }
        }
        CHECK(count < static_cast<double>(samples * T));
        return sum / count;
    };
    const double step =
        add_up([&](std::uint64_t i, auto tokens, auto targets) { loader.read(i, 1, tokens, targets); }, 4);
    CHECK(number("loss") == doctest::Approx(step).epsilon(sizeof(floatX) == 4 ? 1e-6 : 5e-4));
    const double validation =
        add_up([&](std::uint64_t i, auto tokens, auto targets) { by_hand.tokens.read_window(i, tokens, targets); }, 3);
    CHECK(number("val_loss") == doctest::Approx(validation).epsilon(sizeof(floatX) == 4 ? 1e-6 : 5e-4));
}

TEST_CASE("trainer: records are on the disk before the checkpoint of their steps gets its name") {
    TestRun run;
    run.options.checkpoint_every = 2;
    RecordingFiles files(real_files());
    CHECK(run.train(files) == RunEnd::finished);
    int lines = 0, synced_lines = 0;   // lines of metrics.jsonl, which grows while a checkpoint is written
    std::set<std::string> unsynced;    // files of the checkpoint
    std::map<std::string, int> lines_at;
    for (const std::string& call : files.calls) {
        const std::string what = call.substr(0, call.find(' ')), name = call.substr(call.find(' ') + 1);
        const bool is_record = name == "metrics.jsonl", is_log = name == "main.log";
        if (is_record && what == "write") lines++;
        if (is_record && what == "sync") synced_lines = lines;
        if (!is_record && !is_log && what == "write") unsynced.insert(name);
        if (what == "sync") unsynced.erase(name);
        if (what != "rename" || !name.starts_with("step_")) continue;
        INFO(name);
        CHECK(unsynced.empty());
        lines_at[name] = synced_lines;
    }
    REQUIRE(lines_at.size() == 3);
    CHECK(lines_at["step_00000002"] >= 2 + 1);   // a line for each step, and for validation of 0, 3 and 6
    CHECK(lines_at["step_00000004"] >= 4 + 2);
    CHECK(lines_at["step_00000006"] == 6 + 3);
    CHECK(std::count(files.calls.begin(), files.calls.end(), "write metrics.jsonl") == 6 + 3);
}

TEST_CASE("trainer: steps go on while a checkpoint is written") {
    TestRun run;
    run.options.checkpoint_every = 2;
    std::mutex mutex;
    std::condition_variable changed;
    int lines = 0;
    bool waited_in_vain = false;
    // the checkpoint of step 2 is not written before the records of step 4 are
    DisturbedFiles slow(real_files(), [&](const std::string&) {
        std::unique_lock lock(mutex);
        if (!changed.wait_for(lock, std::chrono::seconds(20), [&] { return lines >= 6; })) waited_in_vain = true;
    });
    TellingFiles files(slow, [&] {
        std::lock_guard lock(mutex);
        lines++;
        changed.notify_all();
    });
    const auto before = run.weights();
    CHECK(run.train(files) == RunEnd::finished);
    CHECK(!waited_in_vain);
    CHECK(list_checkpoints(real_files(), run.output.path()) == std::vector<int>{2, 4, 6});
    // each holds the state of its own step, though the run had gone on
    TestRun same;
    same.options.stop_after = 2;
    same.train(real_files());
    const std::string state = "/step_00000002/optimizer-00002-of-00004.safetensors";
    CHECK(read_whole(real_files(), run.output.path() + state) == read_whole(real_files(), same.output.path() + state));
}

TEST_CASE("trainer: of values that are not finite the first tensor is named, whichever it is, and nothing is updated") {
    TestRun run;
    const std::size_t count = static_cast<std::size_t>(run.options.tokens_per_micro_step());
    const cudaStream_t stream = run.stream.get();
    auto look = [&] { return earliest({first_not_finite(tensors_of(*run.step), run.model.gradients(), stream)}); };
    auto tokens = [](int, const MicroBatch& to) {
        std::fill(to.tokens.begin(), to.tokens.end(), 7);
        std::fill(to.targets.begin(), to.targets.end(), 7);
    };
    run.step->gradients(one_stage_schedule(1), tokens, 1.0f / static_cast<float>(count));
    CHECK(look() == "no parameter, activation or gradient has such a value");
    auto plant = [&](auto* at, auto value) {   // the second element, until the end
        std::decay_t<decltype(*at)> old{};
        CUDA_CHECK(cudaMemcpyAsync(&old, at + 1, sizeof old, cudaMemcpyDeviceToHost, stream));
        CUDA_CHECK(cudaMemcpyAsync(at + 1, &value, sizeof value, cudaMemcpyHostToDevice, stream));
        CUDA_CHECK(cudaStreamSynchronize(stream));
        return old;
    };
    for (int param = 0; param < run.model.table().size(); param++) {
        const ParamInfo& info = run.model.table()[param];
        const std::string name =
            info.name + (info.layer < 0 ? std::string() : text(" of layer ", info.layer)) + " (1 values)";
        auto check = [&](auto* at, const std::string& expected) {
            using T = std::decay_t<decltype(*at)>;
            const T old = plant(at, static_cast<T>(static_cast<float>(NAN)));
            CHECK(look() == expected);
            plant(at, old);
        };
        check(run.model.parameters().tensor(param), "first in parameter " + name);
        with_gradient_type<floatX>(run.model.gradients().type(), [&]<class G> {
            check(run.model.gradients().kept().tensor(param).as<G>(), "first in the gradient of " + name);
        });
    }
    // in the midst of a run: a weight, of which all gradients before its layer are made
    const int middle = run.model.table().index("mlp.c_fc.weight", 1);
    plant(run.model.parameters().tensor(middle), static_cast<floatX>(static_cast<float>(INFINITY)));
    const auto before = run.weights();
    const std::string said = run.output / "said";
    std::FILE* out = std::fopen(said.c_str(), "w");
    run.log_to(out);
    run.options.val_every = 0, run.options.max_steps = 2;
    CHECK(run.train(real_files()) == RunEnd::finished);
    std::fclose(out);
    CHECK(run.weights() == before);
    CHECK(read_whole(real_files(), said).find("update skipped; first in parameter h.1.mlp.c_fc.weight of layer 1") !=
          std::string::npos);
}

TEST_CASE("trainer: a value that is first not finite in the forward pass is named, and nothing is updated") {
    struct Planted {
        const char* param;
        int layer;
        float value;            // finite, of all elements
        const char* expected;   // the first activation to overflow
    };
    const float most = 3.3e38f;
    for (const Planted& planted : {
             Planted{"wpe.weight", -1, most, "encoded ("},
             {"ln_1.weight", 1, most, "ln1 of layer 1 ("},
             {"attn.c_attn.weight", 1, most, "qkv of layer 1 ("},
             {"attn.c_attn.bias", 1, 1e30f, "atty of layer 1 ("},   // scores
             {"attn.c_proj.weight", 0, most, "residual2 of layer 0 ("},
             {"ln_2.weight", 1, most, "ln2 of layer 1 ("},
             {"mlp.c_fc.weight", 1, most, "fch of layer 1 ("},
             {"mlp.c_proj.weight", 1, most, "residual3 of layer 1 ("},
             {"ln_f.weight", -1, most, "lnf ("},
         }) {
        const auto& [param, layer, value, expected] = planted;
        TestRun run;
        auto fill = [&](const char* kind, int of_layer, float with) {
            const int index = run.model.table().index(kind, of_layer);
            const std::vector<floatX> values(download_tensor(run.model.parameters(), index, run.stream.get()).size(),
                                             static_cast<floatX>(with));
            CUDA_CHECK(cudaMemcpyAsync(run.model.parameters().tensor(index), values.data(),
                                       values.size() * sizeof(floatX), cudaMemcpyHostToDevice, run.stream.get()));
            wait_for(run.stream.get());
        };
        fill(param, layer, value);
        if (std::string(param) == "wpe.weight") fill("wte.weight", -1, value);
        INFO(planted.expected);
        const auto before = run.weights();
        const std::string said = run.output / "said";
        std::FILE* out = std::fopen(said.c_str(), "w");
        run.log_to(out);
        run.options.val_every = 0, run.options.max_steps = 2;
        CHECK(run.train(real_files()) == RunEnd::finished);
        std::fclose(out);
        CHECK(run.weights() == before);
        const std::string words = read_whole(real_files(), said);
        INFO(words);
        CHECK(words.find(text("update skipped; first in activation ", expected)) != std::string::npos);
        CHECK(words.find("not finite, update skipped; as before") != std::string::npos);
    }
}

TEST_CASE("trainer: a checkpoint that cannot be written is told, the next one is written, the last one ends the run") {
    auto full = [](const std::string& path) { throw Error(ErrorKind::io, path + ": no space"); };
    const int every = 2;
    {
        TestRun run;
        run.options.checkpoint_every = every;
        const std::string said = run.output / "said";
        std::FILE* out = std::fopen(said.c_str(), "w");
        run.log_to(out);
        DisturbedFiles files(real_files(), [&](const std::string& path) {
            if (path.find("step_00000002") != std::string::npos) full(path);
        });
        CHECK(run.train(files) == RunEnd::finished);
        std::fclose(out);
        CHECK(list_checkpoints(real_files(), run.output.path()) == std::vector<int>{4, 6});
        CHECK(read_whole(real_files(), said).find("step_00000002 was not written: ") != std::string::npos);
        for (const std::string& name : real_files().list(run.output.path())) CHECK(!name.ends_with(".tmp"));
    }
    {
        TestRun run;
        run.options.checkpoint_every = every;
        DisturbedFiles files(real_files(), [&](const std::string& path) {
            if (path.find("step_00000006") != std::string::npos) full(path);
        });
        CHECK_THROWS_WITH_AS(run.train(files), doctest::Contains("no space"), Error);
        CHECK(list_checkpoints(real_files(), run.output.path()) == std::vector<int>{2, 4});
    }
    {
        TestRun run;   // stopped after a step whose checkpoint failed: it is saved again
        run.options.checkpoint_every = every;
        run.options.stop_after = 4;
        int failures = 0;
        DisturbedFiles files(real_files(), [&](const std::string& path) {
            if (path.find("step_00000004") != std::string::npos && failures++ == 0) full(path);
        });
        CHECK(run.train(files) == RunEnd::stop_requested);
        CHECK(failures > 1);
        CHECK(list_checkpoints(real_files(), run.output.path()) == std::vector<int>{2, 4});
    }
}

namespace {

// The least of several attempts: seconds of `clock` that a run of 5 M parameters waits for its checkpoint.
void check_wait_for_copy(clockid_t clock) {
    auto seconds = [clock] {
        timespec now{};
        clock_gettime(clock, &now);
        return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
    };
    Arena arena;
    OwnedStream stream;
    StageOptions shape;
    shape.B = 1, shape.T = 16;
    Stage model(custom_model_config(2, 4, 512, 16, 2048), shape, arena, stream.get());
    initialize_parameters(model.parameters(), 1, model.stream());
    Step step(model, OptimizerOptions{}, arena);
    const Gatherer gatherer(model.storage(), nullptr, false, arena, stream.get());
    HostTensors memory(tensors_of(step), gatherer);
    REQUIRE(memory.bytes() > 80 << 20);
    TemporaryFolder folder;
    const double limit = static_cast<double>(memory.bytes()) / 2e9 + 5e-3;
    double best = 1e9;
    for (int attempt = 0; attempt < 20 && best > limit; attempt++) {   // others may have the machine
        RunState state;
        state.step = attempt + 1;
        const double start = seconds();
        CheckpointWriter save(real_files(), folder.path(), state.step);
        start_save(save, state, tensors_of(step), memory, {"", "{}"}, gatherer);
        const double blocked = seconds() - start;
        save.finish();
        real_files().remove_all(folder / checkpoint_name(state.step));
        best = std::min(best, blocked);
    }
    CAPTURE(memory.bytes());
    CHECK(best <= limit);
}

}   // namespace

// By the processor time of the run's own thread, for others may have the machine; that it does not wait for the disk
// either is the test before.
TEST_CASE("trainer: a run waits no longer for its checkpoint than it takes to copy it to host memory") {
    SKIP_ON_A_GPU("times of a GPU's copies are not those of the processor");
    check_wait_for_copy(CLOCK_THREAD_CPUTIME_ID);
}
TEST_CASE("trainer: the same on the clock" * doctest::skip()) { check_wait_for_copy(CLOCK_MONOTONIC); }

TEST_CASE("trainer: steps take as long while a checkpoint is written" * doctest::skip()) {
    TestRun run;
    run.options.max_steps = 600, run.options.checkpoint_every = 40, run.options.val_every = 0;
    std::atomic<int> writes = 0;   // checkpoints being written
    ThrottledFiles slow(real_files(), 3e6, &writes);
    std::vector<double> during, others;
    auto before = std::chrono::steady_clock::now();
    bool wrote = false;
    TellingFiles files(slow, [&] {   // after each step
        const auto now = std::chrono::steady_clock::now();
        const bool writes_now = writes > 0;
        if (wrote == writes_now) {
            (wrote ? during : others).push_back(std::chrono::duration<double>(now - before).count());
        }
        before = now, wrote = writes_now;
    });
    CHECK(run.train(files) == RunEnd::finished);
    auto median = [](std::vector<double> values) {
        REQUIRE(values.size() > 30);
        std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
        return values[values.size() / 2];
    };
    MESSAGE(during.size() << " and " << others.size() << " steps, medians " << 1e3 * median(during) << " and "
                          << 1e3 * median(others) << " ms");
    CHECK(median(during) <= 1.05 * median(others));
}

TEST_CASE("trainer: a signal before the first step ends the run at once, with nothing written but empty records") {
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
        TestRun run;
        const auto before = run.weights();
        run.signals.note(signal);
        CHECK_THROWS_WITH_AS(run.signals.leave_if_received(), doctest::Contains("received during start-up"), Error);
        CHECK(run.train(real_files()) == RunEnd::signal);
        CHECK(run.weights() == before);
        CHECK(list_checkpoints(real_files(), run.output.path()).empty());
        CHECK(read_whole(real_files(), run.output / "metrics.jsonl").empty());
    }
}

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
    for (const OptimizerState& kept : states) same(kept.values, loaded.step->optimizer().state(kept.name));
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
                              {"\"seed\"", "\"sEed\"", "there is no \"seed\""},
                              {"\"bad_steps\"", "\"optimizer\": \"nadam\",\"bad_steps\"", "no optimizer nadam"}};
    for (const auto& change : wrong) {
        const auto& [from, to, expected] = change;
        const std::string found = complaint(from, to);
        INFO(change[1]);
        CHECK(found.find(path) != std::string::npos);
        CHECK(found.find(expected) != std::string::npos);
    }
}

TEST_CASE("trainer: MFU counts the FLOPs of the experts that a token meets") {
    ModelConfig config = tiny_model();
    config.experts = 16, config.own_experts_per_token = 1;
    TestRun run(config);
    run.peak_flops_per_s = 1e18;   // more than is reached, or it would be raised
    run.options.max_steps = 2;
    CHECK(run.train(real_files()) == RunEnd::finished);
    const double C = static_cast<double>(config.channels), F = static_cast<double>(config.expert_width()),
                 L = static_cast<double>(config.layers), T = run.options.seq_len;
    const double of_layer = 4 * 2 * C * C + 2 * C * T + 2 * 16 * C + 2 * 2 * C * F,
                 flops = 3 * L * of_layer + 6 * C * static_cast<double>(config.vocab_size);
    std::istringstream lines(read_whole(real_files(), run.output / "metrics.jsonl"));
    int steps = 0;
    for (std::string line; std::getline(lines, line);) {
        const Json record = parse_json(line);
        if (!record.contains("mfu")) continue;
        CHECK(record.at("mfu").as_number() == doctest::Approx(record.at("tokens_per_s").as_number() * flops / 1e18));
        steps++;
    }
    CHECK(steps == 2);
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
    // a checkpoint of a version that had no biases
    real_files().remove_all(checkpoint + "/" + kRouterBiasFile);
    CHECK(open_weights(real_files(), checkpoint)->router_bias() == std::vector<float>(bias.size(), 0.0f));
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

TEST_CASE("trainer: the memory table is what the device reports, within 2%, and a hidden allocation is not in it") {
    SKIP_ON_A_GPU("the model is smaller than a granule");
    for (Recompute recompute : {Recompute::none, Recompute::block}) {
        for (AttentionKind attention : {AttentionKind::own, AttentionKind::auto_}) {
            const double before = device_bytes_taken();
            Arena arena;
            OwnedStream stream;
            StageOptions shape;
            shape.B = 8, shape.T = 64, shape.recompute = recompute, shape.attention = attention;
            Stage model(custom_model_config(3, 2, 128, 64, 1000), shape, arena, stream.get());
            initialize_parameters(model.parameters(), 1, model.stream());
            Step step(model, OptimizerOptions{}, arena);
            step.gradients(
                one_stage_schedule(1),
                [](int, const MicroBatch& to) {
                    std::fill(to.tokens.begin(), to.tokens.end(), 3);
                    std::fill(to.targets.begin(), to.targets.end(), 4);
                },
                1.0f / 512);   // late allocations count too
            step.update(1, 1e-3f);
            step.result();
            auto ratio = [&] { return (device_bytes_taken() - before) / static_cast<double>(arena.bytes()); };
            CHECK(ratio() > 0.98);
            CHECK(ratio() < 1.02);
            void* hidden = nullptr;
            CUDA_CHECK(cudaMalloc(&hidden, arena.bytes() / 40));
            CHECK(ratio() > 1.02);
            CUDA_CHECK(cudaFree(hidden));
        }
    }
}

TEST_CASE(
    "trainer: after a return to an earlier step its batch is read anew, cut into sequences of that step's length") {
    TestRun run;
    run.options.seq_len_schedule = "1:8,3:16", run.options.val_every = 0;
    Metrics metrics(real_files(), "");
    const TrainerParts parts{run.options,           *run.log, run.arena,   *run.step, run.tokens, nullptr,
                             real_files(),          metrics,  run.signals, nullptr,   nullptr,    "",
                             run.options.max_steps, 0.0};
    StepBatch batch(parts);
    const auto micro_batches_read = [&](int step) {
        std::vector<int> read;
        batch.begin(step);
        run.step->gradients(
            batch.schedule(),
            [&](int micro_batch, const MicroBatch& to) {
                read.push_back(micro_batch);
                batch.reader()(micro_batch, to);
            },
            1.0f);
        batch.read_ahead();
        run.step->result();
        batch.end_step();
        return read;
    };
    const std::vector<int> all{0, 1}, rest{1};   // without and with the first one read ahead
    CHECK(micro_batches_read(3) == all);
    CHECK(micro_batches_read(4) == rest);
    batch.seek(batch.loader());
    CHECK(micro_batches_read(2) == all);
    CHECK(micro_batches_read(3) == rest);
}
