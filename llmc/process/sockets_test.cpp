// Connections that carry texts, between threads.
#include "llmc/process/sockets.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "llmc/process/free_port_testing.h"

namespace {

sockaddr_in address_of(const char* digits, int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = inet_addr(digits);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
}

sockaddr_in local_address(const Socket& socket) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
    return address;
}

}   // namespace

TEST_CASE("sockets: texts of any length arrive whole; silence and a closed connection are told apart") {
    ListeningSocket listener(0);
    std::optional<Socket> client = connect_to_any({"127.0.0.1"}, listener.port(), 5);
    std::optional<Socket> server = listener.accept(5);
    REQUIRE(client);
    REQUIRE(server);
    const std::string longer(3 << 20, 'x');
    std::thread sender([&] {
        client->send("");
        client->send(longer);
    });
    CHECK(server->receive(5) == std::optional<std::string>(""));
    CHECK(server->receive(5) == std::optional<std::string>(longer));
    sender.join();
    bool timed_out = false;
    CHECK(!server->receive(0.05, &timed_out));
    CHECK(timed_out);
    client->close();
    CHECK(!server->receive(5, &timed_out));
    CHECK(!timed_out);
    CHECK(!listener.accept(0.01));
    CHECK(!connect_to_any({"127.0.0.1"}, free_port(), 0.1));
}

TEST_CASE("sockets: an address that never answers neither holds up the limit nor hides one that does") {
    // a listener whose queue is full: the kernel drops what else comes, as a firewall would
    auto listen_at = [](const char* where, int port, int queue) {
        Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const sockaddr_in address = address_of(where, port);
        REQUIRE(bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
        REQUIRE(listen(socket.fd(), queue) == 0);
        return socket;
    };
    const Socket full = listen_at("127.0.0.2", 0, 0);
    const int port = ntohs(local_address(full).sin_port);
    std::vector<Socket> in_queue;
    for (int i = 0; i < 4; i++) {
        in_queue.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const sockaddr_in address = address_of("127.0.0.2", port);
        (void)!connect(in_queue.back().fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }

    const double begin = steady_seconds();
    CHECK(!connect_to_any({"127.0.0.2"}, port, 0.5));
    CHECK(steady_seconds() - begin < 5);   // a blocking connect() takes two minutes

    const Socket right = listen_at("127.0.0.1", port, 5);
    const auto found = connect_to_any({"127.0.0.2", "127.0.0.1"}, port, 20, {});
    REQUIRE(found);
    CHECK(found->peer_address() == "127.0.0.1");
}

TEST_CASE("sockets: of several hosts the one that greets rightly is taken") {
    ListeningSocket listener(0);   // at all addresses of 127.0.0.0/8
    std::atomic<bool> done = false;
    std::thread server([&] {
        while (!done) {
            std::optional<Socket> connection = listener.accept(0.05);
            if (!connection) continue;
            const bool right = local_address(*connection).sin_addr.s_addr == inet_addr("127.0.0.2");
            connection->send(right ? "the right one" : "a stranger");
        }
    });
    int greeted = 0;
    auto is_right = [&greeted](Socket& socket) {
        greeted++;
        return socket.receive(20) == "the right one";
    };
    const auto found = connect_to_any({"127.0.0.1", "127.0.0.2", "127.0.0.3"}, listener.port(), 20, is_right);
    done = true;
    server.join();
    REQUIRE(found);
    CHECK(found->peer_address() == "127.0.0.2");
    CHECK(greeted >= 2);
}
