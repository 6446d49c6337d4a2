// The watchdog: ranks are threads here, those that are lost are processes of their own.
#include "llmc/process/watchdog/watchdog.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <thread>

#include "llmc/base/stand_in.h"
#include "llmc/base/stream.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/process/free_port_testing.h"
#include "llmc/process/joining.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/process/sockets.h"
#include "llmc/process/watchdog/watchdog_ends_testing.h"

namespace {

// Runs ranks 0 .. ranks-1 without `victim` as threads, the victim as a process that raises `signal_number` once all
// have met.
void lose(int ranks, int victim, int signal_number, const std::string& expected) {
    WatchdogOptions options = patient();
    if (signal_number == SIGSTOP) options.silence_seconds = 5;
    const int port = free_port();
    RankProcess child([&] {
        Startup startup = meet_by_tcp(port, victim, ranks);
        Watchdog watchdog(*startup.rendezvous, startup.place, options);
        watchdog.set_step(7);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));   // heartbeats tell of the step
        raise(signal_number);
    });
    Ends ends(ranks);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; r++) {
        if (r == victim) continue;
        threads.emplace_back([&, r] {
            Startup startup = meet_by_tcp(port, r, ranks);
            Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(r, options));
            ends.await(r);
        });
    }
    for (std::thread& t : threads) t.join();
    for (int r = 0; r < ranks; r++) {
        if (r == victim) continue;
        INFO("rank ", r, ": ", ends.of(r).why);
        CHECK(ends.of(r).exit_code == 75);
        CHECK(contains(ends.of(r).why, text("rank ", victim, " on ")));
        CHECK(contains(ends.of(r).why, expected));
        CHECK(contains(ends.of(r).why, text("last heard at step 7; rank ", victim == 0 ? r : 0, " is at start-up")));
    }
}

}   // namespace

TEST_CASE("watchdog: an orderly end is no loss, whoever comes first") {
    for (int first : {0, 2}) {
        TemporaryFolder folder;
        Ends ends(3);
        std::vector<std::thread> threads;
        for (int r = 0; r < 3; r++) {
            threads.emplace_back([&, r] {
                Startup startup = meet(folder, r, 3);
                Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(r));
                if (r != first) std::this_thread::sleep_for(std::chrono::milliseconds(150));
                CHECK(!watchdog.aborted());
            });
        }
        for (std::thread& t : threads) t.join();
        for (int r = 0; r < 3; r++) CHECK(ends.of(r).exit_code == 0);
    }
}

TEST_CASE("watchdog: a rank that dies is named to all others") {
    lose(3, 1, SIGKILL, "died");
    lose(3, 0, SIGKILL, "died");
}

TEST_CASE("watchdog: a rank that hangs is named to all others") {
    lose(3, 2, SIGSTOP, "has been silent for 5 s");
    lose(2, 0, SIGSTOP, "has been silent for 5 s");
}

TEST_CASE("watchdog: ranks that all wait are a stall, of which the one that keeps the other waiting is named") {
    if (!ranks_are_threads()) return;   // where each rank is a process nobody looks at its end
    TemporaryFolder folder;
    Ends ends(2);
    WatchdogOptions options = patient();
    options.stall_seconds = 0.4;
    on_ranks(2, [&](TestRank& me) {
        Startup startup = meet(folder, me.rank(), 2);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(me.rank(), options));
        watchdog.watch(me.all);
        DeviceBuffer<float> x = me.on_device(std::vector<float>(8));
        me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
        if (me.rank() == 0) me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
        ends.await(me.rank());
        if (me.rank() == 1) me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
        x.download(me.stream);
        watchdog.forget(me.all);
    });
    for (int r = 0; r < 2; r++) {
        INFO("rank ", r, ": ", ends.of(r).why);
        CHECK(ends.of(r).exit_code == 75);
        CHECK(contains(ends.of(r).why, "all wait, the others for: rank 1 on "));
        CHECK(contains(ends.of(r).why, "all-reduce number 1 of group all (under way)"));
    }
}

// Stages of a pipeline have different numbers of operations: the middle one has more than the others, wherever it is.
// Where its host has asked ahead of both neighbours, what was asked for tells nothing: the host that does not wait
// does.
TEST_CASE("watchdog: of pipeline stages that all wait the one is named that the others wait for") {
    if (!ranks_are_threads()) return;
    for (int combination = 0; combination < 6; combination++) {
        const int elsewhere = combination % 3;
        const bool middle_asks_ahead = combination >= 3;
        TemporaryFolder folder;
        Ends ends(3);
        WatchdogOptions options = patient();
        options.stall_seconds = 0.4;
        on_ranks(MeshShape{3, 1, 1, 1}, [&](TestRank& me) {
            Startup startup = meet(folder, me.rank(), 3);
            Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(me.rank(), options));
            const int stage = me.rank();
            auto link = [&](int from, int to) {
                const bool member = stage == from || stage == to;
                return me.world.link(text(member ? "pp " : "no pp ", from, " to ", to), member ? from : -1, to);
            };
            Communicator *const down[] = {link(0, 1), link(1, 2)}, *const up[] = {link(1, 0), link(2, 1)};
            struct {
                Communicator *input, *output, *output_gradient, *input_gradient;
            } const links{stage > 0 ? down[stage - 1] : nullptr, stage < 2 ? down[stage] : nullptr,
                          stage < 2 ? up[stage] : nullptr, stage > 0 ? up[stage - 1] : nullptr};
            watchdog.watch(me.all, {0, 1, 2});
            std::vector<Communicator*> watched{&me.all};
            auto watch = [&](Communicator* end, int from, int to) {
                if (end == nullptr) return;
                watchdog.watch(*end, {from, to});
                watched.push_back(end);
            };
            watch(links.input, stage - 1, stage), watch(links.output, stage, stage + 1);
            watch(links.input_gradient, stage, stage - 1), watch(links.output_gradient, stage + 1, stage);
            DeviceBuffer<float> x = me.on_device(std::vector<float>(8));
            CUDA_CHECK(cudaStreamSynchronize(me.stream));
            OwnedStream streams[4];
            auto micro_batch = [&] {   // down the pipeline and up again
                if (links.input) links.input->receive(x.data(), 1, 0, streams[0].get());
                if (links.output) links.output->send(x.data() + 1, 1, 1, streams[1].get());
                if (links.output_gradient) links.output_gradient->receive(x.data() + 2, 1, 0, streams[2].get());
                if (links.input_gradient) links.input_gradient->send(x.data() + 3, 1, 1, streams[3].get());
            };
            for (int i = 0; i < 3; i++) micro_batch();
            // the gathering of a checkpoint, in which not all take part alike
            for (int i = 0; i < 2; i++) {
                if (stage == 0) me.all.receive(x.data() + 4, 1, 2, me.stream);
                if (stage == 2) me.all.send(x.data() + 4, 1, 0, me.stream);
            }
            const bool asks = middle_asks_ahead ? stage == 1 : stage != elsewhere;
            if (asks) micro_batch();
            {
                std::optional<HostWait> waits;
                if (middle_asks_ahead && stage != elsewhere) waits.emplace();
                ends.await(stage);
            }
            if (!asks) micro_batch();
            for (const OwnedStream& stream : streams) CUDA_CHECK(cudaStreamSynchronize(stream.get()));
            CUDA_CHECK(cudaStreamSynchronize(me.stream));
            for (Communicator* group : watched) watchdog.forget(*group);
        });
        for (int r = 0; r < 3; r++) {
            INFO("rank ", r, ": ", ends.of(r).why);
            CHECK(ends.of(r).exit_code == 75);
            CHECK(contains(ends.of(r).why, text("all wait, the others for: rank ", elsewhere, " on ")));
            CHECK(!contains(ends.of(r).why, "; rank"));   // it alone
        }
    }
}

TEST_CASE("watchdog: a rank that is elsewhere while the others wait for it is named, though its heartbeats go on") {
    if (stand_in() == nullptr) return;
    for (int elsewhere : {0, 1}) {
        TemporaryFolder folder;
        Ends ends(3);
        WatchdogOptions options = patient();
        options.stall_seconds = 0.4;
        on_ranks(3, [&](TestRank& me) {
            Startup startup = meet(folder, me.rank(), 3);
            Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(me.rank(), options));
            watchdog.watch(me.all);
            DeviceBuffer<float> x = me.on_device(std::vector<float>(8));
            me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
            CUDA_CHECK(cudaStreamSynchronize(me.stream));
            me.all.note_all_done();
            watchdog.set_step(1);
            if (me.rank() == elsewhere) ends.await(me.rank());
            me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
            ends.await(me.rank());
            x.download(me.stream);
            watchdog.forget(me.all);
        });
        for (int r = 0; r < 3; r++) {
            INFO("rank ", r, ": ", ends.of(r).why);
            CHECK(ends.of(r).exit_code == 75);
            CHECK(contains(ends.of(r).why, text("the others wait for: rank ", elsewhere, " on ")));
            CHECK(contains(ends.of(r).why, "all-reduce number 1 of group all (done)"));
            CHECK(!contains(ends.of(r).why, "; rank"));   // it alone
        }
    }
}

// Rank `busy` comes to the collective 0.7 s after the other; the limit is 0.3 s. How the ranks ended.
std::vector<std::string> come_late(int busy, bool has_stepped, const char* alone) {
    TemporaryFolder folder;
    Ends ends(2);
    WatchdogOptions options = patient();
    options.stall_seconds = 0.3;
    on_ranks(2, [&](TestRank& me) {
        Startup startup = meet(folder, me.rank(), 2);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(me.rank(), options));
        watchdog.watch(me.all);
        if (has_stepped) watchdog.set_step(1);
        DeviceBuffer<float> x = me.on_device(std::vector<float>(8));
        if (me.rank() == busy) {
            std::optional<Communicator::LocalWork> scope;
            if (alone != nullptr) scope.emplace(&me.all, alone);
            std::this_thread::sleep_for(std::chrono::milliseconds(700));
        }
        me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
        x.download(me.stream);
        me.all.note_all_done();
        watchdog.forget(me.all);
    });
    return {ends.of(0).why, ends.of(1).why};
}

TEST_CASE(
    "watchdog: a rank that says that it works alone, or that starts up, may take longer than the limit of a stall") {
    if (!ranks_are_threads()) return;
    const std::vector<std::string> fine(2);
    for (int busy : {0, 1}) {
        CHECK(come_late(busy, true, "writes a file") == fine);
        CHECK(come_late(busy, false, nullptr) == fine);
    }
    for (const std::string& why : come_late(1, true, nullptr)) {   // and one that says nothing may not
        CHECK(contains(why, "the others wait for: rank 1 on "));
    }
}

TEST_CASE("watchdog: the limit of a stall holds again after work alone") {
    if (!ranks_are_threads()) return;
    TemporaryFolder folder;
    Ends ends(2);
    WatchdogOptions options = patient();
    options.stall_seconds = 0.3;
    on_ranks(2, [&](TestRank& me) {
        Startup startup = meet(folder, me.rank(), 2);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(me.rank(), options));
        watchdog.watch(me.all);
        watchdog.set_step(1);
        DeviceBuffer<float> x = me.on_device(std::vector<float>(8));
        if (me.rank() == 1) {
            {
                Communicator::LocalWork alone(&me.all, "writes a file");
                std::this_thread::sleep_for(std::chrono::milliseconds(600));
                CHECK(ends.of(0).why == "");
                CHECK_THROWS_AS(me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream), Error);
            }
            ends.await(1);   // in a loop
        }
        me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
        x.download(me.stream);
        watchdog.forget(me.all);
    });
    for (int r = 0; r < 2; r++) CHECK(contains(ends.of(r).why, "the others wait for: rank 1 on "));
}

TEST_CASE("watchdog: a connection that its rank has given up is not taken for it; strangers delay nobody") {
    const int rendezvous_port = free_port();
    Ends ends(2);
    double seconds = 0;
    std::jthread rank_0([&] {
        Startup startup = meet_by_tcp(rendezvous_port, 0, 2);
        const double begin = steady_seconds();
        WatchdogOptions options = ends.options(0);
        options.connect_seconds = 600;
        try {
            Watchdog watchdog(*startup.rendezvous, startup.place, options);
        } catch (const Error& error) {
            FAIL_CHECK(error.what());
        }
        seconds = steady_seconds() - begin;
    });
    Startup startup = meet_by_tcp(rendezvous_port, 1, 2);
    startup.rendezvous->all_gather(own_host_identity());
    const Invitation invitation = read_invitation(startup.rendezvous->from_rank_0(""));
    const std::string greeting = text("train_gpt rank 1 of 2 ", make_nonce());
    std::vector<std::optional<Socket>> strangers;
    for (int i = 0; i < 300; i++) strangers.push_back(connect_to_any({"127.0.0.1"}, invitation.port, 600));
    for (std::size_t i = 0; i < strangers.size(); i++) {
        REQUIRE(strangers[i]);
        if (i % 3 == 1) CHECK(::send(strangers[i]->fd(), "\x40\0\0\0half", 8, MSG_NOSIGNAL) == 8);
        if (i % 3 == 2) CHECK((strangers[i]->send(greeting) && strangers[i]->send("another proof")));
    }
    {
        std::optional<Socket> given_up = connect_to_any({"127.0.0.1"}, invitation.port, 600);
        REQUIRE(given_up);
        CHECK(given_up->send(greeting));
    }
    startup.rendezvous->all_gather("here");   // now rank 0 begins to accept
    std::optional<Socket> socket = find_rank_0({"127.0.0.1"}, invitation.port, {1, 2, invitation.secret}, 600);
    REQUIRE(socket);
    socket->send("g");
    rank_0.join();
    CHECK(seconds < 100);   // of 300 strangers 200 are silent; one after another, each would take 5
    CHECK(ends.of(0).why == "");
}

TEST_CASE("watchdog: collectives in opposite orders on two communicators are named though they would finish") {
    if (!ranks_are_threads()) return;
    for (bool planted : {true, false}) {
        TemporaryFolder folder;
        Ends ends(2);
        on_ranks(2, [&](TestRank& me) {
            Communicator part(me.all, 0, me.rank(), "part");
            CollectiveLog log;
            me.all.log_into(log, {0, 1});
            part.log_into(log, {0, 1});
            WatchdogOptions options = patient();
            options.collectives = &log;
            Startup startup = meet(folder, me.rank(), 2);
            Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(me.rank(), options));
            DeviceBuffer<float> x = me.on_device(std::vector<float>(8)), y = me.on_device(std::vector<float>(8));
            CUDA_CHECK(cudaStreamSynchronize(me.stream));
            OwnedStream other;
            for (int turn = 0; turn < 2; turn++) {
                const bool part_now = (turn == 0) == (planted && me.rank() == 1);
                if (part_now) part.all_reduce(y.data(), 8, ReduceOp::max, other.get());
                if (!part_now) me.all.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
            }
            x.download(me.stream);
            y.download(other.get());
            if (planted) ends.await(me.rank());
            if (!planted) std::this_thread::sleep_for(std::chrono::milliseconds(200));
        });
        for (int r = 0; r < 2; r++) {
            INFO("rank ", r, ": ", ends.of(r).why);
            CHECK(ends.of(r).exit_code == (planted ? 70 : 0));   // a bug, which a resumed run would meet again
            CHECK(contains(ends.of(r).why, "number 1 of group part") == planted);
            CHECK(contains(ends.of(r).why, "all-reduce of 8 fp32, sum (number 1 of group all)") == planted);
        }
    }
}

TEST_CASE("watchdog: a cycle of four ranks over two communicators is named though it would finish") {
    if (!ranks_are_threads()) return;
    TemporaryFolder folder;
    Ends ends(4);
    on_ranks(4, [&](TestRank& me) {
        // tp joins 0 and 1, 2 and 3; dp joins 1 and 2, 3 and 0. Even ranks begin with tp, odd ones with dp.
        const int tp_first = me.rank() / 2 * 2, dp_first = me.rank() == 0 ? 3 : (me.rank() - 1) / 2 * 2 + 1;
        Communicator tp(me.all, tp_first, me.rank(), "tp"), dp(me.all, dp_first, me.rank(), "dp");
        CollectiveLog log;
        tp.log_into(log, {tp_first, tp_first + 1});
        dp.log_into(log, dp_first == 3 ? std::vector<int>{0, 3} : std::vector<int>{1, 2});
        WatchdogOptions options = patient();
        options.collectives = &log;
        Startup startup = meet(folder, me.rank(), 4);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(me.rank(), options));
        DeviceBuffer<float> x = me.on_device(std::vector<float>(8)), y = me.on_device(std::vector<float>(8));
        CUDA_CHECK(cudaStreamSynchronize(me.stream));
        OwnedStream other;
        for (int turn = 0; turn < 2; turn++) {
            if ((turn == 0) == (me.rank() % 2 == 0)) {
                tp.all_reduce(x.data(), 8, ReduceOp::sum, me.stream);
            } else {
                dp.all_reduce(y.data(), 8, ReduceOp::sum, other.get());
            }
        }
        x.download(me.stream);
        y.download(other.get());
        ends.await(me.rank());
    });
    for (int r = 0; r < 4; r++) {
        INFO("rank ", r, ": ", ends.of(r).why);
        CHECK(ends.of(r).exit_code == 70);
        for (int other = 0; other < 4; other++) CHECK(contains(ends.of(r).why, text("waits for rank ", other)));
        CHECK(contains(ends.of(r).why, "number 1 of group tp"));
        CHECK(contains(ends.of(r).why, "number 1 of group dp"));
    }
}
