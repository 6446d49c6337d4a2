#include "llmc/process/sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
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
#include <thread>

#include "llmc/base/error.h"

namespace {

constexpr std::uint32_t largest_frame = 64u << 20;

bool wait_readable(int fd, double seconds) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, static_cast<int>(std::clamp(seconds, 0.0, 3600.0) * 1e3) + 1) > 0;
}

void send_at_once(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

std::string in_digits(const sockaddr_in& address) {
    char digits[INET_ADDRSTRLEN] = {};
    inet_ntop(AF_INET, &address.sin_addr, digits, sizeof digits);
    return digits;
}

// All addresses of a host, with the port; none where its name does not resolve.
std::vector<sockaddr_in> resolve(const std::string& host, int port) {
    std::vector<sockaddr_in> result;
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return result;
    for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
        result.push_back(*reinterpret_cast<const sockaddr_in*>(a->ai_addr));
    }
    freeaddrinfo(found);
    return result;
}

// A connection under way, which poll() finds writable at its end.
struct Attempt {
    std::size_t address;   // which
    Socket socket;
};

std::optional<Attempt> begin_to_connect(const sockaddr_in& to, std::size_t address) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int status = connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
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
std::optional<Attempt> connect_to_first(const std::vector<sockaddr_in>& addresses, double deadline) {
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
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
    return in_digits(address);
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
        if (wait_readable(fd_, deadline - steady_seconds())) {
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
        char piece[1 << 14];
        const ssize_t n = ::recv(socket.fd(), piece, std::min(sizeof piece, wanted - bytes_.size()), MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return State::partial;
        if (n <= 0) return State::lost;
        bytes_.append(piece, static_cast<std::size_t>(n));
    }
}

std::string FrameReader::take() {
    std::string text = bytes_.substr(sizeof(std::uint32_t));
    bytes_.clear();
    return text;
}

ListeningSocket::ListeningSocket(int port, bool only_loopback) {
    socket_ = Socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    int yes = 1;
    setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(only_loopback ? INADDR_LOOPBACK : INADDR_ANY);
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
    if (!wait_readable(socket_.fd(), timeout_seconds)) {
        errno = EAGAIN;
        return std::nullopt;
    }
    int fd = accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return std::nullopt;
    send_at_once(fd);
    return Socket(fd);
}

std::optional<Socket> connect_to_any(const std::vector<std::string>& hosts, int port, double timeout_seconds,
                                     const std::function<bool(Socket&)>& greet) {
    // A host that answers nothing, or whose answer is lost, is asked anew; one that refuses may just not listen yet.
    constexpr double patience = 2, pause = 0.05;
    const double deadline = steady_seconds() + timeout_seconds;
    std::vector<sockaddr_in> wrong;   // addresses where `greet` returned false, until all have been tried
    auto is_wrong = [&wrong](const sockaddr_in& a) {
        return std::any_of(wrong.begin(), wrong.end(),
                           [&a](const sockaddr_in& w) { return w.sin_addr.s_addr == a.sin_addr.s_addr; });
    };
    do {
        std::vector<sockaddr_in> addresses;
        for (const std::string& host : hosts) {
            for (const sockaddr_in& address : resolve(host, port)) {
                if (!is_wrong(address)) addresses.push_back(address);
            }
        }
        std::optional<Attempt> answered = connect_to_first(addresses, std::min(deadline, steady_seconds() + patience));
        if (answered && (!greet || greet(answered->socket))) return std::move(answered->socket);
        if (answered) {
            wrong.push_back(addresses[answered->address]);
            continue;
        }
        wrong.clear();
        std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    } while (steady_seconds() < deadline);
    return std::nullopt;
}

bool is_loopback(const std::string& host) { return host == "127.0.0.1" || host == "localhost"; }

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

std::vector<std::string> own_addresses() {
    std::vector<std::string> result;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return result;
    for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
        if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET) continue;
        if (!(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        result.push_back(in_digits(*reinterpret_cast<const sockaddr_in*>(i->ifa_addr)));
    }
    freeifaddrs(list);
    return result;
}
