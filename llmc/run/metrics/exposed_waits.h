// Measures how long the compute stream waits for communication in a step, by group of ranks, for metrics.jsonl: it
// shows what a layout hides and what it does not.
//
// Two things count as waits: the compute stream waits for an event that another stream recorded after an operation of a
// group (OwnedEvent), or an operation is queued on the compute stream itself (Communicator). Both report through
// StreamObserver, so callers need not. Each wait lies between two timed events, which are read after the host has
// waited for the step. Waits for late peers are included: a pipeline's bubble is in `pp`, a slow rank is in the first
// group that waits for it. So the times are at least what free links would save, which a plan reports. If an event
// follows operations of several groups, their names are joined by "+". Host waits between two calls, such as for the
// counts of tokens per expert, are not included.
//
// One object serves all steps of a run, because a wait may be for an event of the step before. Each wait costs two
// events.
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

    // Observes the streams of this thread between the two calls.
    void step_begins();
    void step_ends();
    // Waits so far in this step, to ask for a part of it.
    std::size_t count() const { return used_; }
    // Seconds by group in the latest step, or in its first `count` waits. The host must have waited for them. Groups
    // without a wait are left out.
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
    int index_of(const std::string& name);   // index in groups_; adds the name if it is new

    // The groups whose operations follow one another on a stream without an event in between.
    struct Latest {
        int group = 0;
        bool is_behind_event = false;   // the next operation starts a new entry
    };

    cudaStream_t compute_;
    std::vector<std::string> groups_;                   // names seen so far
    std::unordered_map<cudaStream_t, Latest> latest_;   // by stream other than the compute stream
    std::unordered_map<cudaEvent_t, int> recorded_;     // index of the group that the event follows
    std::deque<Wait> waits_;                            // the first used_ belong to this step
    std::size_t used_ = 0;
    int depth_ = 0;
    bool is_open_ = false;   // the last wait
};
