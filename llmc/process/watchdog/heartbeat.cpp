#include "llmc/process/watchdog/heartbeat.h"

#include <sstream>

#include "llmc/base/error.h"

namespace {

std::string to_text(const AskedFor& groups) {
    std::string line;
    for (const auto& [group, count] : groups) line += text(line.empty() ? "" : ",", group, ":", count);
    return line.empty() ? "-" : line;
}

AskedFor asked_for_from(const std::string& line) {
    AskedFor groups;
    std::istringstream words(line);
    std::uint64_t group = 0, count = 0;
    for (char between = 0; words >> group >> between >> count; words >> between) groups[group] = count;
    return groups;
}

}   // namespace

std::string to_text(const RankProgress& rank) {
    return text(rank.progress, " ", static_cast<char>(rank.activity), " ", to_text(rank.asked_for), " ", rank.words);
}

std::optional<RankProgress> progress_from(const std::string& line) {
    std::istringstream told(line);
    RankProgress rank;
    char activity = 0;
    std::string groups;
    if (!(told >> rank.progress >> activity >> groups) || !std::getline(told >> std::ws, rank.words)) return {};
    rank.activity = static_cast<Activity>(activity);
    rank.asked_for = asked_for_from(groups);
    return rank;
}
