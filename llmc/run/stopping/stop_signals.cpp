#include "llmc/run/stopping/stop_signals.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "llmc/base/error.h"
#include "llmc/base/log.h"

namespace {

struct Named {
    int signal;
    const char* words;
};
constexpr Named kStopSignals[] = {{SIGINT, "SIGINT received"},
                                  {SIGTERM, "SIGTERM received"},
                                  {SIGHUP, "SIGHUP received"},
                                  {SIGUSR1, "SIGUSR1 received"},
                                  {SIGALRM, "--time-limit reached"}};

std::string words_of(int signal) {
    for (const Named& known : kStopSignals) {
        if (known.signal == signal) return known.words;
    }
    return "";
}

std::string stopped_in_start_up(int signal) {
    return text(words_of(signal), " during start-up: stopped before the first step");
}

// Writes to stderr, unless that would wait: a terminal may be held, or a pipe full, and this thread must be ready for
// the next signal.
void say(const std::string& line) {
    const char* const below_progress = isatty(STDERR_FILENO) ? "\n" : "";   // a line of progress has no line end yet
    const std::string whole = text(below_progress, "train_gpt: ", line, "\n");
    pollfd out{STDERR_FILENO, POLLOUT, 0};
    if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT)) return;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, whole.data(), whole.size());
}

bool is_ignored(int signal) {
    struct sigaction present {};
    return sigaction(signal, nullptr, &present) == 0 && present.sa_handler == SIG_IGN;
}

// Ends the process at a second SIGINT. It dies of the signal, so that its parent sees why.
[[noreturn]] void end_at_once() {
    const int signal = SIGINT;
    say(text("SIGINT within ", RequestCount::kSecondSeconds,
             " s of another request to stop: ended at once, this step is not saved"));
    ::signal(signal, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    raise(signal);
    _exit(128 + signal);   // not reached
}

}   // namespace

std::string StopSignals::received() const { return words_of(first_.load()); }

void StopSignals::leave_if_received() const {
    if (const int signal = first_.load(); signal != 0) {
        throw Error(ErrorKind::resumable, stopped_in_start_up(signal));
    }
}

void StopSignals::note(int signal) {
    int none = 0;
    first_.compare_exchange_strong(none, signal);
}

void StopSignals::remember_from_now(bool speaks) {
    speaks_ = speaks;
    remembers_ = true;   // leave_if_received() finds a request that came just before
}

void StopSignals::note_or_leave(int signal) {
    note(signal);
    if (!remembers_) {
        say(stopped_in_start_up(signal));
        _exit(static_cast<int>(ErrorKind::resumable));
    }
    if (speaks_) {
        say(text(words_of(signal), ": stopping after this step; Ctrl-C within ", RequestCount::kSecondSeconds,
                 " s ends the run at once, without saving"));
    }
}

RequestCount::Request RequestCount::count(double seconds) {
    if (last_ && seconds - *last_ < kSameSeconds) return Request::same;
    const bool is_second = last_ && seconds - *last_ <= kSecondSeconds;
    last_ = seconds;
    return is_second ? Request::second : Request::first;
}

StopSignals& take_stop_signals() {
    static StopSignals signals;   // never destroyed: the thread may use it to the very end
    ::signal(SIGPIPE, SIG_IGN);
    sigset_t taken;
    sigemptyset(&taken);
    for (const Named& known : kStopSignals) {
        if (!is_ignored(known.signal)) sigaddset(&taken, known.signal);   // sigwait would take an ignored signal too
    }
    pthread_sigmask(SIG_BLOCK, &taken, nullptr);
    std::thread([taken] {
        RequestCount requests;
        for (;;) {
            int signal = 0;
            if (sigwait(&taken, &signal) != 0) continue;
            const RequestCount::Request request = requests.count(steady_seconds());
            if (request == RequestCount::Request::second && signal == SIGINT) end_at_once();
            if (request == RequestCount::Request::first) signals.note_or_leave(signal);
        }
    }).detach();
    return signals;
}
