#include "llmc/process/collective_order.h"

#include <sstream>

#include "llmc/base/error.h"

void CollectiveLog::add(CollectiveRecord record) {
    std::string line = text(record.members.size());
    for (int member : record.members) line += text(" ", member);
    std::lock_guard lock(mutex_);
    text_ += line + "\n" + record.what + "\n" + record.where + "\n";
}

std::string CollectiveLog::take() {
    std::lock_guard lock(mutex_);
    return std::exchange(text_, "");
}

std::vector<CollectiveRecord> CollectiveLog::parse(const std::string& taken) {
    std::vector<CollectiveRecord> records;
    std::istringstream lines(taken);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream numbers(line);
        std::size_t count = 0;
        numbers >> count;
        CollectiveRecord record;
        for (int member = 0; record.members.size() < count && numbers >> member;) record.members.push_back(member);
        std::getline(lines, record.what);
        std::getline(lines, record.where);
        records.push_back(std::move(record));
    }
    return records;
}

std::optional<std::string> CollectiveOrder::add(int rank, const CollectiveRecord& record) {
    for (int other : record.members) {
        if (other == rank) continue;
        std::deque<CollectiveRecord>& own = open_[{rank, other}];
        std::deque<CollectiveRecord>& theirs = open_[{other, rank}];
        own.push_back(record);
        if (theirs.empty()) continue;
        const CollectiveRecord& expected = theirs.front();
        const CollectiveRecord& found = own.front();
        if (expected.what != found.what || expected.where != found.where || expected.members != found.members) {
            return text("collectives are called in different orders: rank ", rank, " calls ", found.what, " (",
                        found.where, "), where rank ", other, " calls ", expected.what, " (", expected.where, ")");
        }
        theirs.pop_front();
        own.pop_front();
    }
    return std::nullopt;
}
