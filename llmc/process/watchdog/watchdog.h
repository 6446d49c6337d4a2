// The watchdog: one connection per rank to rank 0, apart from NCCL, by which a lost rank is noticed and named.
//
// A rank that dies closes its connection; a rank that hangs stops sending heartbeats; ranks that wait for each other,
// or for one that is in an endless loop, keep sending them, but nothing advances. Each is recognised here, named with
// its group, operation and number, and told to all; every rank then ends with exit code 75 (resumable; 70 after a
// difference that --check-collectives finds), even if its main thread is stuck in a collective that will never finish,
// which is why a thread does this and leaves the process if it must.
//
// Decisions that every rank must take alike (stop after this step, skip this update) do not pass here: they travel with
// the step's own all-reduce.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/process/comm.h"
#include "llmc/process/startup.h"

struct WatchdogOptions {
    double heartbeat_seconds = 0.25;
    double silence_seconds = 30;   // a rank not heard for so long counts as hung (--peer-timeout)
    // Limit for collectives under way while no rank advances. A rank that has none under way then counts as hung (in a
    // loop, say, while the others wait for it). Where all have some under way, a rank that has issued fewer operations
    // of a group than another of that group keeps it waiting; named are the ranks that keep others waiting and wait for
    // none (ranks of different groups, such as pipeline stages, cannot be compared). Suspended while a rank does local
    // work (Communicator::LocalWork), or has finished no step yet and has no collective under way: it may read its
    // files for the first time. 0: never.
    double stall_seconds = 600;
    double grace_seconds = 1;               // after a loss, for the main thread to end by itself
    double connect_seconds = 60;            // for everyone to reach rank 0 (World: --init-timeout)
    CollectiveLog* collectives = nullptr;   // debug: compared with the other ranks' (collective_order.h); null: not
    // How the process ends when a rank is lost; empty: prints `why` and calls _exit. Tests record it instead.
    std::function<void(int exit_code, const std::string& why)> leave;
};

class Watchdog {
public:
    // Connects to rank 0 (collective over the rendezvous). With one rank nothing is started.
    // Error(no_device) naming the ranks that do not come.
    Watchdog(Rendezvous& rendezvous, const ProcessInfo& place, const WatchdogOptions& options);
    // The orderly end: the others do not take it for a loss. Rank 0 waits for theirs.
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    // Heartbeats tell how far this communicator is. It must outlive the watchdog or be forgotten. `members`: the world
    // ranks of its group, by which groups of one name are told apart.
    void watch(const Communicator& communicator, const std::vector<int>& members = {});
    void forget(const Communicator& communicator);
    void set_step(std::int64_t step);   // completed steps; until the first call this rank starts up

    // Ends this process, which cannot go on because of `error`: tells rank 0, waits for what rank 0 tells all, who end
    // with 75, prints the error and the loss of another rank, if there is one, and leaves (what several have met, the
    // one that is told of prints) with the error's exit code, or the loss's if that caused it. Does not wait by the
    // clock: a machine that is slow ends alike. No destructor runs: those of device memory could wait for ever for work
    // that needs the others.
    void leave(const std::exception& error);

    // True once some rank is lost. After the grace period the process leaves.
    bool aborted() const;
    std::string abort_reason() const;
    void throw_if_aborted() const;   // Error(resumable), or Error(bug) after a difference in the order of collectives

private:
    struct Impl;
    std::shared_ptr<Impl> impl_;
};
