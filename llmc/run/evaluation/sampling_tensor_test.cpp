// Sampling and evaluation under tensor parallelism: what one process writes and answers.
#include <utility>

#include "dev/test/certificate/certificate_testing.h"
#include "llmc/run/evaluation/evaluate.h"
#include "llmc/run/evaluation/sampler.h"

using namespace certificate;

namespace {

constexpr int steps = 2, sampled = 8;
constexpr double logit_tolerance = 1e-4;   // for logits of about one, in fp32

// Logits of the last of `ids`, over the vocabulary.
std::vector<float> logits_of(Rank& rank, const std::vector<int>& ids) {
    Stage& stage = rank.stage();
    auto read = [&](int, const MicroBatch& to) {
        std::fill(std::copy(ids.begin(), ids.end(), to.tokens.begin()), to.tokens.end(), 0);
    };
    const auto columns = static_cast<std::size_t>(stage.logits_columns());
    const DeviceBuffer<floatX> on_device = rank.arena().allocate<floatX>("test/logits", columns);
    rank.step().forward(read, Purpose::logits);
    stage.logits(on_device.data(), static_cast<int>(ids.size()) - 1, 1);
    const std::vector<floatX> row = on_device.download(rank.stream());
    return std::vector<float>(row.begin(), row.begin() + stage.config().vocab_size);
}

std::string greedy_text(Rank& rank) {
    return Sampler(rank.step(), rank.arena(), std::nullopt, SamplerOptions{sampled, 0.0f, 5}).sample(1);
}

std::vector<Question> questions() {
    std::vector<Question> result;
    for (int q = 0; q < 20; q++) {
        const std::vector<int> tokens = sample(q);
        auto part = [&](int begin, int end) {
            return std::vector<std::int32_t>(tokens.begin() + begin, tokens.begin() + end);
        };
        result.push_back({q % 4, part(0, 6), {part(6, 12), part(8, 12), part(1, 5), part(2, 8)}});
    }
    return result;
}

}   // namespace

TEST_CASE("tensor parallelism: greedy samples and answers to questions are those of one process") {
    std::string text;
    std::size_t clear = 0;   // tokens of it before the first whose margin is small
    std::vector<float> logits, losses;
    std::optional<EvaluationResult> answers;
    const StopSignals signals;
    const Layout one{};
    const std::vector<int> prompt{10, 3, 50, 9};
    auto losses_of = [](Rank& rank) {
        rank.step().forward(
            [](int, const MicroBatch& to) {
                for (std::size_t i = 0; i < to.tokens.size(); i++) {
                    to.tokens[i] = static_cast<int>(i % 97), to.targets[i] = static_cast<int>(i * 7 % 98) - 1;
                }
            },
            Purpose::loss);
        std::vector<float> values(static_cast<std::size_t>(rank.stage().tokens()));
        CUDA_CHECK(cudaMemcpyAsync(values.data(), rank.stage().losses(), values.size() * sizeof(float),
                                   cudaMemcpyDeviceToHost, rank.stream()));
        CUDA_CHECK(cudaStreamSynchronize(rank.stream()));
        return values;
    };
    auto answer = [&](Rank& rank, Communicator* all, World* world) {
        Agreement agreement(rank.arena(), all, world, signals, rank.stream());
        return Evaluation(rank.step(), questions()).run(agreement);
    };
    {
        Rank rank(one);
        rank.train(steps);
        text = greedy_text(rank);
        logits = logits_of(rank, prompt);
        losses = losses_of(rank);
        answers = answer(rank, nullptr, nullptr);
        rank.stage().set_batch_shape(1, T);
        std::vector<int> ids{'\n'};
        for (; clear < text.size(); clear++) {
            std::vector<float> next = logits_of(rank, ids);
            const auto best = std::max_element(next.begin(), next.end());
            ids.push_back(static_cast<int>(best - next.begin()));
            CHECK(text[clear] == static_cast<char>(ids.back()));
            const float first = std::exchange(*best, -1e30f);
            if (first - *std::max_element(next.begin(), next.end()) < logit_tolerance) break;
        }
    }
    if (sizeof(floatX) == 4) CHECK(clear == sampled);
    CHECK(answers->questions == 20);
    CHECK(answers->right > 0);
    for (bool sequence_parallel : {true, false}) {
        Layout layout{2, 0, 1};
        layout.tp = 3;
        layout.sequence_parallel = sequence_parallel;
        on_layout(layout, [&](Rank& rank, TestRank& me) {
            rank.train(steps);
            const std::string found = greedy_text(rank);
            if (sizeof(floatX) == 4) me.require(found.substr(0, clear) == text.substr(0, clear), found);
            const double off = distance(logits_of(rank, prompt), logits) / length(logits);
            me.require(off < (sizeof(floatX) == 4 ? 1e-5 : 2e-2), "logits are off by ", off);
            const std::vector<float> own = losses_of(rank);   // with another number of rows
            const double losses_off = distance(
                own, std::vector<float>(losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(own.size())));
            me.require(losses_off < (sizeof(floatX) == 4 ? 1e-5 : 2e-2) * length(own), "losses are off by ",
                       losses_off);
            const std::optional<EvaluationResult> result = answer(rank, &me.all, &me.world);
            me.require(result->questions == 20, "questions");
            if (sizeof(floatX) == 4) me.require(result->right == answers->right, result->right);
        });
    }
}
