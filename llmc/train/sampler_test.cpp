#include "llmc/train/sampler.h"

#include <doctest/doctest.h>

TEST_CASE("sampler: control characters are not sent to the terminal") {
    CHECK(printable("a\tb\nc\x1b[2J\x7f\xc3\xa9") == "a\tb\nc?[2J?\xc3\xa9");
}
