// The embedding: out[b,t,:] = wte[token[b,t],:] + wpe[position of t,:], and its backward pass.
//
// Backward is deterministic: the batch's tokens are grouped on the host (token_groups.h), so that one block owns a row of
// dwte and adds its positions in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include "llmc/base/dtype.h"
#include "llmc/kernels/token_groups.h"

// Which positions of the sequence the T local tokens are: first, first + 1, ... unless `list` names each of them
// (context parallelism gives a rank two separate pieces).
struct Positions {
    int first = 0;
    const int* list = nullptr;   // (T) on the device, or null
};

template <class Real>
struct EncoderForward {
    Real* out;            // (B, T, C)
    const int* tokens;    // (B, T)
    const Real* wte;      // (V, C): rows of the tokens first_token .. first_token + V - 1
    const Real* wpe;      // (positions, C), or null to add none
    int B, T, C, V;
    int first_token = 0;   // tokens outside wte's rows count as a row of zeros (vocabulary parallelism)
    Positions positions = {};
};

template <class Real>
void encoder_forward(const EncoderForward<Real>& args, cudaStream_t stream);

// dwte's rows of the tokens that occur are ADDED to, in fp32, rounded once; other rows are untouched. (The tied
// classifier's matmul writes dwte first; where nothing does, zero it first.)
// dwpe is overwritten whole (rows of other positions become zero), or added to when `accumulate_wpe`.
template <class Real, class Grad>
struct EncoderBackward {
    Grad* dwte;               // (V, C)
    Grad* dwpe;               // (max_positions, C), or null to leave out
    const Real* dout;         // (B, T, C)
    TokenGroupsView groups;   // of the same tokens, on the device
    int B, T, C, V, max_positions;
    bool accumulate_wpe;
    int first_token = 0;
    Positions positions = {};
};

template <class Real, class Grad>
void encoder_backward(const EncoderBackward<Real, Grad>& args, cudaStream_t stream);
