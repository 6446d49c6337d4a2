// Times at which gradients of weights are made.
#include "llmc/model/parameters/weight_gradient_queue.h"

#include <doctest/doctest.h>

#include <string>

#include "llmc/base/error.h"

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

}   // namespace

TEST_CASE("weight gradients: gradients of weights run at once, behind a collective, or when the schedule says") {
    CHECK(order(WeightGradients::at_once) == "a|b|.");
    CHECK(order(WeightGradients::behind_collective) == "|a|b.");
    CHECK(order(WeightGradients::at_schedule) == "||.ab");
}

TEST_CASE(
    "weight gradients: a collective may hide one gradient of weights, with what follows it, and leave the others "
    "waiting") {
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

TEST_CASE(
    "weight gradients: what a gradient of weights reads is fetched when it is added, or beside the one before it") {
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
