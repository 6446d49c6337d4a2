// Plain TCP connections that carry framed texts: for start-up and for the watchdog. Blocking, with time limits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "llmc/base/log.h"

class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    ~Socket();
    Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Socket& operator=(Socket&& other) noexcept;

    bool is_open() const { return fd_ >= 0; }
    int fd() const { return fd_; }
    void close();
    std::string peer_address() const;   // address of the other end, in digits

    // A text of any length, as a frame. False when the connection is lost (or, for receive, nothing whole came in time;
    // `timed_out` tells which).
    bool send(const std::string& text);
    std::optional<std::string> receive(double timeout_seconds, bool* timed_out = nullptr);

private:
    int fd_ = -1;
};

// Assembles one framed text from the pieces that arrive.
class FrameReader {
public:
    enum class State { partial, whole, lost };   // lost: closed, or too long to be one of ours

    // Reads what has arrived, without waiting, up to the end of one text.
    State read(const Socket& socket, std::uint32_t longest);
    std::string take();   // a whole text; then the next one begins

private:
    std::string bytes_;   // the length first
};

class ListeningSocket {
public:
    // Listens on `port` (0: any) of all interfaces, or of loopback alone, by IPv4 and by IPv6; where the machine has
    // only one of them, by that. Throws Error(io).
    explicit ListeningSocket(int port, bool only_loopback = false);
    // Listens on `port` at each of these addresses, given in digits, of which the machine has one. Throws Error(io).
    ListeningSocket(const std::vector<std::string>& hosts, int port);
    int port() const { return port_; }
    std::vector<int> fds() const;   // one is readable when a connection is pending
    std::optional<Socket> accept(double timeout_seconds);

private:
    std::vector<Socket> sockets_;   // one of each kind of addresses
    int port_ = 0;
};

// Tries all addresses of all hosts at once, again and again, until one answers or the time is over; nullopt then. Where
// several answer, an earlier one is taken, unless `greet` says of the connection that it is not the right one: private
// addresses mean other machines elsewhere. `look` is called before each attempt and may throw.
std::optional<Socket> connect_to_any(const std::vector<std::string>& hosts, int port, double timeout_seconds,
                                     const std::function<bool(Socket&)>& greet = {},
                                     const std::function<void()>& look = {});

std::string own_host_name();   // for messages; others may not be able to resolve it
// Returns a text that two processes share exactly if they reach each other by loopback: host name, boot and network
// namespace.
std::string own_host_identity();
