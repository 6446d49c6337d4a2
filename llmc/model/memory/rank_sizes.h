// Sizes of a micro-batch and of the model's parts on one rank, by which all shapes are written.
#pragma once

#include <algorithm>
#include <cstdint>

#include "llmc/kernels/attention/attention.h"
#include "llmc/mesh/shard.h"
#include "llmc/model/config.h"

// Sizes of a micro-batch on one rank.
struct RankSizes {
    int B, T;                 // sequences, and tokens of each that this rank has
    int C;                    // channels of the residual stream
    int NH, KV, HS;           // query heads and KV heads of this rank, channels of a head
    int F;                    // channels of this rank inside the MLP
    int V, Vp;                // tokens of this rank's part of the vocabulary, without and with padding
    int first_token;          // first token of this rank's part of the vocabulary
    int residual_parts;       // ranks that share the rows of the residual region (tp_region.h)
    int ulysses;              // ranks that exchange heads for tokens (llmc/mesh/context_cut.h)
    ModelConfig model;        // the whole model
    int whole_T = 0;          // tokens of a whole sequence, of all cp ranks
    int ep = 1;               // ranks that share out the experts
    bool documents = false;   // attention is masked between the documents of a sequence
    bool fp8 = false;         // operands of matmuls are rounded to fp8 (StageChoices::matmul_dtype)

    bool slides() const { return model.window_cuts(whole_T); }   // some layers have a window that is shorter
    int rows() const { return B * T; }
    // Neighbours among these rows need not be neighbours in the sequence.
    int residual_rows() const { return rows() / residual_parts; }
    std::int64_t residual_elements() const { return std::int64_t{residual_rows()} * C; }
    // Shape of attention on this rank; with a ring, of the block of its own keys.
    AttentionShape attention() const {
        AttentionShape shape = self_attention_shape(B, T * ulysses, NH / ulysses, HS, true, NH / std::max(KV, ulysses));
        shape.masks_documents = documents || slides();
        return shape;
    }
    // Returns the most rows that this rank's experts may get.
    std::int64_t most_expert_rows() const {
        return std::int64_t{residual_rows()} * ep * std::min(model.experts_per_token(), model.experts / ep);
    }
    int fc_width() const { return static_cast<int>(model.hidden_width(F)); }
    int qkv_width() const { return (NH + 2 * KV) * HS; }
    // Width of q, k and v with the copies that Ulysses makes if it has more ranks than KV heads.
    int attended_width() const { return (NH + 2 * std::max(KV, ulysses)) * HS; }
};
// Returns the sizes on the rank `place`. `T`: tokens of a whole sequence, which cp ranks share evenly.
RankSizes rank_sizes(const ModelConfig& config, const RankLayout& place, bool sequence_parallel, int B, int T,
                     int ulysses = 1);
// Returns the number of which a single sequence's length must be a multiple: `cp` ranks share its tokens, and
// `residual_parts` tp ranks the rows of each.
int sequence_unit(int cp, int residual_parts);
// Throws Error(usage), naming the nearest values that work, if tp ranks cannot share a model of these sizes evenly.
void check_tensor_parallel(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, int B, int T);
