// Who is told what the passes of the model are about to do with its units (embedding, layers, head): the seam at which
// ZeRO fetches parameters and reduces gradients on a stream of its own.
//
// All calls are made by the host in the order in which it queues the work, never from the device; a unit is an index
// into the units() of ParamStorage.
#pragma once

#include <cstdint>
#include <vector>

enum class Direction : std::uint8_t { forward, backward };

class UnitHooks {
public:
    virtual ~UnitHooks() = default;

    // A pass begins. Each entry names the units whose parameters one piece of its work reads, in the order of work.
    virtual void pass_begins(const std::vector<std::vector<int>>& uses) = 0;

    // What is queued after this reads the parameters of the pass's next entry; what is queued after use_ends does not.
    // After the last entry's end, work still may until the next pass begins (the classifier, when sampling).
    virtual void use_begins() = 0;
    virtual void use_ends() = 0;

    // What is queued after this writes gradients of the unit; before gradients_ready they are complete for this
    // micro-batch.
    virtual void gradients_begin(int unit_slot) = 0;
    virtual void gradients_ready(int unit_slot) = 0;

    // Whether collectives of theirs run beside what is queued next, a use of this direction.
    virtual bool communicates(Direction direction) const = 0;
};
