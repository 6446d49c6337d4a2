// The training loop on a tiny model in one process: what must be decided on the device, in which order things reach the
// disk, what a checkpoint brings back, and that the memory table tells the truth. Whole runs are in dev/test.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <map>
#include <set>

#include "llmc/base/json.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/run/loop/trainer_testing.h"
#include "llmc/run/stopping/health.h"
#include "llmc/run/telling_files_testing.h"

using namespace trainer_testing;

namespace {

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
    Agreement agreement(run.arena, nullptr, nullptr, run.signals, run.stream.get());
    const TrainerParts parts{run.options,           *run.log, run.arena, *run.step, run.tokens, nullptr,
                             real_files(),          metrics,  agreement, nullptr,   nullptr,    "",
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

TEST_CASE("validation: bits per byte of one text under three vocabularies, and where bytes are not known") {
    TestRun run;
    Agreement agreement(run.arena, nullptr, nullptr, run.signals, run.stream.get());
    struct {
        const char* what;
        std::vector<std::uint32_t> ids, bytes;   // of "banana ", again and again; bytes of each id
        double text;                             // bytes of the targets of two sequences: tokens 1 to 32
    } const ways[] = {
        {"a token a byte", {0, 1, 2, 1, 2, 1, 3}, {1, 1, 1, 1}, 32},
        {"ban, ana and a space", {0, 1, 2}, {3, 3, 1}, 10 * 3 + 11 * 3 + 11 * 1},
        {"the word with its space", {0}, {7}, 32 * 7},
        {"a special token behind each word", {0, 1}, {7, 0}, 16 * 7},
        {"ids beyond the tokenizer's", {5}, {7}, 0},
        {"no tokenizer", {0}, {}, 0},
    };
    for (const auto& way : ways) {
        INFO(way.what);
        std::vector<std::uint32_t> ids;
        while (ids.size() < 100) ids.insert(ids.end(), way.ids.begin(), way.ids.end());
        const std::string file = run.data / "banana.bin";
        write_token_file(real_files(), file, TokenFormat::gpt2, ids);
        TokenSet tokens(real_files(), "--val-data", file, run.options.seq_len, kVocab);
        tokens.tell_text_bytes(way.bytes);
        Validation validation(*run.step, tokens, 2, agreement);
        const std::optional<float> loss = validation.loss();
        REQUIRE(loss);
        const std::optional<double> bits = validation.bits_per_byte();
        REQUIRE(bits.has_value() == (way.text > 0));
        if (bits) CHECK(*bits == doctest::Approx(static_cast<double>(*loss) * 32 / std::log(2.0) / way.text));
    }
}
