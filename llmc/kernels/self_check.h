// Checks the hardware: every instruction wrapper (ptx.cuh) and every tensor-core kernel against a plain kernel, on
// small shapes, at the first use of a type of device.
//
// Why: a kernel that could be tested only on models of the hardware must not train wrongly because a model is wrong.
// Each disagreement is named, and for the rest of the process own bf16 kernels run on fp32 multiply-adds
// (use_tensor_cores in attention.h), which are slow and plain.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <vector>

// Runs the check on the current device. Returns the disagreements, a sentence each; empty if there are none. Waits for
// the stream.
std::vector<std::string> self_check(cudaStream_t stream);

// Runs the check for the instructions of sm_90a and for attention made of them, on such a device. self_check leaves it
// out, though it is as short: kernels that have never run might not only be wrong but end the process, so it runs only
// when asked for.
std::vector<std::string> self_check_sm90(cudaStream_t stream);

// Compares the matmuls for sm_90a (matmul_hopper.h) with cuBLASLt's, on such a device, on a problem of more tiles than
// blocks, deeper than the ring and with tiles that are partly filled. Returns the first disagreement, a sentence; empty
// if there is none.
std::string matmul_disagreement(cudaStream_t stream);

// Runs self_check unless `cache_file` says that this program passed it on this type of device with this driver; falls
// back to fp32 multiply-adds if something disagrees. Only passing is recorded, and a file that cannot be written is no
// error ("": no file). Returns the disagreements.
std::vector<std::string> self_check_once(const std::string& cache_file, cudaStream_t stream);

// Returns the cache file's path, <$XDG_CACHE_HOME or ~/.cache>/train_gpt/self_check; "" if there is no home.
std::string self_check_cache_file();

// Runs self_check_once with that file at the start of a program, and prints a warning on stderr for each disagreement,
// from whichever rank finds it. Does nothing on a CPU, whose instructions are the models themselves.
void check_hardware(cudaStream_t stream);
