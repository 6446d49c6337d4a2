#include "llmc/parallel/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "llmc/base/error.h"

namespace {

constexpr std::uint32_t largest_frame = 64u << 20;

bool wait_readable(int fd, double seconds) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, static_cast<int>(std::clamp(seconds, 0.0, 3600.0) * 1e3) + 1) > 0;
}

bool read_exactly(int fd, char* into, std::size_t bytes, double deadline, bool* timed_out) {
    for (std::size_t done = 0; done < bytes;) {
        if (!wait_readable(fd, deadline - steady_seconds())) {
            if (steady_seconds() < deadline) continue;   // interrupted
            if (timed_out) *timed_out = true;
            return false;
        }
        ssize_t n = ::recv(fd, into + done, bytes - done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += static_cast<std::size_t>(n);
    }
    return true;
}

}   // namespace

double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
    std::uint32_t length = 0;
    if (!read_exactly(fd_, reinterpret_cast<char*>(&length), sizeof length, deadline, timed_out)) return std::nullopt;
    if (length > largest_frame) return std::nullopt;   // not one of ours
    std::string text(length, '\0');
    if (!read_exactly(fd_, text.data(), length, deadline, timed_out)) return std::nullopt;
    return text;
}

ListeningSocket::ListeningSocket(int port) {
    socket_ = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int yes = 1;
    setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(socket_.fd(), generic, size) != 0 || listen(socket_.fd(), 1024) != 0 ||
        getsockname(socket_.fd(), generic, &size) != 0) {
        throw Error(ErrorKind::io, text("cannot listen on TCP port ", port, ": ", std::strerror(errno)),
                    "Another process may use it: choose another port.");
    }
    port_ = ntohs(address.sin_port);
}

std::optional<Socket> ListeningSocket::accept(double timeout_seconds) {
    if (!wait_readable(socket_.fd(), timeout_seconds)) return std::nullopt;
    int fd = accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return std::nullopt;
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return Socket(fd);
}

std::optional<Socket> connect_to_host(const std::string& host, int port, double timeout_seconds) {
    const double deadline = steady_seconds() + timeout_seconds;
    do {
        addrinfo hints{}, *found = nullptr;
        hints.ai_family = AF_INET;
        hints.ai_socktype = SOCK_STREAM;
        if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0) {
            Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            const bool connected = connect(socket.fd(), found->ai_addr, found->ai_addrlen) == 0;
            freeaddrinfo(found);
            int yes = 1;
            setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            if (connected) return socket;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    } while (steady_seconds() < deadline);
    return std::nullopt;
}

std::string own_host_name() {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    if (getaddrinfo(name, nullptr, &hints, &found) != 0) return "127.0.0.1";
    freeaddrinfo(found);
    return name;
}
