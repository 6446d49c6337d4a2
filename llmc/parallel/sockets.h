// Plain TCP connections that carry framed texts: for start-up and for the control plane. Blocking, with time limits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

double steady_seconds();

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

    // A text of any length, as a frame. False when the connection is lost (or, for receive, nothing whole came in time;
    // `timed_out` tells which).
    bool send(const std::string& text);
    std::optional<std::string> receive(double timeout_seconds, bool* timed_out = nullptr);

private:
    int fd_ = -1;
};

class ListeningSocket {
public:
    // Listens on `port` (0: any) of all interfaces. Throws Error(io).
    explicit ListeningSocket(int port);
    int port() const { return port_; }
    std::optional<Socket> accept(double timeout_seconds);

private:
    Socket socket_;
    int port_ = 0;
};

// Tries until the time is over; nullopt then.
std::optional<Socket> connect_to_host(const std::string& host, int port, double timeout_seconds);
// The name by which other machines reach this one: its host name; "127.0.0.1" where that does not resolve.
std::string own_host_name();
