// When gradients of weights are made, and whether they overwrite or add.
#include "llmc/model/linear.h"

#include <doctest/doctest.h>

#include <utility>

#include "llmc/base/stream.h"

namespace {

// The order of work around a collective and the end of backward.
std::string order(WeightGradients when) {
    std::string story;
    WeightGradientQueue queue(when);
    for (const char* layer : {"a", "b"}) {
        queue.add({.run = [&story, layer] { story += layer; }});
        story += "|";
        queue.collective_started();
    }
    story += ".";
    queue.drain();
    queue.drain();   // nothing twice
    return story;
}

// Records for each part of gradients whether it is added to those before it: + or =.
class Parts {
public:
    explicit Parts(int zero_stage)
        : storage_(ParamTable(custom_model_config(2, 2, 32, 16, 100)),
                   RankLayout{MeshShape{1, 2, 1, 1}, {}, zero_stage}, {{{0, 2}}, true, true}),
          gradients_(arena_, DType::fp32, storage_, stream_.get()) {
        gradients_.begin_step();
    }
    ~Parts() { CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }   // before its memory is freed
    Parts& operator()(const char* name, int layer = -1) {
        const int param = storage_.table().index(name, layer);
        const auto target = gradients_.next(param);
        CHECK(target.data.as<float>() == gradients_.unsharded().as<float>().tensor(param));
        story_ += target.accumulate ? "+" : "=";
        return *this;
    }
    Parts& ready(int slot) {
        gradients_.unit_ready(slot);
        return *this;
    }
    std::string next_step() {
        gradients_.begin_step();
        return std::exchange(story_, "");
    }

private:
    OwnedStream stream_;
    Arena arena_;
    ParamStorage storage_;
    Gradients gradients_;
    std::string story_;
};

}   // namespace

TEST_CASE("linear: gradients of weights run at once, behind a collective, or when the schedule says") {
    CHECK(order(WeightGradients::at_once) == "a|b|.");
    CHECK(order(WeightGradients::behind_collective) == "|a|b.");
    CHECK(order(WeightGradients::at_schedule) == "||.ab");
}

TEST_CASE("linear: a collective may hide one gradient of weights, with what follows it, and leave the others waiting") {
    std::string story;
    WeightGradientQueue queue(WeightGradients::behind_collective);
    for (const char* layer : {"a", "b", "c"}) queue.add({.run = [&story, layer] { story += layer; }});
    queue.then([&story] { story += "!"; });
    for (int collective = 0; collective < 2; collective++) {
        queue.collective_started(1);
        story += "|";
    }
    queue.drain();
    queue.then([&story] { story += "?"; });   // nothing waits
    CHECK(story == "a|b|c!?");
}

TEST_CASE("linear: what a gradient of weights reads is fetched when it is added, or beside the one before it") {
    auto order_of_fetches = [](WeightGradients when) {
        std::string story;
        WeightGradientQueue queue(when);
        for (const char* layer : {"a", "b", "c"}) {
            const std::string fetched = std::string(layer) == "b" ? "" : text("(", layer, ")");
            queue.add(
                {.prefetch = [&story, fetched] { story += fetched; }, .run = [&story, layer] { story += layer; }});
        }
        story += "|";
        queue.drain();
        return story;
    };
    CHECK(order_of_fetches(WeightGradients::at_once) == "(a)ab(c)c|");
    CHECK(order_of_fetches(WeightGradients::behind_collective) == "(a)(c)|abc");
    CHECK(order_of_fetches(WeightGradients::at_schedule) == "|(a)a(c)bc");
}

TEST_CASE("gradients: every tensor's first part of a step overwrites, whenever it comes") {
    for (int zero_stage : {0, 1}) {
        Parts part(zero_stage);
        // the upper layer has done two micro-batches before the lower one begins
        part("attn.c_attn.weight", 1)
            .ready(2)("attn.c_attn.weight", 1)
            .ready(2)("attn.c_attn.weight", 0)("attn.c_attn.bias", 0)
            .ready(1)("attn.c_attn.weight", 0);
        CHECK(part.next_step() == "=+==+");
        CHECK(part("attn.c_attn.weight", 1).next_step() == "=");
    }
}

TEST_CASE("gradients: where each micro-batch is reduced to shards, its first part overwrites") {
    for (int zero_stage : {2, 3}) {
        Parts part(zero_stage);
        part("attn.c_attn.weight", 1)("attn.c_attn.weight", 1).ready(2)("attn.c_attn.weight", 1);
        CHECK(part.next_step() == "=+=");
        // a tied classifier is two micro-batches ahead of the embedding, which adds to what it has written
        part("wte.weight")("wte.weight")("wte.weight")("wpe.weight").ready(0)("wte.weight")("wpe.weight");
        CHECK(part.next_step() == "=++===");
    }
}
