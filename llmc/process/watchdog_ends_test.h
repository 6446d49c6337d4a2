// Ranks for tests of the watchdog, whose ends are noted instead of ending the process.
#pragma once

#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "llmc/io/temporary_folder_test.h"
#include "llmc/process/watchdog.h"

inline WatchdogOptions quick() {
    WatchdogOptions options;
    options.heartbeat_seconds = 0.02;
    options.silence_seconds = 0.6;
    options.stall_seconds = 0;
    options.grace_seconds = 0.05;
    return options;
}

// Slow to take a rank for lost that gets no processor.
inline WatchdogOptions patient() {
    WatchdogOptions options = quick();
    options.silence_seconds = 300;
    return options;
}

inline Startup meet(const TemporaryFolder& folder, int rank, int ranks) {
    StartupOptions options;
    options.method = InitMethod::fs;
    options.folder = folder.path();
    options.rank = rank;
    options.ranks = ranks;
    options.timeout_seconds = 20;
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
    WatchdogOptions options(int rank, WatchdogOptions base = quick()) {
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
        for (const double end = steady_seconds() + 20; steady_seconds() < end && of(rank).exit_code == 0;) {
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
    options.timeout_seconds = 20;
    return start_up(options);
}
