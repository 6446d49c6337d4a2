// Random edits of a pipeline's lists, for tests: most of them are wrong.
#pragma once

#include "llmc/base/rng.h"
#include "llmc/parallel/schedule.h"

class ListEdits {
public:
    explicit ListEdits(std::uint64_t seed) : state_(seed) {}

    // Moves, swaps, drops, doubles or renames an action of some stage; now and then several times.
    std::vector<PipelineSchedule> edited(std::vector<PipelineSchedule> lists, int micro_batches) {
        const int edits = 1 + below(8) / 5 * (1 + below(2));
        for (int i = 0; i < edits; i++) edit(lists, micro_batches);
        return lists;
    }

private:
    int below(std::size_t n) { return static_cast<int>(mix64(state_++ * 0x9e3779b97f4a7c15ull) % n); }

    void edit(std::vector<PipelineSchedule>& lists, int micro_batches) {
        PipelineSchedule& list = lists[static_cast<std::size_t>(below(lists.size()))];
        if (list.size() < 2) return;
        const auto at = list.begin() + below(list.size());
        const Action action = *at;
        switch (below(8)) {
            case 0: list.erase(at); break;
            case 1: list.insert(list.begin() + below(list.size()), action); break;
            case 2: at->micro_batch = below(static_cast<std::size_t>(micro_batches)); break;
            case 3: std::swap(*at, list[static_cast<std::size_t>(below(list.size()))]); break;
            case 4:
            case 5: std::swap(*at, at + 1 == list.end() ? list.front() : *(at + 1)); break;
            default: list.erase(at); list.insert(list.begin() + below(list.size() + 1), action);
        }
    }

    std::uint64_t state_;
};
