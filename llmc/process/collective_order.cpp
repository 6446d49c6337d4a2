#include "llmc/process/collective_order.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "llmc/base/error.h"

// ---------------------------------------------------------------------------------------------------------------------
// The log of one rank. An event is a line with the number of its records; a record is three lines.

void CollectiveLog::write(const CollectiveEvent& event) {
    std::string lines = text(event.size(), "\n");
    for (const CollectiveRecord& record : event) {
        lines += text(record.members.size());
        for (int member : record.members) lines += text(" ", member);
        lines += "\n" + record.what + "\n" + record.where + "\n";
    }
    std::lock_guard lock(mutex_);
    text_ += lines;
}

void CollectiveLog::add(CollectiveRecord record) {
    if (depth_ > 0) {
        group_.push_back(std::move(record));
    } else {
        write({std::move(record)});
    }
}

void CollectiveLog::begin_group() { depth_++; }

void CollectiveLog::end_group() {
    if (--depth_ == 0 && !group_.empty()) write(std::exchange(group_, {}));
}

std::string CollectiveLog::take() {
    std::lock_guard lock(mutex_);
    return std::exchange(text_, "");
}

namespace {

// The number at the beginning of `line`, which goes; none: there is none, or it is above `most`.
std::optional<std::size_t> take_number(std::string_view& line, std::size_t most) {
    if (line.starts_with(' ')) line.remove_prefix(1);
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), number);
    if (error != std::errc() || number > most) return std::nullopt;
    line.remove_prefix(static_cast<std::size_t>(end - line.data()));
    return number;
}

// Three lines of a record. False: they are none.
bool read_record(std::istream& lines, CollectiveRecord& record) {
    constexpr std::size_t most_ranks = 1 << 20;
    std::string line;
    if (!std::getline(lines, line)) return false;
    std::string_view numbers = line;
    const std::optional<std::size_t> count = take_number(numbers, line.size());
    for (std::size_t i = 0; count && i < *count; i++) {
        const std::optional<std::size_t> member = take_number(numbers, most_ranks);
        if (!member) return false;
        record.members.push_back(static_cast<int>(*member));
    }
    return count && numbers.empty() && std::getline(lines, record.what) && std::getline(lines, record.where);
}

}   // namespace

std::optional<std::vector<CollectiveEvent>> CollectiveLog::parse(const std::string& taken) {
    std::vector<CollectiveEvent> events;
    std::istringstream lines(taken);
    for (std::string line; std::getline(lines, line);) {
        std::string_view number = line;
        const std::optional<std::size_t> records = take_number(number, taken.size());
        if (!records || *records == 0 || !number.empty()) return std::nullopt;
        CollectiveEvent& event = events.emplace_back();
        for (std::size_t i = 0; i < *records; i++) {
            if (!read_record(lines, event.emplace_back())) return std::nullopt;
        }
    }
    return events;
}

// ---------------------------------------------------------------------------------------------------------------------
// All ranks together

namespace {

std::string key_of(const CollectiveRecord& record) {
    std::string key = record.where;
    for (int member : record.members) key += text(" ", member);
    return key;
}

}   // namespace

std::optional<std::string> CollectiveOrder::add(int rank, const CollectiveEvent& event) {
    Event calls;
    for (const CollectiveRecord& record : event) {
        const std::set<int> members(record.members.begin(), record.members.end());
        Call named{rank, record.what, record.where, {}, {members.begin(), members.end()}, members};
        const auto [place, is_new] = calls_.try_emplace(key_of(record), std::move(named));
        Call& call = place->second;
        if (call.what != record.what) {
            return text("ranks call different collectives: rank ", rank, " calls ", record.what, " (", record.where,
                        "), where rank ", call.first, " calls ", call.what);
        }
        if (!members.contains(rank) || !call.named.insert(rank).second) {
            return text("rank ", rank, " calls ", record.what, " (", record.where, ") ",
                        members.contains(rank) ? "twice" : "and is no part of it");
        }
        calls.push_back(place);
    }
    if (calls.empty()) return std::nullopt;
    std::deque<Event>& events = events_[rank];
    events.push_back(std::move(calls));
    return events.size() == 1 ? cycle(advance(rank)) : std::nullopt;   // else nothing changes yet
}

// True where a rank's oldest event has finished, because all its calls have all their ranks; then it is gone.
bool CollectiveOrder::finish_front(int rank) {
    std::deque<Event>& events = events_[rank];
    if (events.empty()) return false;
    for (Calls::iterator call : events.front()) {
        if (!call->second.missing.empty()) return false;
    }
    for (Calls::iterator call : events.front()) {
        if (++call->second.left == call->second.members.size()) calls_.erase(call);
    }
    events.pop_front();
    return true;
}

// `rank` comes to its oldest event; then ranks go on as far as they can. Which have come to another event.
std::set<int> CollectiveOrder::advance(int rank) {
    std::set<int> moved;
    for (std::vector<int> coming{rank}; !coming.empty();) {
        const int comes = coming.back();
        coming.pop_back();
        moved.insert(comes);
        if (events_[comes].empty()) continue;
        std::set<int> may_leave;
        for (Calls::iterator place : events_[comes].front()) {
            Call& call = place->second;
            call.missing.erase(comes);
            if (call.missing.empty()) may_leave.insert(call.members.begin(), call.members.end());
        }
        for (int other : may_leave) {
            if (finish_front(other)) coming.push_back(other);
        }
    }
    return moved;
}

// Depth first along "waits for": from the calls of a rank's oldest event to ranks that have not come to them although
// they are somewhere else.
bool CollectiveOrder::find_cycle(int rank, std::map<int, bool>& on_path, std::vector<Wait>& path) const {
    const auto [place, is_new] = on_path.try_emplace(rank, true);
    if (!is_new) return place->second;   // back on the path: a cycle; else known to lead nowhere
    const std::deque<Event>& events = events_.at(rank);
    for (std::size_t i = 0; !events.empty() && i < events.front().size(); i++) {
        const Calls::iterator call = events.front()[i];
        for (int other : call->second.missing) {
            const auto theirs = events_.find(other);
            if (theirs == events_.end() || theirs->second.empty()) continue;
            path.push_back({rank, other, text(call->second.what, " (", call->second.where, ")")});
            if (find_cycle(other, on_path, path)) return true;
            path.pop_back();
        }
    }
    on_path[rank] = false;
    return false;
}

// `among`: ranks that have come to another event since there was none. A new cycle goes through one of them.
std::optional<std::string> CollectiveOrder::cycle(const std::set<int>& among) const {
    std::map<int, bool> on_path;
    std::vector<Wait> path;
    for (int rank : among) {
        if (!find_cycle(rank, on_path, path)) continue;
        const int closing = path.back().for_whom;   // the path may have come to the cycle from outside
        while (path.front().who != closing) path.erase(path.begin());
        const auto lowest = [](const Wait& a, const Wait& b) { return a.who < b.who; };
        std::rotate(path.begin(), std::min_element(path.begin(), path.end(), lowest), path.end());
        std::string story = "collectives are called in a cycle:";
        for (const Wait& wait : path) {
            story += text(&wait == &path.front() ? " " : "; ", "rank ", wait.who, " calls ", wait.what,
                          " and waits for rank ", wait.for_whom);
        }
        return story;
    }
    return std::nullopt;
}
