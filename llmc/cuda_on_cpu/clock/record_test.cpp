// Recordings and the virtual clock: durations that can be added up by hand.
#include "llmc/cuda_on_cpu/clock/record.h"

#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <algorithm>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/cuda_on_cpu/checks/test_device.h"

using host::CostModel;
using host::Exchange;
using host::Recording;
using host::TestDevice;
using host::Timeline;

namespace {

// A step of `seconds` virtual seconds; cost models below make a flop a second and an exchanged byte a second.
void compute(cudaStream_t stream, const char* name, double seconds) {
    host::Operation operation = host::operation(name, {});
    operation.work.flops = seconds;
    REQUIRE(host::enqueue(stream, std::move(operation)) == cudaSuccess);
}

void exchange(cudaStream_t stream, const char* name, std::vector<Exchange> exchanges) {
    host::Operation operation = host::operation(name, {});
    operation.work.exchanges = std::move(exchanges);
    REQUIRE(host::enqueue(stream, std::move(operation)) == cudaSuccess);
}

CostModel seconds_as_given() {
    CostModel costs;
    costs.seconds_per_flop = 1;
    costs.seconds_per_exchanged_byte = 1;
    return costs;
}

void wait_across(cudaStream_t waiting, cudaStream_t awaited) {
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, awaited);
    cudaStreamWaitEvent(waiting, event);
    cudaEventDestroy(event);
}

std::uint64_t between(int from, int to, int number) {
    return static_cast<std::uint64_t>(from) << 40 | static_cast<std::uint64_t>(to) << 20 |
           static_cast<std::uint64_t>(number);
}

// Forward passes of `micro_batches` through stage `stage` of a pipeline, each a second; transfers take no time.
Recording pipeline_stage(int stage, int stages, int micro_batches) {
    TestDevice device;
    cudaStream_t stream = device.stream();
    return host::record([&] {
        for (int m = 0; m < micro_batches; m++) {
            if (stage > 0) exchange(stream, "receive", {{between(stage - 1, stage, m), 2, 0}});
            compute(stream, "forward", 1);
            if (stage + 1 < stages) exchange(stream, "send", {{between(stage, stage + 1, m), 2, 0}});
        }
        cudaStreamSynchronize(stream);
    });
}

}   // namespace

TEST_CASE("record: one stream adds up, two overlap, and an event wait puts them in a row") {
    for (bool waits : {false, true}) {
        TestDevice device;
        cudaStream_t one = device.stream(), two = device.stream();
        Recording recording = host::record([&] {
            compute(one, "a", 3);
            if (waits) wait_across(two, one);
            compute(two, "b", 2);
            compute(one, "c", 1);
            cudaDeviceSynchronize();
        });
        Timeline timeline = host::replay({recording}, seconds_as_given());
        CHECK(timeline.seconds == (waits ? 5 : 4));
        REQUIRE(timeline.spans.size() == 3);
        CHECK(timeline.spans[1].name == "b");
        CHECK(timeline.spans[1].begin == (waits ? 3 : 0));
        CHECK(timeline.spans[1].end == (waits ? 5 : 2));
        CHECK(timeline.busy(0, 1) == 4);
        CHECK(timeline.busy(0, 2) == 2);
        CHECK(timeline.overlap(0, 1, 2) == (waits ? 1 : 2));
        CHECK(timeline.overlap(0, 2, 1) == timeline.overlap(0, 1, 2));
        CHECK(host::contains(timeline.table(), "b\n"));
    }
}

TEST_CASE("record: what the host waits for delays what it asks for next, and calls take the host's time") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    cudaEvent_t event;
    cudaEventCreate(&event);
    auto seconds = [&](int how, CostModel costs) {
        return host::replay({host::record([&] {
                                compute(one, "a", 3);
                                cudaEventRecord(event, one);
                                compute(one, "b", 2);
                                if (how == 1) cudaEventSynchronize(event);
                                if (how == 2) cudaStreamSynchronize(one);
                                compute(two, "c", 4);
                                cudaDeviceSynchronize();
                            })},
                            costs)
            .seconds;
    };
    CHECK(seconds(0, seconds_as_given()) == 5);
    CHECK(seconds(1, seconds_as_given()) == 7);
    CHECK(seconds(2, seconds_as_given()) == 9);
    CostModel slow_host = seconds_as_given();
    slow_host.host_seconds_per_call = 10;
    CHECK(seconds(0, slow_host) == 34);
}

TEST_CASE("record: the longer of arithmetic and memory, plus the start") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    float* memory = device.allocate<float>(100);
    Recording recording = host::record([&] {
        cudaMemsetAsync(memory, 0, 400, stream);
        host::Operation both = host::operation("both", {{memory, 400, true}, {memory, 400, false}});
        both.work.flops = 1000;
        host::enqueue(stream, std::move(both));
        cudaStreamSynchronize(stream);
    });
    CostModel costs;
    costs.seconds_per_byte = 1;
    costs.seconds_per_operation = 5;
    CHECK(host::replay({recording}, costs).seconds == 405 + 805);
    costs.seconds_per_flop = 1;
    CHECK(host::replay({recording}, costs).seconds == 405 + 1005);
    costs.compute_seconds = [](const host::RecordedStep& step) { return step.name == "both" ? 2.0 : 1.0; };
    CHECK(host::replay({recording}, costs).seconds == 3);
}

TEST_CASE("record: an exchange begins when all have come, and takes the longest message's time") {
    auto rank = [](double before, double bytes) {
        TestDevice device;
        cudaStream_t stream = device.stream();
        char* memory = device.allocate<char>(1000);
        return host::record([&] {
            compute(stream, "before", before);
            host::Operation reduce = host::operation("all-reduce", {{memory, 1000, true}});   // not moved beside
            reduce.work.exchanges = {{7, 3, bytes}};
            host::enqueue(stream, std::move(reduce));
            compute(stream, "after", 1);
        });
    };
    CostModel costs = seconds_as_given();
    costs.seconds_per_exchange = 0.5;
    costs.seconds_per_byte = 1;
    Timeline timeline = host::replay({rank(1, 2), rank(4, 2), rank(2, 3)}, costs);
    CHECK(timeline.seconds == 4 + 0.5 + 3 + 1);
    const host::Span& first = timeline.spans[1];
    CHECK(first.name == "all-reduce");
    CHECK(first.begin == 1);
    CHECK(first.active == 4);
    CHECK(first.end == 7.5);
    CHECK(timeline.busy(0, 1) == 1 + 3.5 + 1);   // waiting for the others is not counted
}

TEST_CASE(
    "record: one communicator's operations go one after another, on whatever streams; two communicators' overlap") {
    for (std::uint64_t other : {1, 2}) {
        TestDevice device;
        cudaStream_t one = device.stream(), two = device.stream();
        auto key = [](std::uint64_t communicator, std::uint64_t number) {
            return communicator << host::communicator_shift | number;
        };
        Recording recording = host::record([&] {
            exchange(one, "a", {{key(1, 1), 1, 3}});
            exchange(two, "b", {{key(other, 2), 1, 0, 2}});   // the other way, so only the communicator matters
            cudaDeviceSynchronize();
        });
        INFO("communicators 1 and ", other);
        CHECK(host::replay({recording}, seconds_as_given()).seconds == (other == 1 ? 5 : 3));
    }
}

TEST_CASE("record: a pipeline's bubble is (stages - 1) / micro-batches of its ideal time") {
    for (int stages : {1, 2, 4})
        for (int micro_batches : {1, 4, 8}) {
            std::vector<Recording> ranks;
            for (int stage = 0; stage < stages; stage++) ranks.push_back(pipeline_stage(stage, stages, micro_batches));
            Timeline timeline = host::replay(ranks, seconds_as_given());
            CHECK(timeline.seconds == micro_batches + stages - 1);
            CHECK(timeline.busy(stages - 1, 1) == micro_batches);
        }
}

TEST_CASE("record: ranks that can never meet are named") {
    auto rank = [](std::vector<std::uint64_t> keys) {
        TestDevice device;
        cudaStream_t stream = device.stream();
        return host::record([&] {
            for (std::uint64_t key : keys) exchange(stream, key == 1 ? "first" : "second", {{key, 2, 0}});
        });
    };
    CHECK(host::replay({rank({1, 2}), rank({1, 2})}, seconds_as_given()).seconds == 0);
    CHECK_THROWS_WITH_AS(host::replay({rank({1, 2}), rank({2, 1})}, seconds_as_given()),
                         doctest::Contains("rank 0, stream 1: 'first'"), Error);
    CHECK_THROWS_WITH_AS(host::replay({rank({1, 2}), rank({1})}, seconds_as_given()),
                         doctest::Contains("rank 0, stream 1: 'second'"), Error);
}

TEST_CASE("record: recording does not nest, and ends with its program") {
    TestDevice device;
    cudaStream_t stream = device.stream();
    CHECK_THROWS_AS(host::record([] { host::record([] {}); }), Error);
    Recording recording = host::record([&] { compute(stream, "seen", 1); });
    compute(stream, "unseen", 1);
    CHECK(recording.size() == 1);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

namespace {

std::uint64_t pair_key(int from, int to) { return static_cast<std::uint64_t>(1000 + 100 * from + to); }

// Transfers between rank `rank` and each of `peers` at once, `bytes` each way.
Recording exchange_with(int rank, const std::vector<int>& peers, double bytes) {
    TestDevice device;
    cudaStream_t stream = device.stream();
    return host::record([&] {
        std::vector<Exchange> together;
        for (int peer : peers) {
            together.push_back({pair_key(rank, peer), 2, bytes, 0});
            together.push_back({pair_key(peer, rank), 2, 0, bytes});
        }
        exchange(stream, "all-to-all", together);
    });
}

// One transfer of `bytes` from rank 0 to rank `to`, of four.
double seconds_to(int to, double bytes, const CostModel& costs) {
    std::vector<Recording> ranks(4);
    for (int rank : {0, to}) {
        TestDevice device;
        cudaStream_t stream = device.stream();
        const double sends = rank == 0 ? bytes : 0;
        ranks[static_cast<std::size_t>(rank)] = host::record([&] {
            exchange(stream, "transfer", {{pair_key(0, to), 2, sends, bytes - sends}});
        });
    }
    return host::replay(ranks, costs).seconds;
}

}   // namespace

TEST_CASE("record: an all-to-all of n ranks costs n - 1 sends, because a link carries one byte at a time") {
    for (int n : {2, 3, 4, 8}) {
        INFO(n, " ranks");
        std::vector<Recording> ranks;
        for (int rank = 0; rank < n; rank++) {
            std::vector<int> peers;
            for (int peer = 0; peer < n; peer++) {
                if (peer != rank) peers.push_back(peer);
            }
            ranks.push_back(exchange_with(rank, peers, 7));
        }
        CHECK(host::replay(ranks, seconds_as_given()).seconds == 7 * (n - 1));
    }
}

TEST_CASE("record: many that send to one wait for its way in") {
    std::vector<Recording> ranks;
    for (int rank = 0; rank < 4; rank++) {
        TestDevice device;
        cudaStream_t stream = device.stream();
        ranks.push_back(host::record([&] {
            std::vector<Exchange> together;
            for (int from = 1; from < 4; from++) {
                if (rank == 0 || rank == from)
                    together.push_back({pair_key(from, 0), 2, rank ? 5.0 : 0, rank ? 0 : 5.0});
            }
            exchange(stream, "gather", together);
        }));
    }
    CHECK(host::replay(ranks, seconds_as_given()).seconds == 3 * 5);
}

TEST_CASE("record: a link between nodes costs what its own bandwidth says") {
    CostModel costs = seconds_as_given();
    costs.ranks_per_node = 2;
    costs.seconds_per_exchanged_byte_between_nodes = 10;
    CHECK(seconds_to(1, 3, costs) == 3);
    CHECK(seconds_to(2, 3, costs) == 30);
    CHECK(seconds_to(3, 3, costs) == 30);
    costs.ranks_per_node = 0;   // all on one
    CHECK(seconds_to(3, 3, costs) == 3);
    // an all-to-all over two nodes of two: one send inside, two between, at the same time
    costs.ranks_per_node = 2;
    std::vector<Recording> ranks;
    for (int rank = 0; rank < 4; rank++) {
        std::vector<int> peers;
        for (int peer = 0; peer < 4; peer++) {
            if (peer != rank) peers.push_back(peer);
        }
        ranks.push_back(exchange_with(rank, peers, 3));
    }
    CHECK(host::replay(ranks, costs).seconds == 2 * 30);
}

TEST_CASE("record: operations of two streams take turns on a link's way, in the order in which they are ready") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    auto of = [](std::uint64_t communicator) { return communicator << host::communicator_shift; };
    Recording recording = host::record([&] {
        compute(one, "compute", 1);
        exchange(one, "late", {{of(1), 1, 3}});
        exchange(two, "early", {{of(2), 1, 2}});
        exchange(two, "other way", {{of(3), 1, 0, 4}});
        cudaDeviceSynchronize();
    });
    const Timeline timeline = host::replay({recording}, seconds_as_given());
    auto span = [&](const std::string& name) {
        return *std::find_if(timeline.spans.begin(), timeline.spans.end(),
                             [&](const auto& s) { return s.name == name; });
    };
    CHECK(span("early").end == 2);
    CHECK(span("late").active == 2);   // it was ready at 1
    CHECK(span("late").end == 5);
    CHECK(span("other way").end == 6);   // begins at 2: nothing of the others is in its way
}

TEST_CASE(
    "record: of two exchanges that are ready at once, that goes first on a link which its rank has launched first") {
    constexpr std::uint64_t sent = std::uint64_t{1} << host::communicator_shift, own = sent * 2;
    std::vector<Recording> ranks;
    for (const bool sends : {false, true}) {   // the rank recorded first has launched the transfer after more steps
        TestDevice device;
        cudaStream_t work = device.stream(), link = device.stream(), traffic = device.stream();
        ranks.push_back(host::record([&] {
            for (int i = 0; i < (sends ? 1 : 9); i++) compute(work, "compute", sends ? 1 : 0.01);
            wait_across(link, work);
            exchange(link, "transfer", {{sent, 2, sends ? 1.0 : 0.0, sends ? 0.0 : 1.0}});
            wait_across(traffic, work);
            if (sends) exchange(traffic, "long", {{own, 1, 10}});
            cudaDeviceSynchronize();
        }));
    }
    const Timeline timeline = host::replay(ranks, seconds_as_given());
    for (const auto& span : timeline.spans) {
        if (span.name == "transfer") CHECK(span.end == 2);
        if (span.name == "long") CHECK(span.end == 12);
    }
}

TEST_CASE("record: NCCL's calls meet on the virtual clock, and cost what they send") {
    constexpr int ranks = 3, count = 3000;
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    std::vector<Recording> recordings(ranks);
    auto run = [&](int rank) {
        host::Device device;
        host::BindDevice bind(device);
        ncclComm_t world = nullptr;
        cudaStream_t stream = nullptr;
        float *in = nullptr, *out = nullptr;
        ncclCommInitRank(&world, ranks, id, rank);
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaMalloc(&in, count * ranks * sizeof(float));
        cudaMalloc(&out, count * ranks * sizeof(float));
        cudaMemsetAsync(in, 0, count * ranks * sizeof(float), stream);
        recordings[static_cast<std::size_t>(rank)] = host::record([&] {
            ncclAllReduce(in, out, count, ncclFloat32, ncclSum, world, stream);
            ncclAllGather(in, out, count, ncclFloat32, world, stream);
            if (rank == 0) {
                ncclSend(in, 10, ncclFloat32, 1, world, stream);
                ncclRecv(out, 20, ncclFloat32, 1, world, stream);
            } else if (rank == 1) {
                ncclRecv(out, 10, ncclFloat32, 0, world, stream);
                ncclSend(in, 20, ncclFloat32, 0, world, stream);
            }
            ncclGroupStart();
            ncclSend(in, count, ncclFloat32, (rank + 1) % ranks, world, stream);
            ncclRecv(out, count, ncclFloat32, (rank + ranks - 1) % ranks, world, stream);
            ncclGroupEnd();
            ncclGroupStart();   // all to all: what stays at home costs nothing
            for (int peer = 0; peer < ranks; peer++) {
                ncclSend(in, 100, ncclFloat32, peer, world, stream);
                ncclRecv(out, 100, ncclFloat32, peer, world, stream);
            }
            ncclGroupEnd();
            cudaStreamSynchronize(stream);
        });
        ncclCommDestroy(world);
        cudaFree(in);
        cudaFree(out);
        cudaStreamDestroy(stream);
    };
    std::thread first(run, 1), second(run, 2);
    run(0);
    first.join();
    second.join();
    // By a ring of three: an all-reduce sends a third of its bytes four times, an all-gather two blocks. Two transfers
    // go one after the other, then all ranks send at the same time, then each to both others.
    const double bytes = count * sizeof(float);
    Timeline timeline = host::replay(recordings, seconds_as_given());
    CHECK(timeline.seconds == doctest::Approx(bytes * 4 / 3 + 2 * bytes + 40 + 80 + bytes + 2 * 400));
}

TEST_CASE("record: work beside communication is slower by the multiprocessors that this takes, and no other work is") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream(), three = device.stream();
    auto of = [](std::uint64_t communicator) { return communicator << host::communicator_shift; };
    auto take = [](host::Recording& recording, const std::string& name, int multiprocessors) {
        std::ranges::find(recording, name, &host::RecordedStep::name)->work.multiprocessors = multiprocessors;
    };
    CostModel costs = seconds_as_given();
    costs.multiprocessors = 10;
    costs.multiprocessors_of_exchange = 5;

    // Two seconds of work beside four of exchange: at half the speed; then the rest alone.
    Recording recording = host::record([&] {
        exchange(two, "exchange", {{of(1), 1, 4}});
        compute(one, "beside", 1.5);
        compute(one, "partly", 1.5);
        compute(one, "after", 1);
        cudaDeviceSynchronize();
    });
    auto end_of = [&](const Timeline& timeline, const std::string& name) {
        return std::ranges::find(timeline.spans, name, &host::Span::name)->end;
    };
    Timeline timeline = host::replay({recording}, costs);
    CHECK(end_of(timeline, "beside") == 3);
    CHECK(end_of(timeline, "partly") == 5);   // half a second of it until 4
    CHECK(end_of(timeline, "after") == 6);
    take(recording, "exchange", 1);
    CHECK(end_of(host::replay({recording}, costs), "beside") == doctest::Approx(1.5 / 0.9));
    take(recording, "exchange", 12);   // one multiprocessor is always left
    CHECK(end_of(host::replay({recording}, costs), "beside") == doctest::Approx(4 + 1.1));
    costs.multiprocessors = 0;
    CHECK(end_of(host::replay({recording}, costs), "after") == 4);
    costs.multiprocessors = 10;

    // It takes them while it waits for a peer; several communicators take the sum; an operation that waits for its
    // communicator's earlier one takes none yet.
    Recording waits = host::record([&] {
        compute(one, "work", 3);
        exchange(two, "waits", {{of(1), 2, 1}});
        exchange(three, "other communicator", {{of(2), 1, 2}});
        exchange(three, "same communicator", {{of(1) + 1, 2, 1}});
        cudaDeviceSynchronize();
    });
    Recording comes_late = host::record([&] {
        compute(one, "before", 4);
        exchange(one, "waits", {{of(1), 2, 1}});
        exchange(one, "same communicator", {{of(1) + 1, 2, 1}});
        cudaDeviceSynchronize();
    });
    take(waits, "waits", 2), take(waits, "other communicator", 3);
    timeline = host::replay({waits, comes_late}, costs);
    CHECK(end_of(timeline, "work") == doctest::Approx(2 + (3 - 2 * 0.5) / 0.8));   // 1 is done by 2, and 2 of 3 by 4.5
    CHECK(end_of(timeline, "before") == 4);
}

TEST_CASE("record: in the order of launches, an operation waits until those launched before it have begun") {
    TestDevice device;
    cudaStream_t one = device.stream(), two = device.stream();
    auto of = [](std::uint64_t communicator) { return communicator << host::communicator_shift; };
    // a second gradient is launched while the first travels, then an exchange of a layer
    const Recording recording = host::record([&] {
        exchange(two, "gradient", {{of(1), 1, 4}});
        exchange(two, "late gradient", {{of(1) + 1, 1, 4}});
        compute(one, "product", 1);
        exchange(one, "exchange of a layer", {{of(2), 1}});
        cudaDeviceSynchronize();
    });
    auto begins = [&](const CostModel& costs, const std::string& name) {
        const Timeline timeline = host::replay({recording}, costs);
        return std::ranges::find(timeline.spans, name, &host::Span::name)->active;
    };
    CostModel costs = seconds_as_given();
    CHECK(begins(costs, "exchange of a layer") == 1);
    costs.in_launch_order = true;
    CHECK(begins(costs, "gradient") == 0);
    CHECK(begins(costs, "exchange of a layer") == 4);   // when the late one begins, behind the first
}
