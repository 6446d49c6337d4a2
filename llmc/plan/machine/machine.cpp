#include "llmc/plan/machine/machine.h"
#include "llmc/io/json_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/io/file.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/precision.h"
#include "llmc/run/metrics/peak.h"

namespace {

// Measured by others in bf16. Matmuls: Bekman's table of the fastest shape found with torch.matmul ("Maximum Achievable
// Matmul FLOPS", stas00/ml-engineering, compute/accelerator/README.md). Copies: p2pBandwidthLatencyTest within one
// device, read and written (NVIDIA/nccl issue 1264); without a published figure, H100's share of its data sheet (0.77).
// Links inside a node: bus bandwidth of an all-reduce, without in-switch reductions, which this program turns off
// (stas00/ml-engineering, network/benchmarks/results/all-reduce-8xH200.md; A100: NVIDIA/nccl-tests issue 149). Links
// between nodes: one 400 Gbit/s card per GPU carries 43 GB/s (deepseek-ai/DeepEP, README), 200 Gbit/s half. Watts: the
// highest power in NVIDIA's data sheets (H100, H200, A100 and B200 as SXM); GH200's includes its CPU and memory,
// GB200's and GB300's are the GPU's alone.
struct Gpu {
    const char *name, *device, *source;   // `device`: beginning of the name that CUDA gives it
    double matmul_tflops, copy_gbs, memory_gib;
    int multiprocessors;
    double intra_gbs, inter_gbs, watts;
    bool measured = true;   // its matmuls; else estimated from data sheets
    int devices_per_node = 8;
};
constexpr const char* kOfSameChip = "matmul as H100's, which is the same chip; copy by H100's share of its data sheet";
constexpr const char* kBlackwell = "estimated: the data sheet's peaks times the shares of them that a B200 reaches";
constexpr const char* kCard =
    "estimated: the data sheet's peaks times the shares of them that an H100 reaches; links: PCIe, guessed";
constexpr Gpu kGpus[] = {
    {"H100", "NVIDIA H100", "matmul: ml-engineering; copy: nccl issue 1264; links: ml-engineering, DeepEP", 794.5, 2573,
     79.6, 132, 367.6, 43, 700},
    {"H200", "NVIDIA H200", kOfSameChip, 794.5, 3687, 140.4, 132, 367.6, 43, 700},
    {"GH200", "NVIDIA GH200", "matmul: ml-engineering; copy by H100's share of its data sheet", 828.6, 3687, 140.4, 132,
     367.6, 43, 1000},
    {"B200", "NVIDIA B200", "matmul: ml-engineering; copy and links by H100's shares of data sheets", 1745, 6160, 179.1,
     148, 738, 43, 1000},
    {"GB200", "NVIDIA GB200", kBlackwell, 1939, 6160, 185.1, 148, 738, 43, 1200, false, 72},
    {"GB300", "NVIDIA GB300", kBlackwell, 1939, 6160, 277.6, 148, 738, 86, 1400, false, 72},
    {"A100", "NVIDIA A100",
     "matmul: ml-engineering (SXM); copy by H100's share of its data sheet; links: nccl-tests issue 149", 271.2, 1566,
     79.3, 108, 230, 21.5, 400},
    {"A100-PCIe", "NVIDIA A100",
     "matmul: ml-engineering (PCIe); copy by H100's share of its data sheet; links: PCIe 4, guessed", 252.9, 1486, 79.3,
     108, 20, 10, 300},
    {"L40S", "NVIDIA L40S", kCard, 290.7, 665, 45, 142, 20, 10, 350, false},
    {"A6000", "NVIDIA RTX A6000", kCard, 124.3, 591, 47.8, 84, 20, 10, 300, false},
    {"RTX4090", "NVIDIA GeForce RTX 4090", kCard, 132.7, 776, 23.9, 128, 20, 10, 450, false},
    {"RTX5090", "NVIDIA GeForce RTX 5090", kCard, 168.2, 1380, 31.8, 170, 40, 10, 575, false},
};
// bf16 on an H200 (docs/performance.md). Matmuls: means of the library's products of GPT-2 124M and 1558M of these
// sizes, as shares of the fastest one; a slower card reaches the same share with as much less work. Attention: cuDNN's
// causal forward and backward together, at 1,024 and 4,096 tokens, heads of 64 and 128.
struct MatmulShare {
    double flops, share;
};
constexpr MatmulShare kMatmulShares[] = {{1.9e10, 0.67}, {6e10, 0.78}, {2.5e11, 0.88}, {1.1e12, 1}};
constexpr double kMatmulTflopsOfShares = 794.5;
constexpr double kAttentionShare = 961 / 794.5, kAttentionTokens = 452, kAttentionChannels = 129;
// Estimates without a source: the gap between two kernels of a stream, and a message's latency.
constexpr double kKernelSeconds = 2e-6, kIntraSeconds = 4e-6, kInterSeconds = 14e-6;

Link link_of(const Json& json) { return {json.at("bytes_per_second").as_number(), json.at("seconds").as_number()}; }
Json json_of(const Link& link) {
    return Json::object({{"bytes_per_second", link.bytes_per_second}, {"seconds", link.seconds}});
}

}   // namespace

double Machine::matmul_per_second(double flops) const {
    if (flops <= matmul.front().flops) return matmul.front().per_second;
    for (std::size_t i = 1; i < matmul.size(); i++) {
        const MatmulRate &below = matmul[i - 1], &above = matmul[i];
        if (flops > above.flops) continue;
        const double t = (std::log(flops) - std::log(below.flops)) / (std::log(above.flops) - std::log(below.flops));
        return below.per_second + t * (above.per_second - below.per_second);
    }
    return matmul.back().per_second;
}

double Machine::best_matmul() const {
    return std::ranges::max_element(matmul, {}, &MatmulRate::per_second)->per_second;
}

double Machine::attention_rate(double tokens, double head_size) const {
    return attention_per_second * tokens / (tokens + attention_tokens) * head_size / (head_size + attention_channels);
}

double Machine::collective_bytes_per_second(int ranks, int nodes) const {
    if (nodes == 1) return intra.bytes_per_second;
    return std::min(intra.bytes_per_second, inter.bytes_per_second * ranks / nodes);
}

double Machine::all_to_all_seconds(double bytes, int ranks, int nodes) const {
    if (ranks == 1) return 0;
    const double own = static_cast<double>(ranks) / nodes, inside = (own - 1) / (ranks - 1);   // share that stays
    return std::max(bytes * inside / intra.bytes_per_second, bytes * (1 - inside) / inter.bytes_per_second);
}

double Machine::seconds_of(double flops, double bytes) const {
    const double arithmetic = flops > 0 ? flops / matmul_per_second(flops) : 0;
    return kernel_seconds + std::max(arithmetic, bytes / copy_bytes_per_second);
}

std::vector<std::string> known_gpus() {
    std::vector<std::string> names;
    for (const Gpu& gpu : kGpus) names.push_back(gpu.name);
    return names;
}

Machine known_machine(const std::string& given, bool tf32) {
    std::string name = given, all;
    std::ranges::transform(name, name.begin(), ::toupper);
    for (const Gpu& gpu : kGpus) {
        all += text(all.empty() ? "" : ", ", gpu.name);
        std::string upper = gpu.name;
        std::ranges::transform(upper, upper.begin(), ::toupper);
        if (name != upper) continue;
        // fp32 reaches the same share of its data sheet
        const double bf16_peak = data_sheet_flops(gpu.device, DType::bf16, false).value(),
                     peak = data_sheet_flops(gpu.device, dtype_of<floatX>, tf32).value();
        std::vector<MatmulRate> matmul;
        for (const MatmulShare& measured : kMatmulShares) {
            const double tflops = gpu.matmul_tflops * peak / bf16_peak;
            matmul.push_back({measured.flops * tflops / kMatmulTflopsOfShares, measured.share * tflops * 1e12});
        }
        return {.name = gpu.name,
                .source = gpu.source,
                .measured = gpu.measured,
                .matmul = matmul,
                .attention_per_second = kAttentionShare * gpu.matmul_tflops * 1e12 * peak / bf16_peak,
                .attention_tokens = kAttentionTokens,
                .attention_channels = kAttentionChannels,
                .copy_bytes_per_second = gpu.copy_gbs * 1e9,
                .kernel_seconds = kKernelSeconds,
                .memory_bytes = gpu.memory_gib * (1 << 30),
                .watts = gpu.watts,
                .multiprocessors = gpu.multiprocessors,
                .devices_per_node = gpu.devices_per_node,
                .intra = {gpu.intra_gbs * 1e9, kIntraSeconds},
                .inter = {gpu.inter_gbs * 1e9, kInterSeconds},
                .peak_flops = peak};
    }
    throw Error(ErrorKind::usage, text("--gpu ", given, ": not in the table, expected one of ", all),
                "Measure yours with `train_gpt check --write-machine FILE`, and plan with --machine FILE.");
}

Json to_json(const Machine& m) {
    std::vector<Json> rates;
    for (const MatmulRate& rate : m.matmul) {
        rates.push_back(Json::object({{"flops", rate.flops}, {"per_second", rate.per_second}}));
    }
    return Json::object({{"name", m.name},
                         {"source", m.source},
                         {"matmul", Json::array(rates)},
                         {"attention_per_second", m.attention_per_second},
                         {"attention_tokens", m.attention_tokens},
                         {"attention_channels", m.attention_channels},
                         {"copy_bytes_per_second", m.copy_bytes_per_second},
                         {"kernel_seconds", m.kernel_seconds},
                         {"memory_bytes", m.memory_bytes},
                         {"watts", m.watts},
                         {"multiprocessors", m.multiprocessors},
                         {"devices_per_node", m.devices_per_node},
                         {"intra", json_of(m.intra)},
                         {"inter", json_of(m.inter)},
                         {"peak_flops", m.peak_flops}});
}

Machine machine_from(const Json& json) {
    Machine m;
    m.name = json.at("name").as_text();
    m.source = json.at("source").as_text();
    for (const Json& rate : json.at("matmul").elements()) {
        m.matmul.push_back({rate.at("flops").as_number(), rate.at("per_second").as_number()});
    }
    m.attention_per_second = json.at("attention_per_second").as_number();
    auto optional = [&](std::string_view key) { return json.contains(key) ? json.at(key).as_number() : 0; };
    m.attention_tokens = optional("attention_tokens"), m.attention_channels = optional("attention_channels");
    m.copy_bytes_per_second = json.at("copy_bytes_per_second").as_number();
    m.kernel_seconds = json.at("kernel_seconds").as_number();
    m.memory_bytes = json.at("memory_bytes").as_number();
    m.watts = std::max(optional("watts"), 0.0);
    m.multiprocessors = static_cast<int>(json.at("multiprocessors").as_whole(1 << 16));
    m.devices_per_node = static_cast<int>(json.at("devices_per_node").as_whole(1 << 16));
    m.intra = link_of(json.at("intra"));
    m.inter = link_of(json.at("inter"));
    m.peak_flops = json.at("peak_flops").as_number();
    const bool ordered = std::ranges::is_sorted(m.matmul, {}, &MatmulRate::flops);
    const bool positive = std::ranges::all_of(m.matmul, [](const MatmulRate& rate) { return rate.per_second > 0; });
    if (m.matmul.empty() || !ordered || !positive) throw JsonError("matmul: expected rates above 0, by size");
    for (const double speed :
         {m.attention_per_second, m.copy_bytes_per_second, m.intra.bytes_per_second, m.inter.bytes_per_second}) {
        if (!(speed > 0)) throw JsonError("a speed that is not above 0");
    }
    if (m.devices_per_node < 1) throw JsonError("devices_per_node: expected 1 or more");
    return m;
}

Machine read_machine(const std::string& path) {
    const Json json = read_json_file(real_files(), path);
    try {
        return machine_from(json);
    } catch (const JsonError& error) {
        throw Error(ErrorKind::bad_data, text("--machine ", path, ": byte ", error.offset, ": ", error.what()),
                    "Write it anew with `train_gpt check --write-machine FILE`.");
    }
}

Link link_from(const std::string& flag, const std::string& given) {
    double numbers[2];
    const char *at = given.data(), *const end = at + given.size();
    for (int i = 0; i < 2; i++) {
        const auto [next, status] = std::from_chars(at, end, numbers[i]);
        const bool wrong = status != std::errc() || !(numbers[i] >= 0 && numbers[i] < 1e9);
        if (wrong || (i == 0 ? next == end || *next != ',' || numbers[0] == 0 : next != end)) {
            throw Error(ErrorKind::usage, text(flag, " ", given, ": expected GB/s,us, as in 370,4"),
                        "Of one direction, for each device.");
        }
        at = next + 1;
    }
    return {numbers[0] * 1e9, numbers[1] * 1e-6};
}
