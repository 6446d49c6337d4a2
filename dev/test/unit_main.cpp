// Runs every unit test linked into this program. `--help` shows doctest's options, `-tc='name*'` picks tests.
//
// On a CPU the checks of llmc/host/checks.h are on, unless TRAIN_GPT_CHECKS says otherwise. Signals are left to
// llmc/host/fault.h, which names the device memory that was touched.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <doctest/doctest.h>

// Defined by the stand-in; null on a GPU, which has no such checks.
extern "C" __attribute__((weak)) void turn_on_device_checks();

int main(int argc, char** argv) {
    if (turn_on_device_checks) turn_on_device_checks();
    return doctest::Context(argc, argv).run();
}
