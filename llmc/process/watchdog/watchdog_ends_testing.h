// Ranks for tests of the watchdog, whose ends are noted instead of ending the process.
#pragma once

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/watchdog/watchdog.h"

// Returns options whose only limits are those that a test sets: a rank that gets no processor for a while is not taken
// for lost.
inline WatchdogOptions patient() {
    WatchdogOptions options;
    options.heartbeat_seconds = 0.02;
    options.silence_seconds = 300;
    options.stall_seconds = 0;
    options.grace_seconds = 0.05;
    return options;
}

// Longer than any machine takes that is merely slow.
inline constexpr double kMinutes = 600;

inline Startup meet(const TemporaryFolder& folder, int rank, int ranks) {
    StartupOptions options;
    options.method = InitMethod::fs;
    options.folder = folder.path();
    options.rank = rank;
    options.ranks = ranks;
    options.timeout_seconds = kMinutes;
    return start_up(options);
}

// How a rank would have left.
struct End {
    int exit_code = 0;
    std::string why;
};

class Ends {
public:
    explicit Ends(int ranks) : ends_(static_cast<std::size_t>(ranks)) {}
    WatchdogOptions options(int rank, WatchdogOptions base = patient()) {
        base.leave = [this, rank](int exit_code, const std::string& why) {
            std::lock_guard lock(mutex_);
            End& end = ends_[static_cast<std::size_t>(rank)];
            if (end.exit_code == 0) end = {exit_code, why};   // a process ends once
        };
        return base;
    }
    End of(int rank) {
        std::lock_guard lock(mutex_);
        return ends_[static_cast<std::size_t>(rank)];
    }
    void await(int rank) {
        for (const double end = steady_seconds() + kMinutes; steady_seconds() < end && of(rank).exit_code == 0;) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }

private:
    std::mutex mutex_;
    std::vector<End> ends_;
};

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The same over tcp, whose end waits for nobody.
inline Startup meet_by_tcp(int port, int rank, int ranks) {
    StartupOptions options;
    options.method = InitMethod::tcp;
    options.address = text("127.0.0.1:", port);
    options.rank = rank;
    options.ranks = ranks;
    options.timeout_seconds = kMinutes;
    return start_up(options);
}

// A rank as a process of its own, which is killed with this object.
class RankProcess {
public:
    explicit RankProcess(const std::function<void()>& rank) : pid_(fork()) {
        REQUIRE(pid_ >= 0);
        if (pid_ > 0) return;
        try {
            rank();
        } catch (const std::exception& error) {   // or it would go on with the other tests
            std::fprintf(stderr, "a rank that is a process: %s\n", error.what());
        }
        _exit(1);
    }
    ~RankProcess() { end(); }
    RankProcess(const RankProcess&) = delete;
    RankProcess& operator=(const RankProcess&) = delete;

    void await_stop() const {
        int status = 0;
        REQUIRE(waitpid(pid_, &status, WUNTRACED) == pid_);
        REQUIRE(WIFSTOPPED(status));
    }
    void go_on() const { kill(pid_, SIGCONT); }
    void end() {
        if (pid_ <= 0) return;
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }

private:
    pid_t pid_;
};
