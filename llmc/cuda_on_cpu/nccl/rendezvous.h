// Lets ranks find each other: blocking sockets, used only while connecting.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <deque>
#include <string>
#include <vector>

#include "llmc/cuda_on_cpu/nccl/fabric.h"

namespace host {

double now_seconds();   // seconds of a steady clock

// A file descriptor that closes itself.
class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept;
    int get() const { return fd_; }
    int release() {
        int fd = fd_;
        fd_ = -1;
        return fd;
    }

private:
    int fd_;
};

// Listens on a unix name and on TCP ports of its own, by IPv4 and IPv6 where the host has an address of each.
struct Listener {
    Listener();
    FabricAddress address;
    std::vector<Descriptor> sockets;   // accepting never waits
};

// Connections to a listener that is open to all. Each must send a greeting of a given number of bytes, whose first
// eight are the listener's key. All connections are heard at once; one that sends anything else is dropped, and if too
// many have sent too little, the oldest are dropped.
class Comers {
public:
    Comers(const Listener& listener, std::size_t greeting_bytes) : listener_(listener), bytes_(greeting_bytes) {}

    // Returns the next connection that has greeted, with its greeting; -1 when `deadline` (now_seconds) passes.
    Descriptor next(void* greeting, double deadline);

private:
    struct Comer {
        Descriptor connection;
        std::vector<char> said = {};
    };
    bool hear(Comer& comer) const;             // false: drop it
    static constexpr std::size_t most = 128;   // connections that have not greeted yet

    const Listener& listener_;
    std::size_t bytes_;
    std::deque<Comer> comers_;
};

// Connects by all kinds of addresses at once, retrying until the deadline (now_seconds); one that never answers holds
// up none of the others. Throws std::runtime_error that says `whom` it cannot reach, where, and why.
Descriptor connect_to(const FabricAddress& address, const std::string& whom, double deadline);

// Write or read all bytes, else throw std::runtime_error.
void write_all(int fd, const void* data, std::size_t bytes);
void read_all(int fd, void* data, std::size_t bytes, double deadline);

// Meets at the rendezvous: every rank sends its address, then all ranks get the addresses of all.
std::vector<FabricAddress> meet(const FabricAddress& rendezvous, const FabricAddress& own, int rank, int ranks,
                                double timeout_seconds);
void serve_rendezvous_on(Listener listener);

}   // namespace host
