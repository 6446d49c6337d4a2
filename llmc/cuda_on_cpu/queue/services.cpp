// Serves what the program asks of the stand-in beyond CUDA and NCCL (llmc/base/stand_in.h).
#include "llmc/cuda_on_cpu/queue/services.h"

#include <algorithm>
#include <cstdlib>

#include "llmc/base/error.h"
#include "llmc/base/limits/usable_cores.h"
#include "llmc/cuda_on_cpu/clock/trace.h"
#include "llmc/cuda_on_cpu/exec/thread_pool.h"
#include "llmc/cuda_on_cpu/nccl/planned.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace host {
namespace {

class Services : public StandIn {
public:
    void name_memory(const void* address, const char* name) override { device().memory.name(address, name); }
    const MemoryLimits& memory_limits() override { return device().memory.limits(); }

    void share_machine(double stall_seconds) override {
        Checks now = checks();
        now.no_progress_seconds = std::max(now.no_progress_seconds, stall_seconds);
        set_checks(now);
    }
    void share_cores(const std::vector<std::string>& masks) override {
        ranks_here_ = std::max(1, static_cast<int>(masks.size()));
        if (threads_of_environment()) return;
        const double quota = usable_cores().quota;   // taken for that of all ranks
        const int share = share_of_cores(core_mask(), masks);
        set_thread_count(quota > 0 ? std::clamp(static_cast<int>(quota / ranks_here_), 1, share) : share);
    }
    std::string threads() override {
        return text(thread_count(), " a rank", threads_of_environment() ? " by TRAIN_GPT_THREADS" : "", ", ",
                    ranks_here_, " rank(s) on this machine; this one has ", usable_cores().words());
    }
    void on_own_device(const std::function<void()>& body) override {
        Device own;
        BindDevice bind(own);
        body();
        own.take_fault();   // reported to the body already, and to nobody else
    }
    ncclComm* planned_communicator(int rank, int ranks, std::uint64_t id, const char* name,
                                   int multiprocessors) override {
        return host::planned_communicator(rank, ranks, id, name, multiprocessors);
    }

    void turn_on_checks() override {
        if (!std::getenv("TRAIN_GPT_CHECKS")) set_checks(parse_checks("all", checks()));
    }
    std::string take_fault() override { return host::take_fault(); }

    void on_dry_device(const std::function<void()>& body) override {
        Device dry(true);
        BindDevice bind(dry);
        body();
    }
    Recording record(const std::function<void()>& program) override { return host::record(program); }
    std::string record_text(const std::function<void()>& program) override { return to_text(host::record(program)); }
    std::string trace(const std::vector<std::string>& recordings) override {
        std::vector<Recording> ranks;
        for (const std::string& recording : recordings) ranks.push_back(recording_from(recording));
        return chrome_trace(ranks, trace_machine());
    }

private:
    int ranks_here_ = 1;
};

}   // namespace

StandIn& services() {
    static Services all;
    return all;
}

}   // namespace host
