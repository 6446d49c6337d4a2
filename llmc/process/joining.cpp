#include "llmc/process/joining.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>

#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/base/printable.h"
#include "llmc/io/sha256.h"
#include "llmc/process/address.h"
#include "llmc/process/ended_ranks.h"

namespace {

constexpr const char* kConfirmed = "confirmed";
constexpr const char* kAllHaveCome = "all have come";

// Words that the two ends of a connection have said of themselves.
struct Introduction {
    int rank = 0, ranks = 0;   // number of the one that joins, and how many ranks it expects
    std::string nonce = {}, nonce_of_rank_0 = {};
};

std::string greeting_of(const Introduction& of) { return text("train_gpt rank ", of.rank, " of ", of.ranks, " "); }
constexpr const char* kGreetingOfRank0 = "train_gpt rank 0 ";

enum class Prover { rank, rank_0 };
std::string proof_of(Prover prover, const Introduction& of, const std::string& secret) {
    const char* role = prover == Prover::rank_0 ? "rank 0 to " : "to rank 0: ";
    return hmac_sha256(secret, text(role, greeting_of(of), of.nonce, " ", of.nonce_of_rank_0));
}

bool is_nonce(const std::string& said) {
    return said.size() == 32 && said.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Reads the first message of a rank. nullopt for what no rank says.
std::optional<Introduction> read_greeting(const std::string& message) {
    Introduction said;
    if (std::sscanf(message.c_str(), "train_gpt rank %d of %d ", &said.rank, &said.ranks) != 2) return std::nullopt;
    const std::string greeting = greeting_of(said);
    if (!message.starts_with(greeting)) return std::nullopt;
    said.nonce = message.substr(greeting.size());
    return is_nonce(said.nonce) ? std::optional(said) : std::nullopt;
}

// Accepts ranks on rank 0: handles many handshakes at once; drops unknown peers, who may send anything, slowly or
// never.
class Joined {
public:
    Joined(ListeningSocket& listener, const Joining& own)
        : listener_(listener), own_(own), sockets_(static_cast<std::size_t>(own.ranks)) {}

    std::string missing() const {
        std::string result;
        for (std::size_t r = 1; r < sockets_.size(); r++) {
            if (!sockets_[r].is_open()) result += text(result.empty() ? "" : ", ", r);
        }
        return result;
    }

    // Waits up to `seconds` for an event.
    void poll(double seconds) {
        std::vector<pollfd> waiting;
        for (const Pending& peer : pending_) waiting.push_back({peer.socket.fd(), POLLIN, 0});
        for (int fd : listener_.fds()) waiting.push_back({fd, POLLIN, 0});
        ::poll(waiting.data(), waiting.size(), static_cast<int>(std::clamp(seconds, 0.0, 1.0) * 1e3) + 1);
        std::vector<Pending> remaining;
        for (std::size_t i = 0; i < pending_.size(); i++) {
            Pending& peer = pending_[i];
            bool stays = !is_unknown(peer) || steady_seconds() - peer.since < unknown_seconds;
            while (stays && waiting[i].revents != 0) {
                const FrameReader::State state = peer.reader.read(peer.socket, longest_bytes);
                if (state == FrameReader::State::partial) break;
                stays = state == FrameReader::State::whole && take_message(peer, peer.reader.take());
            }
            if (stays) remaining.push_back(std::move(peer));
        }
        pending_ = std::move(remaining);
        accept_all();
    }

    std::vector<Socket> tell_all(const std::string& verdict) {
        for (Socket& socket : sockets_) {
            if (socket.is_open()) socket.send(verdict);
        }
        return std::move(sockets_);
    }

private:
    static constexpr std::size_t most_unknown = 200;
    static constexpr double unknown_seconds = 5;
    static constexpr std::uint32_t longest_bytes = 4096;   // limit of a rank's messages

    // A peer that has not proven itself is dropped after a while, or when there are too many: a rank then connects
    // again.
    struct Pending {
        Socket socket;
        enum class State { silent, challenged, proven } state = State::silent;
        Introduction introduction = {};
        FrameReader reader = {};
        double since = steady_seconds();
    };
    static bool is_unknown(const Pending& peer) { return peer.state != Pending::State::proven; }

    void accept_all() {
        for (std::size_t i = 0; i < most_unknown; i++) {
            std::optional<Socket> socket = listener_.accept(0);
            if (!socket) {
                if (errno != EMFILE && errno != ENFILE) return;   // no more connections
                if (drop_oldest_unknown()) continue;
                throw Error(ErrorKind::no_device,
                            text("no rank can join rank 0: ", std::strerror(EMFILE),
                                 " (ulimit -n); these have not: ", missing()),
                            "Raise the limit on open files: rank 0 needs a few for each rank.");
            }
            if (std::ranges::count_if(pending_, is_unknown) >= std::ptrdiff_t{most_unknown}) drop_oldest_unknown();
            pending_.push_back({std::move(*socket)});
        }
    }
    bool drop_oldest_unknown() {
        const auto oldest = std::ranges::find_if(pending_, is_unknown);
        if (oldest == pending_.end()) return false;
        pending_.erase(oldest);
        return true;
    }

    // Handles a message of the handshake. Returns true if it goes on; else the peer has joined, is refused, or is
    // unknown.
    bool take_message(Pending& peer, const std::string& message) {
        switch (peer.state) {
            case Pending::State::silent: return challenge(peer, message);
            case Pending::State::challenged: return check_proof(peer, message);
            case Pending::State::proven: break;
        }
        if (message == kConfirmed && may_join(peer)) {
            sockets_[static_cast<std::size_t>(peer.introduction.rank)] = std::move(peer.socket);
        }
        return false;   // if not, its rank has given up on this connection
    }
    static bool challenge(Pending& peer, const std::string& message) {
        const std::optional<Introduction> said = read_greeting(message);
        if (!said) return false;
        peer.introduction = *said;
        peer.introduction.nonce_of_rank_0 = make_nonce();
        peer.state = Pending::State::challenged;
        return peer.socket.send(kGreetingOfRank0 + peer.introduction.nonce_of_rank_0);
    }
    bool check_proof(Pending& peer, const std::string& message) {
        if (!equal_in_constant_time(message, proof_of(Prover::rank, peer.introduction, own_.secret))) {
            warn_of(peer);
            return refuse(peer, "it is of another run (TRAIN_GPT_SECRET differs)");
        }
        if (!may_join(peer)) return false;
        peer.state = Pending::State::proven;
        return peer.socket.send(proof_of(Prover::rank_0, peer.introduction, own_.secret));
    }
    // Strangers may come by thousands: one line.
    void warn_of(const Pending& peer) {
        if (has_warned_ || !own_.address_is_given) return;
        has_warned_ = true;
        const std::string address = peer.socket.peer_address();   // none where it has closed the connection
        Log().warning(
            "rank 0: refused a peer%s that says it is rank %d of %d: it does not know this run's secret; "
            "still waiting for: %s. Give all ranks of a run the same TRAIN_GPT_SECRET, and runs other ports",
            address.empty() ? "" : (" at " + address).c_str(), peer.introduction.rank, peer.introduction.ranks,
            missing().c_str());
    }
    bool may_join(Pending& peer) const {
        const int rank = peer.introduction.rank;
        const bool is_expected = peer.introduction.ranks == own_.ranks && rank > 0 && rank < own_.ranks;
        if (is_expected && !sockets_[static_cast<std::size_t>(rank)].is_open()) return true;
        return refuse(peer, text("it expects ranks 1 to ", own_.ranks - 1, " of ", own_.ranks, ", each once"));
    }
    static bool refuse(Pending& peer, const std::string& why) {
        peer.socket.send(text("no to rank ", peer.introduction.rank, " of ", peer.introduction.ranks, ": ", why));
        return false;
    }

    ListeningSocket& listener_;
    const Joining& own_;
    std::vector<Socket> sockets_;    // by rank
    std::vector<Pending> pending_;   // the oldest first
    bool has_warned_ = false;
};

// Throws what rank 0 has answered. `said`: rank 0's words; none: its connection is lost.
[[noreturn]] void refused(const Joining& own, const std::optional<std::string>& said) {
    if (!said) {
        throw_if_a_rank_has_ended(own.rank, own.ranks);   // for which rank 0 has then ended too
        throw Error(ErrorKind::resumable, "lost the connection to rank 0 at start-up",
                    "Look at that rank's own output for the reason.");
    }
    throw Error(ErrorKind::no_device, text("rank ", own.rank, ": rank 0 says ", printable(*said)),
                "Check that every rank was started once, with the same number of ranks and the same TRAIN_GPT_SECRET.");
}

// Makes the handshake with who may be rank 0. False for a stranger.
bool meet_rank_0(Socket& socket, const Joining& own) {
    constexpr double seconds = 5;   // for an answer
    Introduction both{.rank = own.rank, .ranks = own.ranks, .nonce = make_nonce()};
    if (!socket.send(greeting_of(both) + both.nonce)) return false;
    std::optional<std::string> answer = socket.receive(seconds);
    if (!answer || !answer->starts_with(kGreetingOfRank0)) return false;
    both.nonce_of_rank_0 = answer->substr(std::strlen(kGreetingOfRank0));
    if (!is_nonce(both.nonce_of_rank_0) || !socket.send(proof_of(Prover::rank, both, own.secret))) return false;
    answer = socket.receive(seconds);
    if (!answer) return false;
    if (equal_in_constant_time(*answer, proof_of(Prover::rank_0, both, own.secret))) return socket.send(kConfirmed);
    if (!own.address_is_given) return false;
    if (answer->starts_with("no to rank")) refused(own, answer);
    throw Error(ErrorKind::no_device,
                text("rank ", own.rank, ": who answers at ", socket.peer_address(),
                     " as rank 0 does not know this run's secret"),
                "Another run, or a stranger, has that address: check --init-address, and that rank 0 has the same "
                "TRAIN_GPT_SECRET.");
}

}   // namespace

void peers_missing(const std::string& missing, int ranks, double seconds) {
    throw Error(ErrorKind::no_device,
                text("of ", ranks, " ranks these have not come within ", seconds, " s: ", missing),
                "Check that they were started, with the same --init settings, and that the hosts reach each other.");
}

std::vector<Socket> accept_ranks(ListeningSocket& listener, const Joining& own) {
    Joined joined(listener, own);
    std::string missing = joined.missing();
    for (const double end = steady_seconds() + own.seconds; !missing.empty() && steady_seconds() < end;) {
        throw_if_a_rank_has_ended(own.rank, own.ranks);
        joined.poll(std::min(end - steady_seconds(), 0.1));
        missing = joined.missing();
    }
    std::vector<Socket> sockets = joined.tell_all(missing.empty() ? kAllHaveCome : "missing: " + missing);
    if (!missing.empty()) peers_missing(missing, own.ranks, own.seconds);
    return sockets;
}

std::optional<Socket> find_rank_0(const std::vector<std::string>& hosts, int port, const Joining& own, double seconds) {
    auto is_rank_0 = [&](Socket& socket) { return meet_rank_0(socket, own); };
    std::optional<Socket> socket =
        connect_to_any(hosts, port, seconds, is_rank_0, [&] { throw_if_a_rank_has_ended(own.rank, own.ranks); });
    if (!socket) return std::nullopt;
    const std::optional<std::string> said = socket->receive(own.seconds + 10);   // rank 0's own limit comes first
    if (said != kAllHaveCome) refused(own, said);
    return socket;
}

Socket join_rank_0(const std::vector<std::string>& hosts, int port, const Joining& own, double seconds) {
    if (std::optional<Socket> socket = find_rank_0(hosts, port, own, seconds)) return std::move(*socket);
    std::string tried;
    for (const std::string& host : hosts) tried += text(tried.empty() ? "" : ", ", to_text({host, port}));
    throw Error(ErrorKind::no_device,
                text("rank ", own.rank, " cannot reach rank 0 at ", tried, " within ", own.seconds, " s"),
                "Check that rank 0 was started there and that no firewall stands between, at any port.");
}

std::string invitation_to(const ListeningSocket& listener, const std::string& secret, bool on_one_host) {
    std::string line = text(listener.port(), " ", secret, " ", own_host_identity());
    for (const std::string& address : own_addresses()) line += on_one_host ? "" : " " + address;
    return line;
}

Invitation read_invitation(const std::string& line) {
    Invitation result;
    std::istringstream words(line);
    std::string identity;
    if (!(words >> result.port >> result.secret >> identity)) return {};
    if (identity == own_host_identity()) result.hosts.emplace_back("localhost");
    for (std::string address; words >> address;) result.hosts.push_back(address);
    return result;
}

std::string make_nonce() {
    std::random_device random;
    return formatted("%08x%08x%08x%08x", random(), random(), random(), random());
}
