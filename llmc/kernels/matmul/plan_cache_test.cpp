#include "llmc/kernels/matmul/plan_cache.h"

#include <doctest/doctest.h>

#include <string>

TEST_CASE("plan_cache: a plan is built once per key") {
    PlanCache<int, std::string> cache;
    int builds = 0;
    auto plan = [&](int key) -> const std::string& {
        return cache.get(key, [&] {
            builds++;
            return "plan " + std::to_string(key);
        });
    };
    const std::string* first = &plan(1);
    CHECK(*first == "plan 1");
    CHECK(plan(2) == "plan 2");
    CHECK(&plan(1) == first);   // not moved by another plan
    CHECK(builds == 2);
}

TEST_CASE("plan_cache: a refusal is kept and told each time; another error is not kept") {
    PlanCache<int, std::string> cache;
    int builds = 0;
    auto fail = [&](ErrorKind kind) {
        return cache.get(1, [&]() -> std::string {
            builds++;
            throw Error(kind, "no engine");
        });
    };
    CHECK_THROWS_WITH_AS(fail(ErrorKind::bug), "no engine", Error);
    CHECK_THROWS_WITH_AS(fail(ErrorKind::no_device), "no engine", Error);
    CHECK_THROWS_WITH_AS(fail(ErrorKind::no_device), "no engine", Error);
    CHECK(builds == 2);
}
