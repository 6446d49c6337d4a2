#include "llmc/kernels/attention/attention_kinds.h"

#include <doctest/doctest.h>

TEST_CASE("attention kinds: what exceeds a limit is named, and what does not is served by own attention") {
    const AttentionLimits none{
        .fp32 = false, .fp32_results = false, .documents = false, .positions = false, .largest_head = 128};
    const AttentionShape plain = self_attention_shape(2, 64, 4, 128);
    AttentionShape documents = plain, later = plain, full = plain;
    documents.masks_documents = true;
    later.q0 = 32;
    full.q0 = 64;   // all keys come before all queries
    const AttentionShape wide = self_attention_shape(2, 64, 4, 136);

    CHECK(beyond(none, plain, false, false) == "");
    CHECK(beyond(none, full, false, false) == "");
    CHECK(beyond(none, plain, true, true) == "it is for bf16 (PRECISION=bf16)");
    CHECK(beyond(none, plain, false, true) == "it has no fp32 results, which rings add up");
    CHECK(beyond(none, wide, false, false) == "it has no heads of 136 channels, only of up to 128");
    CHECK(beyond(none, documents, false, false) == "it has no mask of documents or windows");
    CHECK(beyond(none, later, false, false) ==
          "it has no causal mask between blocks that begin at different positions");
    for (const AttentionShape& shape : {plain, documents, later, full, wide}) {
        CHECK(attention_refusal<float, float>(AttentionKind::own, shape) == "");
        CHECK(attention_refusal<bf16, bf16>(AttentionKind::own, shape) == "");
        CHECK(attention_refusal<bf16, float>(AttentionKind::own, shape) == "");
    }
}

TEST_CASE("attention kinds: the kernels for sm_90a are refused what they lack before anything runs") {
    AttentionShape shape = self_attention_shape(1, 64, 1, 136);
    const AttentionKind sm90 = AttentionKind::own_sm90;
    CHECK(attention_refusal<bf16, bf16>(sm90, shape) == "it has no heads of 136 channels, only of up to 128");
    CHECK(attention_refusal<float, float>(sm90, shape) == "it is for bf16 (PRECISION=bf16)");
    shape.HS = 128, shape.masks_documents = true;
    CHECK(attention_refusal<bf16, float>(sm90, shape) == "it has no mask of documents or windows");
}
