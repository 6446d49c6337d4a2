// Measures where a stream's time goes: the time of every operation that the program asks for, on a GPU and on a CPU
// alike, and the bytes it moves by formula.
//
// While an OperationTimer lives, launch(), Matmul and the library's attention record an event after each operation on
// its stream. An operation's time is the time between its event and the one before: the times add up to the time from
// the timer's beginning to the last operation's end, with nothing left out. (Copies and fills have no event of their
// own, so they count towards the operation after them.) Events cost a few microseconds each on a GPU: compare with a
// run without.
//
// Belongs to the thread that made it; operations started by other threads are not seen.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

#include "llmc/base/stream.h"

class OperationTimer {
public:
    struct Total {
        std::string name;   // kernel without template arguments, or the library's operation
        double seconds;
        int calls;
        double bytes;   // by formula: every operand moved once; 0 for a library's attention
    };

    explicit OperationTimer(cudaStream_t stream);
    ~OperationTimer();
    OperationTimer(const OperationTimer&) = delete;
    OperationTimer& operator=(const OperationTimer&) = delete;

    // Waits for the stream; returns the totals of operations of the same name, the longest first.
    std::vector<Total> totals();

    // For launch() and the wrappers of libraries: watches() returns true if a timer of this thread watches the stream;
    // note() tells it of an operation that was just started.
    static bool watches(cudaStream_t stream);
    static void note(cudaStream_t stream, const std::string& name, std::size_t bytes = 0);

private:
    struct Mark {
        std::string name;
        TimedEvent event;
        std::size_t bytes;
    };
    void mark(std::string name, std::size_t bytes = 0);

    cudaStream_t stream_;
    OperationTimer* outer_;   // timer of this thread before this one
    std::vector<Mark> marks_;
};
