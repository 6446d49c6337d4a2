// The peak of an unknown device is measured in what room the model has left.
#include "llmc/base/stream.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/run/metrics/peak.h"

#include <doctest/doctest.h>

TEST_CASE("peak: measured on a device that is nearly full") {
    host::TestDevice device(host::parse_checks("memory"));
    Arena arena;
    const OwnedStream stream;
    Matmul matmul(arena, MatmulOptions{.workspace_bytes = 1 << 16});
    device->memory.set_bytes_total(arena.bytes() + (2 << 20));   // three matrices of 768 x 768 do not fit
    const PeakFlops peak = peak_flops("a device that nobody knows", false, matmul, stream.get());
    CHECK(peak.measured);
    CHECK(peak.per_second > 0);
}
