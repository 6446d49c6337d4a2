#include "llmc/kernels/attention/attention_kinds.h"

#include "llmc/base/log.h"
#include "llmc/kernels/attention/attention_mask.h"
#include "llmc/kernels/attention/library/library_attention.h"

const AttentionLimits& limits_of(AttentionKind kind) {
    static const AttentionLimits own{};
    static const AttentionLimits sm90{.fp32 = false, .documents = false, .largest_head = 128};
    return kind == AttentionKind::library ? LibraryAttention::limits() : kind == AttentionKind::own_sm90 ? sm90 : own;
}

std::string beyond(const AttentionLimits& limits, const AttentionShape& shape, bool fp32, bool fp32_results) {
    if ((shape.masks_documents || shape.documents.first != nullptr) && !limits.documents)
        return "it has no mask of documents or windows";
    if (fp32 && !limits.fp32) return "it is for bf16 (PRECISION=bf16)";
    if (!fp32 && fp32_results && !limits.fp32_results) return "it has no fp32 results, which rings add up";
    if (shape.HS > limits.largest_head) {
        return text("it has no heads of ", shape.HS, " channels, only of up to ", limits.largest_head);
    }
    const AttentionMask mask = attention_mask<false>(shape, 0);
    if (!limits.positions && !mask.is_full() && !mask.is_triangle()) {
        return "it has no causal mask between blocks that begin at different positions";
    }
    return "";
}

template <class T, class O>
std::string attention_refusal(AttentionKind kind, const AttentionShape& shape) {
    const std::string why = beyond(limits_of(kind), shape, std::is_same_v<T, float>, std::is_same_v<O, float>);
    if (!why.empty()) return why;
    switch (kind) {
        case AttentionKind::auto_:
        case AttentionKind::own: return "";
        case AttentionKind::library: return LibraryAttention::refusal<T, O>(shape);
        case AttentionKind::own_sm90: break;
    }
    return sm90_attention_refusal();
}

template std::string attention_refusal<float, float>(AttentionKind, const AttentionShape&);
template std::string attention_refusal<bf16, bf16>(AttentionKind, const AttentionShape&);
template std::string attention_refusal<bf16, float>(AttentionKind, const AttentionShape&);
