#include "llmc/cuda_on_cpu/clock/trace.h"

#include <iomanip>
#include <map>
#include <sstream>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/base/json.h"

namespace host {
namespace {

using Kind = RecordedStep::Kind;

// Returns a stream's name: it is a communication stream if most of its operations exchange data with other ranks, else
// a computation stream.
std::string name_of_stream(int stream, int exchanges, int others) {
    return text(exchanges > others ? "communication" : "computation", " (stream ", stream, ")");
}

Json event(const char* phase, const std::string& name, int rank, int stream) {
    return Json::object({{"ph", phase}, {"name", name}, {"pid", rank}, {"tid", stream}});
}

Json named(const char* what, int rank, int stream, const std::string& name) {
    Json json = event("M", what, rank, stream);
    json.add("args", Json::object({{"name", name}}));
    return json;
}

Json piece(const std::string& name, const Span& span, double begin, double end) {
    Json json = event("X", name, span.rank, span.stream);
    json.add("ts", begin * 1e6);
    json.add("dur", (end - begin) * 1e6);
    return json;
}

}   // namespace

std::string to_text(const Recording& recording) {
    std::ostringstream out;
    out << std::setprecision(17);
    for (const RecordedStep& step : recording) {
        out << static_cast<int>(step.kind) << ' ' << step.stream << ' ' << step.record << ' ' << step.work.flops << ' '
            << step.work.bytes << ' ' << step.work.multiprocessors << ' ' << step.work.exchanges.size();
        for (const Exchange& exchange : step.work.exchanges) {
            out << ' ' << exchange.key << ' ' << exchange.ranks << ' ' << exchange.sends << ' ' << exchange.receives;
        }
        out << ' ' << step.name << '\n';
    }
    return out.str();
}

Recording recording_from(const std::string& text_of_it) {
    Recording recording;
    std::istringstream lines(text_of_it);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream in(line);
        int kind = -1;
        std::size_t exchanges = 0;
        RecordedStep step{};
        in >> kind >> step.stream >> step.record >> step.work.flops >> step.work.bytes >> step.work.multiprocessors >>
            exchanges;
        for (std::size_t i = 0; i < exchanges && in; i++) {
            Exchange exchange{};
            in >> exchange.key >> exchange.ranks >> exchange.sends >> exchange.receives;
            step.work.exchanges.push_back(exchange);
        }
        if (!in || kind < 0 || kind > static_cast<int>(Kind::host_waited_for_event)) {
            throw Error(ErrorKind::bug, text("not a line of a recording: ", line));
        }
        step.kind = static_cast<Kind>(kind);
        step.file = "";
        std::getline(in >> std::ws, step.name);
        recording.push_back(std::move(step));
    }
    return recording;
}

CostModel trace_machine() {
    CostModel costs;
    costs.seconds_per_flop = 1 / 400e12;
    costs.seconds_per_byte = 1 / 3.0e12;
    costs.seconds_per_operation = 2e-6;
    costs.seconds_per_exchanged_byte = 1 / 50e9;
    costs.seconds_per_exchange = 10e-6;
    costs.host_seconds_per_call = 1e-6;
    return costs.charged();
}

std::string chrome_trace(const std::vector<Recording>& ranks, const CostModel& costs) {
    Json events = Json::array();
    for (std::size_t rank = 0; rank < ranks.size(); rank++) {
        std::map<int, std::pair<int, int>> streams;   // numbers of exchanges and of other operations
        for (const RecordedStep& step : ranks[rank]) {
            if (step.kind != Kind::operation) continue;
            auto& [exchanges, others] = streams[step.stream];
            (step.work.exchanges.empty() ? others : exchanges)++;
        }
        events.append(named("process_name", static_cast<int>(rank), 0, text("rank ", rank)));
        for (const auto& [stream, operations] : streams) {
            events.append(named("thread_name", static_cast<int>(rank), stream,
                                name_of_stream(stream, operations.first, operations.second)));
        }
    }
    for (const Span& span : replay(ranks, costs).spans) {
        if (span.active > span.begin) events.append(piece("waiting for " + span.name, span, span.begin, span.active));
        events.append(piece(span.name, span, span.active, span.end));
    }
    const Json machine =
        Json::object({{"clock", "virtual: the order of the recorded operations, with durations by formula"},
                      {"flop_per_s", 1 / costs.seconds_per_flop},
                      {"memory_bytes_per_s", 1 / costs.seconds_per_byte},
                      {"exchanged_bytes_per_s", 1 / costs.seconds_per_exchanged_byte},
                      {"seconds_per_operation", costs.seconds_per_operation},
                      {"seconds_per_exchange", costs.seconds_per_exchange},
                      {"host_seconds_per_call", costs.host_seconds_per_call}});
    return ::to_text(Json::object({{"displayTimeUnit", "ms"}, {"otherData", machine}, {"traceEvents", events}})) + "\n";
}

}   // namespace host
