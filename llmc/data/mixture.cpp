#include "llmc/data/mixture.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "llmc/base/refuse.h"

namespace {

// Reads all of `number` into `value`. False where it is no number.
template <class Number>
bool read_number(std::string_view number, Number& value) {
    const char* const end = number.data() + number.size();
    const auto [stopped, problem] = std::from_chars(number.data(), end, value);
    return problem == std::errc{} && stopped == end;
}

}   // namespace

std::vector<DataSource> weighted_list(const std::string& option, const std::string& list) {
    std::vector<DataSource> sources;
    std::vector<double> weights;
    std::string without;
    std::istringstream entries(list);
    for (std::string entry; std::getline(entries, entry, ',');) {
        const std::size_t colon = entry.rfind(':');
        double weight = -1;
        if (colon == std::string::npos || !read_number(std::string_view(entry).substr(colon + 1), weight)) {
            without = entry;
            continue;
        }
        refuse_if(!(weight >= 0 && weight < 1e6), text(option, " ", entry, ": expected a weight from 0 to a million"));
        sources.push_back({"", entry.substr(0, colon), 0, entry.substr(colon + 1)});
        weights.push_back(weight);
    }
    if (sources.empty()) return {};
    refuse_if(!without.empty(), text(option, ": ", without, " has no weight, others of the list have"),
              "Give each source one, as in web:0.7,code:0.3.");
    double sum = 0;
    for (double weight : weights) sum += weight;
    refuse_if(sum <= 0, text(option, " ", list, ": all weights are 0"));
    std::int64_t left = kWeightSum;
    for (std::size_t i = 0; i < sources.size(); i++) {
        sources[i].weight = static_cast<std::int64_t>(weights[i] / sum * static_cast<double>(kWeightSum));
        left -= sources[i].weight;
    }
    std::ranges::max_element(sources, {}, &DataSource::weight)->weight += left;   // the remainder of rounding down
    return sources;
}

std::vector<DataSource> data_sources(const std::string& option, const std::string& list) {
    std::error_code unknown;
    if (std::filesystem::exists(list, unknown)) return {{"", list}};   // whatever signs are in its name
    std::vector<DataSource> sources = weighted_list(option, list);
    if (sources.empty()) return {{"", list}};
    for (DataSource& source : sources) {
        std::filesystem::path folder = source.pattern;
        const bool ends_with_name = folder.has_filename() && std::filesystem::is_directory(folder, unknown);
        if (folder.has_parent_path() && !ends_with_name) folder = folder.parent_path();
        source.name = folder.filename().string();
        refuse_if(std::ranges::count(sources, source.name, &DataSource::name) > 1,
                  text(option, ": two sources are called ", source.name), "Their folders' names must differ.");
    }
    return sources;
}

std::vector<MixturePhase> read_data_schedule(const FileSystem& files, const std::string& path,
                                             const std::vector<std::string>& names,
                                             const std::function<std::uint64_t(int step)>& samples_before) {
    std::vector<MixturePhase> phases;
    std::istringstream lines(read_whole(files, path));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
        const std::string where = text(path, ": line ", ++number);
        std::istringstream words(line.substr(0, line.find('#')));
        std::string step_word, list, more;
        if (!(words >> step_word)) continue;
        int step = 0;
        if (!(words >> list) || words >> more || !read_number(std::string_view(step_word), step) || step < 1) {
            throw Error(ErrorKind::bad_data, text(where, ": '", line, "' is not a step and weights"),
                        "A line is as in: 1000 web:0.5,code:0.5");
        }
        MixturePhase phase{samples_before(step), std::vector<std::int64_t>(names.size())};
        if (!phases.empty() && phase.first <= phases.back().first) {
            throw Error(ErrorKind::bad_data, text(where, ": step ", step, " does not come after the line before"));
        }
        const std::vector<DataSource> sources = weighted_list(where, list);
        if (sources.empty()) throw Error(ErrorKind::bad_data, text(where, ": ", list, " has no weights"));
        for (const DataSource& source : sources) {
            const auto known = std::ranges::find(names, source.pattern);
            if (known == names.end()) {
                throw Error(ErrorKind::bad_data, text(where, ": --train-data has no source ", source.pattern),
                            "Name it there, with the weight 0 if only the schedule uses it.");
            }
            phase.weights[static_cast<std::size_t>(known - names.begin())] = source.weight;
        }
        phases.push_back(std::move(phase));
    }
    if (phases.empty()) {
        throw Error(ErrorKind::bad_data, text(path, ": no line with a step and weights"),
                    "A line is as in: 1000 web:0.5,code:0.5");
    }
    return phases;
}
