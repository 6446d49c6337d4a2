#include "llmc/train/matmul_choices.h"

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

Machine this_machine() {
    int device = 0;
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
    return {properties.name, cublasLtGetVersion()};
}

std::string describe(const Machine& machine) { return text(machine.device, ", cuBLASLt ", machine.cublaslt); }

MatmulAlgorithm algorithm_from(const OrderedJson& json) {
    MatmulAlgorithm algorithm;
    algorithm.problem = json.at("problem").get<std::string>();
    algorithm.words = json.at("words").get<decltype(algorithm.words)>();
    algorithm.workspace_bytes = json.at("workspace_bytes").get<std::uint64_t>();
    return algorithm;
}

}   // namespace

std::string matmul_choices_text(const Matmul& matmul) {
    const Machine machine = this_machine();
    OrderedJson json{{"device", machine.device}, {"cublaslt", machine.cublaslt}, {"algorithms", OrderedJson::array()}};
    for (const MatmulAlgorithm& algorithm : matmul.algorithms()) {
        json["algorithms"].push_back({{"problem", algorithm.problem},
                                      {"workspace_bytes", algorithm.workspace_bytes},
                                      {"words", algorithm.words}});
    }
    return to_text(json, 1) + "\n";
}

std::string use_matmul_choices(const std::string& content, const std::string& where, Matmul& matmul) {
    try {
        const OrderedJson json = parse_ordered_json(content);
        const Machine found{json.at("device").get<std::string>(), json.at("cublaslt").get<std::uint64_t>()};
        if (const Machine here = this_machine(); found != here) {
            return text(where, " is of another machine (", describe(found), "), this one is ", describe(here));
        }
        std::vector<MatmulAlgorithm> algorithms;
        for (const OrderedJson& entry : json.at("algorithms")) algorithms.push_back(algorithm_from(entry));
        matmul.use_algorithms(algorithms);
        return "";
    } catch (const Json::exception& error) {
        throw Error(ErrorKind::bad_data, text(where, ": ", error.what()), "Resume from another checkpoint.");
    }
}

std::string restore_matmul_choices(const FileSystem& files, const std::string& path, Matmul& matmul) {
    if (!files.exists(path)) return text(path, ": missing");
    return use_matmul_choices(read_whole(files, path), path, matmul);
}

std::string merged_matmul_choices(const std::vector<std::string>& by_rank) {
    OrderedJson merged = parse_ordered_json(by_rank.at(0));
    std::map<std::string, OrderedJson> by_problem;
    for (std::size_t rank = 0; rank < by_rank.size(); rank++) {
        const OrderedJson json = parse_ordered_json(by_rank[rank]);
        if (json.at("device") != merged.at("device") || json.at("cublaslt") != merged.at("cublaslt")) {
            throw Error(ErrorKind::usage,
                        text("rank ", rank, " multiplies with ", to_text(json.at("device")), ", cuBLASLt ",
                             to_text(json.at("cublaslt")), ", rank 0 with ", to_text(merged.at("device")),
                             ", cuBLASLt ", to_text(merged.at("cublaslt"))),
                        "Use machines of one type.");
        }
        for (const OrderedJson& entry : json.at("algorithms")) {
            by_problem.try_emplace(entry.at("problem").get<std::string>(), entry);
        }
    }
    merged["algorithms"] = OrderedJson::array();
    for (const auto& [_, entry] : by_problem) merged["algorithms"].push_back(entry);
    return to_text(merged, 1) + "\n";
}
