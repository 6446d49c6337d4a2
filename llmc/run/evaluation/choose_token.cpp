#include "llmc/run/evaluation/choose_token.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace {

// Returns the tokens that top_k and top_p keep, likeliest first. `weights` are unnormalised probabilities.
std::vector<int> likeliest_tokens(const std::vector<double>& weights, const TokenChoice& choice) {
    auto less_likely = [&](int a, int b) {
        const double x = weights[static_cast<std::size_t>(a)], y = weights[static_cast<std::size_t>(b)];
        return x != y ? x < y : a > b;
    };
    std::vector<int> heap(weights.size()), kept;
    std::iota(heap.begin(), heap.end(), 0);
    std::make_heap(heap.begin(), heap.end(), less_likely);
    auto take = [&] {
        std::pop_heap(heap.begin(), heap.end(), less_likely);
        kept.push_back(heap.back());
        heap.pop_back();
        return weights[static_cast<std::size_t>(kept.back())];
    };
    double total = 0;
    if (choice.top_k > 0) {
        while (kept.size() < static_cast<std::size_t>(choice.top_k) && !heap.empty()) total += take();
        double sum = 0;
        std::size_t count = 0;
        while (count < kept.size() && sum < choice.top_p * total)
            sum += weights[static_cast<std::size_t>(kept[count++])];
        kept.resize(std::max<std::size_t>(count, 1));
    } else {
        total = std::accumulate(weights.begin(), weights.end(), 0.0);
        double sum = take();
        while (sum < choice.top_p * total && !heap.empty()) sum += take();
    }
    return kept;
}

}   // namespace

int choose_token(std::span<const float> logits, const TokenChoice& choice, float coin) {
    const auto largest = std::max_element(logits.begin(), logits.end());
    const int likeliest = static_cast<int>(largest - logits.begin());
    if (choice.temperature <= 0.0f) return likeliest;
    std::vector<double> weights(logits.size());
    std::transform(logits.begin(), logits.end(), weights.begin(),
                   [&](float logit) { return std::exp(static_cast<double>((logit - *largest) / choice.temperature)); });
    std::vector<int> tokens;   // empty: all tokens, in order of id
    if (choice.top_k > 0 || choice.top_p < 1.0f) {
        tokens = likeliest_tokens(weights, choice);
        std::vector<double> kept;
        for (const int token : tokens) kept.push_back(weights[static_cast<std::size_t>(token)]);
        weights = std::move(kept);
    }
    std::partial_sum(weights.begin(), weights.end(), weights.begin());
    const auto chosen = std::lower_bound(weights.begin(), weights.end(), coin * weights.back());
    if (chosen == weights.end()) return likeliest;   // the logits were not finite
    const auto index = static_cast<std::size_t>(chosen - weights.begin());
    return tokens.empty() ? static_cast<int>(index) : tokens[index];
}
