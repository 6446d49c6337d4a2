#include "llmc/process/watchdog_join.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "llmc/base/error.h"
#include "llmc/process/pending_connections.h"

namespace {

constexpr const char* kConfirmed = "confirmed";
constexpr const char* kAllHaveCome = "all have come";

// Rank 0's side.
class JoinServer {
public:
    JoinServer(int ranks, std::string nonce, double seconds)
        : nonce_(std::move(nonce)), seconds_(seconds), joined_(static_cast<std::size_t>(ranks)) {}

    std::vector<Socket> accept_all(ListeningSocket& listener) {
        const double deadline = steady_seconds() + seconds_;
        PendingConnections pending(listener);
        while (!missing().empty()) {
            if (steady_seconds() > deadline) throw_missing();
            pending.poll(
                0.1, [this](PendingConnection& peer, const std::string& message) { return on_message(peer, message); });
        }
        for (std::size_t r = 1; r < joined_.size(); r++) joined_[r].send(kAllHaveCome);
        return std::move(joined_);
    }

private:
    // Whether the handshake goes on; else the peer has joined, or is unknown.
    bool on_message(PendingConnection& peer, const std::string& message) {
        if (peer.rank > 0) {
            const bool has_joined = message == kConfirmed;   // else its rank has given it up
            if (has_joined) joined_[static_cast<std::size_t>(peer.rank)] = std::move(peer.socket);
            return false;
        }
        const int rank = std::atoi(message.c_str());
        if (rank <= 0 || static_cast<std::size_t>(rank) >= joined_.size()) return false;
        if (message != text(rank, " ", nonce_)) return false;   // unknown
        peer.rank = rank;
        return peer.socket.send(text("rank 0 ", nonce_));
    }

    std::string missing() const {
        std::string result;
        for (std::size_t r = 1; r < joined_.size(); r++) {
            if (!joined_[r].is_open()) result += text(result.empty() ? "" : ", ", r);
        }
        return result;
    }

    [[noreturn]] void throw_missing() const {
        throw Error(ErrorKind::no_device,
                    text("these ranks have not joined the watchdog within ", seconds_, " s: ", missing()),
                    "Look at their own output for the reason.");
    }

    std::string nonce_;
    double seconds_;
    std::vector<Socket> joined_;   // by rank
};

Socket join_rank_0(const std::vector<std::string>& addresses, int port, const std::string& nonce,
                   const ProcessPlace& place, const std::string& host, double seconds) {
    auto is_rank_0 = [&](Socket& socket) {
        return socket.send(text(place.rank, " ", nonce)) && socket.receive(5) == text("rank 0 ", nonce) &&
               socket.send(kConfirmed);
    };
    std::optional<Socket> socket = connect_to_any(addresses, port, seconds, is_rank_0);
    if (!socket) {
        std::string tried;
        for (const std::string& address : addresses) tried += (tried.empty() ? "" : ", ") + address;
        throw Error(ErrorKind::no_device,
                    text("rank ", place.rank, " on ", place.host, " cannot reach the watchdog of rank 0 on ", host,
                         " within ", seconds, " s; tried port ", port, " of ", tried),
                    "Check that the hosts reach each other, on any port.");
    }
    // rank 0 is silent until all have come, which is no reason to take it for lost
    if (socket->receive(seconds + 5) != std::string(kAllHaveCome)) {
        throw Error(ErrorKind::no_device,
                    text("rank ", place.rank, ": rank 0 on ", host, " has ended the watchdog at start-up"),
                    "Look at that rank's own output for the reason.");
    }
    return std::move(*socket);
}

}   // namespace

std::vector<WatchdogConnection> connect_watchdog(Rendezvous& rendezvous, const ProcessPlace& place, double seconds) {
    // of all: who is where
    const std::string own_identity = own_host_identity();
    const std::vector<std::string> identities = rendezvous.all_gather(own_identity);
    const bool on_one_host = std::all_of(identities.begin(), identities.end(),
                                         [&](const std::string& other) { return other == identities[0]; });
    std::unique_ptr<ListeningSocket> listener;
    std::string at;
    if (place.rank == 0) {
        listener = std::make_unique<ListeningSocket>(0, on_one_host);
        at = text(listener->port(), " ", std::random_device{}(), std::random_device{}());
        for (const std::string& address : own_addresses()) at += on_one_host ? "" : " " + address;
    }
    std::istringstream said(rendezvous.from_rank_0(at));
    int port = 0;
    std::string nonce;
    said >> port >> nonce;
    const std::vector<std::string> hosts = rendezvous.all_gather(place.host);
    std::vector<WatchdogConnection> result;
    if (place.rank == 0) {
        std::vector<Socket> sockets = JoinServer(place.ranks, nonce, seconds).accept_all(*listener);
        for (std::size_t r = 0; r < sockets.size(); r++) result.push_back({std::move(sockets[r]), hosts[r]});
        return result;
    }
    // no names, which may not resolve: first the address by which rank 0 was met
    std::vector<std::string> addresses;
    if (std::string met = rendezvous.rank_0_address(); !met.empty() && !on_one_host) addresses.push_back(met);
    if (identities[0] == own_identity) addresses.emplace_back("127.0.0.1");
    for (std::string address; said >> address;) addresses.push_back(address);
    result.push_back({join_rank_0(addresses, port, nonce, place, hosts[0], seconds), hosts[0]});
    return result;
}
