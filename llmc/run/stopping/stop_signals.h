// Requests to stop a run: SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR1 (from batch systems, before the time is up), and
// SIGALRM, the process's own clock (--time-limit).
//
// The training loop stops after the step at hand and saves; the start-up has nothing to save and just ends.
// No handler runs: oneDNN lets the stack pointer point into the heap while it multiplies, so a handler would write
// there. Instead the signals are blocked and one thread waits for them.
//
// What must hold: take_stop_signals() comes before anything that may start a thread, because a thread inherits what is
// blocked, and one that does not block a signal dies of it. A program that this one starts would inherit it too; there
// is none.
#pragma once

#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>

#include "llmc/base/error.h"

class StopSignals {
public:
    // What asked first, as "SIGTERM received", or an empty string.
    std::string received() const;

    // For the start-up: Error(resumable) where a signal has been received.
    void leave_if_received() const;

    // From now on a request is remembered, and the caller looks for it often. Until then it ends the process with exit
    // code 75, because the start-up may wait long for other ranks. `speaks`: whether this rank tells of it at once.
    void remember_from_now(bool speaks);

    // From now on so many seconds, then a request to stop comes by itself (SIGALRM). Replaces an earlier one; 0: none.
    static void time_limit(int seconds) { alarm(static_cast<unsigned>(seconds)); }

    // A signal arrived, or a test says so.
    void note(int signal);

private:
    friend StopSignals& take_stop_signals();
    void note_or_leave(int signal);

    std::atomic<int> first_ = 0;
    std::atomic<bool> remembers_ = false, speaks_ = false;
};

// Blocks the signals, starts the thread that takes them, and makes SIGPIPE an error of the write instead of the end of
// the process. All of it lasts as long as the process, so that a signal that comes while it ends changes nothing.
// A signal that was ignored when the program began stays so: SIGHUP under nohup, SIGINT in a script's background.
// A SIGINT within 10 seconds of a request ends the process at once: somebody insists at a keyboard. Other signals may
// be a batch system's that follow one another, so they never cost the checkpoint. To be called once.
StopSignals& take_stop_signals();

// Tells requests from deliveries: one Ctrl-C may arrive twice, from the terminal and from a launcher that passes it on.
class RequestCount {
public:
    enum class Request { first, same, second };
    static constexpr double kSameSeconds = 0.4, kSecondSeconds = 10;

    // A signal at this time; times do not decrease. What comes after kSecondSeconds is a first one again.
    Request count(double seconds);

private:
    std::optional<double> last_;   // when the last request began
};

// A signal reaches one rank; all must stop after the same step. So requests to stop travel as numbers that are summed
// over ranks, beside a step's other sums (step.h) or alone (agreement.h), and every rank sees the same sum.
struct StopVotes {
    double asking = 0;     // how many ranks ask
    double rank_sum = 0;   // of their numbers: the one that asks, where it is one
    double saved = 0;      // how many ranks are done with their part of a checkpoint under way (CheckpointWriter)

    static StopVotes of(int rank, bool asks) { return asks ? StopVotes{1, static_cast<double>(rank)} : StopVotes{}; }
    bool any() const { return asking > 0; }
    std::string words() const {
        return asking > 1 ? text("signals to ", asking, " ranks") : text("a signal to rank ", rank_sum);
    }
};
