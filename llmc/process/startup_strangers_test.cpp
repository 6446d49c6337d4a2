// Whoever else comes to the port of a start: strangers of every kind, and ranks of other runs.
#include <sys/socket.h>

#include <filesystem>
#include <thread>

#include "llmc/process/address.h"
#include "llmc/process/free_port_testing.h"
#include "llmc/process/sockets.h"
#include "llmc/process/startup_testing.h"

using namespace startup_testing;

namespace {

std::size_t open_descriptors() {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// What comes to a port that is open to all. The last of them stay.
void send_strangers(int port, int count) {
    std::vector<Socket> open;
    for (int i = 0; i < count; i++) {
        std::optional<Socket> socket = connect_to_any({"127.0.0.1"}, port, 10);
        if (!socket) return;   // all ranks have come
        const std::string random(static_cast<std::size_t>(1 + i % 40), static_cast<char>(i * 37));
        auto raw = [&](const std::string& bytes) {
            [[maybe_unused]] const ssize_t sent = ::send(socket->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        };
        const std::string greeting = "train_gpt rank 1 of 4 0123456789abcdef0123456789abcdef";
        switch (i % 9) {
            case 0: break;   // silence
            case 1: raw(random); break;
            case 2: raw(std::string("\x40\0\0\0train", 9)); break;   // half a message
            case 3: raw("\xff\xff\xff\xff"); break;                  // the longest
            case 4: socket->send("train_gpt rank 1 of 4"); break;
            case 5: socket->send("train_gpt rank 1 of 4 of another run"); break;
            case 6: socket->send("train_gpt rank 1 of 4 "); break;
            case 7: socket->send(greeting); break;   // and no proof
            case 8: socket->send(greeting) && socket->send(std::string(64, '0')); break;
        }
        open.push_back(std::move(*socket));
        if (open.size() > 150) open.erase(open.begin());
    }
}

void check_strangers(int count) {
    Environment environment(Variables{{"TRAIN_GPT_SECRET", "open sesame"}});
    const std::size_t before = open_descriptors();
    const int port = free_port();
    std::vector<StartupOptions> all;
    for (int r = 0; r < 4; r++) {
        all.push_back(options_of(InitMethod::tcp, r, 4));
        all.back().address = text("127.0.0.1:", port);
    }
    std::vector<Outcome> others(3), first;
    double seconds = 0;
    std::thread strangers([&] {
        send_strangers(port, count);
        std::jthread beside([&] { send_strangers(port, 50); });
        const double start_seconds = steady_seconds();
        others = start({all[1], all[2], all[3]});
        seconds = steady_seconds() - start_seconds;
    });
    first = start({all[0]});
    strangers.join();
    others.insert(others.begin(), first[0]);
    check_all_met(others);
    CHECK(seconds < 60);   // dozens are silent; one after another, each took 5
    CHECK(open_descriptors() == before);
}

}   // namespace

TEST_CASE("startup: a thousand strangers of every kind cost a start nothing, and take nobody's place") {
    check_strangers(1000);
}

TEST_CASE("startup: a rank of another run is told so, and takes nobody's place") {
    const int port = free_port();
    StartupOptions first = options_of(InitMethod::tcp, 0, 2), other = options_of(InitMethod::tcp, 1, 2);
    first.address = other.address = text("127.0.0.1:", port);
    first.timeout_seconds = 2;
    auto environment = std::make_unique<Environment>(Variables{{"TRAIN_GPT_SECRET", "of the first"}});
    Outcome outcome;
    std::thread rank_0([&] { outcome = start({first})[0]; });
    CHECK(connect_to_any({"127.0.0.1"}, port, 5).has_value());      // it listens, so it has read its secret
    CHECK(!connect_to_any({"127.0.0.2"}, port, 0.2).has_value());   // and there only
    environment.reset();
    environment = std::make_unique<Environment>(Variables{{"TRAIN_GPT_SECRET", "of the other"}});
    const Outcome refused = start({other})[0];
    rank_0.join();
    CHECK(refused.exit_code == 69);
    CHECK(contains(refused.error, "it is of another run"));
    CHECK(outcome.exit_code == 69);
    CHECK(contains(outcome.error, "these have not come within 2 s: 1"));
}
