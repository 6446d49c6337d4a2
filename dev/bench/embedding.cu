// The embedding, forward and backward.
#include "llmc/kernels/rows/embedding.cuh"

#include "dev/bench/operand.cuh"
#include "llmc/model/precision.h"

namespace {

constexpr int vocabulary = 50304, positions = 1024;

// Tokens as text has them: a few often, most seldom (Zipf: the k-th most frequent one 1/k as often).
std::vector<int> zipf_tokens(int count, std::uint64_t key) {
    std::vector<int> tokens(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < tokens.size(); i++) {
        const double u = static_cast<double>(uniform(philox(key, i).x));
        tokens[i] = std::min(vocabulary - 1, static_cast<int>(std::pow(static_cast<double>(vocabulary), u)) - 1);
    }
    return tokens;
}

// The rows of wte that occur and T of wpe are read once, however often they are used.
void forward(Bench& bench, int B, int T, int C) {
    const std::vector<int> ids = zipf_tokens(B * T, 1);
    const double rows = double{1} * B * T, row_bytes = double{1} * C * sizeof(floatX);
    const double distinct = group_tokens(ids, vocabulary).groups;
    const Work work{.bytes = (rows + distinct + T) * row_bytes + 4 * rows, .flops = rows * C, .tokens = rows};
    auto timing = bench.begin({"embedding forward", text("B=", B, " T=", T, " C=", C), work});
    if (!timing) return;
    Operand<floatX> out(*timing, std::int64_t{B} * T * C);
    auto wte = timing->arena().allocate<floatX>("bench/wte", std::size_t{vocabulary} * C);
    auto wpe = timing->arena().allocate<floatX>("bench/wpe", std::size_t{positions} * C);
    auto tokens = timing->arena().allocate<int>("bench/tokens", std::size_t(B) * T);
    wte.zero(bench.stream());
    wpe.zero(bench.stream());
    tokens.upload(ids, bench.stream());
    timing->measure([&](int set) {
        EmbeddingForward<floatX> args{};
        args.out = out[set];
        args.tokens = tokens.data();
        args.wte = wte.data();
        args.wpe = wpe.data();
        args.B = B;
        args.T = T;
        args.C = C;
        args.V = vocabulary;
        embedding_forward(args, bench.stream());
    });
}

// dout is read once; the rows of dwte that occur are read and written; dwpe is written whole.
void backward(Bench& bench, int B, int T, int C) {
    const std::vector<int> ids = zipf_tokens(B * T, 1);
    const TokenGroups groups = group_tokens(ids, vocabulary);
    const double rows = double{1} * B * T, row_bytes = double{1} * C * sizeof(floatX), row_gradient = double{4} * C;
    const Work work{.bytes = rows * row_bytes + 2 * groups.groups * row_gradient + positions * row_gradient,
                    .flops = 2 * rows * C,
                    .tokens = rows};
    auto timing = bench.begin({"embedding backward", text("B=", B, " T=", T, " C=", C), work});
    if (!timing) return;
    Operand<floatX> dout(*timing, std::int64_t{B} * T * C);
    auto dwte = timing->arena().allocate<float>("bench/dwte", std::size_t{vocabulary} * C);
    auto dwpe = timing->arena().allocate<float>("bench/dwpe", std::size_t{positions} * C);
    auto device_groups = timing->arena().allocate<int>("bench/groups", groups.data.size());
    dwte.zero(bench.stream());
    device_groups.upload(groups.data, bench.stream());
    timing->measure([&](int set) {
        EmbeddingBackward<floatX, float> args{};
        args.dwte = dwte.data();
        args.dwpe = dwpe.data();
        args.dout = dout[set];
        args.groups = groups.view(device_groups.data());
        args.B = B;
        args.T = T;
        args.C = C;
        args.V = vocabulary;
        args.max_positions = positions;
        embedding_backward(args, bench.stream());
    });
}

void run(Bench& bench) {
    const int B = bench.choose(32, 4);
    for (int C : {768, 1600}) {
        forward(bench, B, positions, C);
        backward(bench, B, positions, C);
    }
}
const Benchmark registered("embedding", run);

}   // namespace
