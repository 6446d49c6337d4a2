#include "llmc/process/watchdog_join.h"

#include <poll.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <sstream>

#include "llmc/base/error.h"

namespace {

constexpr const char* kConfirmed = "confirmed";
constexpr const char* kAllHaveCome = "all have come";

// A connection whose other end has not joined yet; rank 0: it has not said who it is, as a stranger never does.
struct Comer {
    Socket socket;
    int rank = 0;
};

class Gate {   // of rank 0
public:
    Gate(int ranks, std::string word, double seconds)
        : word_(std::move(word)), seconds_(seconds), joined_(static_cast<std::size_t>(ranks)) {}

    // All connections are listened to at once: one that stays silent delays nobody.
    std::vector<Socket> accept_all(ListeningSocket& listener) {
        const double deadline = steady_seconds() + seconds_;
        std::vector<Comer> comers;
        while (!missing().empty()) {
            if (steady_seconds() > deadline) throw_missing();
            std::vector<pollfd> waiting{{listener.fd(), POLLIN, 0}};
            for (const Comer& comer : comers) waiting.push_back({comer.socket.fd(), POLLIN, 0});
            poll(waiting.data(), waiting.size(), 100);
            std::vector<Comer> remaining;
            for (std::size_t i = 0; i < comers.size(); i++) {
                if (waiting[i + 1].revents == 0 || hear(comers[i])) remaining.push_back(std::move(comers[i]));
            }
            comers = std::move(remaining);
            if (waiting[0].revents == 0) continue;
            if (std::optional<Socket> socket = listener.accept(0)) comers.push_back({std::move(*socket), 0});
        }
        for (std::size_t r = 1; r < joined_.size(); r++) joined_[r].send(kAllHaveCome);
        return std::move(joined_);
    }

private:
    // Takes one message of a comer. True: there is more to come. False: it has joined, or is of no use.
    bool hear(Comer& comer) {
        const std::optional<std::string> message = comer.socket.receive(1);
        if (comer.rank > 0) {
            const bool has_joined = message == std::string(kConfirmed);   // else its rank has given it up
            if (has_joined) joined_[static_cast<std::size_t>(comer.rank)] = std::move(comer.socket);
            return false;
        }
        const int rank = message ? std::atoi(message->c_str()) : 0;
        if (rank <= 0 || static_cast<std::size_t>(rank) >= joined_.size()) return false;
        if (*message != text(rank, " ", word_)) return false;   // a stranger
        comer.rank = rank;
        return comer.socket.send(text("rank 0 ", word_));
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

    std::string word_;
    double seconds_;
    std::vector<Socket> joined_;   // by rank
};

Socket join_rank_0(const std::vector<std::string>& addresses, int port, const std::string& word,
                   const ProcessPlace& place, const std::string& host, double seconds) {
    auto is_rank_0 = [&](Socket& socket) {
        return socket.send(text(place.rank, " ", word)) && socket.receive(5) == text("rank 0 ", word) &&
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
    std::unique_ptr<ListeningSocket> listener;
    std::string at;
    if (place.rank == 0) {
        listener = std::make_unique<ListeningSocket>(0);
        at = text(listener->port(), " ", std::random_device{}(), std::random_device{}(), " ", own_host_identity());
        for (const std::string& address : own_addresses()) at += " " + address;
    }
    std::istringstream said(rendezvous.from_rank_0(at));
    int port = 0;
    std::string word, identity;
    said >> port >> word >> identity;
    const std::vector<std::string> hosts = rendezvous.all_gather(place.host);
    std::vector<WatchdogConnection> result;
    if (place.rank == 0) {
        std::vector<Socket> sockets = Gate(place.ranks, word, seconds).accept_all(*listener);
        for (std::size_t r = 0; r < sockets.size(); r++) result.push_back({std::move(sockets[r]), hosts[r]});
        return result;
    }
    // no names, which may not resolve: first the address by which rank 0 was met
    std::vector<std::string> addresses;
    if (std::string met = rendezvous.rank_0_address(); !met.empty()) addresses.push_back(met);
    if (identity == own_host_identity()) addresses.emplace_back("127.0.0.1");
    for (std::string address; said >> address;) addresses.push_back(address);
    result.push_back({join_rank_0(addresses, port, word, place, hosts[0], seconds), hosts[0]});
    return result;
}
