#include "llmc/cuda_on_cpu/checks/races.h"

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {

void join(Clock& into, const Clock& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (std::size_t i = 0; i < from.size(); i++) into[i] = std::max(into[i], from[i]);
}

// Returns a number for the stream. Numbers of closed streams are used again once the host knows all their work to be
// done: the new stream continues the old one's count, so the two cannot be confused.
int Races::open_stream(int id) {
    host_.resize(std::max(host_.size(), streams_.size()));
    std::size_t number = 0;
    while (number < streams_.size()) {
        const Stream& stream = streams_[number];
        if (!stream.open && host_[number] >= stream.clock[number]) break;
        number++;
    }
    if (number == streams_.size()) {
        streams_.emplace_back();
        streams_.back().clock.resize(streams_.size());
        host_.resize(streams_.size());
    }
    streams_[number].id = id;
    streams_[number].open = true;
    return static_cast<int>(number);
}

void Races::close_stream(int stream) { streams_[static_cast<std::size_t>(stream)].open = false; }

void Races::host_waited_for_all() {
    for (std::size_t i = 0; i < streams_.size(); i++) join(host_, streams_[i].clock);
    segments_.clear();   // no earlier operation can race with any after
}

bool Races::ordered(const Touch& touch, const Clock& clock) const {
    const auto stream = static_cast<std::size_t>(touch.stream);
    return stream < clock.size() && clock[stream] >= touch.tick;
}

std::optional<std::string> Races::operation(int number, const Operation& operation) {
    Stream& stream = streams_[static_cast<std::size_t>(number)];
    join(stream.clock, host_);
    const std::uint64_t tick = ++stream.clock[static_cast<std::size_t>(number)];
    if (operation.accesses.empty()) return std::nullopt;
    if (segments_.size() > prune_at_) prune();

    auto label = std::make_shared<const Label>(Label{operation.name, operation.file, operation.line, stream.id});
    const Touch touch{number, tick, label};
    for (const Access& access : operation.accesses)
        if (access.bytes > 0)
            if (auto race = this->touch(access, touch, stream.clock)) return race;
    return std::nullopt;
}

// Makes sure that a segment begins at `at` if one covers it; returns the first segment at or behind it.
Races::Segments::iterator Races::split(std::uintptr_t at) {
    auto next = segments_.lower_bound(at);
    if (next != segments_.end() && next->first == at) return next;
    if (next == segments_.begin()) return next;
    auto previous = std::prev(next);
    if (previous->second.end <= at) return next;
    Segment tail = previous->second;
    previous->second.end = at;
    return segments_.emplace_hint(next, at, std::move(tail));
}

std::optional<std::string> Races::touch(const Access& access, const Touch& touch, const Clock& clock) {
    const auto begin = reinterpret_cast<std::uintptr_t>(access.begin);
    const std::uintptr_t end = begin + access.bytes;
    split(begin);
    split(end);
    std::uintptr_t at = begin;
    for (auto segment = segments_.lower_bound(begin); at < end;) {
        if (segment == segments_.end() || segment->first > at) {   // nobody has touched these bytes yet
            std::uintptr_t gap_end = segment == segments_.end() ? end : std::min(end, segment->first);
            Segment fresh{gap_end, {}, {}};
            (access.write ? fresh.writer : fresh.readers.emplace_back()) = touch;
            segments_.emplace_hint(segment, at, std::move(fresh));
            at = gap_end;
            continue;
        }
        Segment& known = segment->second;
        if (known.writer.label && !ordered(known.writer, clock))
            return message(known.writer, true, touch, access.write, at, known.end);
        if (access.write) {
            for (const Touch& reader : known.readers)
                if (!ordered(reader, clock)) return message(reader, false, touch, true, at, known.end);
            known.readers.clear();
            known.writer = touch;
        } else {
            std::erase_if(known.readers, [&](const Touch& reader) { return reader.stream == touch.stream; });
            known.readers.push_back(touch);
        }
        at = known.end;
        ++segment;
    }
    return std::nullopt;
}

std::string Races::message(const Touch& first, bool first_writes, const Touch& second, bool second_writes,
                           std::uintptr_t begin, std::uintptr_t end) const {
    auto who = [](const Touch& touch, bool writes) {
        const Label& label = *touch.label;
        return text("'", label.name, "' (", place(label.file, label.line), ", stream ", label.id, ") ",
                    writes ? "writes" : "reads");
    };
    const void* address = reinterpret_cast<const void*>(begin);
    return text("race: ", who(first, first_writes), " and ", who(second, second_writes), " ", end - begin, " bytes at ",
                address, " (", describe_address(address),
                ") with no order between them: an event wait or a synchronisation is missing");
}

// Forgets operations that the host knows to be done: every later operation is ordered after it.
void Races::prune() {
    for (auto segment = segments_.begin(); segment != segments_.end();) {
        Segment& known = segment->second;
        std::erase_if(known.readers, [&](const Touch& reader) { return ordered(reader, host_); });
        if (known.writer.label && ordered(known.writer, host_)) known.writer = {};
        segment = known.writer.label || !known.readers.empty() ? std::next(segment) : segments_.erase(segment);
    }
    prune_at_ = std::max<std::size_t>(4096, 2 * segments_.size());
}

void Races::forget(const void* pointer, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    auto first = split(begin);
    auto last = split(begin + bytes);
    first = segments_.lower_bound(begin);   // splitting the end may have made a segment in between
    segments_.erase(first, last);
}

}   // namespace host
