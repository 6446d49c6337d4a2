// Takes requests to stop a run: SIGINT (Ctrl-C), SIGTERM, SIGHUP, SIGUSR1 (from batch systems, before the time is up),
// and SIGALRM, the process's own clock (--time-limit).
//
// The training loop stops after the current step and saves; the start-up has nothing to save and just ends. There are
// no signal handlers: oneDNN lets the stack pointer point into the heap while it multiplies, so a handler would write
// there. Instead the signals are blocked and one thread waits for them.
//
// take_stop_signals() must come before anything that may start a thread: a thread inherits the blocked signals, and one
// that does not block a signal dies of it. A child process would inherit them too; this program starts none.
#pragma once

#include <unistd.h>

#include <atomic>
#include <optional>
#include <string>

#include "llmc/base/error.h"

class StopSignals {
public:
    // The first request, as "SIGTERM received", or an empty string.
    std::string received() const;

    // For the start-up: throws Error(resumable) if a signal has been received.
    void leave_if_received() const;

    // Makes later requests only be remembered; the caller must look for them often. Before this call, a request ends
    // the process with exit code 75, because the start-up may wait long for other ranks. `speaks`: this rank reports a
    // request at once.
    void remember_from_now(bool speaks);

    // Requests a stop after `seconds` from now (SIGALRM). Replaces an earlier limit; 0: none.
    static void time_limit(int seconds) { alarm(static_cast<unsigned>(seconds)); }

    // Records a signal; tests call it too.
    void note(int signal);

private:
    friend StopSignals& take_stop_signals();
    void note_or_leave(int signal);

    std::atomic<int> first_ = 0;
    std::atomic<bool> remembers_ = false, speaks_ = false;
};

// Blocks the signals, starts the thread that takes them, and makes SIGPIPE an error of the write instead of the end of
// the process. This lasts as long as the process, so a signal during its end changes nothing. A signal that was ignored
// when the program began stays ignored: SIGHUP under nohup, SIGINT in a script's background. A SIGINT within 10 seconds
// of a request ends the process at once: a person insists. Other signals may be a batch system's that follow one
// another, so they never cost the checkpoint. Call it once.
StopSignals& take_stop_signals();

// Tells requests from repeated deliveries: one Ctrl-C may arrive twice, from the terminal and from a launcher that
// passes it on.
class RequestCount {
public:
    enum class Request { first, same, second };
    static constexpr double kSameSeconds = 0.4, kSecondSeconds = 10;

    // Classifies a signal at this time; times must not decrease. After kSecondSeconds a signal is a first one again.
    Request count(double seconds);

private:
    std::optional<double> last_;   // time of the last request
};

// Votes to stop. A signal reaches one rank, but all must stop after the same step. So requests travel as numbers that
// are summed over ranks, beside a step's other sums (step.h) or alone (agreement.h), and every rank sees the same sum.
struct StopVotes {
    double asking = 0;     // ranks that ask
    double rank_sum = 0;   // sum of their ranks: the rank that asks, if it is one
    double saved = 0;      // ranks that have finished their part of a checkpoint being written (CheckpointWriter)

    static StopVotes of(int rank, bool asks) { return asks ? StopVotes{1, static_cast<double>(rank)} : StopVotes{}; }
    bool any() const { return asking > 0; }
    std::string words() const {
        return asking > 1 ? text("signals to ", asking, " ranks") : text("a signal to rank ", rank_sum);
    }
};
