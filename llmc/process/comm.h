// Collectives over a group of ranks: NCCL, with names, checked sizes and counted bytes.
//
// A Communicator is one rank's end of one group (the world, or the dp, tp, ... group of the mesh). All calls are queued
// on a stream, in the order in which the host makes them, which must be the same on every rank of the group.
//
// Element types are those of the buffers; a sum is made in that type by NCCL, so what must be exact is sent as fp32.
// The stand-in adds bf16 in fp32 and rounds once. Every call says by its buffer type in which type it reduces.
//
// Results are the same bits every time: in-switch reductions (NVLS), which NCCL does not promise that of, are turned
// off unless the environment sets NCCL_NVLS_ENABLE (not run on a GPU). Operations of several communicators are launched
// in the order of the host's calls (NCCL_LAUNCH_ORDER_IMPLICIT); that all ranks' orders fit together is checked by
// --check-collectives (collective_order.h).
//
// Traffic is counted logically, where the call is made, as bytes that a rank must send in the best algorithm with
// n ranks and f = (n - 1) / n: all-reduce 2fB, reduce-scatter and all-gather fB (B: bytes of the whole buffer),
// broadcast (n - 1) B by its root, for all whom it reaches, reduce B by all but the root, sends their bytes. The
// stand-in or NCCL may move more.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/base/check.h"
#include "llmc/base/dtype.h"
#include "llmc/base/stream.h"
#include "llmc/process/watchdog/collective_order.h"

void nccl_check(ncclResult_t status, const char* call, const char* file, int line);
#define NCCL_CHECK(call) nccl_check((call), #call, __FILE__, __LINE__)

enum class ReduceOp : std::uint8_t { sum, max };

// A group's name as records and plans have it: all links of a pipeline are `pp`.
inline std::string short_group_name(const std::string& name) { return name.starts_with("pp ") ? "pp" : name; }

// Logical bytes this rank has sent, by kind of call.
struct Traffic {
    double all_reduce = 0, reduce_scatter = 0, all_gather = 0, reduce = 0, broadcast = 0, point_to_point = 0;
    double total() const { return all_reduce + reduce_scatter + all_gather + reduce + broadcast + point_to_point; }
};

// A rank's progress, for the watchdog: the last operation it issued, and its number in this communicator.
struct CommProgress {
    std::uint64_t issued = 0;           // operations issued
    std::uint64_t of_all = 0;           // operations issued that all ranks of the group take part in
    std::uint64_t done = 0;             // operations issued that the host knows to be finished
    const char* operation = "";         // the last one issued; a literal
    std::uint64_t issued_at = 0;        // its time, in nanoseconds of a steady clock
    const char* local_work = nullptr;   // local work that this rank does now while others may wait for it; a literal
    int micro_batch = -1, chunk = -1;   // belong to the last operation, where about() named them
};

// One call, as a tap sees it. `in` and `out` are device memory of `type`; `count` elements of `in`, or of `out` where
// there is no `in` (receive). A send has no `out`.
struct CommCall {
    const char* operation;
    const void* in;
    void* out;
    std::size_t count;
    ncclDataType_t type;
    cudaStream_t stream;
};

class Communicator {
public:
    // Makes the first communicator of the program. Collective over all ranks, which agree on `id` (make_unique_id on
    // one of them). `multiprocessors`: the most that its operations take (NCCL's CTAs); 0: as NCCL chooses.
    Communicator(const ncclUniqueId& id, int rank, int ranks, std::string name, int multiprocessors = 0);
    // Splits `parent` into groups of the ranks that give the same color, ordered by key. Collective over the parent; a
    // rank that belongs to no group gives color -1 and gets a communicator of size 0, on which nothing may be called.
    Communicator(const Communicator& parent, int color, int key, std::string name, int multiprocessors = 0);
    // Makes one end of a group that is only planned: it has a rank, a size and traffic counts, but on a GPU nothing can
    // be called on it; the stand-in notes calls on a device that only records (llmc/cuda_on_cpu/clock/record.h). `id`:
    // the same for all ranks of the group, and for no other group.
    Communicator(int rank, int ranks, std::uint64_t id, std::string name, int multiprocessors = 0);
    ~Communicator();
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    static ncclUniqueId make_unique_id();

    int rank() const { return rank_; }
    int size() const { return size_; }
    const std::string& name() const { return name_; }
    const Traffic& traffic() const { return traffic_; }
    void reset_traffic() { traffic_ = {}; }
    CommProgress progress() const {
        return {issued_, of_all_, done_, operation_, issued_at_, local_work_, micro_batch_, chunk_};
    }   // from any thread
    // Names what the next operation is about, for the watchdog.
    void about(int micro_batch, int chunk) { micro_batch_ = micro_batch, chunk_ = chunk; }
    // Called before the host waits for all operations issued so far, and after it has waited.
    void note_waiting() { waited_for_ = issued_.load(); }
    void note_done() { done_ = waited_for_; }
    void note_all_done() { done_ = issued_.load(); }

    // Reduces data[i] over all ranks, in place. Counts are elements.
    template <class T>
    void all_reduce(T* data, std::size_t count, ReduceOp op, cudaStream_t stream);
    // `out` (count) = this rank's piece of the sum of all ranks' `in` (count x size). `out` may be in + rank x count.
    template <class T>
    void reduce_scatter(T* out, const T* in, std::size_t count, cudaStream_t stream);
    // `out` (count x size) = all ranks' `in` (count) in rank order. `in` may be out + rank x count.
    template <class T>
    void all_gather(T* out, const T* in, std::size_t count, cudaStream_t stream);
    // Reduces data[i] over all ranks into the root's data; the others' data stay as they are.
    template <class T>
    void reduce(T* data, std::size_t count, int root, cudaStream_t stream);
    template <class T>
    void broadcast(T* data, std::size_t count, int root, cudaStream_t stream);
    // Several sends and receives that must go on together stand inside a Group.
    template <class T>
    void send(const T* data, std::size_t count, int peer, cudaStream_t stream);
    template <class T>
    void receive(T* data, std::size_t count, int peer, cudaStream_t stream);
    // `out` and `in` (count x size): piece r of `in` goes to rank r.
    template <class T>
    void all_to_all(T* out, const T* in, std::size_t count, cudaStream_t stream);

    // While one lives, this rank works locally for any length of time and the others may wait for it: the watchdog sees
    // no stall. It issues nothing on the communicator meanwhile. `what`: a literal.
    class LocalWork {
    public:
        LocalWork(Communicator* group, const char* what) : group_(group) { set(what); }   // null: nobody waits
        ~LocalWork() { set(nullptr); }
        LocalWork(const LocalWork&) = delete;
        LocalWork& operator=(const LocalWork&) = delete;

    private:
        void set(const char* what) const {
            if (group_ != nullptr) group_->local_work_ = what;
        }
        Communicator* group_;
    };

    // Calls made while a Group lives are started together when it ends.
    class Group {
    public:
        // `any`: one of the communicators that are called in the group.
        explicit Group(const Communicator& any) : exceptions_(std::uncaught_exceptions()), log_(any.log_) {
            NCCL_CHECK(ncclGroupStart());
            if (stream_observer != nullptr) stream_observer->begin();
            if (log_ != nullptr) log_->begin_group();
        }
        ~Group() noexcept(false) {
            if (log_ != nullptr) log_->end_group();
            const ncclResult_t result = ncclGroupEnd();
            if (std::uncaught_exceptions() != exceptions_) return;   // another error is on its way
            NCCL_CHECK(result);
            if (stream_observer != nullptr) stream_observer->end();
        }
        Group(const Group&) = delete;
        Group& operator=(const Group&) = delete;

    private:
        int exceptions_;
        CollectiveLog* log_;
    };

    // For tests that show what wrong communication does: `tap` is given every call and makes it itself, as it is, with
    // other memory, or not at all.
    using Make = std::function<void(const CommCall& call)>;
    using Tap = std::function<void(const CommCall& call, const Make& make)>;
    void set_tap(Tap tap) { tap_ = std::move(tap); }

    // Returns "", or what has gone wrong in the background, in words (a lost rank, a broken network). Callable from any
    // thread.
    std::string failure() const;
    // Logs every call from now on into `log`, which must outlive it (collective_order.h). `members`: the world ranks of
    // this group.
    void log_into(CollectiveLog& log, std::vector<int> members) {
        log_ = &log;
        members_ = std::move(members);
        sent_.assign(members_.size(), 0);
        received_.assign(members_.size(), 0);
    }

private:
    void count(const char* operation, double Traffic::*kind, double bytes);
    void log(std::size_t count, ncclDataType_t type, const std::string& more = "");
    void log_transfer(std::size_t count, ncclDataType_t type, int from, int to);
    void make(const CommCall& call, const Make& make_it) const;

    ncclComm_t comm_ = nullptr;
    int rank_ = 0, size_ = 0;
    std::string name_;
    Traffic traffic_;
    Tap tap_;
    std::atomic<std::uint64_t> issued_ = 0, of_all_ = 0, done_ = 0, issued_at_ = 0;
    std::uint64_t waited_for_ = 0;
    std::atomic<const char*> operation_ = "";
    std::atomic<const char*> local_work_ = nullptr;
    std::atomic<int> micro_batch_ = -1, chunk_ = -1;
    CollectiveLog* log_ = nullptr;
    std::vector<int> members_;
    // Numbers of the calls logged so far: collectives, and transfers to and from each rank.
    std::uint64_t collectives_ = 0;
    std::vector<std::uint64_t> sent_, received_;
};
