#include "llmc/cuda_on_cpu/checks/checks.h"

#include <doctest/doctest.h>

#include "llmc/base/error.h"

TEST_CASE("checks: a list switches on what it names") {
    host::Checks checks = host::parse_checks("memory,order:42");
    CHECK(checks.memory);
    CHECK(checks.random_order);
    CHECK(checks.order_seed == 42);
    CHECK_FALSE(checks.poison);
    CHECK_FALSE((checks.races || checks.gpu_shape));
    CHECK(host::parse_checks("shape").gpu_shape);
    checks = host::parse_checks("all,order:7");
    CHECK((checks.memory && checks.poison && checks.races && checks.random_order && checks.gpu_shape));
    CHECK(checks.order_seed == 7);
    checks = host::parse_checks("none", checks);
    CHECK_FALSE((checks.memory || checks.poison || checks.races || checks.random_order || checks.gpu_shape));
    CHECK_FALSE(host::parse_checks("").memory);
}

TEST_CASE("checks: unknown words and misplaced values are refused by name") {
    CHECK_THROWS_WITH_AS(host::parse_checks("memory,rases"), doctest::Contains("'rases'"), Error);
    CHECK_THROWS_WITH_AS(host::parse_checks("memory:1"), doctest::Contains("memory:1"), Error);
    CHECK_THROWS_WITH_AS(host::parse_checks("order:x"), doctest::Contains("order:x"), Error);
    CHECK_THROWS_WITH_AS(host::parse_checks("order:-1"), doctest::Contains("order:-1"), Error);
}
