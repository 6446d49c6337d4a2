#include "llmc/process/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "llmc/base/error.h"
#include "llmc/process/address.h"

namespace {

constexpr std::uint32_t largest_frame = 64u << 20;

// Returns the descriptors that become readable within the time.
std::vector<int> wait_readable(const std::vector<int>& fds, double seconds) {
    std::vector<pollfd> waiting;
    for (int fd : fds) waiting.push_back({fd, POLLIN, 0});
    std::vector<int> result;
    if (poll(waiting.data(), waiting.size(), static_cast<int>(std::clamp(seconds, 0.0, 3600.0) * 1e3) + 1) <= 0) {
        return result;
    }
    for (const pollfd& p : waiting) {
        if (p.revents != 0) result.push_back(p.fd);
    }
    return result;
}

void send_at_once(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

// A connection under way, which poll() finds writable at its end.
struct Attempt {
    std::size_t address;   // which
    Socket socket;
};

std::optional<Attempt> begin_to_connect(const Address& to, std::size_t address) {
    Socket socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int status = connect(socket.fd(), to.get(), to.size);
    if (status != 0 && errno != EINPROGRESS && errno != EINTR) return std::nullopt;
    return Attempt{address, std::move(socket)};
}

bool has_failed(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0;
}

// Connects to all addresses at once; the first that answers is it, the others are given up. nullopt if none does before
// the deadline, or all refuse.
std::optional<Attempt> connect_to_first(const std::vector<Address>& addresses, double deadline) {
    std::vector<Attempt> attempts;
    for (std::size_t i = 0; i < addresses.size(); i++) {
        if (std::optional<Attempt> begun = begin_to_connect(addresses[i], i)) attempts.push_back(std::move(*begun));
    }
    while (!attempts.empty() && steady_seconds() < deadline) {
        std::vector<pollfd> waiting;
        for (const Attempt& attempt : attempts) waiting.push_back({attempt.socket.fd(), POLLOUT, 0});
        poll(waiting.data(), waiting.size(), static_cast<int>(std::max(deadline - steady_seconds(), 0.0) * 1e3) + 1);
        std::vector<Attempt> pending;
        for (std::size_t i = 0; i < waiting.size(); i++) {
            if (waiting[i].revents == 0) pending.push_back(std::move(attempts[i]));
            if (waiting[i].revents == 0 || has_failed(waiting[i].fd)) continue;
            fcntl(waiting[i].fd, F_SETFL, fcntl(waiting[i].fd, F_GETFL) & ~O_NONBLOCK);
            send_at_once(waiting[i].fd);
            return std::move(attempts[i]);
        }
        attempts = std::move(pending);
    }
    return std::nullopt;
}

// Listens at one address, for its kind of addresses alone. Closed, with errno, where it cannot.
Socket listen_at(const Address& at) {
    Socket socket(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.is_open()) return socket;
    int yes = 1;
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (at.family() == AF_INET6) setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
    if (bind(socket.fd(), at.get(), at.size) == 0 && listen(socket.fd(), 1024) == 0) return socket;
    const int error = errno;
    socket.close();
    errno = error;
    return socket;
}

int port_of(const Socket& socket) {
    Address own;
    return getsockname(socket.fd(), own.get(), &own.size) == 0 ? own.port() : 0;
}

// Returns true if the machine, or its loopback, knows no addresses of a kind.
bool lacks_addresses(int error) { return error == EAFNOSUPPORT || error == EADDRNOTAVAIL; }

}   // namespace

Socket::~Socket() { close(); }

Socket& Socket::operator=(Socket&& other) noexcept {
    if (this != &other) {
        close();
        fd_ = other.fd_;
        other.fd_ = -1;
    }
    return *this;
}

void Socket::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

std::string Socket::peer_address() const {
    Address peer;
    return getpeername(fd_, peer.get(), &peer.size) == 0 ? peer.host() : "";
}

bool Socket::send(const std::string& text) {
    auto length = static_cast<std::uint32_t>(text.size());
    std::string frame(reinterpret_cast<const char*>(&length), sizeof length);
    frame += text;
    for (std::size_t done = 0; done < frame.size();) {
        ssize_t n = ::send(fd_, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += static_cast<std::size_t>(n);
    }
    return true;
}

std::optional<std::string> Socket::receive(double timeout_seconds, bool* timed_out) {
    if (timed_out) *timed_out = false;
    const double deadline = steady_seconds() + timeout_seconds;
    FrameReader frame;
    while (true) {
        if (!wait_readable({fd_}, deadline - steady_seconds()).empty()) {
            const FrameReader::State state = frame.read(*this, largest_frame);
            if (state == FrameReader::State::whole) return frame.take();
            if (state == FrameReader::State::lost) return std::nullopt;
        } else if (steady_seconds() >= deadline) {   // else interrupted
            if (timed_out) *timed_out = true;
            return std::nullopt;
        }
    }
}

FrameReader::State FrameReader::read(const Socket& socket, std::uint32_t longest) {
    for (;;) {
        std::uint32_t length = 0;
        std::size_t wanted = sizeof length;
        if (bytes_.size() >= wanted) {
            std::memcpy(&length, bytes_.data(), sizeof length);
            if (length > longest) return State::lost;
            wanted += length;
            if (bytes_.size() == wanted) return State::whole;
        }
        char buffer[1 << 14];
        const ssize_t n = ::recv(socket.fd(), buffer, std::min(sizeof buffer, wanted - bytes_.size()), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::partial;
        if (n <= 0) return State::lost;
        bytes_.append(buffer, static_cast<std::size_t>(n));
    }
}

std::string FrameReader::take() {
    std::string text = bytes_.substr(sizeof(std::uint32_t));
    bytes_.clear();
    return text;
}

ListeningSocket::ListeningSocket(int port, bool only_loopback)
    : ListeningSocket(only_loopback ? std::vector<std::string>(std::begin(kLoopbackHosts), std::end(kLoopbackHosts))
                                    : std::vector<std::string>(std::begin(kAllInterfaces), std::end(kAllInterfaces)),
                      port) {}

ListeningSocket::ListeningSocket(const std::vector<std::string>& hosts, int port) {
    // The port that the system chooses for one kind of addresses may be taken for the other.
    int error = EADDRINUSE;
    for (int attempt = 0; attempt < (port == 0 ? 100 : 1) && error == EADDRINUSE; attempt++) {
        sockets_.clear();
        port_ = port;
        error = 0;
        int lacking = 0;
        for (const std::string& host : hosts) {
            Socket socket = listen_at(resolve(host, port_).addresses.at(0));
            if (socket.is_open()) {
                port_ = port_of(socket);
                sockets_.push_back(std::move(socket));
            } else {
                (lacks_addresses(errno) ? lacking : error) = errno;
            }
        }
        if (sockets_.empty() && error == 0) error = lacking;
    }
    if (error != 0) {
        throw Error(ErrorKind::io, text("cannot listen on TCP port ", port_, ": ", std::strerror(error)),
                    "Another process may use it: choose another port.");
    }
}

std::vector<int> ListeningSocket::fds() const {
    std::vector<int> result;
    for (const Socket& socket : sockets_) result.push_back(socket.fd());
    return result;
}

std::optional<Socket> ListeningSocket::accept(double timeout_seconds) {
    const std::vector<int> found = wait_readable(fds(), timeout_seconds);
    if (found.empty()) {
        errno = EAGAIN;
        return std::nullopt;
    }
    // the others come first next time, so that many who come to one hold up nobody at another
    std::rotate(sockets_.begin(), std::ranges::find(sockets_, found[0], &Socket::fd) + 1, sockets_.end());
    int fd = accept4(found[0], nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return std::nullopt;
    send_at_once(fd);
    return Socket(fd);
}

std::optional<Socket> connect_to_any(const std::vector<std::string>& hosts, int port, double timeout_seconds,
                                     const std::function<bool(Socket&)>& greet, const std::function<void()>& look) {
    // A host that answers nothing, or whose answer is lost, is asked anew; one that refuses may just not listen yet.
    constexpr double patience = 2, pause = 0.05;
    const double deadline = steady_seconds() + timeout_seconds;
    std::set<std::string> wrong;   // addresses where `greet` returned false, until all have been tried
    do {
        if (look) look();
        std::vector<Address> addresses;
        for (const std::string& host : hosts) {
            for (const Address& address : resolve(host, port).addresses) {
                if (!wrong.contains(address.host())) addresses.push_back(address);
            }
        }
        std::optional<Attempt> answered = connect_to_first(addresses, std::min(deadline, steady_seconds() + patience));
        if (answered && (!greet || greet(answered->socket))) return std::move(answered->socket);
        if (answered) {
            wrong.insert(addresses[answered->address].host());
            continue;
        }
        wrong.clear();
        std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    } while (steady_seconds() < deadline);
    return std::nullopt;
}

std::string own_host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return name;
}

std::string own_host_identity() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    struct stat network {};
    stat("/proc/self/ns/net", &network);
    return text(own_host_name(), "/", boot, "/", network.st_ino);
}
