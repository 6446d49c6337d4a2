// The graphs of attention, without a GPU: that their operations, carried out one by one in double precision, are
// attention; and that cuDNN's engines accept them for the description of an H200. The latter needs libcudnn and libcuda
// (a driver, or CUDA's stub of it on LD_LIBRARY_PATH as libcuda.so.1) and skips with a message where they are not.

#ifdef USE_CUDNN

#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "llmc/base/error.h"
#include "llmc/base/rng.h"
#include "llmc/kernels/attention/attention_reference_testing.h"
#include "llmc/kernels/attention/library/attention_cudnn.h"

namespace {

constexpr const char* h200 =
    R"({"version":1,"totalGlobalMem":150754820096,"cudaDeviceId":0,"smVersion":900,"deviceVer":900,"driverVer":13000,)"
    R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
    R"("multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
    R"("reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,"smClockRateKHz":1980000,)"
    R"("memClockRateKHz":3201000,"l2CacheSize":62914560,"deviceName":"NVIDIA H200",)"
    R"("smCountOrigin":0,"oversizedSharedMemoryPerBlock":0,"memoryBusWidth":6144})";

namespace fe = cudnn_frontend;

// The way to what a class of the frontend keeps to itself: access is not checked in an explicit instantiation. Names
// may be others in other versions, so this is for those that were tried.
#if CUDNN_FRONTEND_VERSION < 13300
#define CAN_READ_GRAPHS 1
template <class Key, auto member>
struct Opener {
    friend auto member_of(Key) { return member; }
};
struct Mode {
    friend auto member_of(Mode);
};
struct Axis {
    friend auto member_of(Axis);
};
struct SubNodes {
    friend auto member_of(SubNodes);
};
struct RightBound {
    friend auto member_of(RightBound);
};
template struct Opener<RightBound, &fe::graph::SDPA_attributes::right_bound>;
template struct Opener<Mode, &fe::graph::Pointwise_attributes::mode>;
template struct Opener<Axis, &fe::graph::Pointwise_attributes::axis>;
template struct Opener<SubNodes, &fe::graph::INode::sub_nodes>;

// Carries out a graph's operations in double precision. Tensors whose ids have a buffer are views of it, by their
// strides; any other has a buffer of its own and is addressed without gaps, whatever its strides say.
class Interpreter {
public:
    using Index = std::array<std::int64_t, 4>;
    using Tensor = fe::graph::Tensor_attributes;
    std::map<Attended, std::vector<double>> memory;

    void run(const CudnnAttention& attention) {
        done_.clear();
        between_.clear();
        std::vector<Operation> operations;
        collect(attention.graph(), operations);
        while (!operations.empty()) {   // they come in any order
            const std::size_t before = operations.size();
            std::erase_if(operations, [&](const Operation& o) { return carry_out(o); });
            REQUIRE(operations.size() < before);
        }
    }

private:
    enum class Kind { pointwise, matmul, reduction, transposition, attention };
    struct Operation {
        Kind kind;
        int mode = 0;   // a PointwiseMode_t or ReductionMode_t; of attention whether it is causal
        std::int64_t axis = 0;
        std::vector<std::shared_ptr<Tensor>> in = {};
        std::shared_ptr<Tensor> out = {};
    };

    template <class Attributes>
    static Operation with_tensors(Operation o, const Attributes& attributes) {
        using In = typename Attributes::input_names;
        o.out = attributes.outputs.begin()->second;
        for (int i = 0; i < 4; i++) {   // by their names' numbers: A, B or IN_0, IN_1, IN_2 or X
            const auto found = attributes.inputs.find(static_cast<In>(i));
            if (found != attributes.inputs.end() && found->second) o.in.push_back(found->second);
        }
        return o;
    }
    static Operation operation(const fe::graph::INode& node) {
        using namespace fe::graph;
        if (auto* n = dynamic_cast<const MatmulNode*>(&node)) return with_tensors({Kind::matmul}, n->attributes);
        if (auto* n = dynamic_cast<const ReshapeNode*>(&node))
            return with_tensors({Kind::transposition}, n->attributes);
        if (auto* n = dynamic_cast<const ReductionNode*>(&node))
            return with_tensors({Kind::reduction, static_cast<int>(*n->attributes.get_mode())}, n->attributes);
        auto* n = dynamic_cast<const PointwiseNode*>(&node);
        REQUIRE_MESSAGE(n != nullptr, "an unknown operation in the graph");
        const int mode = static_cast<int>(n->attributes.*member_of(Mode{}));
        return with_tensors({Kind::pointwise, mode, (n->attributes.*member_of(Axis{})).value_or(0)}, n->attributes);
    }
    static void collect(const fe::graph::INode& node, std::vector<Operation>& operations) {
        // cuDNN 9.13 and later have one operation for forward, which the frontend takes where it can
        if (auto* n = dynamic_cast<const fe::graph::UnifiedSDPANode*>(&node)) {
            using Out = fe::graph::SDPA_attributes::output_names;
            const bool causal = (n->attributes.*member_of(RightBound{})).has_value();
            for (Out out : {Out::O, Out::Stats}) {
                operations.push_back(with_tensors({Kind::attention, causal}, n->attributes));
                operations.back().out = n->attributes.outputs.at(out);
            }
            return;
        }
        const auto& parts = node.*member_of(SubNodes{});
        for (const auto& part : parts) collect(*part, operations);
        if (parts.empty()) operations.push_back(operation(node));
    }

    bool in_memory(const Tensor& t) const { return memory.contains(static_cast<Attended>(t.get_uid())); }
    bool available(const Tensor& t) const {
        return done_.contains(&t) || t.get_pass_by_value().has_value() || (in_memory(t) && !t.get_is_virtual());
    }
    // An element; sizes of 1 are repeated.
    double& at(const Tensor& t, const Index& i) {
        std::int64_t place = 0, dense = 0;
        for (std::size_t axis = 0; axis < 4; axis++) {
            const std::int64_t size = t.get_dim()[axis], index = size == 1 ? 0 : i[axis];
            place += index * t.get_stride()[axis];
            dense = dense * size + index;
        }
        const bool own = !in_memory(t);
        std::vector<double>& buffer = own ? between_[&t] : memory.at(static_cast<Attended>(t.get_uid()));
        const auto position = static_cast<std::size_t>(own ? dense : place);
        if (buffer.size() <= position) buffer.resize(position + 1, std::nan(""));
        return buffer[position];
    }
    double read(const Tensor& t, const Index& i) {
        const auto value = t.get_pass_by_value();
        if (!value) return at(t, i);
        return std::visit([](const auto& number) { return static_cast<double>(static_cast<float>(number)); }, *value);
    }

    bool carry_out(const Operation& o) {
        for (const auto& t : o.in)
            if (!available(*t)) return false;
        const std::vector<std::int64_t> sizes = o.out->get_dim();
        Index i;
        for (i[0] = 0; i[0] < sizes[0]; i[0]++)
            for (i[1] = 0; i[1] < sizes[1]; i[1]++)
                for (i[2] = 0; i[2] < sizes[2]; i[2]++)
                    for (i[3] = 0; i[3] < sizes[3]; i[3]++) {
                        const double result = value(o, i);
                        at(*o.out, i) = result;
                    }
        return done_.insert(o.out.get()).second;
    }

    double value(const Operation& o, const Index& i) {
        const std::int64_t length = o.in.empty() ? 0 : o.in[0]->get_dim()[3];
        if (o.kind == Kind::pointwise) return pointwise(o, i);
        if (o.kind == Kind::attention) return attention(o, i);
        if (o.kind == Kind::transposition) {   // all of them transpose
            REQUIRE(o.in[0]->get_dim()[2] == o.out->get_dim()[3]);
            return read(*o.in[0], {i[0], i[1], i[3], i[2]});
        }
        if (o.kind == Kind::matmul) {
            double sum = 0;
            for (std::int64_t k = 0; k < length; k++)
                sum += read(*o.in[0], {i[0], i[1], i[2], k}) * read(*o.in[1], {i[0], i[1], k, i[3]});
            return sum;
        }
        const bool largest = o.mode == static_cast<int>(fe::ReductionMode_t::MAX);   // over the last axis
        REQUIRE((largest || o.mode == static_cast<int>(fe::ReductionMode_t::ADD)));
        double result = largest ? -std::numeric_limits<double>::infinity() : 0;
        for (std::int64_t k = 0; k < length; k++) {
            const double x = read(*o.in[0], {i[0], i[1], i[2], k});
            result = largest ? std::max(result, x) : result + x;
        }
        return result;
    }

    // Row i[2] of head (i[0], i[1]): column i[3] of the result, or, where that has one column, the log-sum-exp.
    double attention(const Operation& o, const Index& i) {
        const Tensor &q = *o.in[0], &k = *o.in[1], &v = *o.in[2];
        double sum = 0, result = 0;
        for (std::int64_t t = 0; t < (o.mode ? i[2] + 1 : v.get_dim()[2]); t++) {
            double score = 0;
            for (std::int64_t c = 0; c < q.get_dim()[3]; c++)
                score += read(q, {i[0], i[1], i[2], c}) * read(k, {i[0], i[1], t, c});
            const double weight = std::exp(score * read(*o.in[3], {0, 0, 0, 0}));
            sum += weight;
            result += weight * read(v, {i[0], i[1], t, i[3]});
        }
        return o.out->get_dim()[3] == 1 ? std::log(sum) : result / sum;
    }

    double pointwise(const Operation& o, const Index& i) {
        using P = fe::PointwiseMode_t;
        const double x = o.mode == static_cast<int>(P::GEN_INDEX) ? 0 : read(*o.in[0], i);
        const double y = o.in.size() > 1 ? read(*o.in[1], i) : 0;
        switch (static_cast<P>(o.mode)) {
            case P::GEN_INDEX: return static_cast<double>(i[static_cast<std::size_t>(o.axis)]);
            case P::IDENTITY: return x;
            case P::ADD: return x + y;
            case P::SUB: return x - y;
            case P::MUL: return x * y;
            case P::DIV: return x / y;
            case P::EXP: return std::exp(x);
            case P::LOG: return std::log(x);
            case P::CMP_GE: return x >= y ? 1 : 0;
            case P::BINARY_SELECT: return read(*o.in[2], i) != 0 ? x : y;
            default: FAIL("a pointwise operation of mode " << o.mode);
        }
        return std::nan("");
    }

    std::set<const Tensor*> done_;
    std::map<const Tensor*, std::vector<double>> between_;
};
#else
#define CAN_READ_GRAPHS 0
#endif

std::vector<double> random_numbers(std::size_t count, std::uint64_t key) {
    std::vector<double> result;
    for (std::size_t i = 0; i < count; i++) result.push_back(normal(key, i));
    return result;
}

// Part `part` of (B, T, 3, NH, HS), as (B, T, NH, HS).
std::vector<double> part_of(const std::vector<double>& packed, int part, std::size_t row) {
    std::vector<double> result;
    for (std::size_t t = 0; t * 3 * row < packed.size(); t++) {
        auto first = packed.begin() + static_cast<std::ptrdiff_t>((t * 3 + static_cast<std::size_t>(part)) * row);
        result.insert(result.end(), first, first + static_cast<std::ptrdiff_t>(row));
    }
    return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); i++) {
        if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);   // NaN as well
    }
    return largest;
}

const CudnnTarget an_h200{nullptr, h200, 90};

// Returns cuDNN's attention for an H200; prints why and returns nothing if cuDNN cannot be asked.
std::optional<CudnnAttention> on_h200(const AttentionLayout& layout) {
    if (!dlopen("libcuda.so.1", RTLD_NOW)) {
        MESSAGE("skipped: no libcuda.so.1");
        return {};
    }
    static const std::string why = [] {
        try {
            CudnnAttention(packed_layout(self_attention_shape(1, 64, 1, 64), false), an_h200);
        } catch (const Error& error) {
            return error.message();
        }
        return std::string();
    }();
    if (why.empty()) return CudnnAttention(layout, an_h200);
    MESSAGE("skipped: " << why);
    return {};
}

constexpr std::size_t ample = std::size_t{1} << 34;

}   // namespace

#if CAN_READ_GRAPHS
TEST_CASE("cudnn: the operations of the graphs, done in double precision, are attention and its gradients") {
    for (bool causal : {true, false}) {
        CAPTURE(causal);
        const AttentionShape shape = self_attention_shape(2, 9, 3, 8, causal);
        const std::size_t row = 3 * 8, tokens = 2 * 9;
        const std::vector<double> qkv = random_numbers(tokens * 3 * row, 1), dout = random_numbers(tokens * row, 2);
        const AttentionReference expected =
            reference_attention(shape, part_of(qkv, 0, row), part_of(qkv, 1, row), part_of(qkv, 2, row), dout);
        auto from = [&](int part) {
            return std::vector<double>(qkv.begin() + part * static_cast<std::ptrdiff_t>(row), qkv.end());
        };
        Interpreter device;
        device.memory[Attended::q] = from(0);
        device.memory[Attended::k] = from(1);
        device.memory[Attended::v] = from(2);
        device.memory[Attended::dout] = dout;
        for (Attended result : {Attended::out, Attended::lse, Attended::dq, Attended::dk, Attended::dv})
            device.memory[result] = {};
        for (bool backward : {false, true}) {
            const std::optional<CudnnAttention> attention = on_h200(packed_layout(shape, backward));
            if (!attention) return;
            attention->find_engine(ample);   // until then the graph is one operation
            device.run(*attention);
        }
        CHECK(largest_difference(device.memory[Attended::out], expected.out) < 1e-12);
        CHECK(largest_difference(device.memory[Attended::lse], expected.lse) < 1e-12);
        auto packed = [&](Attended id) {   // dq, dk and dv are written with the strides of (B, T, 3, NH, HS)
            std::vector<double> result = device.memory[id];
            result.resize(tokens * 3 * row);
            return part_of(result, 0, row);
        };
        CHECK(largest_difference(packed(Attended::dq), expected.dq) < 1e-12);
        CHECK(largest_difference(packed(Attended::dk), expected.dk) < 1e-12);
        CHECK(largest_difference(packed(Attended::dv), expected.dv) < 1e-12);
    }
}
#endif

TEST_CASE("cudnn: calls on the program's own tensors have the layouts that were asked about, so plans are built once") {
    const AttentionShape shape = self_attention_shape(2, 9, 3, 8);
    bf16* qkv = nullptr;
    auto part = [&](int p) { return packed_heads(qkv, p, 9, 3, 8); };
    const HeadsView<bf16> alone = contiguous_heads<bf16>(nullptr, 9, 3, 8);
    const AttentionForward<bf16> forward{alone, nullptr, part(0), part(1), part(2), shape};
    const AttentionBackward<bf16> backward{part(0), part(1), part(2), nullptr, alone, alone,
                                           nullptr, part(0), part(1), part(2), shape};
    CHECK(layout_of(forward) == packed_layout(shape, false));
    CHECK(layout_of(backward) == packed_layout(shape, true));
    CHECK(layout_of(forward) != layout_of(backward));
}

TEST_CASE("cudnn: what it is reported to do wrong is not asked for") {
    auto full = [](int Tk) { return self_attention_shape(2, Tk, 3, 64, false); };
    CHECK(wrong_in_cudnn(full(1024), true, 90) == "");
    CHECK(wrong_in_cudnn(full(64), true, 90).find("NaN") != std::string::npos);
    CHECK(wrong_in_cudnn(full(192), true, 90).find("Tk=192") != std::string::npos);
    CHECK(wrong_in_cudnn(full(192), false, 90) == "");   // forward is well
    CHECK(wrong_in_cudnn(full(192), true, 100) == "");
    CHECK(wrong_in_cudnn(full(96), true, 90) == "");
    CHECK(wrong_in_cudnn(self_attention_shape(2, 192, 3, 64), true, 90) == "");   // causal

    CHECK(wrong_in_cudnn(self_attention_shape(1, 1, 1, 64), false, 80).find("crash") != std::string::npos);
    CHECK(wrong_in_cudnn(self_attention_shape(1, 1, 2, 64), false, 80) == "");
    CHECK(wrong_in_cudnn(self_attention_shape(1, 2, 1, 64), false, 80) == "");
    CHECK(wrong_in_cudnn(self_attention_shape(2, 1, 1, 64), false, 80) == "");
}

TEST_CASE("cudnn: engines accept attention forward and backward, causal and full, for an H200") {
    for (int HS : {64, 80, 96, 128}) {
        for (int T : {64, 1000, 1024}) {
            for (bool causal : {true, false}) {
                for (bool backward : {false, true}) {
                    CAPTURE(HS);
                    CAPTURE(T);
                    CAPTURE(causal);
                    CAPTURE(backward);
                    const auto attention = on_h200(packed_layout(self_attention_shape(2, T, 12, HS, causal), backward));
                    if (!attention) return;
                    CHECK_NOTHROW(attention->find_engine(ample));
                }
            }
        }
    }
}

TEST_CASE("cudnn: of several CUDA runtimes, which early frontends refuse, the message says what to do") {
    const std::string advice = cudnn_advice("Multiple libcudart libraries found: libcudart.so.12 and libcudart.so.13");
    CHECK(advice.find("cudnn-frontend 1.25") != std::string::npos);
    CHECK(advice.find("LD_LIBRARY_PATH") != std::string::npos);
    CHECK(cudnn_advice("[cudnn_frontend] Error: No execution plans support the graph.").empty());
}

TEST_CASE("cudnn: a deterministic backward within a limit of workspace, or a refusal that names the limit") {
    const AttentionLayout layout = packed_layout(self_attention_shape(8, 8192, 16, 128), true);   // dS: 17.2 GB
    const std::size_t limit = 3'000'000'000;
    const std::optional<CudnnAttention> attention = on_h200(layout);
    if (!attention) return;
    if (fe::detail::get_backend_version() >= 92500 && CUDNN_FRONTEND_VERSION >= 13200) {   // it orders additions to dQ
        CHECK_NOTHROW(attention->find_engine(limit));
    } else {
        CHECK_THROWS_WITH_AS(attention->find_engine(limit), doctest::Contains("workspace of 3000000000 bytes"), Error);
    }
    CHECK_NOTHROW(on_h200(layout)->find_engine(2 * ample));
    CHECK_THROWS_AS(on_h200(layout)->find_engine(1000), Error);
}

#endif   // USE_CUDNN
