// Connects ranks: one socket to every peer, Unix if both are on one host, else TCP.
//
// Both sides compute the same key for a transfer. The receiver posts first: it sends a credit, and only then the sender
// sends its bytes. So a send never finishes without its receive, nothing needs buffering, and the credit's description
// of the operation lets the sender notice that the two ranks mean different things.
//
// No call waits, except connecting and the destructor's goodbye. Not thread-safe: a fabric belongs to one rank and is
// driven by that rank's queues.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace host {

// Address of a process: reached by Unix socket when `host` is one's own, else by TCP.
struct FabricAddress {
    std::uint64_t key = 0;     // sent first by whoever connects: strangers do not know it
    std::uint64_t host = 0;    // machine and network namespace
    sockaddr_in ip4 = {};      // family 0: it has none, or does not listen there
    sockaddr_in6 ip6 = {};     // likewise
    char unix_name[26] = {};   // in the abstract namespace
};

// Identity of a transfer, the same on both sides.
struct TransferKey {
    std::uint64_t comm = 0;
    std::uint64_t sequence = 0;   // the operation's number within its communicator or pair of ranks
    std::uint32_t part = 0;       // the step within the operation, or a kind of its own for sends and receives
    auto operator<=>(const TransferKey&) const = default;
};

struct Transfer {
    bool done = false;
    std::string mismatch;   // if the peer means another operation: its description
    int peer = -1;          // rank in the fabric
};
using TransferPtr = std::shared_ptr<Transfer>;

class Fabric {
public:
    // Starts to serve the rendezvous of the ranks, in a thread of its own; returns its address.
    static FabricAddress serve_rendezvous();
    // Meets the other ranks there and connects to all of them. Throws std::runtime_error naming the ranks that have not
    // come within `timeout_seconds`, or the failure.
    Fabric(const FabricAddress& rendezvous, int rank, int ranks, double timeout_seconds);
    ~Fabric();   // says goodbye to every peer and waits a moment for theirs
    Fabric(const Fabric&) = delete;
    Fabric& operator=(const Fabric&) = delete;

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }

    // Post a transfer. The memory must stay valid until the transfer is done or dropped. `what` is compared between the
    // two sides.
    TransferPtr send(int peer, const TransferKey& key, const void* data, std::size_t bytes, const std::string& what);
    TransferPtr receive(int peer, const TransferKey& key, void* data, std::size_t bytes, const std::string& what);
    void drop(std::uint64_t comm);   // forgets the communicator's unfinished transfers

    bool progress();             // moves what can be moved now; true if anything did
    void rest(double seconds);   // waits for traffic, at most that long
    bool lost(int peer) const { return peers_[static_cast<std::size_t>(peer)].lost; }

private:
    struct Header {
        std::uint32_t magic = 0x6c636366;
        std::uint32_t type = 0;
        TransferKey key;
        std::uint64_t bytes = 0;
        char what[80] = {};
    };
    struct Pending {
        TransferPtr transfer;
        char* data;   // never written through for sends
        std::size_t bytes;
        std::string what;
    };
    struct Outgoing {
        Header header;
        const char* payload = nullptr;
        std::size_t sent = 0;   // bytes of header and payload
        TransferPtr transfer;
    };
    struct Peer {
        int socket = -1;
        bool lost = false;
        bool goodbye = false;   // the peer said goodbye: losing the connection is no surprise
        std::deque<Outgoing> outgoing;
        std::map<TransferKey, Pending> sends;      // sends that wait for a credit
        std::map<TransferKey, Header> credits;     // credits that wait for their send
        std::map<TransferKey, Pending> receives;   // receives that wait for data
        Header incoming;                           // header being read
        std::size_t header_read = 0, payload_read = 0;
    };

    bool write_some(Peer& peer);
    bool read_some(Peer& peer);
    bool take_message(Peer& peer);
    void start_send(Peer& peer, const TransferKey& key, const Header& credit, Pending send);
    void match_with_self(const TransferKey& key);
    void lose(Peer& peer);
    Header header(std::uint32_t type, const TransferKey& key, std::size_t bytes, const std::string& what) const;

    int rank_, ranks_;
    std::vector<Peer> peers_;
    int arrivals_ = -1;   // epoll of the sockets of peers that are not lost
    std::vector<char> discard_;
};

}   // namespace host
