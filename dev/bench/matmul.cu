// Every matmul of GPT-2 in its four sizes: forward, gradient of the input, gradient of the weight.
#include "llmc/kernels/matmul/matmul.h"

#include "dev/bench/operand.cuh"
#include "llmc/kernels/matmul/matmul_hopper.h"
#include "llmc/model/config.h"
#include "llmc/model/precision.h"

namespace {

// A linear layer from K to N channels, over M tokens.
struct Layer {
    const char* name;
    int N, K;
    bool gelu;   // forward is followed by it, and the input's gradient of the next layer ends with its derivative
    bool from_gelu;
};

// Sizes of one call; each matrix moved once, weight gradients in fp32.
Work work_of(int M, const Layer& layer, double out_size, double in_size, double weight_size) {
    const double m = M, n = layer.N, k = layer.K;
    return {.bytes = m * n * out_size + m * k * in_size + n * k * weight_size, .flops = 2 * m * n * k, .tokens = m};
}

// Measures the kernels for sm_90a, forward and for the gradient of the input, one width after the other.
void measure_own(Bench& bench, const std::string& where, const Layer& layer, int M) {
    if (sizeof(floatX) != 2 || !sm90_matmul_refusal().empty()) return;
    for (const bool gradient : {false, true}) {
        const bool gelu = gradient ? layer.from_gelu : layer.gelu;
        const int channels = gradient ? layer.K : layer.N, depth = gradient ? layer.N : layer.K;
        for (int width : hopper_matmul_widths) {
            auto timing = bench.begin({text("own sm_90a matmul ", gradient ? "input gradient" : "forward",
                                            !gelu      ? ""
                                            : gradient ? " x gelu'"
                                                       : " + gelu",
                                            ", width ", width),
                                       where, work_of(M, layer, 2, 2, 2)});
            if (!timing) continue;
            Operand<bf16> out(*timing, std::int64_t{M} * channels), in(*timing, std::int64_t{M} * depth),
                weight(*timing, std::int64_t{channels} * depth, 0.02f), bias(*timing, channels),
                beside(*timing, gelu ? std::int64_t{M} * channels : 1);
            timing->measure([&](int set) {
                launch_hopper_matmul({!gelu      ? HopperMatmulEnd::plain
                                      : gradient ? HopperMatmulEnd::gelu_slope
                                                 : HopperMatmulEnd::gelu,
                                      gradient, M, channels, depth, out[set], channels, in[set], depth, weight[set],
                                      gradient ? channels : depth, gradient ? nullptr : bias[set], beside[set]},
                                     width, device_properties().multiProcessorCount, bench.stream());
            });
        }
    }
}

void measure(Bench& bench, const std::string& model, const Layer& layer, int M) {
    const int N = layer.N, K = layer.K;
    const MatmulShape shape{M, N, K};
    const std::int64_t out_count = std::int64_t{M} * N, in_count = std::int64_t{M} * K,
                       weight_count = std::int64_t{N} * K;
    const double x = sizeof(floatX);
    const std::string where = text(model, " ", layer.name, " M=", M);
    const bool has_bias = N < 50000;   // the classifier has none
    cudaStream_t stream = bench.stream();

    if (auto timing = bench.begin({layer.gelu ? "matmul forward + gelu" : "matmul forward", where,
                                   work_of(M, layer, layer.gelu ? 2 * x : x, x, x)})) {
        Matmul matmul(timing->arena(), {.tries = 0});
        Operand<floatX> out(*timing, out_count), pre(*timing, layer.gelu ? out_count : 1), in(*timing, in_count),
            weight(*timing, weight_count, 0.02f), bias(*timing, N);
        timing->measure([&](int set) {
            if (layer.gelu) {
                matmul.forward_gelu<floatX>(out[set], pre[set], in[set], weight[set], bias[set], shape, stream);
            } else {
                matmul.forward<floatX>(out[set], in[set], weight[set], has_bias ? bias[set] : nullptr, shape, stream);
            }
        });
    }
    if (auto timing = bench.begin({layer.from_gelu ? "matmul input gradient x gelu'" : "matmul input gradient", where,
                                   work_of(M, layer, x, layer.from_gelu ? 2 * x : x, x)})) {
        Matmul matmul(timing->arena(), {.tries = 0});
        Operand<floatX> din(*timing, in_count), dout(*timing, out_count), weight(*timing, weight_count, 0.02f),
            pre(*timing, layer.from_gelu ? in_count : 1);
        timing->measure([&](int set) {
            if (layer.from_gelu) {
                matmul.input_gradient_gelu<floatX>(din[set], dout[set], weight[set], pre[set], shape, stream);
            } else {
                matmul.input_gradient<floatX>(din[set], dout[set], weight[set], shape, false, stream);
            }
        });
    }
    measure_own(bench, where, layer, M);
    if (auto timing = bench.begin({"matmul weight gradient", where, work_of(M, layer, x, x, 4)})) {
        Matmul matmul(timing->arena(), {.tries = 0});
        Operand<float> dweight(*timing, weight_count);
        Operand<floatX> dout(*timing, out_count), in(*timing, in_count);
        timing->measure([&](int set) {
            matmul.weight_gradient<floatX, float>(dweight[set], dout[set], in[set], shape, false, stream);
        });
    }
}

void run(Bench& bench) {
    const int tokens = bench.choose(16384, bench.long_run() ? 1024 : 256);
    for (const char* size : {"124M", "350M", "774M", "1558M"}) {
        const ModelConfig config = model_config(std::string("gpt2:") + size);
        const int C = static_cast<int>(config.channels);
        for (const Layer& layer : {Layer{"qkv", 3 * C, C, false, false}, Layer{"attproj", C, C, false, false},
                                   Layer{"fc", 4 * C, C, true, false}, Layer{"fcproj", C, 4 * C, false, true},
                                   Layer{"classifier", static_cast<int>(config.padded_vocab_size), C, false, false}}) {
            // logits exist for a chunk of the rows at a time
            measure(bench, size, layer, layer.N > 50000 ? std::min(tokens, 4096) : tokens);
        }
    }
}
const Benchmark registered("matmul", run);

}   // namespace
