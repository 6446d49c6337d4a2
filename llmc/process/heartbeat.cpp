#include "llmc/process/heartbeat.h"

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

std::string to_text(const Place& place) {
    return text(place.progress, " ", static_cast<char>(place.activity), " ", to_text(place.asked_for), " ",
                place.words);
}

std::optional<Place> place_from(const std::string& line) {
    std::istringstream told(line);
    Place place;
    char activity = 0;
    std::string groups;
    if (!(told >> place.progress >> activity >> groups) || !std::getline(told >> std::ws, place.words)) return {};
    place.activity = static_cast<Activity>(activity);
    place.asked_for = asked_for_from(groups);
    return place;
}
