// Lists what each implementation of attention can compute: the one table that `--attention auto`, a kind asked for by
// name, and the messages about both read.
#pragma once

#include <string>
#include <type_traits>

#include "llmc/base/enum_names.h"
#include "llmc/kernels/attention/attention.h"

template <>
struct EnumNames<AttentionKind> {
    static constexpr EnumName<AttentionKind> list[]{{"auto", AttentionKind::auto_},
                                                    {"own", AttentionKind::own},
                                                    {"library", AttentionKind::library},
                                                    {"own-sm90", AttentionKind::own_sm90}};
};

// Limits within attention.h. The library's are those of the one that this program was built for
// (library_attention_cudnn.cpp, library_attention_onednn.cpp).
struct AttentionLimits {
    bool fp32 = true;           // q, k and v may be fp32
    bool fp32_results = true;   // outputs and gradients may be fp32 where q, k and v are bf16
    bool documents = true;      // masks between documents
    bool positions = true;      // causal masks between blocks that begin at different positions (q0, k0)
    int largest_head = kLargestHead;
};
const AttentionLimits& limits_of(AttentionKind kind);

// Returns the first limit that calls exceed, as a sentence's end ("it has no ..."); empty if there is none.
std::string beyond(const AttentionLimits& limits, const AttentionShape& shape, bool fp32, bool fp32_results);

// Returns why attention of this kind cannot serve calls of `shape`, with results of type O; empty if it can. T: type of
// q, k and v. May run the self-check of the kernels for sm_90a, or build plans of the library.
template <class T, class O>
std::string attention_refusal(AttentionKind kind, const AttentionShape& shape);
