// Whole layers under a ring, judged on the stand-in's virtual clock (llmc/cuda_on_cpu/clock/record.h): modelled, not
// measured. What is recorded is forward and backward of a small model; every cost is scaled to the modelled sizes.
#include <algorithm>

#include "dev/test/certificate/certificate_testing.h"
#include "llmc/cuda_on_cpu/clock/record.h"

#if defined(PRECISION_BF16)   // keys and values travel in bf16

using namespace certificate;

namespace {

constexpr double tokens = 8192, channels = 4096;   // per rank; a model like GPT-3 6.7B, one sequence of 8192 x cp
constexpr double matmul_flops = 700e12, attention_flops = 500e12, memory_bytes = 3e12, exchange_s = 5e-6;

struct Modelled {
    double seconds, of_links, ideal;   // of_links: communication takes no multiprocessors; ideal: nothing at all
    double share() const { return ideal / seconds; }
    double exposed() const { return 1 - ideal / of_links; }
};

// Moves fc's gradient of weights in every layer to right behind fcproj's, so that it does not wait for the ring. After
// the head's, each layer makes those of fcproj, fc, attproj and qkv.
void hurry(host::Recording& recording, std::size_t layers) {
    std::vector<std::size_t> made;
    for (std::size_t i = 0; i < recording.size(); i++) {
        const std::string& name = recording[i].name;
        if (name.find("weight gradient") != name.npos || name.find("weight + bias gradient") != name.npos)
            made.push_back(i);
    }
    ENSURE(made.size() == 1 + 4 * layers, made.size(), " gradients of weights");
    for (std::size_t layer = 0; layer < layers; layer++) {
        const auto at = [&](std::size_t i) { return recording.begin() + static_cast<std::ptrdiff_t>(i); };
        const std::size_t fcproj = made[1 + 4 * layer], fc = made[2 + 4 * layer];
        std::rotate(at(fcproj + 1), at(fc), at(fc + 1));
    }
}

Modelled layers_of_a_ring(int cp, double link_bytes_per_s, bool impatient = false) {
    Layout layout;
    layout.cp = cp, layout.seq_len = 48, layout.recompute = Recompute::none;
    std::vector<host::Recording> recordings(static_cast<std::size_t>(cp));
    double rows = 0;
    on_ranks(layout.mesh(), [&](TestRank& me) {
        TrainingGroups groups = training_groups(me.world);
        groups.zero = nullptr;   // layers alone: gradients are reduced once a step
        Rank rank(layout, me.world.at(), groups, &me.world);
        rank.gradients(1);
        CUDA_CHECK(cudaDeviceSynchronize());
        recordings[static_cast<std::size_t>(me.rank())] = host::record([&] { rank.gradients(2); });
        CUDA_CHECK(cudaDeviceSynchronize());
        if (impatient) hurry(recordings[static_cast<std::size_t>(me.rank())], static_cast<std::size_t>(layout.layers));
        if (me.rank() == 0) rows = rank.stage().tokens();
    });
    const double wider = channels / (16 * layout.heads), longer = tokens / rows;
    // 4 flops per channel and pair forward; every call has the pairs of half a square
    const double attention_s = 4 * channels * tokens * tokens / 2 / attention_flops;
    auto replay = [&](double seconds_per_byte, double seconds_per_exchange, bool charged) {
        host::CostModel costs;
        costs.seconds_per_exchanged_byte = seconds_per_byte * wider * longer;
        costs.seconds_per_exchange = seconds_per_exchange;
        costs.compute_seconds = [&](const host::RecordedStep& step) {
            if (step.name == "library attention forward") return attention_s;
            if (step.name == "library attention backward") return 2.5 * attention_s;
            return std::max(step.work.flops * longer * wider * wider / matmul_flops,
                            step.work.bytes * longer * wider / memory_bytes);
        };
        return host::replay(recordings, charged ? costs.charged() : costs).seconds;
    };
    return {replay(1 / link_bytes_per_s, exchange_s, true), replay(1 / link_bytes_per_s, exchange_s, false),
            replay(0, 0, false)};
}

}   // namespace

// What is lost are the multiprocessors of hops: 16 of 132, for the longer the more of the time is attention's.
TEST_CASE("ring: layers at 8k tokens per rank reach 98% of ideal on links like NVLink, 97.5% over 8 ranks, modelled") {
    for (int cp : {2, 4, 8}) {
        const Modelled fast = layers_of_a_ring(cp, 450e9), slow = layers_of_a_ring(cp, 12.5e9);
        MESSAGE("cp ", cp,
                ", modelled: 4096 channels, 8192 tokens a rank, matmuls at 700 and attention at 500 TFLOP/s, ",
                "3 TB/s of memory, 16 of 132 multiprocessors for communication: ", 100 * fast.share(),
                "% of ideal with links of 450 GB/s, ", 100 * fast.ideal / fast.of_links,
                "% if it took no multiprocessors, ", 100 * slow.share(), "% with 12.5 GB/s");
        CHECK(fast.share() >= (cp < 8 ? 0.98 : 0.975));
        CHECK(fast.exposed() < 0.001);
        CHECK(slow.share() < 0.5);
    }
}

TEST_CASE("ring: the last hop of dK and dV hides behind fc's gradient of weights too, modelled") {
    // 268 MB at 450 GB/s take 0.6 ms, attproj's gradient 0.4 ms, fc's 1.6 ms
    const Modelled ours = layers_of_a_ring(4, 450e9), impatient = layers_of_a_ring(4, 450e9, true);
    MESSAGE("modelled: ", 100 * ours.share(), "% of ideal, ", 100 * impatient.share(), "% where nothing is kept back");
    CHECK(ours.share() > impatient.share());
    CHECK(ours.exposed() < impatient.exposed() / 10);   // hidden or not, a hop takes the same multiprocessors
}

#endif
