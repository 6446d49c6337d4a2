// Pinned host memory that cannot be had is not called memory of the device.
#include "llmc/base/pinned.h"

#include <doctest/doctest.h>

#include <string>

TEST_CASE("pinned: memory that cannot be had is named with its bytes and as the host's") {
    const std::size_t bytes = std::size_t{1} << 60;
    std::string message;
    try {
        PinnedBuffer<char> buffer(bytes);
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::no_device);
        message = error.what();
    }
    CHECK(message.find(text("no ", bytes, " bytes of pinned host memory")) != std::string::npos);
    CHECK(message.find("ulimit -l") != std::string::npos);
    CHECK(message.find("device") == std::string::npos);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(PinnedBuffer<int>(3).values().size() == 3);
}
