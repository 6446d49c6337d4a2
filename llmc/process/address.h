// TCP addresses, of IPv4 and IPv6 alike: how they are written, and what a name means.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

// A host's address and a port.
struct Address {
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;

    sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
    int family() const { return storage.ss_family; }
    std::string host() const;   // in digits, with the interface where one is needed: fe80::1%eth0
    int port() const;
};

// The addresses of this host that only this host reaches, and those that stand for all of its interfaces, in digits. A
// machine may lack one of each.
inline constexpr const char* kLoopbackHosts[] = {"127.0.0.1", "::1"};
inline constexpr const char* kAllInterfaces[] = {"0.0.0.0", "::"};

// Addresses of a host, given as a name or in digits, at present: all of them, or why there are none.
struct Resolution {
    std::vector<Address> addresses;
    std::string failure;   // the resolver's words
};
Resolution resolve(const std::string& host, int port);   // "localhost": both addresses of loopback, on every machine

// A place where a process listens.
struct HostPort {
    std::string host;   // a name or digits, without brackets
    int port = 0;
};
// Reads HOST[:PORT], an IPv6 address in brackets: [::1]:29500. Throws Error(usage) that names `source`; also for what
// no resolver can ever know, as a name with a space in it.
HostPort read_host_port(const std::string& given, int default_port, const std::string& source);
// Reads a host alone, whose IPv6 address may do without brackets, and a port ("": the default). Throws Error(usage).
HostPort read_host_and_port(const std::string& host, const std::string& port, int default_port,
                            const std::string& source);
std::string to_text(const HostPort& at);   // HOST:PORT, an IPv6 address in brackets

// Returns true for "localhost", 127.0.0.1 and ::1, which mean the host that says them. Other names may mean loopback on
// one host and not on others.
bool is_loopback(const std::string& host);

// Returns the addresses of all interfaces that are up, in digits, without loopback and without link-local ones of IPv6,
// which mean nothing on another host.
std::vector<std::string> own_addresses();
