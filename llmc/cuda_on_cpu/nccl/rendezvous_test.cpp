// How ranks of the stand-in connect, whichever of their addresses answer.
#include "llmc/cuda_on_cpu/nccl/rendezvous.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// A socket that listens at loopback, at a port that the system chooses, with a queue of this length.
template <class Where>
host::Descriptor listen_at(Where& at, int queue) {
    auto* const generic = reinterpret_cast<sockaddr*>(&at);
    socklen_t size = sizeof at;
    host::Descriptor result(socket(generic->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const bool listens = bind(result.get(), generic, size) == 0 && listen(result.get(), queue) == 0;
    if (!listens) return host::Descriptor();
    getsockname(result.get(), generic, &size);
    return result;
}

sockaddr_in loopback4() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}
sockaddr_in6 loopback6() {
    sockaddr_in6 at{};
    at.sin6_family = AF_INET6;
    at.sin6_addr = in6addr_loopback;
    return at;
}

// Listens with a queue that is full: the kernel drops what else comes, as a firewall would.
struct FullListener {
    FullListener() {
        for (int i = 0; i < 4; i++) {
            in_queue.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            (void)!connect(in_queue.back().get(), reinterpret_cast<const sockaddr*>(&at), sizeof at);
        }
    }
    sockaddr_in at = loopback4();
    host::Descriptor listener = listen_at(at, 0);
    std::vector<host::Descriptor> in_queue = {};
};

host::FabricAddress elsewhere() {
    host::FabricAddress address{};
    address.host = host::Listener().address.host + 1;
    return address;
}

std::string complaint(const host::FabricAddress& address, double seconds) {
    try {
        host::connect_to(address, "rank 3", host::now_seconds() + seconds);
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "";
}

}   // namespace

TEST_CASE("nccl: an address that never answers holds up neither the limit nor another one") {
    const FullListener full;
    host::FabricAddress address = elsewhere();
    address.ip4 = full.at;
    const std::string ip4 = "127.0.0.1:" + std::to_string(ntohs(full.at.sin_port));
    const double begin = host::now_seconds();
    CHECK(complaint(address, 0.5) == "cannot connect to rank 3 at " + ip4 + ": Connection timed out");
    CHECK(host::now_seconds() - begin < 100);   // a blocking connect() takes more than two minutes
    address.ip6 = loopback6();
    const host::Descriptor listener = listen_at(address.ip6, 5);
    if (listener.get() < 0) {
        MESSAGE("SKIPPED networks with only IPv6: this machine has no IPv6");
        return;
    }
    const host::Descriptor found = host::connect_to(address, "rank 3", begin + 600);
    CHECK(host::now_seconds() - begin < 100);
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    CHECK(getpeername(found.get(), reinterpret_cast<sockaddr*>(&peer), &size) == 0);
    CHECK(peer.ss_family == AF_INET6);
}

TEST_CASE("nccl: who cannot be reached is told, with all addresses and the reason") {
    host::FabricAddress address = elsewhere();
    CHECK(complaint(address, 0) == "cannot connect to rank 3 at no address: Address family not supported by protocol");
    address.ip4 = loopback4();
    host::Descriptor gone = listen_at(address.ip4, 5);
    gone = host::Descriptor();
    address.ip6 = loopback6();
    address.ip6.sin6_port = address.ip4.sin_port;
    const std::string port = std::to_string(ntohs(address.ip4.sin_port));
    const std::string words = complaint(address, 0.1);
    CHECK(words.find("cannot connect to rank 3 at 127.0.0.1:" + port + ", [::1]:" + port + ": ") == 0);
    address.host = host::Listener().address.host;   // here, where nobody has the name
    std::strcpy(address.unix_name, "nobody");
    CHECK(complaint(address, 0.1) == "cannot connect to rank 3 at the unix socket nobody: Connection refused");
}
