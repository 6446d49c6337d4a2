// The certificate over numbers of data-parallel ranks, ZeRO stages and micro-batches (certificate.h).
#include "llmc/train/certificate.h"

#include <doctest/doctest.h>

using namespace certificate;

namespace {

void certify(const Layout& layout, const Result& expected, int steps) {
    INFO(layout.name());
    if (layout.dp > most_local_ranks()) {
        MESSAGE("SKIPPED ", layout.name(), ": not that many GPUs");
        return;
    }
    CHECK(difference(train(layout, steps), expected, ParamTable(model())) == "");
}

}   // namespace

TEST_CASE("certificate: a sample of ranks x ZeRO x micro-batches") {
    const int steps = 20;
    const Result expected = train_alone(1, steps);
    CHECK(expected.losses.back() < expected.losses.front());
    for (const Layout& layout : {Layout{2, 0, 1}, Layout{3, 1, 4}, Layout{4, 2, 4}, Layout{2, 3, 4}}) {
        certify(layout, expected, steps);
    }
}
