// Heartbeats of a rank, by which the watchdog tells ranks that work from ranks that wait.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

// Activity of a rank, as far as others may have to wait for it.
enum class Activity : char {
    computes = 'c',
    waits = 'h',       // it has collectives under way, for which its host waits
    has_asked = 'w',   // it has collectives under way, and its host goes on
    local = 'a',       // local work of any length (Communicator::LocalWork), or start-up
};

// Operations issued in each group that all its ranks take part in, by a hash of the group's name and members.
using AskedFor = std::map<std::uint64_t, std::uint64_t>;

// How far a rank is.
struct RankProgress {
    std::uint64_t progress = 0;   // grows with everything it does
    Activity activity = Activity::local;
    AskedFor asked_for = {};
    std::string words = "start-up";   // for people
};

// Write and read a heartbeat: "<progress> <activity> <operations of groups> <words>"; nullopt where the line is none.
std::string to_text(const RankProgress& rank);
std::optional<RankProgress> progress_from(const std::string& line);
