#include "llmc/cuda_on_cpu/nccl/rendezvous.h"

#include <arpa/inet.h>
#include <fcntl.h>
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

[[noreturn]] void fail_with_errno(const std::string& what) {
    throw std::runtime_error(what + ": " + std::strerror(errno));
}

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

// Finds the addresses others reach this host by, one of each kind: of the first interface with one that
// NCCL_SOCKET_IFNAME names (a prefix), else that is up and no loopback; where there is neither kind, those of loopback.
// Link-local ones of IPv6 mean nothing on another host.
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

// An address to connect to.
struct Way {
    sockaddr_storage at = {};
    socklen_t size = 0;
    std::string words;
};

std::vector<Way> ways_to(const FabricAddress& address) {
    std::vector<Way> ways;
    auto add = [&ways](const auto& at, socklen_t size, const std::string& words) {
        ways.push_back({{}, size, words});
        std::memcpy(&ways.back().at, &at, size);
    };
    if (address.host == host_id()) {
        sockaddr_un local;
        const socklen_t size = unix_address(address.unix_name, &local);
        add(local, size, std::string("the unix socket ") + address.unix_name);
        return ways;
    }
    char digits[INET6_ADDRSTRLEN] = {};
    if (address.ip4.sin_family != 0) {
        inet_ntop(AF_INET, &address.ip4.sin_addr, digits, sizeof digits);
        add(address.ip4, sizeof address.ip4, digits + (":" + std::to_string(ntohs(address.ip4.sin_port))));
    }
    if (address.ip6.sin6_family != 0) {
        inet_ntop(AF_INET6, &address.ip6.sin6_addr, digits, sizeof digits);
        add(address.ip6, sizeof address.ip6,
            "[" + std::string(digits) + "]:" + std::to_string(ntohs(address.ip6.sin6_port)));
    }
    return ways;
}

// Returns a connection under way, which poll() finds writable at its end; -1 with errno where it cannot begin.
Descriptor begin_to_connect(const Way& way) {
    Descriptor attempt(socket(way.at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (attempt.get() < 0) return attempt;
    const int status = connect(attempt.get(), reinterpret_cast<const sockaddr*>(&way.at), way.size);
    if (status == 0 || errno == EINPROGRESS || errno == EINTR) return attempt;
    const int error = errno;
    attempt = Descriptor();
    errno = error;
    return attempt;
}

int error_of(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

// Lets a connection that is made wait when it is used, and send at once.
Descriptor ready_to_use(Descriptor connection) {
    int yes = 1;
    fcntl(connection.get(), F_SETFL, fcntl(connection.get(), F_GETFL) & ~O_NONBLOCK);
    setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);   // fails on a unix socket, which does so
    return connection;
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
    std::snprintf(address.unix_name, sizeof address.unix_name, "nccl%x.%x.%llx",
                  static_cast<unsigned>(getpid()) & 0xffffffu, counter++ & 0xfffu, ticks & 0xffffffffffull);
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
            if (accepted < 0 && (errno == EMFILE || errno == ENFILE)) {   // poll() would find the same comer again
                if (comers_.empty()) fail_with_errno("cannot accept a connection");
                comers_.pop_front();
            }
            if (accepted < 0) continue;
            comers_.push_back({Descriptor(accepted)});
            if (comers_.size() > most) comers_.pop_front();
        }
    }
}

Descriptor connect_to(const FabricAddress& address, const std::string& whom, double deadline) {
    constexpr double patience = 2;   // asks all anew where none answers
    const std::vector<Way> ways = ways_to(address);
    int error = EAFNOSUPPORT;
    do {
        std::vector<Descriptor> attempts;
        for (const Way& way : ways) {
            Descriptor attempt = begin_to_connect(way);
            if (attempt.get() >= 0) {
                attempts.push_back(std::move(attempt));
            } else {
                error = errno;
            }
        }
        const double until = std::min(deadline, now_seconds() + patience);
        for (double left = until - now_seconds(); !attempts.empty() && left > 0; left = until - now_seconds()) {
            std::vector<pollfd> waiting;
            for (const Descriptor& attempt : attempts) waiting.push_back({attempt.get(), POLLOUT, 0});
            if (poll(waiting.data(), waiting.size(), static_cast<int>(left * 1e3) + 1) <= 0) continue;
            for (std::size_t i = waiting.size(); i-- > 0;) {
                if (waiting[i].revents == 0) continue;
                const int failure = error_of(waiting[i].fd);
                if (failure == 0) return ready_to_use(std::move(attempts[i]));
                error = failure;
                attempts.erase(attempts.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
        if (!attempts.empty()) error = ETIMEDOUT;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    } while (now_seconds() < deadline);
    std::string tried;
    for (const Way& way : ways) tried += (tried.empty() ? "" : ", ") + way.words;
    errno = error;
    fail_with_errno("cannot connect to " + whom + " at " + (tried.empty() ? "no address" : tried));
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
    Descriptor connection = connect_to(rendezvous, "the rendezvous on rank 0", deadline);
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
    const auto next = [&](Introduction& hello) {
        try {
            return comers.next(&hello, deadline);
        } catch (const std::runtime_error&) {   // no descriptor is left: the others are missing
            return Descriptor();
        }
    };
    while (table.empty() || present < table.size()) {
        Introduction hello;
        Descriptor connection = next(hello);
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
