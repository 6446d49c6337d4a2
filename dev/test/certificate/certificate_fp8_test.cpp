// The certificate with operands of matmuls rounded to fp8 (StageChoices::matmul_dtype). A shard's blocks may be others
// than the whole matrix's.
#include "dev/test/certificate/certificate_testing.h"

using namespace certificate;

namespace {

Layout in_fp8(Layout layout = {}) {
    layout.matmul_dtype = MatmulDType::fp8_emulated;
    return layout;
}

Layout like(ModelKind kind) {
    Layout layout = in_fp8();
    layout.kind = kind, layout.heads = 4, layout.kv_heads = 2, layout.micro_batches = 4;
    return layout;
}

constexpr bool is_bf16 = sizeof(floatX) == 2;   // left to fp32 builds, whose bounds are tighter

}   // namespace

TEST_CASE("certificate: operands in fp8 are neither those of bf16 nor far from them") {
    const Result stored = train_alone(1, 4), fp8 = Rank(in_fp8()).train(4);
    const Tolerance apart = distances(fp8, stored);
    CHECK(apart.first_loss > 1e-6);
    CHECK(apart.losses < 1e-2);
    CHECK(apart.gradients > 1e-2);   // an operand's element is off by 2.6% in the mean
    CHECK(apart.gradients < 0.3);
}

TEST_CASE("certificate: operands in fp8, a sample of layouts") {
    const Result expected = Rank(in_fp8()).train(4);
    Layout alone = in_fp8();
    alone.recompute = Recompute::block;
    CHECK(Rank(alone).train(4) == expected);
    Layout rows{2, 3, 4}, tensor{1, 0, 4}, pipe{1, 0, 4}, ring{2, 1, 1};
    tensor.tp = 3, tensor.sequence_parallel = true, tensor.tp_chunks = 2;
    pipe.pipe = {3, PipelineKind::zero_bubble};
    ring.cp = 2;
    for (const Layout& layout : {rows, tensor, pipe, ring}) certify(in_fp8(layout), expected);
}

TEST_CASE("certificate: operands in fp8, models of shared heads and of norms after sublayers" *
          doctest::skip(is_bf16)) {
    for (const ModelKind kind : {ModelKind::llama, ModelKind::olmo2}) {
        const Result expected = Rank(like(kind)).train(2);
        Layout layout = like(kind);
        layout.tp = 2, layout.sequence_parallel = kind == ModelKind::llama, layout.dp = 2, layout.zero = 3;
        certify(layout, expected);
    }
}

TEST_CASE("certificate: operands in fp8, experts dealt out and not" * doctest::skip(is_bf16)) {
    Layout layout = in_fp8({1, 0, 4});
    layout.experts = 4;
    const Result expected = Rank(layout).train(2);
    layout.dp = 2, layout.ep = 2, layout.micro_batches = 2;
    certify(layout, expected);
}
