#include "llmc/process/collective_order.h"

#include <algorithm>
#include <sstream>
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

std::vector<CollectiveEvent> CollectiveLog::parse(const std::string& taken) {
    auto number_in = [](const std::string& line) { return static_cast<std::size_t>(std::stoul(line)); };
    std::vector<CollectiveEvent> events;
    std::istringstream lines(taken);
    for (std::string line; std::getline(lines, line);) {
        CollectiveEvent event(number_in(line));
        for (CollectiveRecord& record : event) {
            std::getline(lines, line);
            std::istringstream numbers(line);
            std::size_t count = 0;
            numbers >> count;
            for (int member = 0; record.members.size() < count && numbers >> member;) record.members.push_back(member);
            std::getline(lines, record.what);
            std::getline(lines, record.where);
        }
        events.push_back(std::move(event));
    }
    return events;
}

// ---------------------------------------------------------------------------------------------------------------------
// All ranks together

std::string CollectiveOrder::key_of(const CollectiveRecord& record) {
    std::string key = record.where;
    for (int member : record.members) key += text(" ", member);
    return key;
}

std::optional<std::string> CollectiveOrder::add(int rank, CollectiveEvent event) {
    for (const CollectiveRecord& record : event) {
        const std::set<int> members(record.members.begin(), record.members.end());
        const auto [place, is_new] = calls_.try_emplace(key_of(record), Call{rank, record.what, members, {}, 0});
        const Call& call = place->second;
        if (!is_new && call.what != record.what) {
            return text("ranks call different collectives: rank ", rank, " calls ", record.what, " (", record.where,
                        "), where rank ", call.first, " calls ", call.what);
        }
    }
    events_[rank].push_back(std::move(event));
    advance();
    return cycle();
}

// Brings a rank to its oldest event. True where that has finished, because all its calls have all their ranks.
bool CollectiveOrder::finish_front(int rank) {
    std::deque<CollectiveEvent>& events = events_[rank];
    if (events.empty()) return false;
    for (const CollectiveRecord& record : events.front()) call_of(record).here.insert(rank);
    return std::all_of(events.front().begin(), events.front().end(),
                       [this](const CollectiveRecord& record) { return call_of(record).done(); });
}

void CollectiveOrder::advance() {
    std::vector<int> finished;
    do {
        finished.clear();
        for (const auto& [rank, _] : events_) {
            if (finish_front(rank)) finished.push_back(rank);
        }
        for (int rank : finished) {
            for (const CollectiveRecord& record : events_[rank].front()) {
                Call& call = call_of(record);
                if (++call.left == call.members.size()) calls_.erase(key_of(record));
            }
            events_[rank].pop_front();
        }
    } while (!finished.empty());
}

// Depth first along "waits for": from the calls of a rank's oldest event to ranks that have not come to them although
// they are somewhere else.
bool CollectiveOrder::find_cycle(int rank, std::map<int, bool>& on_path, std::vector<Wait>& path) const {
    const auto [place, is_new] = on_path.try_emplace(rank, true);
    if (!is_new) return place->second;   // back on the path: a cycle; else known to lead nowhere
    const std::deque<CollectiveEvent>& events = events_.at(rank);
    for (const CollectiveRecord& record : events.empty() ? CollectiveEvent{} : events.front()) {
        const Call& call = calls_.at(key_of(record));
        for (int other : call.members) {
            const auto theirs = events_.find(other);
            if (call.here.contains(other) || theirs == events_.end() || theirs->second.empty()) continue;
            path.push_back({rank, other, text(record.what, " (", record.where, ")")});
            if (find_cycle(other, on_path, path)) return true;
            path.pop_back();
        }
    }
    on_path[rank] = false;
    return false;
}

std::optional<std::string> CollectiveOrder::cycle() const {
    std::map<int, bool> on_path;
    std::vector<Wait> path;
    for (const auto& [rank, _] : events_) {
        if (!find_cycle(rank, on_path, path)) continue;
        const int closing = path.back().for_whom;   // the path may have come to the cycle from outside
        while (path.front().who != closing) path.erase(path.begin());
        std::string story = "collectives are called in a cycle:";
        for (const Wait& wait : path) {
            story += text(&wait == &path.front() ? " " : "; ", "rank ", wait.who, " calls ", wait.what,
                          " and waits for rank ", wait.for_whom);
        }
        return story;
    }
    return std::nullopt;
}
