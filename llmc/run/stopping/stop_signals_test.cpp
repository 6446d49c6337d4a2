#include "llmc/run/stopping/stop_signals.h"

#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/base/log.h"

namespace {

constexpr int kAll[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// How a process ends whose main function is `body`: its exit code, or minus the signal that it died of. A process of
// its own, because signals are sent to it and what it blocks stays blocked.
int end_of(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) {
        for (const int signal : kAll) ::signal(signal, SIG_DFL);   // whatever the tests were started with (nohup)
        _exit(body());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void send(int signal) { kill(getpid(), signal); }

// Waits for a signal to be taken, up to a limit.
std::string taken(const StopSignals& signals) {
    for (int ms = 0; ms < 5000 && signals.received().empty(); ms++) sleep_ms(1);
    return signals.received();
}

}   // namespace

TEST_CASE("stop signals: requests are counted by time") {
    using Request = RequestCount::Request;
    RequestCount requests;
    CHECK(requests.count(100) == Request::first);
    CHECK(requests.count(100.2) == Request::same);
    CHECK(requests.count(100.39) == Request::same);
    CHECK(requests.count(110.1) == Request::first);
    CHECK(requests.count(110.2) == Request::same);
    CHECK(requests.count(119) == Request::second);
    RequestCount quick;
    CHECK(quick.count(5) == Request::first);
    CHECK(quick.count(5.5) == Request::second);
}

TEST_CASE("stop signals: the first one noted keeps its name") {
    StopSignals signals;
    CHECK(signals.received().empty());
    CHECK_NOTHROW(signals.leave_if_received());
    signals.note(SIGHUP);
    signals.note(SIGTERM);
    CHECK(signals.received() == "SIGHUP received");
    CHECK_THROWS_WITH_AS(signals.leave_if_received(), doctest::Contains("SIGHUP received during start-up"), Error);
}

TEST_CASE("stop signals: each kind is taken by a thread, and by no handler") {
    for (const int signal : kAll) {
        const int end = end_of([signal] {
            StopSignals& signals = take_stop_signals();
            signals.remember_from_now(false);
            struct sigaction action {};
            sigaction(signal, nullptr, &action);
            if (action.sa_handler != SIG_DFL) return 1;
            send(signal);
            return taken(signals).empty() ? 2 : 0;
        });
        CHECK(end == 0);
    }
}

TEST_CASE("stop signals: a time limit is a request that comes by itself") {
    CHECK(end_of([] {
              StopSignals& signals = take_stop_signals();
              signals.remember_from_now(false);
              StopSignals::time_limit(100);
              StopSignals::time_limit(1);
              sleep_ms(200);
              if (!signals.received().empty()) return 1;
              return taken(signals) == "--time-limit reached" ? 0 : 2;
          }) == 0);
}

TEST_CASE("stop signals: threads that start later block them too") {
    const int end = end_of([] {
        take_stop_signals();
        int blocked = 0;
        std::thread([&] {
            sigset_t mask;
            pthread_sigmask(SIG_BLOCK, nullptr, &mask);
            for (const int signal : kAll) blocked += sigismember(&mask, signal);
        }).join();
        return blocked;
    });
    CHECK(end == 4);
}

TEST_CASE("stop signals: during start-up the process ends with 75, a moment later it goes on") {
    CHECK(end_of([] {
              take_stop_signals();
              send(SIGTERM);
              sleep_ms(5000);
              return 0;
          }) == 75);
}

TEST_CASE("stop signals: what arrives twice at once is one request, a second Ctrl-C ends the process by the signal") {
    constexpr int too_late = 100;
    auto two = [](int ms_between, int second, int ms_to_live) {
        const auto once = [=] {
            StopSignals& signals = take_stop_signals();
            signals.remember_from_now(false);
            const double begin = steady_seconds();
            send(SIGINT);
            taken(signals);
            sleep_ms(ms_between);
            if (steady_seconds() - begin > 1e-3 * ms_between + 0.2) return too_late;   // a busy machine
            send(second);
            sleep_ms(ms_to_live);
            return 0;
        };
        int end = too_late;
        for (int i = 0; i < 20 && end == too_late; i++) end = end_of(once);
        return end;
    };
    CHECK(two(20, SIGINT, 200) == 0);
    CHECK(two(20, SIGTERM, 200) == 0);
    CHECK(two(600, SIGINT, 5000) == -SIGINT);
    CHECK(two(600, SIGTERM, 200) == 0);
}

TEST_CASE("stop signals: what was ignored when the program began stays ignored") {
    for (const int signal : {SIGHUP, SIGINT}) {
        const int end = end_of([signal] {
            ::signal(signal, SIG_IGN);
            StopSignals& signals = take_stop_signals();
            signals.remember_from_now(false);
            send(signal);
            sleep_ms(50);
            if (!signals.received().empty()) return 1;
            send(SIGTERM);
            return taken(signals) == "SIGTERM received" ? 0 : 2;
        });
        CHECK(end == 0);
    }
}

TEST_CASE("stop signals: a pipe that nobody reads is an error of the write") {
    CHECK(end_of([] {
              take_stop_signals();
              int ends[2];
              if (pipe(ends) != 0) return 1;
              close(ends[0]);
              return write(ends[1], "x", 1) == -1 && errno == EPIPE ? 0 : 2;
          }) == 0);
}
