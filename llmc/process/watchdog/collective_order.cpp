#include "llmc/process/watchdog/collective_order.h"

#include <algorithm>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/json.h"

void CollectiveLog::write(CollectiveEvent event) {
    std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
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
    Json events = Json::array();
    std::lock_guard lock(mutex_);
    for (const CollectiveEvent& event : events_) {
        Json& calls = events.append(Json::array());
        for (const CollectiveRecord& call : event) {
            calls.append(Json::object({{"members", call.members}, {"what", call.what}, {"where", call.where}}));
        }
    }
    events_.clear();
    return events.elements().empty() ? "" : to_text(events);
}

std::optional<std::vector<CollectiveEvent>> CollectiveLog::parse(const std::string& taken) {
    constexpr std::uint64_t largest_rank = 1 << 20;
    std::vector<CollectiveEvent> events;
    try {
        const Json json = parse_json(taken);
        for (const Json& calls : json.elements()) {
            CollectiveEvent& event = events.emplace_back();
            for (const Json& call : calls.elements()) {
                event.push_back({{}, call.at("what").as_text(), call.at("where").as_text()});
                for (const Json& member : call.at("members").elements()) {
                    event.back().members.push_back(static_cast<int>(member.as_whole(largest_rank)));
                }
            }
            if (event.empty()) return std::nullopt;
        }
    } catch (const JsonError&) {
        return std::nullopt;
    }
    return events;
}

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

// Removes a rank's oldest event if it has finished, that is if all its calls have all their ranks. Returns true if it
// did.
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

// Moves `rank` to its oldest event, then all ranks as far as they can. Returns those that have reached another event.
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

// Searches depth first along "waits for": from the calls of a rank's oldest event to ranks that have not come to them
// although they are somewhere else. `path` gets the waits up to the cycle.
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

// Returns a cycle of waits, in words; none: there is none. `among`: ranks that have reached another event since the
// last check; a new cycle goes through one of them.
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
