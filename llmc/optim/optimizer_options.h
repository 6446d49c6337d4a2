// Options of the optimizer.
#pragma once

#include <cstdint>

#include "llmc/base/dtype.h"
#include "llmc/kernels/optim/newton_schulz.h"
#include "llmc/parallel/compression/grad_compression.h"

enum class OptimizerKind : std::uint8_t { adamw, muon, lamb, lars, sgd };   // llmc/kernels/optim/rules.cuh

// Factor by which Muon's orthogonal matrices move weights: Jordan's sqrt(max(1, out / in)), or 0.2 sqrt(max(out, in)),
// which moves them as AdamW does at the same rate (Liu et al., "Muon is scalable for LLM training", 2025).
enum class MuonScale : std::uint8_t { original, match_rms_adamw };

// Says what replicas send in an outer step: weights in fp32, or deltas (changes of weights since the last one) in
// blocks of 8 or 2 bits an element, or only the largest (compressed_average.h).
enum class OuterCompression : std::uint8_t { none, int8, int2_, topk };

// Local steps (Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023, algorithm
// 1): replicas update their own weights, and every so many steps, and after the run's last one, take an outer
// step together: by Nesterov's rule (llmc/kernels/optim/rules.cuh), from their last common weights towards their
// average. The model may take it in fragments, each in its turn, which arrive some steps after they left
// (llmc/optim/outer_step.h).
struct LocalSteps {
    int every = 0;   // steps; 0: replicas sum their gradients in every step
    float lr = 0.7f, momentum = 0.9f;
    OuterCompression compression = OuterCompression::none;
    float topk = 0.03f;   // fraction of each 1,024 deltas
    int fragments = 1;
    int delay = 0;     // steps that an outer step travels; fewer than `every`
    float blend = 0;   // the share of a replica's own weights in those that it goes on from

    bool has_flights() const { return delay > 0 || blend > 0; }
};

// Keeps the exact weights of bf16 parameters. none: nowhere, parameters are rounded stochastically. fp32: whole.
// compact: their lower 16 bits beside the parameter (llmc/kernels/optim/master_halves.cuh), the same weights to the
// bit.
enum class MasterWeights : std::uint8_t { none, fp32, compact };

struct OptimizerOptions {
    OptimizerKind optimizer = OptimizerKind::adamw;
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;   // beta1: also the momentum of lars and sgd
    float lars_trust = 1e-3f;
    float lr = 3e-4f;   // the highest; with muon only AdamW's parameters have it
    float muon_lr = 0.02f, muon_momentum = 0.95f;
    MuonCoefficients muon_coefficients = MuonCoefficients::quintic;
    MuonScale muon_scale = MuonScale::original;
    std::int64_t muon_batch_elements = 1 << 24;   // multiplied together at most
    float weight_decay = 0.0f;
    float grad_clip = 1.0f;   // largest norm of all gradients; 0: no clipping
    float ema = 0;            // decay of the average of weights; 0: none is kept
    LocalSteps local = {};
    GradCompressionOptions grad_compression = {};
    int staleness = 0;   // steps by which gradients are applied late: 0 or 1
    MasterWeights master_weights = MasterWeights::fp32;
    DType moments = DType::fp32;   // or bf16, rounded stochastically
    std::uint64_t seed = 42;       // seeds stochastic rounding, weights, sample order and samples

    bool has_replicas() const { return local.every > 0; }   // each updates weights of its own
};
