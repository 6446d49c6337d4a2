#include "llmc/cuda_on_cpu/nccl/rendezvous.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <thread>

namespace host {

namespace {

[[noreturn]] void fail_with_errno(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

// Returns a number for the machine and network namespace, so that Unix sockets are used exactly where they work.
// NCCL_HOSTID replaces it.
std::uint64_t host_id() {
    if (const char* given = std::getenv("NCCL_HOSTID")) return std::hash<std::string>{}(given);
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    struct stat network {};
    stat("/proc/self/ns/net", &network);
    return std::hash<std::string>{}(boot) ^ (network.st_ino * 0x9e3779b97f4a7c15ull);
}

// Finds the addresses others reach this host by, one of each kind: of the first interface with one that NCCL_SOCKET_IFNAME names
// (a prefix), else that is up and no loopback; where there is neither kind, those of loopback. Link-local ones of IPv6
// mean nothing on another host.
void find_own_addresses(FabricAddress* own) {
    const char* wanted = std::getenv("NCCL_SOCKET_IFNAME");
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) list = nullptr;
    for (ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || !(i->ifa_flags & IFF_UP)) continue;
        if (wanted ? !std::string(i->ifa_name).starts_with(wanted) : (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
        const auto* ip6 = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
        if (i->ifa_addr->sa_family == AF_INET && own->ip4.sin_family == 0) {
            std::memcpy(&own->ip4, i->ifa_addr, sizeof own->ip4);
        } else if (i->ifa_addr->sa_family == AF_INET6 && own->ip6.sin6_family == 0 &&
                   !IN6_IS_ADDR_LINKLOCAL(&ip6->sin6_addr)) {
            own->ip6 = *ip6;
        }
    }
    if (list != nullptr) freeifaddrs(list);
    if (own->ip4.sin_family != 0 || own->ip6.sin6_family != 0) return;
    own->ip4.sin_family = AF_INET;
    own->ip4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    own->ip6.sin6_family = AF_INET6;
    own->ip6.sin6_addr = in6addr_loopback;
}

// Listens at `at`; a port of 0 there becomes the one that the system chooses. -1 with errno where it cannot.
template <class Where>
Descriptor listen_at(Where& at, socklen_t size) {
    auto* generic = reinterpret_cast<sockaddr*>(&at);
    Descriptor result(socket(generic->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool listens = result.get() >= 0 && bind(result.get(), generic, size) == 0 && listen(result.get(), 1024) == 0;
    if (!listens) return Descriptor();
    if (generic->sa_family != AF_UNIX) getsockname(result.get(), generic, &size);
    return result;
}

// Fills an abstract address: a leading zero byte, no file to leave behind.
socklen_t unix_address(const char* name, sockaddr_un* out) {
    *out = {};
    out->sun_family = AF_UNIX;
    std::size_t length = std::strlen(name);
    std::memcpy(out->sun_path + 1, name, length);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

struct Introduction {
    std::uint64_t key = 0;   // the rendezvous's
    std::int32_t rank = 0, ranks = 0;
    double timeout_seconds = 0;
    FabricAddress address;
};

// Answer of the rendezvous: 0 and then the table, or the number of missing ranks and then their numbers.
struct Answer {
    std::int32_t missing = 0;
};

}   // namespace

double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Descriptor::~Descriptor() {
    if (fd_ >= 0) close(fd_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    if (this != &other) {
        if (fd_ >= 0) close(fd_);
        fd_ = other.release();
    }
    return *this;
}

Listener::Listener() {
    static std::atomic<unsigned> counter = 0;
    const auto ticks = static_cast<unsigned long long>(now_seconds() * 1e6);
    std::snprintf(address.unix_name, sizeof address.unix_name, "nccl%x.%x.%llx", static_cast<unsigned>(getpid()) & 0xffffffu,
                  counter++ & 0xfffu, ticks & 0xffffffffffull);
    std::random_device random;
    address.key = (std::uint64_t{random()} << 32) ^ random();
    address.host = host_id();
    find_own_addresses(&address);

    sockaddr_un local;
    const socklen_t length = unix_address(address.unix_name, &local);
    sockets.push_back(listen_at(local, length));
    if (sockets[0].get() < 0) fail_with_errno("cannot listen on a unix socket");
    auto listen_by_tcp = [this](auto& at, auto& family) {
        if (family == 0) return;
        Descriptor found = listen_at(at, sizeof at);
        if (found.get() < 0) {
            family = 0;   // nobody is to try it
        } else {
            sockets.push_back(std::move(found));
        }
    };
    listen_by_tcp(address.ip4, address.ip4.sin_family);
    listen_by_tcp(address.ip6, address.ip6.sin6_family);
    if (sockets.size() == 1) fail_with_errno("cannot listen on a TCP port");
}

bool Comers::hear(Comer& comer) const {
    char piece[256];
    for (;;) {
        const std::size_t wanted = std::min(sizeof piece, bytes_ - comer.said.size());
        if (wanted == 0) return true;
        const ssize_t n = ::recv(comer.connection.get(), piece, wanted, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        if (n <= 0) return false;
        comer.said.insert(comer.said.end(), piece, piece + n);
        const std::size_t key_bytes = std::min(comer.said.size(), sizeof listener_.address.key);
        if (std::memcmp(comer.said.data(), &listener_.address.key, key_bytes) != 0) return false;
    }
}

Descriptor Comers::next(void* greeting, double deadline) {
    for (;;) {
        for (auto comer = comers_.begin(); comer != comers_.end();) {
            const bool stays = hear(*comer);
            if (stays && comer->said.size() < bytes_) {
                ++comer;
                continue;
            }
            Descriptor connection = std::move(comer->connection);
            if (stays) std::memcpy(greeting, comer->said.data(), bytes_);
            comer = comers_.erase(comer);
            if (stays) return connection;
        }
        const double left = deadline - now_seconds();
        if (left <= 0) return Descriptor();
        std::vector<pollfd> waiting;
        for (const Descriptor& socket : listener_.sockets) waiting.push_back({socket.get(), POLLIN, 0});
        for (const Comer& comer : comers_) waiting.push_back({comer.connection.get(), POLLIN, 0});
        if (poll(waiting.data(), waiting.size(), static_cast<int>(std::min(left, 60.0) * 1e3) + 1) <= 0) continue;
        for (const Descriptor& socket : listener_.sockets) {
            const int accepted = accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC);
            if (accepted < 0) continue;
            comers_.push_back({Descriptor(accepted)});
            if (comers_.size() > most) comers_.pop_front();
        }
    }
}

Descriptor connect_to(const FabricAddress& address, double deadline) {
    sockaddr_un by_name;
    const socklen_t name_length = unix_address(address.unix_name, &by_name);
    const auto* local = reinterpret_cast<const sockaddr*>(&by_name);
    const auto *ip4 = reinterpret_cast<const sockaddr*>(&address.ip4), *ip6 = reinterpret_cast<const sockaddr*>(&address.ip6);
    std::vector<std::pair<const sockaddr*, socklen_t>> ways{{ip4, sizeof address.ip4}, {ip6, sizeof address.ip6}};
    if (address.host == host_id()) ways = {{local, name_length}};
    for (;;) {
        int error = EAFNOSUPPORT;
        for (const auto& [to, size] : ways) {
            if (to->sa_family == 0) continue;
            Descriptor connection(socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (connect(connection.get(), to, size) == 0) {
                int yes = 1;
                if (to->sa_family != AF_UNIX) setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                return connection;
            }
            error = errno;
        }
        if (now_seconds() > deadline) {
            errno = error;
            fail_with_errno("cannot connect to a peer");
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
}

void write_all(int fd, const void* data, std::size_t bytes) {
    for (std::size_t done = 0; done < bytes;) {
        ssize_t n = ::send(fd, static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail_with_errno("a peer went away while connecting");
        done += static_cast<std::size_t>(n);
    }
}

void read_all(int fd, void* data, std::size_t bytes, double deadline) {
    for (std::size_t done = 0; done < bytes;) {
        double left = deadline - now_seconds();
        if (left <= 0) throw std::runtime_error("a peer did not answer in time while connecting");
        pollfd waiting{fd, POLLIN, 0};
        if (poll(&waiting, 1, static_cast<int>(std::min(left, 60.0) * 1e3) + 1) <= 0) continue;
        ssize_t n = ::recv(fd, static_cast<char*>(data) + done, bytes - done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) throw std::runtime_error("a peer went away while connecting");
        done += static_cast<std::size_t>(n);
    }
}

std::vector<FabricAddress> meet(const FabricAddress& rendezvous, const FabricAddress& own, int rank, int ranks,
                                double timeout_seconds) {
    const double deadline = now_seconds() + timeout_seconds;
    Descriptor connection = connect_to(rendezvous, deadline);
    const Introduction hello{rendezvous.key, rank, ranks, timeout_seconds, own};
    write_all(connection.get(), &hello, sizeof hello);
    Answer answer;
    read_all(connection.get(), &answer, sizeof answer, deadline + 5);   // the rendezvous's own time limit comes first
    if (answer.missing > 0) {
        std::vector<std::int32_t> missing(static_cast<std::size_t>(answer.missing));
        read_all(connection.get(), missing.data(), missing.size() * sizeof missing[0], deadline + 5);
        std::string list;
        for (std::int32_t m : missing) list += (list.empty() ? "" : ", ") + std::to_string(m);
        throw std::runtime_error("of " + std::to_string(ranks) + " ranks these have not come: " + list);
    }
    std::vector<FabricAddress> table(static_cast<std::size_t>(ranks));
    read_all(connection.get(), table.data(), table.size() * sizeof table[0], deadline + 5);
    return table;
}

void serve_rendezvous_on(Listener listener) {
    std::vector<FabricAddress> table;
    std::vector<Descriptor> connections;
    std::size_t present = 0;
    double deadline = now_seconds() + 24 * 3600;   // until the first rank comes and says how long it waits
    Comers comers(listener, sizeof(Introduction));
    while (table.empty() || present < table.size()) {
        Introduction hello;
        Descriptor connection = comers.next(&hello, deadline);
        if (connection.get() < 0) break;
        if (hello.ranks <= 0 || hello.rank < 0 || hello.rank >= hello.ranks) continue;
        if (table.empty()) {
            table.resize(static_cast<std::size_t>(hello.ranks));
            connections.resize(table.size());
            deadline = now_seconds() + hello.timeout_seconds;
        }
        const auto rank = static_cast<std::size_t>(hello.rank);
        if (rank >= table.size()) continue;
        if (connections[rank].get() < 0) present++;
        table[rank] = hello.address;
        connections[rank] = std::move(connection);
    }
    std::vector<std::int32_t> missing;
    for (std::size_t i = 0; i < table.size(); i++) {
        if (connections[i].get() < 0) missing.push_back(static_cast<std::int32_t>(i));
    }
    for (const Descriptor& connection : connections) {
        if (connection.get() < 0) continue;
        try {
            Answer answer{static_cast<std::int32_t>(missing.size())};
            write_all(connection.get(), &answer, sizeof answer);
            if (missing.empty()) {
                write_all(connection.get(), table.data(), table.size() * sizeof table[0]);
            } else {
                write_all(connection.get(), missing.data(), missing.size() * sizeof missing[0]);
            }
        } catch (const std::runtime_error&) {
            // The rank died meanwhile; the others will notice
        }
    }
}

}   // namespace host
