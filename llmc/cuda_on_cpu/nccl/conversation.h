// One queued operation: all calls of a group on one communicator, so that its sends and receives run together.
#pragma once

#include <string>
#include <vector>

#include "llmc/cuda_on_cpu/nccl/comm.h"

namespace host {

class Conversation {
public:
    explicit Conversation(const std::vector<CollectiveCall>& calls);

    const std::string& what() const { return what_; }   // its calls, in words
    const std::vector<Exchange>& exchanges() const { return exchanges_; }

    // Returns true when every call of the group has finished.
    bool step();

    // Returns what it waits for, in words.
    std::string waiting() const;

private:
    struct Task {
        std::vector<CollectivePhase> phases;
        std::size_t phase;
        std::vector<TransferPtr> open;   // transfers of the current phase
    };

    void post(Task& task);
    bool advance(Task& task);   // true: all its phases are done
    void lose(int peer);
    bool mismatch(const CollectivePhase::Part& part, const std::string& theirs);

    ncclComm* comm_;
    std::uint64_t turn_;
    std::string what_;
    bool started_ = false;
    std::vector<Task> tasks_;
    std::vector<Exchange> exchanges_;
};

}   // namespace host
