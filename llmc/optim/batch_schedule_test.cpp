#include "llmc/optim/batch_schedule.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

TEST_CASE("batch schedule: values, sums and steps are those of a list of all steps") {
    const ByStep schedule(8, "--batch-schedule", "4:16,5:2,9:32");
    const std::int64_t by_hand[] = {8, 8, 8, 16, 2, 2, 2, 2, 32, 32, 32, 32};
    for (int after = 0; after <= 12; after++) {
        std::int64_t sum = 0;
        CHECK(schedule.sum(after, after) == 0);
        for (int step = after + 1; step <= 12; step++) {
            CHECK(schedule.at(step) == by_hand[step - 1]);
            sum += by_hand[step - 1];
            CHECK(schedule.sum(after, step) == sum);
            if (after > 0) continue;
            CHECK(schedule.steps_within(sum) == step);
            CHECK(schedule.steps_within(sum - 1) == step - 1);
        }
    }
    CHECK(schedule.largest() == 32);
    const ByStep from_first(8, "--seq-len-schedule", "1:2,3:4", 1);
    for (int step = 1; step <= 5; step++) CHECK(from_first.at(step) == (step < 3 ? 2 : 4));
    CHECK_THROWS_AS(ByStep(8, "--seq-len-schedule", "1:2,1:4", 1), Error);
    CHECK(ByStep(8, "--batch-schedule", "").at(1'000'000) == 8);
}

TEST_CASE("batch schedule: the learning rate follows the batch") {
    CHECK(lr_factor(LrScaling::linear, 4096, 1024) == 4.0f);
    CHECK(lr_factor(LrScaling::sqrt, 4096, 1024) == 2.0f);
    CHECK(lr_factor(LrScaling::sqrt, 1024, 4096) == 0.5f);
    CHECK(lr_factor(LrScaling::none, 4096, 1024) == 1.0f);
}

TEST_CASE("batch schedule: what is no schedule is refused") {
    for (const char* wrong : {"1:16", "0:16", "4", "4:", ":4", "4:0", "4:-8", "4:8:2", "4:8,", "4:8,4:16", "6:8,5:16",
                              "4:8 ", "4:8x", "4:9999999999999999999"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(ByStep(8, "--batch-schedule", wrong), Error);
    }
}
