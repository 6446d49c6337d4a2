#include "llmc/run/evaluation/choose_token.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "llmc/base/rng.h"

namespace {

// Every token that some coin picks.
std::set<int> reachable(const std::vector<float>& logits, const TokenChoice& choice) {
    std::set<int> tokens;
    for (int i = 1; i <= 10000; i++) tokens.insert(choose_token(logits, choice, static_cast<float>(i) / 10000.0f));
    return tokens;
}

}   // namespace

TEST_CASE("choose_token: tokens are drawn with the probabilities of the softmax") {
    const std::vector<float> logits{0.0f, 1.0f, -1.0f, 1.0f};
    CHECK(choose_token(logits, {0.0f}, 0.9f) == 1);   // the first of equals
    CHECK(choose_token(logits, {1.0f}, 1e-6f) == 0);
    CHECK(choose_token(logits, {1.0f}, 1.0f) == 3);

    // with all four let through by top_k, too, in another order
    for (const TokenChoice& choice : {TokenChoice{0.5f}, TokenChoice{1.0f}, TokenChoice{2.0f}, TokenChoice{1.0f, 4}}) {
        double sum = 0, weights[4];
        for (int i = 0; i < 4; i++) {
            sum += weights[i] = std::exp(logits[static_cast<std::size_t>(i)] / choice.temperature);
        }
        int counts[4] = {};
        const int draws = 20000;
        for (int i = 0; i < draws; i++) {
            counts[choose_token(logits, choice, uniform(philox(7, static_cast<std::uint64_t>(i)).x))]++;
        }
        for (int i = 0; i < 4; i++) CHECK(counts[i] / double{draws} == doctest::Approx(weights[i] / sum).epsilon(0.08));
    }
    CHECK(choose_token(std::vector<float>{0.0f, NAN}, {1.0f}, 0.5f) >= 0);   // a broken model does not break the run
    CHECK(choose_token(std::vector<float>{NAN, 0.0f, 1.0f}, {1.0f, 2, 0.5f}, 0.5f) >= 0);
}

TEST_CASE("choose_token: top_k and top_p leave the unlikely out, top_k first") {
    // probabilities 0.1, 0.4, 0.2, 0.3
    const std::vector<float> logits{std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)};
    CHECK(reachable(logits, {1.0f}) == std::set<int>{0, 1, 2, 3});
    CHECK(reachable(logits, {1.0f, 1}) == std::set<int>{1});
    CHECK(reachable(logits, {1.0f, 2}) == std::set<int>{1, 3});
    CHECK(reachable(logits, {1.0f, 9}) == std::set<int>{0, 1, 2, 3});
    CHECK(reachable(logits, {1.0f, 0, 0.39f}) == std::set<int>{1});
    CHECK(reachable(logits, {1.0f, 0, 0.41f}) == std::set<int>{1, 3});
    CHECK(reachable(logits, {1.0f, 0, 0.71f}) == std::set<int>{1, 2, 3});
    CHECK(reachable(logits, {1.0f, 0, 1e-9f}) == std::set<int>{1});
    CHECK(reachable(logits, {1.0f, 3, 0.78f}) == std::set<int>{1, 2, 3});   // 0.7 is 0.777 of 0.9
    CHECK(reachable(logits, {1.0f, 3, 0.77f}) == std::set<int>{1, 3});
    CHECK(reachable(logits, {10.0f, 0, 0.54f}) == std::set<int>{1, 2, 3});    // temperature first: 0.265 + 0.257 + ...
    CHECK(reachable({1.0f, 1.0f, 1.0f}, {1.0f, 2}) == std::set<int>{0, 1});   // the first of equals
}
