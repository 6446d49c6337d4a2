// How long the compute stream has stood for communication in a step, by the group of ranks: for metrics.jsonl, so that
// what a layout hides and what it does not can be seen in a run.
//
// Two things count, both found where they pass through, so that no place has to say it: a wait of the stream for an
// event that another stream has recorded behind an operation of a group (OwnedEvent), and an operation that is queued
// on the stream itself (Communicator). Each stands between two timed events, which are read when the host has waited
// for the step anyway. A peer that comes late is waited for too: a pipeline's bubble is in `pp`, a slow rank in
// whatever waits for it first. So these are at least what free links would save, which a plan says. Where one event is
// behind operations of several groups, their names are joined by "+". What the host waits for between two calls, such as
// the counts of experts that are dealt out, is not in them.
//
// One for all steps of a run: a wait may be for what the step before has recorded. Costs two events a wait.
#pragma once

#include <cuda_runtime.h>

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "llmc/base/stream.h"

class ExposedWaits : private StreamObserver {
public:
    explicit ExposedWaits(cudaStream_t compute) : compute_(compute) {}
    ~ExposedWaits() { step_ends(); }
    ExposedWaits(const ExposedWaits&) = delete;
    ExposedWaits& operator=(const ExposedWaits&) = delete;

    // What this thread asks for in between is watched.
    void step_begins();
    void step_ends();
    // Waits so far, for a part of the step.
    std::size_t count() const { return used_; }
    // Of the latest step, for which the host has waited; of its first `count` waits. Groups that were not waited for
    // are left out.
    std::map<std::string, double> seconds() const { return seconds(used_); }
    std::map<std::string, double> seconds(std::size_t count) const;

private:
    struct Wait {
        int group = 0;
        TimedEvent begin, end;
    };

    void recorded(cudaEvent_t event, cudaStream_t stream) override;
    void begin() override { depth_++; }
    void end() override;
    void waits(cudaStream_t stream, cudaEvent_t event) override;
    void communicates(cudaStream_t stream, const std::string& group) override;
    void open(int group);
    int index_of(const std::string& name);   // in groups_

    // The groups whose operations follow one another on a stream without an event in between.
    struct Latest {
        int group = 0;
        bool is_behind_event = false;   // what follows are others
    };

    cudaStream_t compute_;
    std::vector<std::string> groups_;                   // those met
    std::unordered_map<cudaStream_t, Latest> latest_;   // of other streams
    std::unordered_map<cudaEvent_t, int> recorded_;     // behind an operation of which group
    std::deque<Wait> waits_;                            // those of the step come first
    std::size_t used_ = 0;
    int depth_ = 0;
    bool is_open_ = false;   // the last one
};
