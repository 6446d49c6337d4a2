// Weights of a model: drawn, read from a file, or from the host.
#pragma once

#include <span>
#include <vector>

#include "llmc/model/families/weight_source.h"
#include "llmc/model/parameters/param_storage.h"
#include "llmc/model/precision.h"

// Draws the initial weights of whatever part of the model a state holds: a function of (seed, tensor, global element),
// so bit-equal under every layout. Padding becomes zero.
template <class T>
void initialize_parameters(const ModelState<T>& state, std::uint64_t seed, cudaStream_t stream);

// Uploads a tensor of any state from the host, as float in its global shape; `param` is an index of the table. Keeps
// what this rank owns of it (which may be nothing) and zeroes the padding.
template <class T>
void upload_tensor(const ModelState<T>& state, int param, std::span<const float> values, cudaStream_t stream);

// Reads whatever part of the model a state holds from a file (weight_source.h), rounded to nearest.
template <class T>
void load_parameters(const ModelState<T>& state, const WeightSource& source, cudaStream_t stream);
