#include "llmc/kernels/self_check.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "llmc/base/log.h"
#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/attention/attention.h"
#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/init.cuh"
#include "llmc/kernels/matmul/matmul.h"
#include "llmc/kernels/matmul/matmul_hopper.h"
#include "llmc/kernels/ptx/ptx_checks.cuh"
#include "llmc/kernels/ptx/ptx_hopper_checks.cuh"

namespace {

// Returns ||a - b|| / ||b||, infinite if a is not finite.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
        norm += static_cast<double>(b[i]) * b[i];
    }
    return std::isfinite(difference) ? std::sqrt(difference / norm) : INFINITY;
}

struct CheckedSize {
    int HS, tokens, group = 1;   // group: heads of queries, which share one head of keys
};

// Compares two implementations of attention on one head of keys, with more tiles than their pipelines have stages, the
// last ones partly filled.
class AttentionCheck {
public:
    AttentionCheck(const CheckedSize& size, cudaStream_t stream)
        : shape_(self_attention_shape(1, size.tokens, size.group, size.HS, true, size.group)), stream_(stream) {
        for (DeviceBuffer<bf16>* buffer : {&q_, &k_, &v_, &dout_}) {
            *buffer = arena_.allocate<bf16>("check/attention", count(shape_.NH));
            fill_normal(buffer->data(), static_cast<std::int64_t>(buffer->size()), 1.0f, ++key_, GlobalSpan{}, stream);
        }
    }

    // Adds what disagrees to `result`; O is the type of output and gradients.
    template <class O>
    void add_disagreements(std::vector<std::string>& result, bool sm90) {
        Results<O> plain(*this), found(*this);
        launch_attention_forward_fma(plain.forward(), stream_);
        sm90 ? launch_attention_forward_hopper(found.forward(), stream_)
             : launch_attention_forward_mma(found.forward(), stream_);
        // Both use the plain output, so that forward's mistakes do not show in backward.
        launch_attention_delta(plain.backward(plain), stream_);
        launch_attention_backward_fma(plain.backward(plain), stream_);
        const auto workspace = arena_.allocate<float>("check/workspace", sm90 ? sm90_attention_workspace(shape_) : 0);
        sm90 ? launch_attention_backward_hopper(found.backward(plain), workspace.data(), stream_)
             : launch_attention_backward_mma(found.backward(plain), stream_);
        auto compare = [&](const char* what, const auto& is, const auto& wanted) {
            const double difference = relative_difference(floats(is), floats(wanted));
            if (difference < tolerance) return;
            result.push_back(text(sm90 ? "sm_90a" : "tensor-core", " attention, head size ", shape_.HS, ", ",
                                  shape_.group > 1 ? "grouped, " : "", sizeof(O) * 8, "-bit ", what, ": differs by ",
                                  difference, " of its norm from fp32 multiply-adds"));
        };
        compare("out", found.out, plain.out);
        compare("lse", found.lse, plain.lse);
        compare("dq", found.dq, plain.dq);
        compare("dk", found.dk, plain.dk);
        compare("dv", found.dv, plain.dv);
    }

private:
    static constexpr double tolerance = 2e-2;   // probabilities are rounded to bf16 on tensor cores

    std::size_t count(int heads) const { return static_cast<std::size_t>(shape_.Tq) * heads * shape_.HS; }
    template <class T>
    HeadsView<T> view(T* data) const {
        return contiguous_heads(data, shape_.Tq, shape_.NH, shape_.HS);
    }
    template <class T>
    HeadsView<T> key_view(T* data) const {
        return contiguous_heads(data, shape_.Tq, shape_.kv_heads(), shape_.HS);
    }
    template <class T>
    std::vector<float> floats(const DeviceBuffer<T>& buffer) const {
        const std::vector<T> values = buffer.download(stream_);
        return {values.begin(), values.end()};
    }

    template <class O>
    struct Results {
        AttentionCheck& check;
        DeviceBuffer<O> out, dq, dk, dv;
        DeviceBuffer<float> lse, delta;

        explicit Results(AttentionCheck& c) : check(c) {
            for (DeviceBuffer<O>* buffer : {&out, &dq})
                *buffer = c.arena_.allocate<O>("check/out", c.count(c.shape_.NH));
            for (DeviceBuffer<O>* buffer : {&dk, &dv})
                *buffer = c.arena_.allocate<O>("check/out", c.count(c.shape_.kv_heads()));
            for (DeviceBuffer<float>* buffer : {&lse, &delta})
                *buffer = c.arena_.allocate<float>("check/rows", row_bytes(c.shape_) / sizeof(float));
        }
        AttentionForward<bf16, O> forward() const {
            return {check.view(out.data()),
                    lse.data(),
                    check.view<const bf16>(check.q_.data()),
                    check.key_view<const bf16>(check.k_.data()),
                    check.key_view<const bf16>(check.v_.data()),
                    check.shape_};
        }
        AttentionBackward<bf16, O> backward(const Results& of) const {
            return {check.view(dq.data()),
                    check.key_view(dk.data()),
                    check.key_view(dv.data()),
                    of.delta.data(),
                    check.view<const bf16>(check.dout_.data()),
                    check.view<const bf16>(check.v_.data()),   // in place of `out`: any numbers will do
                    of.lse.data(),
                    check.view<const bf16>(check.q_.data()),
                    check.key_view<const bf16>(check.k_.data()),
                    check.key_view<const bf16>(check.v_.data()),
                    check.shape_};
        }
    };

    AttentionShape shape_;
    cudaStream_t stream_;
    Arena arena_;
    std::uint64_t key_ = 0;
    DeviceBuffer<bf16> q_, k_, v_, dout_;
};

// Returns type of device, driver, and build of the program, as one line.
std::string what_runs() {
    int version = 0;
    CUDA_CHECK(cudaDriverGetVersion(&version));
    std::string driver;
    std::getline(std::ifstream("/proc/driver/nvidia/version"), driver);
    struct stat program {};
    if (stat("/proc/self/exe", &program) != 0) return "";
    return text(device_properties().name, ", CUDA ", version, " ", driver, ", program of ",
                static_cast<long long>(program.st_size), " bytes, ", static_cast<long long>(program.st_mtim.tv_sec),
                ".", static_cast<long long>(program.st_mtim.tv_nsec));
}

bool has_line(const std::string& file, const std::string& wanted) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);)
        if (line == wanted) return true;
    return false;
}

// Replaces the file as a whole, so that ranks that start together never see a part of it. It holds one line, the
// latest.
void note_line(const std::string& file, const std::string& line) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path(), ignored);
    const std::string temporary = text(file, ".", static_cast<long long>(getpid()));
    if (!(std::ofstream(temporary) << line << '\n')) return;
    std::filesystem::rename(temporary, file, ignored);
    if (ignored) std::filesystem::remove(temporary, ignored);
}

// Writes 1 if the code that this device runs was generated for instructions of sm_90a, else 0.
__global__ void look_for_sm90a(int* found) { *found = hopper_instructions; }

bool built_for_sm90a(cudaStream_t stream) {
    Arena arena;
    const auto found = arena.allocate<int>("check/built", 1);
    launch(look_for_sm90a, Launch(1, 1, 0, stream), found.data());
    return found.download(stream).front() != 0;
}

std::vector<std::string> disagreements(std::span<const InstructionCheck> checks,
                                       std::initializer_list<CheckedSize> sizes, bool sm90, cudaStream_t stream) {
    std::vector<std::string> result;
    Arena arena;
    for (const InstructionCheck& check : checks) {
        const std::string difference = [&] {
            try {
                return check.run(arena, stream);
            } catch (const Error& error) {   // nothing runs on the device after a fault
                throw Error(ErrorKind::no_device,
                            text("self-check: instruction ", check.instruction, " stops the device: ", error.message()),
                            text("Use --attention library, or own", sm90 ? "" : " in a build with PRECISION=fp32",
                                 ", and please report it."));
            }
        }();
        if (!difference.empty()) result.push_back(text("instruction ", check.instruction, ": ", difference));
    }
    for (const CheckedSize& size : sizes) {
        AttentionCheck check(size, stream);
        check.add_disagreements<bf16>(result, sm90);
        check.add_disagreements<float>(result, sm90);
    }
    return result;
}

}   // namespace

std::vector<std::string> self_check(cudaStream_t stream) {
    return disagreements(instruction_checks, {{32, 150}, {64, 150}, {80, 150}, {96, 150}, {128, 150}, {256, 150}},
                         false, stream);
}

std::vector<std::string> self_check_sm90(cudaStream_t stream) {
    // More tiles than twice the rings' stages.
    return disagreements(hopper_instruction_checks, {{64, 900}, {128, 450}, {64, 150, 3}, {128, 150, 2}}, true, stream);
}

namespace {

// Returns why this device and program have no kernels for sm_90a; empty if they have.
std::string sm90_refusal(cudaStream_t stream) {
    int device = 0, major = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    if (major != 9) return "it is for GPUs of sm_90 (H100, H200)";
    return built_for_sm90a(stream) ? "" : "the program was built without sm_90a: build it with CUDA_ARCHS=90a";
}

}   // namespace

std::string sm90_attention_refusal() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return "there is no GPU";
    const OwnedStream stream;
    if (std::string refusal = sm90_refusal(stream.get()); !refusal.empty()) return refusal;
    const std::vector<std::string> wrong = self_check_sm90(stream.get());
    return wrong.empty() ? "" : "self-check: " + wrong.front();
}

std::string matmul_disagreement(cudaStream_t stream) {
    constexpr int tokens = 300, channels = 200, depth = 648;
    Arena arena;
    std::uint64_t key = 0;
    auto random = [&](int count, float scale) {
        auto buffer = arena.allocate<bf16>("check/matmul", static_cast<std::size_t>(count));
        fill_normal(buffer.data(), count, scale, ++key, GlobalSpan{}, stream);
        return buffer;
    };
    const auto in = random(tokens * depth, 1.0f), weight = random(channels * depth, 0.05f), bias = random(channels, 1),
               beside = random(tokens * channels, 1.0f);
    auto result = [&] { return random(tokens * channels, 100.0f); };
    auto floats = [&](const DeviceBuffer<bf16>& buffer) {
        const std::vector<bf16> values = buffer.download(stream);
        return std::vector<float>(values.begin(), values.end());
    };
    Matmul library(arena);
    const MatmulShape forward{tokens, channels, depth}, backward{tokens, depth, channels};
    using enum HopperMatmulEnd;
    for (const auto& [end, transposed] :
         {std::pair{plain, false}, {add, false}, {gelu, false}, {plain, true}, {gelu_slope, true}}) {
        const auto wanted = result(), wanted_pre = result();
        if (end == gelu) {
            library.forward_gelu(wanted.data(), wanted_pre.data(), in.data(), weight.data(), bias.data(), forward,
                                 stream);
        } else if (end == gelu_slope) {
            library.input_gradient_gelu(wanted.data(), in.data(), weight.data(), beside.data(), backward, stream);
        } else if (transposed) {
            library.input_gradient(wanted.data(), in.data(), weight.data(), backward, false, stream);
        } else if (end == add) {
            library.forward_add(wanted.data(), beside.data(), in.data(), weight.data(), bias.data(), forward, stream);
        } else {
            library.forward(wanted.data(), in.data(), weight.data(), bias.data(), forward, stream);
        }
        for (int width : hopper_matmul_widths) {
            const auto found = result(), found_pre = result();
            launch_hopper_matmul({end, transposed, tokens, channels, depth, found.data(), channels, in.data(), depth,
                                  weight.data(), transposed ? channels : depth, transposed ? nullptr : bias.data(),
                                  end == gelu ? found_pre.data() : beside.data()},
                                 width, 2, stream);
            double difference = relative_difference(floats(found), floats(wanted));
            if (end == gelu) {
                difference = std::max(difference, relative_difference(floats(found_pre), floats(wanted_pre)));
            }
            if (!(difference < 2e-2)) {
                return text("matmul of sm_90a, ", width, " channels, end ", static_cast<int>(end), ": differs by ",
                            difference, " of its norm from cuBLASLt");
            }
        }
    }
    return "";
}

namespace {

std::string find_sm90_matmul_refusal() {
    if (stand_in()) return "they are for GPUs";   // a CPU runs models of their instructions
    const OwnedStream stream;
    if (std::string refusal = sm90_refusal(stream.get()); !refusal.empty()) return refusal;
    try {
        const std::string wrong = matmul_disagreement(stream.get());
        return wrong.empty() ? "" : "self-check: " + wrong;
    } catch (const Error& error) {   // nothing runs on the device after a fault
        throw Error(ErrorKind::no_device, "self-check: a matmul for sm_90a stops the device: " + error.message(),
                    "Use --matmul-tries 1, and please report it.");
    }
}

}   // namespace

std::string sm90_matmul_refusal() {
    static const std::string found = find_sm90_matmul_refusal();
    return found;
}

std::vector<std::string> self_check_once(const std::string& cache_file, cudaStream_t stream) {
    const std::string key = what_runs();
    if (!key.empty() && has_line(cache_file, key)) return {};
    const std::vector<std::string> disagreements = self_check(stream);
    if (!disagreements.empty()) {
        use_tensor_cores(false);
    } else if (!key.empty() && !cache_file.empty()) {
        note_line(cache_file, key);
    }
    return disagreements;
}

std::string self_check_cache_file() {
    const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
    if (cache != nullptr && *cache != '\0') return text(cache, "/train_gpt/self_check");
    if (home != nullptr && *home != '\0') return text(home, "/.cache/train_gpt/self_check");
    return "";
}

void check_hardware(cudaStream_t stream) {
    if (stand_in()) return;
    const std::vector<std::string> disagreements = self_check_once(self_check_cache_file(), stream);
    if (disagreements.empty()) return;
    const Log log;
    for (const std::string& what : disagreements) log.warning("self-check: %s", what.c_str());
    log.warning("own attention and experts run on slow multiply-adds: this device does not compute what it should");
}
