#include "llmc/optim/lr_schedule.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

TEST_CASE("schedule: warm-up rises to the full rate at its last step") {
    for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
        Schedule s{kind, 1e-3f, 10, 100, 0.1f};
        CHECK(learning_rate(s, 1) == doctest::Approx(1e-4));
        CHECK(learning_rate(s, 5) == doctest::Approx(5e-4));
        CHECK(learning_rate(s, 10) == doctest::Approx(1e-3));
        CHECK(learning_rate(s, 11) == doctest::Approx(1e-3));
    }
}

TEST_CASE("schedule: values of each kind, as llm.c computes them") {
    Schedule cosine{ScheduleKind::cosine, 1.0f, 0, 100, 0.1f};
    CHECK(learning_rate(cosine, 1) == 1.0f);
    CHECK(learning_rate(cosine, 51) == doctest::Approx(0.55));   // half way: the mean of 1 and 0.1
    CHECK(learning_rate(cosine, 26) == doctest::Approx(0.1 + 0.9 * 0.8535533906));
    CHECK(learning_rate(cosine, 100) == doctest::Approx(0.1 + 0.9 * 0.00024672));

    Schedule linear{ScheduleKind::linear, 1.0f, 20, 120, 0.0f};
    CHECK(learning_rate(linear, 21) == 1.0f);
    CHECK(learning_rate(linear, 71) == doctest::Approx(0.5));
    CHECK(learning_rate(linear, 120) == doctest::Approx(0.01));

    Schedule constant{ScheduleKind::constant, 1.0f, 20, 100, 0.0f};
    CHECK(learning_rate(constant, 1) == 1.0f);
    CHECK(learning_rate(constant, 100) == 1.0f);

    Schedule wsd{ScheduleKind::wsd, 1.0f, 10, 100, 0.0f};
    CHECK(learning_rate(wsd, 80) == 1.0f);
    CHECK(learning_rate(wsd, 81) == 1.0f);
    CHECK(learning_rate(wsd, 86) == doctest::Approx(0.5));   // a quarter of the decay: 1 - sqrt(1/4)
    CHECK(learning_rate(wsd, 100) == doctest::Approx(1 - 0.9746794));
}

TEST_CASE("schedule: never rises after the warm-up, never leaves its bounds") {
    for (ScheduleKind kind : {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::constant, ScheduleKind::wsd}) {
        for (int warmup : {0, 1, 7, 50, 99, 100}) {
            Schedule s{kind, 2e-3f, warmup, 100, 0.1f};
            float last = 2e-3f;
            for (int step = 1; step <= 100; step++) {
                float lr = learning_rate(s, step);
                CHECK(lr <= 2e-3f);
                CHECK(lr > 0);
                if (step > warmup) {
                    CHECK(lr <= last);
                    CHECK(lr >= 2e-4f);
                    last = lr;
                }
            }
        }
    }
    CHECK_THROWS_AS(learning_rate(Schedule{ScheduleKind::cosine, 1.0f, 0, 10, 1.0f}, 11), Error);
}
