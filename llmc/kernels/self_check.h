// Self-check of the hardware: every instruction wrapper (ptx.cuh) and every tensor-core kernel against a plain kernel,
// on small shapes, at the first use of a type of device.
//
// Why: a kernel that could be tested only on models of the hardware must not train wrongly because a model is wrong.
// What disagrees is named, and for the rest of the process own attention of bf16 runs on fp32 multiply-adds
// (use_tensor_cores in attention.h), which is slow and plain.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

// Runs the check on the current device. Returns what disagrees, a sentence each; empty: all is well. Waits for the
// stream.
std::vector<std::string> self_check(cudaStream_t stream);

// The same for the instructions of sm_90a and attention made of them, on such a device. Not part of the above, though as
// short: what has never run might not only be wrong but end the process, so only who asks for it runs it.
std::vector<std::string> self_check_sm90(cudaStream_t stream);

// The check where `cache_file` does not say that this program passed it on this type of device with this driver; then
// the fallback where something disagrees. Only passing is noted, and a file that cannot be written is no error ("": no
// file). Returns what disagrees.
std::vector<std::string> self_check_once(const std::string& cache_file, cudaStream_t stream);

// Where the user's programs keep such things: <$XDG_CACHE_HOME or ~/.cache>/train_gpt/self_check; "" where there is no
// home.
std::string self_check_cache_file();

// For the start of a program: self_check_once with that file, and a warning on stderr for each disagreement, from
// whichever rank finds it. Nothing on a CPU, whose instructions are the models themselves.
void check_hardware(cudaStream_t stream);
