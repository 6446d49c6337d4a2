#include "llmc/run/choices/matmul_choices.h"

#include <algorithm>
#include <map>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/base/json.h"

namespace {

struct Machine {
    std::string device;
    std::uint64_t cublaslt = 0;
    bool operator==(const Machine&) const = default;
};

Machine this_machine() { return {device_properties().name, cublasLtGetVersion()}; }

std::string describe(const Machine& machine) { return text(machine.device, ", cuBLASLt ", machine.cublaslt); }

std::string choices_text(const Machine& machine, Json algorithms) {
    return to_text(
               Json::object(
                   {{"device", machine.device}, {"cublaslt", machine.cublaslt}, {"algorithms", std::move(algorithms)}}),
               1) +
           "\n";
}

Machine machine_from(const Json& json) {
    return {json.at("device").as_text(), json.at("cublaslt").as_whole(UINT64_MAX)};
}

MatmulAlgorithm algorithm_from(const Json& json) {
    MatmulAlgorithm algorithm;
    algorithm.problem = json.at("problem").as_text();
    const std::vector<Json>& words = json.at("words").elements();
    if (words.size() != algorithm.words.size()) {
        throw JsonError(text("an algorithm of ", words.size(), " words, expected ", algorithm.words.size()));
    }
    std::transform(words.begin(), words.end(), algorithm.words.begin(),
                   [](const Json& word) { return word.as_whole(UINT64_MAX); });
    algorithm.workspace_bytes = json.at("workspace_bytes").as_whole(UINT64_MAX);
    return algorithm;
}

}   // namespace

std::string matmul_choices_text(const Matmul& matmul) {
    const Machine machine = this_machine();
    Json algorithms = Json::array();
    for (const MatmulAlgorithm& algorithm : matmul.algorithms()) {
        algorithms.append(Json::object({{"problem", algorithm.problem},
                                        {"workspace_bytes", algorithm.workspace_bytes},
                                        {"words", std::vector<Json>(algorithm.words.begin(), algorithm.words.end())}}));
    }
    return choices_text(machine, std::move(algorithms));
}

std::string use_matmul_choices(const std::string& content, const std::string& where, Matmul& matmul) {
    try {
        const Json json = parse_json(content);
        const Machine found = machine_from(json);
        if (const Machine here = this_machine(); found != here) {
            return text(where, " is of another machine (", describe(found), "), this one is ", describe(here));
        }
        std::vector<MatmulAlgorithm> algorithms;
        for (const Json& entry : json.at("algorithms").elements()) algorithms.push_back(algorithm_from(entry));
        matmul.use_algorithms(algorithms);
        return "";
    } catch (const JsonError& error) {
        throw Error(ErrorKind::bad_data, text(where, ": ", error.what()), "Resume from another checkpoint.");
    }
}

std::string restore_matmul_choices(const FileSystem& files, const std::string& path, Matmul& matmul) {
    return use_matmul_choices(read_whole(files, path), path, matmul);
}

std::string merged_matmul_choices(const std::vector<std::string>& by_rank) {
    const Machine first = machine_from(parse_json(by_rank.at(0)));
    std::map<std::string, Json> by_problem;
    for (std::size_t rank = 0; rank < by_rank.size(); rank++) {
        const Json json = parse_json(by_rank[rank]);
        if (const Machine machine = machine_from(json); machine != first) {
            throw Error(ErrorKind::usage,
                        text("rank ", rank, " multiplies with ", describe(machine), ", rank 0 with ", describe(first)),
                        "Use machines of one type.");
        }
        for (const Json& entry : json.at("algorithms").elements()) {
            by_problem.try_emplace(entry.at("problem").as_text(), entry);
        }
    }
    Json algorithms = Json::array();
    for (auto& [_, entry] : by_problem) algorithms.append(std::move(entry));
    return choices_text(first, std::move(algorithms));
}

const std::string& SharedMatmulChoices::agree() {
    const std::string own = matmul_choices_text(matmul_);
    std::vector<std::string> by_rank = agreement_.gather(own == content_ ? "" : own);   // "": nothing new
    if (std::ranges::all_of(by_rank, &std::string::empty)) return content_;
    std::ranges::replace(by_rank, std::string(), content_);
    content_ = merged_matmul_choices(by_rank);
    if (content_ != own) use_matmul_choices(content_, "the table of all ranks", matmul_);
    return content_;
}
