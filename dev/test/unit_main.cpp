// Runs every unit test linked into this program. `--help` shows doctest's options, `-tc='name*'` picks tests.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
