#include "llmc/cuda_on_cpu/nccl/fabric.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "llmc/cuda_on_cpu/nccl/rendezvous.h"

namespace host {

namespace {

enum MessageType : std::uint32_t { kCredit = 1, kData = 2, kGoodbye = 3 };
constexpr double farewell_seconds = 2;

}   // namespace

FabricAddress Fabric::serve_rendezvous() {
    Listener listener;
    FabricAddress address = listener.address;
    std::thread(serve_rendezvous_on, std::move(listener)).detach();
    return address;
}

Fabric::Fabric(const FabricAddress& rendezvous, int rank, int ranks, double timeout_seconds)
    : rank_(rank), ranks_(ranks), peers_(static_cast<std::size_t>(ranks)), discard_(1 << 16) {
    Listener listener;
    const double deadline = now_seconds() + timeout_seconds;
    std::vector<FabricAddress> table = meet(rendezvous, listener.address, rank, ranks, timeout_seconds);
    struct Greeting {
        std::uint64_t key;   // key of the process that is greeted
        std::int64_t rank;
    };
    // Connects to every lower rank, and accepts every higher one. Listening queues hold connections that are not
    // accepted yet, so there is no circular wait.
    for (std::int32_t lower = 0; lower < rank; lower++) {
        const FabricAddress& address = table[static_cast<std::size_t>(lower)];
        Descriptor connection = connect_to(address, "rank " + std::to_string(lower), deadline);
        const Greeting own{address.key, rank};
        write_all(connection.get(), &own, sizeof own);
        peers_[static_cast<std::size_t>(lower)].socket = connection.release();
    }
    Comers comers(listener, sizeof(Greeting));
    for (int missing = ranks - 1 - rank; missing > 0; missing--) {
        Greeting other{0, -1};
        Descriptor connection = comers.next(&other, deadline);
        if (other.rank <= rank || other.rank >= ranks)
            throw std::runtime_error("a higher rank did not connect in time");
        peers_[static_cast<std::size_t>(other.rank)].socket = connection.release();
    }
    arrivals_ = epoll_create1(EPOLL_CLOEXEC);
    if (arrivals_ < 0) throw std::runtime_error(std::string("epoll_create1: ") + std::strerror(errno));
    for (Peer& peer : peers_) {
        if (peer.socket < 0) continue;
        fcntl(peer.socket, F_SETFL, fcntl(peer.socket, F_GETFL) | O_NONBLOCK);
        epoll_event event{};
        event.events = EPOLLIN, event.data.ptr = &peer;
        if (epoll_ctl(arrivals_, EPOLL_CTL_ADD, peer.socket, &event) != 0) {
            throw std::runtime_error(std::string("epoll_ctl: ") + std::strerror(errno));
        }
    }
}

Fabric::~Fabric() {
    for (Peer& peer : peers_) {
        if (peer.socket >= 0 && !peer.lost) peer.outgoing.push_back({header(kGoodbye, {}, 0, ""), nullptr, 0, nullptr});
    }
    auto finished = [&] {
        return std::all_of(peers_.begin(), peers_.end(),
                           [](const Peer& p) { return p.socket < 0 || p.lost || (p.goodbye && p.outgoing.empty()); });
    };
    for (const double end = now_seconds() + farewell_seconds; !finished() && now_seconds() < end;) {
        if (!progress()) rest(0.01);
    }
    for (Peer& peer : peers_) {
        if (peer.socket >= 0) close(peer.socket);
    }
    close(arrivals_);
}

Fabric::Header Fabric::header(std::uint32_t type, const TransferKey& key, std::size_t bytes,
                              const std::string& what) const {
    Header h;
    h.type = type;
    h.key = key;
    h.bytes = bytes;
    std::snprintf(h.what, sizeof h.what, "%s", what.c_str());
    return h;
}

// ---------------------------------------------------------------------------------------------------------------------
// Posting

TransferPtr Fabric::send(int to, const TransferKey& key, const void* data, std::size_t bytes, const std::string& what) {
    auto transfer = std::make_shared<Transfer>();
    transfer->peer = to;
    Peer& peer = peers_[static_cast<std::size_t>(to)];
    Pending pending{transfer, static_cast<char*>(const_cast<void*>(data)), bytes, what};
    if (auto credit = peer.credits.find(key); credit != peer.credits.end()) {
        Header said = credit->second;
        peer.credits.erase(credit);
        start_send(peer, key, said, std::move(pending));
    } else {
        peer.sends.emplace(key, std::move(pending));
        if (to == rank_) match_with_self(key);
    }
    return transfer;
}

TransferPtr Fabric::receive(int from, const TransferKey& key, void* data, std::size_t bytes, const std::string& what) {
    auto transfer = std::make_shared<Transfer>();
    transfer->peer = from;
    Peer& peer = peers_[static_cast<std::size_t>(from)];
    peer.receives.emplace(key, Pending{transfer, static_cast<char*>(data), bytes, what});
    if (from == rank_) {
        match_with_self(key);
    } else if (!peer.lost) {
        peer.outgoing.push_back({header(kCredit, key, bytes, what), nullptr, 0, nullptr});
    }
    return transfer;
}

void Fabric::match_with_self(const TransferKey& key) {
    Peer& self = peers_[static_cast<std::size_t>(rank_)];
    auto send = self.sends.find(key);
    auto receive = self.receives.find(key);
    if (send == self.sends.end() || receive == self.receives.end()) return;
    std::memmove(receive->second.data, send->second.data, std::min(send->second.bytes, receive->second.bytes));
    if (send->second.bytes != receive->second.bytes || send->second.what != receive->second.what) {
        send->second.transfer->mismatch = receive->second.what;
    }
    send->second.transfer->done = receive->second.transfer->done = true;
    self.sends.erase(send);
    self.receives.erase(receive);
}

void Fabric::start_send(Peer& peer, const TransferKey& key, const Header& credit, Pending send) {
    Header data = header(kData, key, send.bytes, send.what);
    if (credit.bytes != send.bytes || std::strcmp(credit.what, data.what) != 0) {
        send.transfer->mismatch = credit.what;   // this side reports both; the peer waits, as it would on a GPU
        return;
    }
    peer.outgoing.push_back({data, send.data, 0, send.transfer});
}

void Fabric::drop(std::uint64_t comm) {
    auto of_comm = [comm](const auto& entry) { return entry.first.comm == comm; };
    for (Peer& peer : peers_) {
        std::erase_if(peer.sends, of_comm);
        std::erase_if(peer.credits, of_comm);
        std::erase_if(peer.receives, of_comm);   // later bytes for them are read and dropped
        // A message that is partly sent cannot be taken back: its memory may be gone, so the connection is closed too.
        const bool torn = std::any_of(peer.outgoing.begin(), peer.outgoing.end(), [comm](const Outgoing& out) {
            return out.header.key.comm == comm && out.payload != nullptr && out.sent > 0;
        });
        if (torn) lose(peer);
        std::erase_if(peer.outgoing, [comm](const Outgoing& out) { return out.header.key.comm == comm; });
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Moving bytes

bool Fabric::progress() {
    bool moved = false;
    for (Peer& peer : peers_) {
        if (!peer.lost && !peer.outgoing.empty()) moved |= write_some(peer);
    }
    // asks for the sockets that have something: most have nothing, and a recv for each took a tenth of a run's time
    epoll_event events[16];
    for (int i = epoll_wait(arrivals_, events, 16, 0) - 1; i >= 0; i--) {
        Peer& peer = *static_cast<Peer*>(events[i].data.ptr);
        if (!peer.lost) moved |= read_some(peer);
    }
    return moved;
}

void Fabric::rest(double seconds) {
    std::vector<pollfd> waiting;
    for (const Peer& peer : peers_) {
        if (peer.socket < 0 || peer.lost) continue;
        const int events = POLLIN | (peer.outgoing.empty() ? 0 : POLLOUT);
        waiting.push_back({peer.socket, static_cast<short>(events), 0});
    }
    poll(waiting.data(), waiting.size(), static_cast<int>(seconds * 1e3) + 1);
}

void Fabric::lose(Peer& peer) {
    peer.lost = true;
    peer.outgoing.clear();
    epoll_ctl(arrivals_, EPOLL_CTL_DEL, peer.socket, nullptr);
}

bool Fabric::write_some(Peer& peer) {
    bool moved = false;
    while (!peer.outgoing.empty()) {
        Outgoing& out = peer.outgoing.front();
        const std::size_t payload = out.payload ? out.header.bytes : 0, head = sizeof(Header);
        iovec parts[2];
        int count = 0;
        if (out.sent < head) parts[count++] = {reinterpret_cast<char*>(&out.header) + out.sent, head - out.sent};
        const std::size_t skip = out.sent > head ? out.sent - head : 0;
        if (skip < payload) parts[count++] = {const_cast<char*>(out.payload) + skip, payload - skip};
        msghdr message{};
        message.msg_iov = parts;
        message.msg_iovlen = static_cast<std::size_t>(count);
        ssize_t n = sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return moved;
        if (n < 0) {
            lose(peer);
            return true;
        }
        moved = true;
        out.sent += static_cast<std::size_t>(n);
        if (out.sent < head + payload) return moved;
        if (out.transfer) out.transfer->done = true;
        peer.outgoing.pop_front();
    }
    return moved;
}

bool Fabric::read_some(Peer& peer) {
    bool moved = false;
    for (;;) {
        char* into;
        std::size_t wanted;
        if (peer.header_read < sizeof(Header)) {
            into = reinterpret_cast<char*>(&peer.incoming) + peer.header_read;
            wanted = sizeof(Header) - peer.header_read;
        } else {
            auto receive = peer.receives.find(peer.incoming.key);
            const bool dropped = receive == peer.receives.end();
            wanted = peer.incoming.bytes - peer.payload_read;
            into = dropped ? discard_.data() : receive->second.data + peer.payload_read;
            if (dropped) wanted = std::min(wanted, discard_.size());
        }
        ssize_t n = wanted == 0 ? 0 : recv(peer.socket, into, wanted, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return moved;
        if (n < 0 || (n == 0 && wanted > 0)) {
            lose(peer);
            return true;
        }
        moved = true;
        if (peer.header_read < sizeof(Header)) {
            peer.header_read += static_cast<std::size_t>(n);
        } else {
            peer.payload_read += static_cast<std::size_t>(n);
        }
        if (peer.header_read == sizeof(Header) && !take_message(peer)) return moved;
    }
}

// Acts on the message whose header is complete, if its payload is too. Returns false if the connection is useless from
// now on.
bool Fabric::take_message(Peer& peer) {
    const Header& h = peer.incoming;
    if (h.magic != Header{}.magic) {
        lose(peer);
        return false;
    }
    if (h.type == kData && peer.payload_read < h.bytes) return true;
    if (h.type == kGoodbye) {
        peer.goodbye = true;
    } else if (h.type == kCredit) {
        if (auto send = peer.sends.find(h.key); send != peer.sends.end()) {
            Pending pending = std::move(send->second);
            peer.sends.erase(send);
            start_send(peer, h.key, h, std::move(pending));
        } else {
            peer.credits[h.key] = h;
        }
    } else if (auto receive = peer.receives.find(h.key); receive != peer.receives.end()) {
        receive->second.transfer->done = true;
        peer.receives.erase(receive);
    }
    peer.header_read = peer.payload_read = 0;
    return true;
}

}   // namespace host
