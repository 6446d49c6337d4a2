// The stand-in's NCCL, each rank a thread with a device of its own.
#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "llmc/cuda_on_cpu/checks/checks.h"
#include "llmc/cuda_on_cpu/nccl/reduce.h"
#include "llmc/cuda_on_cpu/queue/device.h"

namespace {

// Communicator, stream and memory of a rank. Failed requirements are thrown and end up in the test that started the
// ranks.
struct Rank {
    int rank, ranks;
    ncclComm_t world;
    cudaStream_t stream;
    std::vector<void*> allocations;

    template <class T>
    T* device_copy(const std::vector<T>& values) {
        void* pointer = nullptr;
        require(cudaMalloc(&pointer, std::max<std::size_t>(values.size(), 1) * sizeof(T)) == cudaSuccess, "cudaMalloc");
        allocations.push_back(pointer);
        cudaMemcpyAsync(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream);
        return static_cast<T*>(pointer);
    }
    template <class T>
    std::vector<T> host_copy(const T* pointer, std::size_t count) {
        std::vector<T> values(count);
        cudaError_t error = cudaMemcpyAsync(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost, stream);
        require(error == cudaSuccess, cudaGetErrorString(error));
        return values;
    }
    static void require(bool condition, const std::string& what) {
        if (!condition) throw std::runtime_error(what);
    }
    static void require(ncclResult_t result, const char* what) {
        if (result != ncclSuccess) throw std::runtime_error(std::string(what) + ": " + ncclGetLastError(nullptr));
    }
};

// Runs `body` on `ranks` threads; returns what each threw ("" for nothing).
std::vector<std::string> on_ranks(int ranks, const std::function<void(Rank&)>& body) {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; r++) {
        threads.emplace_back([&, r] {
            host::Device device;
            host::BindDevice bind(device);
            Rank rank{r, ranks, nullptr, nullptr, {}};
            try {
                Rank::require(ncclCommInitRank(&rank.world, ranks, id, r), "init");
                cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking);
                body(rank);
            } catch (const std::exception& error) {
                errors[static_cast<std::size_t>(r)] = error.what();
            }
            device.take_fault();
            if (rank.world) ncclCommDestroy(rank.world);
            for (void* p : rank.allocations) cudaFree(p);
            if (rank.stream) cudaStreamDestroy(rank.stream);
        });
    }
    for (std::thread& t : threads) t.join();
    return errors;
}

void all_well(const std::vector<std::string>& errors) {
    for (std::size_t r = 0; r < errors.size(); r++) {
        INFO("rank ", r);
        CHECK(errors[r] == "");
    }
}

// Element i of rank r's contribution; sums are exact in fp32.
float value(int rank, std::size_t i) { return static_cast<float>((rank + 1) * 3 + static_cast<int>(i % 17)); }
std::vector<float> values(int rank, std::size_t count) {
    std::vector<float> v(count);
    for (std::size_t i = 0; i < count; i++) v[i] = value(rank, i);
    return v;
}
float sum_of_values(int ranks, std::size_t i) {
    float sum = 0;
    for (int r = 0; r < ranks; r++) sum += value(r, i);
    return sum;
}

}   // namespace

TEST_CASE("nccl: all-reduce, sizes that ranks do not divide, in place and not") {
    for (int ranks : {1, 2, 3, 5}) {
        all_well(on_ranks(ranks, [](Rank& me) {
            for (std::size_t count :
                 {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{1000}, std::size_t{70001}}) {
                float* in = me.device_copy(values(me.rank, count));
                float* out = me.device_copy(std::vector<float>(count));
                me.require(ncclAllReduce(in, out, count, ncclFloat32, ncclSum, me.world, me.stream), "all-reduce");
                me.require(ncclAllReduce(in, in, count, ncclFloat32, ncclMax, me.world, me.stream), "all-reduce");
                std::vector<float> sum = me.host_copy(out, count), max = me.host_copy(in, count);
                for (std::size_t i = 0; i < count; i++) {
                    me.require(sum[i] == sum_of_values(me.ranks, i), "sum of element " + std::to_string(i));
                    me.require(max[i] == value(me.ranks - 1, i), "max of element " + std::to_string(i));
                }
            }
        }));
    }
}

TEST_CASE("nccl: reduce-scatter and all-gather, in place and not") {
    for (int ranks : {1, 2, 4}) {
        all_well(on_ranks(ranks, [](Rank& me) {
            const std::size_t n = 777, all = n * static_cast<std::size_t>(me.ranks),
                              own = n * static_cast<std::size_t>(me.rank);
            float* in = me.device_copy(values(me.rank, all));
            float* out = me.device_copy(std::vector<float>(n));
            me.require(ncclReduceScatter(in, out, n, ncclFloat32, ncclSum, me.world, me.stream), "reduce-scatter");
            me.require(ncclReduceScatter(in, in + own, n, ncclFloat32, ncclSum, me.world, me.stream), "in place");
            std::vector<float> piece = me.host_copy(out, n), in_place = me.host_copy(in + own, n);
            for (std::size_t i = 0; i < n; i++) {
                me.require(piece[i] == sum_of_values(me.ranks, own + i) && in_place[i] == piece[i], "piece");
            }
            float* gathered = me.device_copy(std::vector<float>(all));
            me.require(ncclAllGather(out, gathered, n, ncclFloat32, me.world, me.stream), "all-gather");
            me.require(ncclAllGather(in + own, in, n, ncclFloat32, me.world, me.stream), "in place");
            std::vector<float> whole = me.host_copy(gathered, all), whole_in_place = me.host_copy(in, all);
            for (std::size_t i = 0; i < all; i++) {
                me.require(whole[i] == sum_of_values(me.ranks, i) && whole_in_place[i] == whole[i], "gathered");
            }
        }));
    }
}

TEST_CASE("nccl: broadcast and reduce from and to every root") {
    all_well(on_ranks(3, [](Rank& me) {
        for (int root = 0; root < me.ranks; root++) {
            float* in = me.device_copy(values(me.rank, 100));
            float* out = me.device_copy(std::vector<float>(100, -1.0f));
            me.require(ncclBroadcast(in, out, 100, ncclFloat32, root, me.world, me.stream), "broadcast");
            me.require(me.host_copy(out, 100) == values(root, 100), "broadcast values");
            me.require(ncclReduce(in, out, 100, ncclFloat32, ncclMin, root, me.world, me.stream), "reduce");
            me.require(me.host_copy(out, 100) == (me.rank == root ? values(0, 100) : values(root, 100)),
                       "reduce values");
        }
    }));
}

TEST_CASE("nccl: bf16 sums are rounded once, in rank order, the same on all ranks") {
    all_well(on_ranks(3, [](Rank& me) {
        // 1 + 2^-8 + 2^-8: added one by one in bf16 every half step would be lost
        const std::uint16_t one = 0x3f80, small = 0x3b80;   // 1 and 2^-8
        std::uint16_t* x = me.device_copy(std::vector<std::uint16_t>(9, me.rank == 0 ? one : small));
        me.require(ncclAllReduce(x, x, 9, ncclBfloat16, ncclSum, me.world, me.stream), "all-reduce");
        me.require(me.host_copy(x, 9) == std::vector<std::uint16_t>(9, 0x3f81), "1 + 2^-7");
    }));
}

TEST_CASE("nccl: a group of sends and receives is an all-to-all; a rank may send to itself") {
    all_well(on_ranks(4, [](Rank& me) {
        std::vector<int> mine;
        for (int r = 0; r < me.ranks; r++) mine.push_back(10 * me.rank + r);
        int* in = me.device_copy(mine);
        int* out = me.device_copy(std::vector<int>(4));
        ncclGroupStart();
        for (int r = 0; r < me.ranks; r++) {
            me.require(ncclSend(in + r, 1, ncclInt32, r, me.world, me.stream), "send");
            me.require(ncclRecv(out + r, 1, ncclInt32, r, me.world, me.stream), "receive");
        }
        me.require(ncclGroupEnd(), "group");
        std::vector<int> got = me.host_copy(out, 4);
        for (int r = 0; r < me.ranks; r++)
            me.require(got[static_cast<std::size_t>(r)] == 10 * r + me.rank, "all-to-all");
    }));
}

TEST_CASE("nccl: two communicators on two streams may be used in opposite orders") {
    all_well(on_ranks(2, [](Rank& me) {
        ncclComm_t second = nullptr;
        me.require(ncclCommSplit(me.world, 0, me.rank, &second, nullptr), "split");
        cudaStream_t other;
        cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
        float* a = me.device_copy(values(me.rank, 1000));
        float* b = me.device_copy(values(me.rank, 1000));
        cudaStreamSynchronize(me.stream);
        for (int turn = 0; turn < 2; turn++) {
            const bool first = (turn == 0) == (me.rank == 0);
            me.require(ncclAllReduce(first ? a : b, first ? a : b, 1000, ncclFloat32, ncclSum,
                                     first ? me.world : second, first ? me.stream : other),
                       "all-reduce");
        }
        cudaStreamSynchronize(other);
        me.require(me.host_copy(a, 1000)[5] == sum_of_values(2, 5), "first");
        me.require(me.host_copy(b, 1000)[5] == sum_of_values(2, 5), "second");
        cudaStreamDestroy(other);
        ncclCommDestroy(second);
    }));
}

TEST_CASE("nccl: operations of one communicator run one after another, whatever their streams and peers") {
    all_well(on_ranks(3, [](Rank& me) {
        float* x = me.device_copy(values(me.rank, 2));
        cudaStreamSynchronize(me.stream);
        if (me.rank > 0) {   // rank 1 comes late, rank 2 at once
            if (me.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
            me.require(ncclRecv(x, 1, ncclFloat32, 0, me.world, me.stream), "receive");
            me.require(me.host_copy(x, 1)[0] == value(0, static_cast<std::size_t>(me.rank) - 1), "value");
            return;
        }
        cudaStream_t other;
        cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
        cudaEvent_t first_done, second_done;
        cudaEventCreateWithFlags(&first_done, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&second_done, cudaEventDisableTiming);
        me.require(ncclSend(x, 1, ncclFloat32, 1, me.world, me.stream), "send");
        cudaEventRecord(first_done, me.stream);
        me.require(ncclSend(x + 1, 1, ncclFloat32, 2, me.world, other), "send");
        cudaEventRecord(second_done, other);
        me.require(cudaEventSynchronize(second_done) == cudaSuccess, "second");
        me.require(cudaEventQuery(first_done) == cudaSuccess, "the second has overtaken the first");
        cudaEventDestroy(first_done);
        cudaEventDestroy(second_done);
        cudaStreamDestroy(other);
    }));
}

TEST_CASE("nccl: split makes groups ordered by key, and none for NCCL_SPLIT_NOCOLOR") {
    all_well(on_ranks(5, [](Rank& me) {
        // ranks 0, 2 and 4 in one group, in falling order; 1 in another; 3 in none
        const int color = me.rank == 3 ? NCCL_SPLIT_NOCOLOR : me.rank % 2;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.commName = "parity";
        ncclComm_t group = nullptr;
        me.require(ncclCommSplit(me.world, color, -me.rank, &group, &config), "split");
        me.require((group == nullptr) == (me.rank == 3), "no color, no communicator");
        if (group == nullptr) return;
        int rank = -1, size = -1;
        ncclCommUserRank(group, &rank);
        ncclCommCount(group, &size);
        me.require(size == (me.rank == 1 ? 1 : 3) && rank == (me.rank == 1 ? 0 : (4 - me.rank) / 2),
                   "place in the group");
        int* x = me.device_copy(std::vector<int>{me.rank});
        int* all = me.device_copy(std::vector<int>(3));
        me.require(ncclAllGather(x, all, 1, ncclInt32, group, me.stream), "all-gather");
        if (size == 3) me.require(me.host_copy(all, 3) == std::vector<int>{4, 2, 0}, "order");
        cudaStreamSynchronize(me.stream);
        ncclCommDestroy(group);
    }));
}

TEST_CASE("nccl: ranks that mean different operations are named, not left hanging") {
    std::vector<std::string> errors = on_ranks(2, [](Rank& me) {
        float* x = me.device_copy(values(me.rank, 64));
        if (me.rank == 0) {
            ncclAllReduce(x, x, 64, ncclFloat32, ncclSum, me.world, me.stream);
        } else {
            ncclAllReduce(x, x, 32, ncclFloat32, ncclSum, me.world, me.stream);
        }
        cudaError_t error = cudaStreamSynchronize(me.stream);
        throw std::runtime_error(error == cudaSuccess ? "finished" : host::last_fault());
    });
    for (const std::string& error : errors) {
        CHECK(error.find("all-reduce of 64 fp32, sum") != std::string::npos);
        CHECK(error.find("all-reduce of 32 fp32, sum") != std::string::npos);
        CHECK(error.find("operation 0") != std::string::npos);
    }
}

TEST_CASE("nccl: a send alone does not finish, and the standstill says what it waits for") {
    host::Checks checks = host::checks(), before = checks;
    checks.no_progress_seconds = 0.3;
    host::set_checks(checks);
    std::vector<std::string> errors = on_ranks(2, [](Rank& me) {
        float* x = me.device_copy(values(me.rank, 64));
        if (me.rank == 1) return;
        ncclSend(x, 64, ncclFloat32, 1, me.world, me.stream);
        cudaError_t error = cudaStreamSynchronize(me.stream);
        throw std::runtime_error(error == cudaSuccess ? "finished" : host::last_fault());
    });
    host::set_checks(before);
    CHECK(errors[0].find("sending to rank 1") != std::string::npos);
    CHECK(errors[0].find("transfer of 64 fp32") != std::string::npos);
}

namespace {

// Two stages of a pipeline with two micro-batches (1F1B): activations go down the link, gradients up, each direction on
// a stream of its own. The second stage answers the first micro-batch before it takes the second one.
std::string run_two_stages(Rank& me, ncclComm_t down, ncclComm_t up) {
    cudaStream_t other = nullptr;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    float* x = me.device_copy(values(me.rank, 4 * 64));
    cudaStreamSynchronize(me.stream);
    auto activations = [&](int i) {
        return me.rank == 0 ? ncclSend(x + 64 * i, 64, ncclFloat32, 1, down, me.stream)
                            : ncclRecv(x + 64 * i, 64, ncclFloat32, 0, down, me.stream);
    };
    auto gradients = [&](int i) {
        return me.rank == 0 ? ncclRecv(x + 64 * (2 + i), 64, ncclFloat32, 1, up, other)
                            : ncclSend(x + 64 * (2 + i), 64, ncclFloat32, 0, up, other);
    };
    if (me.rank == 0) {
        activations(0), activations(1), gradients(0), gradients(1);
    } else {
        activations(0), gradients(0), activations(1), gradients(1);
    }
    const cudaError_t error = cudaDeviceSynchronize();
    cudaStreamDestroy(other);
    return error == cudaSuccess ? "finished" : host::last_fault();
}

}   // namespace

TEST_CASE(
    "nccl: sends and receives of a pipeline on one communicator deadlock, and every rank says for what it waits") {
    host::Checks checks = host::checks(), before = checks;
    checks.no_progress_seconds = 0.5;
    host::set_checks(checks);
    const std::vector<std::string> ends =
        on_ranks(2, [](Rank& me) { throw std::runtime_error(run_two_stages(me, me.world, me.world)); });
    host::set_checks(before);
    for (int rank : {0, 1}) {
        const std::string& end = ends[static_cast<std::size_t>(rank)];
        INFO(end);
        CHECK(end.find("sending to rank " + std::to_string(1 - rank)) != std::string::npos);
        CHECK(end.find("communicator of 2 ranks, operation 1") != std::string::npos);
        CHECK(end.find("waits until operation 1 of communicator of 2 ranks, transfer of 64 fp32, has finished") !=
              std::string::npos);
    }
}

TEST_CASE("nccl: the same pipeline with a communicator for each direction of its link passes") {
    all_well(on_ranks(2, [](Rank& me) {
        ncclComm_t up = nullptr;
        me.require(ncclCommSplit(me.world, 0, me.rank, &up, nullptr), "split");
        const std::string end = run_two_stages(me, me.world, up);
        ncclCommDestroy(up);
        me.require(end == "finished", end);
    }));
}

TEST_CASE("nccl: a group with one communicator on two streams is refused") {
    all_well(on_ranks(2, [](Rank& me) {
        float* a = me.device_copy(values(me.rank, 64));
        cudaStreamSynchronize(me.stream);
        ncclGroupStart();
        ncclAllReduce(a, a, 64, ncclFloat32, ncclSum, me.world, me.stream);
        ncclAllReduce(a, a, 64, ncclFloat32, ncclSum, me.world, nullptr);
        me.require(ncclGroupEnd() == ncclInvalidUsage, "two streams");
    }));
}

TEST_CASE("nccl: a rank that leaves is an asynchronous error, and abort frees what waits for it") {
    std::vector<std::string> errors = on_ranks(3, [](Rank& me) {
        if (me.rank == 2) return;   // never takes part
        float* x = me.device_copy(values(me.rank, 1 << 16));
        ncclAllReduce(x, x, 1 << 16, ncclFloat32, ncclSum, me.world, me.stream);
        ncclResult_t state = ncclSuccess;
        for (int i = 0; i < 10000 && state == ncclSuccess; i++) {
            me.require(cudaStreamQuery(me.stream) == cudaErrorNotReady, "the all-reduce must not finish");
            ncclCommGetAsyncError(me.world, &state);
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
        me.require(state == ncclRemoteError, "asynchronous error");
        me.require(std::string(ncclGetLastError(me.world)).find(" is lost") != std::string::npos, "its reason");
        ncclCommAbort(std::exchange(me.world, nullptr));
        me.require(cudaStreamSynchronize(me.stream) == cudaSuccess, "the stream is free again");
    });
    all_well(errors);
}

TEST_CASE("nccl: wrong arguments are refused with a reason") {
    all_well(on_ranks(1, [](Rank& me) {
        float* x = me.device_copy(values(0, 4));
        me.require(ncclSend(x, 4, ncclFloat32, 7, me.world, me.stream) == ncclInvalidArgument, "rank");
        me.require(std::string(ncclGetLastError(nullptr)).find("rank 7") != std::string::npos, "its reason");
        me.require(ncclAllReduce(x, x, 4, ncclFloat16, ncclSum, me.world, me.stream) == ncclInvalidArgument, "type");
        me.require(ncclAllReduce(x, x, 4, ncclFloat32, ncclProd, me.world, me.stream) == ncclInvalidArgument, "op");
        me.require(ncclGroupEnd() == ncclInvalidUsage, "group end alone");
    }));
}

TEST_CASE("nccl: ranks that never come are named") {
    setenv("TRAIN_GPT_NCCL_RENDEZVOUS_SECONDS", "0.3", 1);
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclComm_t comm = nullptr;
    CHECK(ncclCommInitRank(&comm, 3, id, 1) == ncclSystemError);
    CHECK(std::string(ncclGetLastError(nullptr)) == "of 3 ranks these have not come: 0, 2");
    for (const char* malformed : {"", "x", "1x", "0", "-1", "nan", "1e9"}) {
        setenv("TRAIN_GPT_NCCL_RENDEZVOUS_SECONDS", malformed, 1);
        CHECK(ncclCommInitRank(&comm, 3, id, 1) == ncclSystemError);
        CHECK(std::string(ncclGetLastError(nullptr)).find("TRAIN_GPT_NCCL_RENDEZVOUS_SECONDS: '") == 0);
    }
    unsetenv("TRAIN_GPT_NCCL_RENDEZVOUS_SECONDS");
}
