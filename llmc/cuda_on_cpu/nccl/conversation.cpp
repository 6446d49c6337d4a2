#include "llmc/cuda_on_cpu/nccl/conversation.h"

#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {

using Kind = CollectiveCall::Kind;

Conversation::Conversation(const std::vector<CollectiveCall>& calls) : comm_(calls[0].comm), turn_(comm_->issued++) {
    for (const CollectiveCall& call : calls) what_ += (what_.empty() ? "" : " + ") + describe(call);
    if (!comm_->planned) comm_->unfinished.push_back(what_);
    for (const CollectiveCall& call : calls) {
        const bool is_pair = call.kind == Kind::send || call.kind == Kind::receive;
        const bool stays_at_home = is_pair && call.peer == comm_->rank;
        if (comm_->planned) {
            const TransferKey key = next_key(call);
            if (!stays_at_home) exchanges_.push_back(exchange_of(call, key));
            continue;
        }
        tasks_.push_back({plan(call), 0, {}});
        const std::vector<CollectivePhase>& phases = tasks_.back().phases;
        if (stays_at_home) continue;
        if (phases.empty() || phases[0].parts.empty()) continue;   // the only rank of the communicator
        exchanges_.push_back(exchange_of(call, phases[0].parts[0].key));
    }
}

bool Conversation::step() {
    if (comm_->aborted) return true;
    if (!started_) {
        if (comm_->finished != turn_) return false;   // an earlier operation of this communicator comes first
        started_ = true;
        for (Task& task : tasks_) post(task);
    }
    if (comm_->fabric->progress()) note_progress();
    bool finished = true;
    for (Task& task : tasks_) finished &= advance(task);
    if (finished) {
        comm_->finished++;
        comm_->unfinished.pop_front();
    }
    return finished;
}

std::string Conversation::waiting() const {
    if (!started_) {
        return "waits until operation " + std::to_string(comm_->finished) + " of communicator " + comm_->name + ", " +
               comm_->unfinished.front() + ", has finished";
    }
    std::string result;
    for (const Task& task : tasks_) {
        for (std::size_t i = 0; i < task.open.size(); i++) {
            if (task.open[i]->done) continue;
            const CollectivePhase::Part& part = task.phases[task.phase].parts[i];
            result += result.empty() ? "waits for " : ", ";
            result += (part.is_send ? "sending to rank " : "receiving from rank ") + std::to_string(part.peer);
            if (comm_->fabric->lost(comm_->member(part.peer))) result += " (gone)";
        }
    }
    return result + " in communicator " + comm_->name + ", operation " + std::to_string(turn_);
}

void Conversation::post(Task& task) {
    task.open.clear();
    for (const CollectivePhase::Part& part : task.phases[task.phase].parts) {
        const int peer = comm_->member(part.peer);
        Fabric& fabric = *comm_->fabric;
        task.open.push_back(part.is_send ? fabric.send(peer, part.key, part.data, part.bytes, part.what)
                                         : fabric.receive(peer, part.key, part.data, part.bytes, part.what));
    }
}

bool Conversation::advance(Task& task) {
    while (task.phase < task.phases.size()) {
        const CollectivePhase& phase = task.phases[task.phase];
        for (std::size_t i = 0; i < task.open.size(); i++) {
            if (!task.open[i]->mismatch.empty()) return mismatch(phase.parts[i], task.open[i]->mismatch);
            if (task.open[i]->done) continue;
            if (comm_->fabric->lost(task.open[i]->peer)) lose(phase.parts[i].peer);
            return false;
        }
        if (phase.then) phase.then();
        task.phase++;
        if (task.phase < task.phases.size()) post(task);
    }
    return true;
}

void Conversation::lose(int peer) {
    if (comm_->async_error != ncclSuccess) return;
    comm_->lost = "the connection of rank " + std::to_string(comm_->fabric->rank()) + " to rank " +
                  std::to_string(comm_->member(peer)) + " is lost";
    comm_->async_error = ncclRemoteError;
}

bool Conversation::mismatch(const CollectivePhase::Part& part, const std::string& theirs) {
    comm_->async_error = ncclInvalidUsage;
    report_fault(cudaErrorLaunchFailure, "communicator " + comm_->name + ", operation " + std::to_string(turn_) +
                                             ": rank " + std::to_string(comm_->rank) + " is at " + part.what +
                                             ", rank " + std::to_string(part.peer) + " at " + theirs);
    return false;
}

}   // namespace host
