// Launches attention on tensor cores, with masks of documents or without: attention_mma.cu and
// attention_mma_documents.cu compile one half of the instances each.
#pragma once

#include <type_traits>

#include "llmc/kernels/attention/attention_kernels.h"
#include "llmc/kernels/attention/sm80/attention_mma_backward.cuh"
#include "llmc/kernels/attention/sm80/attention_mma_forward.cuh"

// Calls `run` with the head size of the kernels (with_head_size). With masks of documents only three sizes exist,
// because each takes long to compile.
template <bool DOCUMENTS, class Run>
void with_padded_head_size(int HS, Run run) {
    if constexpr (DOCUMENTS) {
        with_head_size<64, 128, kLargestHead>(HS, run);
    } else {
        with_head_size<32, 64, 80, 96, 128, kLargestHead>(HS, run);
    }
}

template <class O, bool DOCUMENTS>
void launch_attention_forward_mma(const AttentionForward<bf16, O>& a, cudaStream_t stream) {
    with_padded_head_size<DOCUMENTS>(a.shape.HS, [&](auto head_size) {
        using Tile = MmaForwardTile<head_size(), DOCUMENTS>;
        dim3 grid(ceil_div(a.shape.Tq, Tile::queries), a.shape.NH, a.shape.B);
        launch(attention_forward_mma<O, head_size(), DOCUMENTS>,
               forward_launch(a, grid, Tile::threads, Tile::shared_bytes, stream), a);
    });
}

template <class G, int D, bool GROUPED, bool DOCUMENTS>
void launch_backward(const AttentionBackward<bf16, G>& a, cudaStream_t stream) {
    using Queries = MmaQueriesTile<D, GROUPED || DOCUMENTS>;
    using Keys = MmaKeysTile<D, GROUPED || DOCUMENTS>;
    dim3 query_grid(ceil_div(a.shape.Tq, Queries::queries), a.shape.NH, a.shape.B);
    launch(attention_backward_queries_mma<G, D, GROUPED, DOCUMENTS>,
           with_queries(backward_launch(a, query_grid, Queries::threads, Queries::shared_bytes, stream), a.shape, a.dq),
           a);
    dim3 key_grid(ceil_div(a.shape.Tk, Keys::keys), a.shape.kv_heads(), a.shape.B);
    launch(attention_backward_keys_mma<G, D, GROUPED, DOCUMENTS>,
           with_keys(backward_launch(a, key_grid, Keys::threads, Keys::shared_bytes, stream), a.shape, a.dk, a.dv), a);
}

template <class G, bool DOCUMENTS>
void launch_attention_backward_mma(const AttentionBackward<bf16, G>& a, cudaStream_t stream) {
    with_padded_head_size<DOCUMENTS>(a.shape.HS, [&](auto head_size) {
        if (a.shape.group > 1) return launch_backward<G, head_size(), true, DOCUMENTS>(a, stream);
        launch_backward<G, head_size(), false, DOCUMENTS>(a, stream);
    });
}
