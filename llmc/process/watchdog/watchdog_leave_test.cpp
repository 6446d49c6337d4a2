// How a rank with an error of its own leaves: what it says, what it leaves to others to say, and its exit code.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <latch>
#include <optional>
#include <thread>

#include "llmc/process/free_port_testing.h"
#include "llmc/process/joining.h"
#include "llmc/process/watchdog/watchdog_ends_testing.h"

namespace {

// Stops the process of a rank once it has met the others; its watchdog ends it without a word.
void stop_in_company(int port, int rank, int ranks) {
    WatchdogOptions options = patient();
    options.leave = [](int, const std::string&) { _exit(0); };
    Startup startup = meet_by_tcp(port, rank, ranks);
    Watchdog watchdog(*startup.rendezvous, startup.place, options);
    raise(SIGSTOP);
    for (;;) pause();
}
// Joins rank 0 without a watchdog: what this rank says, and when it listens, is the test's.
std::optional<Socket> join_without_watchdog(int port, int rank, int ranks) {
    Startup startup = meet_by_tcp(port, rank, ranks);
    startup.rendezvous->all_gather(own_host_identity());
    const Invitation invitation = read_invitation(startup.rendezvous->from_rank_0(""));
    startup.rendezvous->all_gather("here");
    return find_rank_0({"127.0.0.1"}, invitation.port, {rank, ranks, invitation.secret}, kMinutes);
}
// Longer than anything that a rank waits by the clock.
void let_them_wait() { std::this_thread::sleep_for(std::chrono::seconds(1)); }

}   // namespace

TEST_CASE("watchdog: a rank that fails says why, and keeps its own exit code") {
    for (int failing : {0, 2}) {
        TemporaryFolder folder;
        Ends ends(3);
        std::vector<std::thread> threads;
        for (int r = 0; r < 3; r++) {
            threads.emplace_back([&, r] {
                Startup startup = meet(folder, r, 3);
                Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(r, patient()));
                if (r == failing) watchdog.leave(Error(ErrorKind::io, "the disk is full"));
                ends.await(r);
                if (r == failing) std::this_thread::sleep_for(std::chrono::milliseconds(300));
            });
        }
        for (std::thread& t : threads) t.join();
        for (int r = 0; r < 3; r++) {
            CHECK(ends.of(r).exit_code == (r == failing ? 74 : 75));
            CHECK(contains(ends.of(r).why, "the disk is full"));
            if (r != failing) CHECK(contains(ends.of(r).why, text("rank ", failing, " on ")));
        }
    }
}

TEST_CASE("watchdog: a rank with an error of its own, after another is lost, tells of both") {
    TemporaryFolder folder;
    Ends ends(2);
    std::vector<std::thread> threads;
    for (int r = 0; r < 2; r++) {
        threads.emplace_back([&, r] {
            Startup startup = meet(folder, r, 2);
            WatchdogOptions options = ends.options(r, patient());
            if (r == 0) options.grace_seconds = kMinutes;   // its main thread comes to its end by itself
            Watchdog watchdog(*startup.rendezvous, startup.place, options);
            if (r == 1) {
                watchdog.leave(Error(ErrorKind::bad_data, "a broken shard"));
                std::this_thread::sleep_for(std::chrono::milliseconds(200));
                return;
            }
            for (const double end = steady_seconds() + kMinutes; steady_seconds() < end && !watchdog.aborted();) {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
            watchdog.leave(Error(ErrorKind::io, "the disk is full"));
        });
    }
    for (std::thread& t : threads) t.join();
    INFO(ends.of(0).why);
    CHECK(ends.of(0).exit_code == 74);
    CHECK(contains(ends.of(0).why, "the disk is full"));
    CHECK(contains(ends.of(0).why, "rank 1 on "));
    CHECK(contains(ends.of(0).why, "a broken shard"));
}

TEST_CASE("watchdog: the rank that is lost is told beside its consequence, however late rank 0 gets its time") {
    const int port = free_port();
    RankProcess first([port] { stop_in_company(port, 0, 3); }), lost([port] { stop_in_company(port, 2, 3); });
    Ends ends(3);
    {
        Startup startup = meet_by_tcp(port, 1, 3);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(1, patient()));
        first.await_stop();
        lost.await_stop();
        lost.end();
        std::jthread leaves(
            [&] { watchdog.leave(Error(ErrorKind::resumable, "the connection of rank 1 to rank 2 is lost")); });
        let_them_wait();
        first.go_on();
    }
    INFO(ends.of(1).why);
    CHECK(ends.of(1).exit_code == 75);
    CHECK(contains(ends.of(1).why, "rank 2 on "));
    CHECK(contains(ends.of(1).why, "died or was cut off"));
    CHECK(contains(ends.of(1).why, "what this rank met: the connection of rank 1 to rank 2 is lost"));
}

TEST_CASE("watchdog: the rank that is lost is told beside its consequence, however much rank 0 has to read before") {
    const int port = free_port();
    RankProcess first([port] { stop_in_company(port, 0, 3); });
    Ends ends(3);
    std::optional<Socket> lost;
    std::jthread rank_2([&] { lost = join_without_watchdog(port, 2, 3); });
    {
        Startup startup = meet_by_tcp(port, 1, 3);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(1, patient()));
        rank_2.join();
        REQUIRE(lost);
        first.await_stop();
        std::string messages;   // which rank 0 does not know
        for (int i = 0; i < 1000000; i++) messages += std::string("\1\0\0\0x", 5);
        // as much as fits into the connection, whose end comes behind it
        std::size_t sent = 0;
        for (int i = 0; i < 50; i++) {
            const ssize_t more =
                ::send(lost->fd(), messages.data() + sent, messages.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            if (more > 0) sent += static_cast<std::size_t>(more);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        lost->close();
        std::jthread leaves(
            [&] { watchdog.leave(Error(ErrorKind::resumable, "the connection of rank 1 to rank 2 is lost")); });
        let_them_wait();
        first.go_on();
    }
    INFO(ends.of(1).why);
    CHECK(contains(ends.of(1).why, "rank 2 on "));
    CHECK(contains(ends.of(1).why, "died or was cut off"));
    CHECK(contains(ends.of(1).why, "what this rank met: the connection of rank 1 to rank 2 is lost"));
}

TEST_CASE("watchdog: an error that looks like a consequence, and is none, is told as it is") {
    for (int failing : {0, 1}) {
        TemporaryFolder folder;
        Ends ends(2);
        std::vector<std::thread> threads;
        for (int r = 0; r < 2; r++) {
            threads.emplace_back([&, r] {
                Startup startup = meet(folder, r, 2);
                Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(r, patient()));
                if (r == failing) watchdog.leave(Error(ErrorKind::resumable, "a link is lost"));
                ends.await(r);
            });
        }
        for (std::thread& t : threads) t.join();
        for (int r = 0; r < 2; r++) CHECK(ends.of(r).exit_code == 75);
        CHECK(ends.of(failing).why == "a link is lost");
        CHECK(contains(ends.of(1 - failing).why, text("rank ", failing, " on ")));
        CHECK(contains(ends.of(1 - failing).why, "failed: a link is lost"));
    }
}

TEST_CASE("watchdog: what several ranks meet is said by one of them, however late rank 0 gets its time") {
    const int port = free_port();
    RankProcess first([port] { stop_in_company(port, 0, 3); });
    Ends ends(3);
    std::vector<std::jthread> threads;
    for (int r = 1; r < 3; r++) {
        threads.emplace_back([&, r] {
            Startup startup = meet_by_tcp(port, r, 3);
            Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(r, patient()));
            watchdog.leave(Error(ErrorKind::bad_data, "a broken shard"));
        });
    }
    first.await_stop();
    let_them_wait();
    first.go_on();
    threads.clear();
    for (int r = 1; r < 3; r++) CHECK(ends.of(r).exit_code == static_cast<int>(ErrorKind::bad_data));
    INFO(ends.of(1).why, ", ", ends.of(2).why);
    CHECK(ends.of(1).why + ends.of(2).why == "a broken shard");
}

TEST_CASE("watchdog: rank 0 does not leave before it has told every rank why, however slowly one listens") {
    const int port = free_port();
    const std::string broken(32 << 20, 'x');   // more than connections hold
    Ends ends(2);
    std::latch sent(1);
    std::jthread rank_0([&] {
        Startup startup = meet_by_tcp(port, 0, 2);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(0, patient()));
        sent.wait();
        watchdog.leave(Error(ErrorKind::resumable, "a link is lost"));
    });
    std::optional<Socket> connection = join_without_watchdog(port, 1, 2);
    CHECK((connection && connection->send("f" + broken)));   // a failure
    sent.count_down();
    REQUIRE(connection);
    let_them_wait();
    CHECK(ends.of(0).exit_code == 0);   // it is still telling
    std::optional<std::string> said = "";
    while (said && !contains(*said, broken)) said = connection->receive(kMinutes);   // heartbeats come before
    CHECK(said);
    ends.await(0);
    CHECK(ends.of(0).exit_code == 75);
}

TEST_CASE("watchdog: an error after rank 0 has left in good order is told") {
    TemporaryFolder folder;
    Ends ends(2);
    std::jthread rank_0([&] {
        Startup startup = meet(folder, 0, 2);
        Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(0, patient()));
    });
    Startup startup = meet(folder, 1, 2);
    Watchdog watchdog(*startup.rendezvous, startup.place, ends.options(1, patient()));
    watchdog.leave(Error(ErrorKind::resumable, "a link is lost"));
    CHECK(ends.of(1).exit_code == 75);
    CHECK(contains(ends.of(1).why, "a link is lost"));
}
