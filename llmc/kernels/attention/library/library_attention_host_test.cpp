#include <doctest/doctest.h>

#include "llmc/cuda_on_cpu/blas/attention_workspace.h"
#include "llmc/kernels/attention/library/library_attention.h"

TEST_CASE("library_attention: a workspace that the library asks for is reported") {
    const AttentionShape shape = self_attention_shape(2, 128, 2, 64);
    CHECK(LibraryAttention::workspace_bytes<bf16>(shape) == 0);
    host::attention_workspace_bytes = 4096;
    CHECK(LibraryAttention::workspace_bytes<bf16>(shape) == 4096);
    host::attention_workspace_bytes = 0;
}
