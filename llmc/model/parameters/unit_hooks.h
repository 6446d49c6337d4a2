// Hooks that are told what the passes of the model are about to do with its units (embedding, layers, head). Through
// them ZeRO fetches parameters and reduces gradients on a stream of its own.
//
// The host makes all calls, in the order in which it queues the work; a unit is an index into the units() of
// ParamStorage.
#pragma once

#include <cstdint>
#include <vector>

enum class Direction : std::uint8_t { forward, backward };

class UnitHooks {
public:
    virtual ~UnitHooks() = default;

    // Begins a pass. Each entry of `uses` names the units whose parameters one piece of work reads, in the order of
    // work.
    virtual void pass_begins(const std::vector<std::vector<int>>& uses) = 0;

    // Enclose the queueing of work that reads the parameters of the pass's next entry. After the last use_ends() work
    // may still read those of the last entry until the next pass begins (the classifier, when sampling).
    virtual void use_begins() = 0;
    virtual void use_ends() = 0;

    // Enclose the queueing of work that writes gradients of the unit; at gradients_ready() they are complete for this
    // micro-batch. Unless `at_once`, the next gradients_begin() comes soon, and behind collectives of the model that
    // must not wait for this unit's gradients to leave: NCCL starts a device's collectives in the order of the calls.
    virtual void gradients_begin(int unit_slot) = 0;
    virtual void gradients_ready(int unit_slot, bool at_once) = 0;

    // True if collectives of the hooks run beside the next use, in this direction.
    virtual bool communicates(Direction direction) const = 0;
};
