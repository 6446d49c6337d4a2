// The self-check on a stand-in whose instructions are damaged one at a time.
#include "llmc/kernels/self_check.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "llmc/cuda_on_cpu/checks/test_device.h"
#include "llmc/cuda_on_cpu/ptx/left_out_testing.h"
#include "llmc/kernels/attention/attention_testing.h"
#include "llmc/kernels/ptx/ptx.cuh"

namespace {

struct Stream {
    Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    ~Stream() { cudaStreamDestroy(stream); }
    cudaStream_t stream = nullptr;
};

// Until its end, an instruction is wrong; what it has led to is undone.
struct Damaged {
    explicit Damaged(ptx_model::Damage what) { ptx_model::damage = what; }
    ~Damaged() {
        ptx_model::damage = ptx_model::Damage::none;
        use_tensor_cores(true);
    }
};

std::size_t naming(const std::vector<std::string>& sentences, const std::string& start) {
    return static_cast<std::size_t>(
        std::ranges::count_if(sentences, [&](const std::string& s) { return s.starts_with(start); }));
}

struct Folder {
    std::string path;
    Folder() {
        char name[] = "/tmp/self_check_XXXXXX";
        path = mkdtemp(name);
    }
    ~Folder() { std::filesystem::remove_all(path); }
    std::string content(const std::string& file) const {
        std::ifstream in(file);
        return {std::istreambuf_iterator<char>(in), {}};
    }
};

}   // namespace

TEST_CASE("self_check: a device whose instructions are right passes") {
    Stream device;
    CHECK(self_check(device.stream).empty());
}

TEST_CASE("self_check: an instruction that is wrong is named, alone among the instructions") {
    using ptx_model::Damage;
    Stream device;
    for (const auto& [damage, its_name] : {std::pair{Damage::ldmatrix, "ldmatrix_x4:"},
                                           {Damage::ldmatrix_transposed, "ldmatrix_x4_transposed:"},
                                           {Damage::mma, "mma_m16n8k16:"},
                                           {Damage::pack, "pack_bf16:"},
                                           {Damage::copy_4, "cp_async_4:"},
                                           {Damage::add_release, "add_release, load_acquire:"},
                                           {Damage::load_acquire, "add_release, load_acquire:"},
                                           {Damage::exp2, "exp2_approximate:"}}) {
        const std::string name = its_name;
        CAPTURE(name);
        const Damaged damaged(damage);
        const std::vector<std::string> found = self_check(device.stream);
        CHECK(naming(found, text("instruction ", name)) == 1);
        CHECK(naming(found, "instruction ") == 1);
    }
    const Damaged damaged(Damage::copy_16);   // which cp_async_wait is tried with
    CHECK(naming(self_check(device.stream), "instruction cp_async_16:") == 1);
}

TEST_CASE("self_check: tensor-core attention that is wrong is named by head size and tensor, both ways") {
    Stream device;
    const Damaged damaged(ptx_model::Damage::mma);
    const std::vector<std::string> found = self_check(device.stream);
    for (int HS : {32, 64, 80, 96, 128})
        for (const char* what : {"16-bit out", "32-bit out", "16-bit dq", "32-bit dk", "16-bit dv"})
            CHECK(naming(found, text("tensor-core attention, head size ", HS, ", ", what, ":")) == 1);
}

TEST_CASE(
    "self_check: what is of sm_90a alone is checked where it is asked for, and refused by name where it is wrong") {
    using ptx_model::Damage;
    Stream device;
    CHECK(sm90_attention_refusal() == "");
    for (const auto& [damage, its_name] : {std::pair{Damage::tma_load, "tma_load:"},
                                           {Damage::tma_store, "tma_store:"},
                                           {Damage::wgmma, "wgmma, both operands in shared memory:"},
                                           {Damage::wgmma_registers, "wgmma, one operand in registers:"}}) {
        const std::string name = its_name;
        CAPTURE(name);
        const Damaged damaged(damage);
        const std::vector<std::string> found = self_check_sm90(device.stream);
        CHECK(naming(found, text("instruction ", name)) == 1);
        CHECK(naming(found, text("sm_90a attention, head size 64, 16-bit out:")) == 1);
        if (damage == Damage::tma_store) continue;   // backward writes without it
        for (const char* what : {"32-bit dk", "16-bit dv", "grouped, 32-bit dk", "grouped, 16-bit dv"})
            CHECK(naming(found, text("sm_90a attention, head size 128, ", what, ":")) == 1);
        if (damage == Damage::wgmma_registers) continue;   // dq needs none
        CHECK(naming(found, "sm_90a attention, head size 128, 16-bit dq:") == 1);
    }
    const Damaged damaged(Damage::tma_store);
    CHECK(self_check(device.stream).empty());
    CHECK(sm90_attention_refusal().starts_with("self-check: instruction tma_store: "));
}

TEST_CASE("self_check: matmuls for sm_90a are compared with cuBLASLt's, and what differs is told") {
    Stream device;
    CHECK(matmul_disagreement(device.stream) == "");
    for (const ptx_model::Damage damage : {ptx_model::Damage::tma_load, ptx_model::Damage::wgmma}) {
        const Damaged damaged(damage);
        CHECK(matmul_disagreement(device.stream).starts_with("matmul of sm_90a, 192 channels, end 0: differs by "));
    }
}

TEST_CASE("self_check: an instruction that stops the device is named, with another attention to use") {
    host::TestDevice device(host::parse_checks("memory"));
    const host::WatchedCalls without_fences([](const char* instruction, const host::Site&) {
        return std::string_view(instruction) != "mbarrier_init_fence";
    });
    try {
        sm90_attention_refusal();
        FAIL("the fault was not told");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::no_device);
        CHECK(error.message().starts_with("self-check: instruction tma_load stops the device: "));
        CHECK(error.hint().starts_with("Use --attention library, or own, and"));
    }
    device->take_fault();
}

TEST_CASE("self_check: where something is wrong own attention of bf16 leaves tensor cores and is right again") {
    Stream device;
    const Damaged damaged(ptx_model::Damage::mma);
    CHECK(uses_tensor_cores());
    CHECK(!self_check_once("", device.stream).empty());
    CHECK(!uses_tensor_cores());
    for (int HS : {32, 80}) {
        check_attention<bf16, bf16>(own_attention_forward<bf16, bf16>, own_attention_backward<bf16, bf16>,
                                    self_attention_shape(1, 70, 2, HS), Layout::packed);
        check_attention<bf16, float>(own_attention_forward<bf16, float>, own_attention_backward<bf16, float>,
                                     self_attention_shape(1, 70, 2, HS), Layout::spaced);
    }
}

TEST_CASE("self_check: passing is noted in a file, for this program and device alone; failing is not") {
    Stream device;
    const Folder folder;
    const std::string file = folder.path + "/new/self_check";
    {
        const Damaged damaged(ptx_model::Damage::pack);
        CHECK(!self_check_once(file, device.stream).empty());
        CHECK(!std::filesystem::exists(file));
    }
    CHECK(self_check_once(file, device.stream).empty());
    const std::string noted = folder.content(file);
    CHECK(noted.starts_with("CPU"));
    const Damaged damaged(ptx_model::Damage::pack);
    CHECK(self_check_once(file, device.stream).empty());   // believed
    std::ofstream(file) << "another " << noted;
    CHECK(!self_check_once(file, device.stream).empty());
    CHECK(!self_check_once(folder.path + "/new/self_check/no folder", device.stream).empty());
}

TEST_CASE("self_check: a CPU is not checked at the start of a program") {
    Stream device;
    const Damaged damaged(ptx_model::Damage::pack);
    check_hardware(device.stream);
    CHECK(uses_tensor_cores());
}

TEST_CASE("self_check: the file is in the user's cache") {
    const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
    const std::string old_cache = cache ? cache : "", old_home = home ? home : "";
    setenv("HOME", "/somewhere", 1);
    setenv("XDG_CACHE_HOME", "", 1);
    CHECK(self_check_cache_file() == "/somewhere/.cache/train_gpt/self_check");
    setenv("XDG_CACHE_HOME", "/cache", 1);
    CHECK(self_check_cache_file() == "/cache/train_gpt/self_check");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    CHECK(self_check_cache_file() == "");
    if (cache) setenv("XDG_CACHE_HOME", old_cache.c_str(), 1);
    if (home) setenv("HOME", old_home.c_str(), 1);
}
