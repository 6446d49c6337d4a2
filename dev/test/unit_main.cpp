// Runs every unit test linked into this program. `--help` shows doctest's options, `-tc='name*'` picks tests.
//
// On a CPU the checks of llmc/cuda_on_cpu/checks/checks.h are on, unless TRAIN_GPT_CHECKS says otherwise; a test that
// leaves the device with a fault has failed, and the next one starts without it. A GPU keeps a fault for ever: there
// the program ends, so that the test is named which has left it, and no other fails for it. Signals are left to
// llmc/cuda_on_cpu/memory/fault.h, which names the device memory that was touched.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>

#include "llmc/base/stand_in.h"
#include "llmc/io/standard_descriptors.h"

namespace {

int tests_that_left_a_fault = 0;

// Hears of the end of every test case, beside the reporter that prints.
struct FaultListener : doctest::IReporter {
    explicit FaultListener(const doctest::ContextOptions&) {}
    void test_case_start(const doctest::TestCaseData& test) override { name_ = test.m_name; }
    void test_case_reenter(const doctest::TestCaseData&) override { look(); }
    void test_case_end(const doctest::CurrentTestCaseStats&) override { look(); }

    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats&) override {}
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}

private:
    void look() {
        const cudaError_t status = stand_in() ? cudaSuccess : cudaDeviceSynchronize();
        std::string fault = stand_in() ? stand_in()->take_fault() : "";
        if (status != cudaSuccess) fault = cudaGetErrorString(status);
        if (fault.empty()) return;
        tests_that_left_a_fault++;
        std::cout << "ERROR: test case '" << name_ << "' left the device with a fault: " << fault << std::endl;
        if (status == cudaSuccess) return;
        std::cout << "The tests after it have not run." << std::endl;
        std::_Exit(1);
    }
    const char* name_ = "";
};
DOCTEST_REGISTER_LISTENER("faults", 1, FaultListener);

}   // namespace

int main(int argc, char** argv) {
    open_standard_descriptors();
    if (stand_in()) stand_in()->turn_on_checks();   // a GPU has none
    const int failed = doctest::Context(argc, argv).run();
    if (tests_that_left_a_fault > 0) std::cout << tests_that_left_a_fault << " tests left the device with a fault\n";
    return failed || tests_that_left_a_fault > 0;
}
