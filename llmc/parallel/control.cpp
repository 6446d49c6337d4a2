#include "llmc/parallel/control.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "llmc/parallel/sockets.h"

namespace {

// What rank 0 knows of a rank.
struct Peer {
    Socket socket;
    std::string host;
    std::string last_words = "before its first heartbeat";   // where it was, in words
    std::uint64_t progress = 0;   // grows with everything it does
    double heard = 0;             // steady_seconds of its last message
    bool gone = false;            // it said goodbye
};

constexpr char beat = 'b', goodbye = 'g', failure = 'f', abort_all = 'a';

}   // namespace

struct Control::Impl {
    Impl(Meeting& meeting, const ProcessPlace& own_place, const ControlOptions& chosen) : place(own_place), options(chosen) {
        if (place.ranks == 1) return;
        connect(meeting);
        thread = std::thread([this] { run(); });
    }

    ~Impl() {
        leaving = true;
        if (thread.joinable()) thread.join();
    }

    void connect(Meeting& meeting) {
        constexpr double patience = 60;
        std::unique_ptr<ListeningSocket> listener;
        if (place.rank == 0) listener = std::make_unique<ListeningSocket>(0);
        const std::string at = meeting.from_rank_0(listener ? text(place.host, ":", listener->port()) : "");
        const std::vector<std::string> hosts = meeting.all_gather(place.host);
        if (place.rank != 0) {
            const std::size_t colon = at.rfind(':');
            const std::string host = at.substr(0, colon) == place.host ? "127.0.0.1" : at.substr(0, colon);
            std::optional<Socket> socket = connect_to_host(host, std::atoi(at.c_str() + colon + 1), patience);
            if (!socket || !socket->send(std::to_string(place.rank))) {
                throw Error(ErrorKind::no_device, text("rank ", place.rank, " cannot reach the control plane at ", at),
                            "Check that the hosts reach each other.");
            }
            peers.resize(1);
            peers[0].socket = std::move(*socket);
            peers[0].host = hosts[0];
            peers[0].heard = steady_seconds();
            return;
        }
        peers.resize(static_cast<std::size_t>(place.ranks));
        const double deadline = steady_seconds() + patience;
        for (int missing = place.ranks - 1; missing > 0; missing--) {
            std::optional<Socket> socket = listener->accept(deadline - steady_seconds());
            std::optional<std::string> hello = socket ? socket->receive(10) : std::nullopt;
            const int rank = hello ? std::atoi(hello->c_str()) : 0;
            if (rank <= 0 || rank >= place.ranks) {
                throw Error(ErrorKind::no_device, text(missing, " ranks did not join the control plane"),
                            "Look at their own output for the reason.");
            }
            Peer& peer = peers[static_cast<std::size_t>(rank)];
            peer.socket = std::move(*socket);
            peer.host = hosts[static_cast<std::size_t>(rank)];
            peer.heard = steady_seconds();
        }
    }

    // ---- the thread
    void run() {
        double next_beat = 0;
        while (!leaving && !is_aborted) {
            if (steady_seconds() >= next_beat) {
                send_beats();
                next_beat = steady_seconds() + options.heartbeat_seconds;
            }
            listen(std::min(0.05, options.heartbeat_seconds / 2));
            look_for_silence();
            if (place.rank == 0) look_for_stall();
        }
        if (is_aborted) leave_by_force();
        if (!failing) send_to_all(std::string(1, goodbye));
        await_goodbyes();
    }

    bool is_connected(const Peer& peer) const { return peer.socket.is_open() && !peer.gone; }

    void send_to_all(const std::string& message) {
        for (Peer& peer : peers) {
            if (is_connected(peer)) peer.socket.send(message);   // a failure shows itself when listening
        }
    }

    // "b<progress> <words>": where this rank is.
    void send_beats() {
        std::string words = text("step ", step.load());
        std::uint64_t progress = static_cast<std::uint64_t>(step.load()) + ticks.load();
        std::lock_guard lock(mutex);
        for (const Communicator* c : watched) {
            const CommProgress p = c->progress();
            progress += p.issued;
            if (p.issued == 0) continue;
            words += text(", group ", c->name(), ": ", p.operation, " number ", p.issued, p.issued > p.done ? " under way" : "");
        }
        own_progress = progress;
        send_to_all(text(beat, progress, " ", words));
    }

    void listen(double seconds) {
        std::vector<pollfd> waiting;
        std::vector<int> ranks;
        for (std::size_t r = 0; r < peers.size(); r++) {
            if (!is_connected(peers[r])) continue;
            waiting.push_back({peers[r].socket.fd(), POLLIN, 0});
            ranks.push_back(static_cast<int>(r));
        }
        poll(waiting.data(), waiting.size(), static_cast<int>(seconds * 1e3) + 1);
        for (std::size_t i = 0; i < waiting.size() && !is_aborted; i++) {
            if (waiting[i].revents != 0) take_message(ranks[i]);
        }
    }

    void take_message(int rank) {
        Peer& peer = peers[static_cast<std::size_t>(rank)];
        bool timed_out = false;
        std::optional<std::string> message = peer.socket.receive(options.silence_seconds, &timed_out);
        if (!message || message->empty()) {
            declare_lost(rank, timed_out ? "fell silent" : "died");
            return;
        }
        peer.heard = steady_seconds();
        const std::string rest = message->substr(1);
        switch ((*message)[0]) {
            case beat: {
                std::size_t space = rest.find(' ');
                const std::uint64_t progress = std::strtoull(rest.c_str(), nullptr, 10);
                if (progress != peer.progress) last_advance = peer.heard;
                peer.progress = progress;
                peer.last_words = rest.substr(std::min(space, rest.size() - 1) + 1);
                break;
            }
            case goodbye: peer.gone = true; break;
            case failure: start_abort(text(name_of(rank), " failed: ", rest)); break;
            case abort_all: start_abort(rest); break;
            default: break;
        }
    }

    std::string name_of(int rank) const { return text("rank ", rank, " on ", peers[static_cast<std::size_t>(rank)].host); }

    void declare_lost(int rank, const char* how) {
        start_abort(text(name_of(rank), " ", how, ", last heard at ", peers[static_cast<std::size_t>(rank)].last_words));
    }

    void look_for_silence() {
        for (std::size_t r = 0; r < peers.size() && !is_aborted; r++) {
            if (is_connected(peers[r]) && steady_seconds() - peers[r].heard > options.silence_seconds) {
                declare_lost(static_cast<int>(r), text("has been silent for ", options.silence_seconds, " s").c_str());
            }
        }
    }

    // Every rank is alive and none advances: those that have done least are what the others wait for.
    void look_for_stall() {
        if (own_progress != seen_own_progress) {
            seen_own_progress = own_progress;
            last_advance = steady_seconds();
        }
        if (steady_seconds() - last_advance < options.stall_seconds) return;
        std::uint64_t least = own_progress;
        for (std::size_t r = 1; r < peers.size(); r++) least = std::min(least, peers[r].progress);
        std::string behind = own_progress == least ? "rank 0" : "";
        for (std::size_t r = 1; r < peers.size(); r++) {
            if (peers[r].progress != least) continue;
            behind += text(behind.empty() ? "" : "; ", name_of(static_cast<int>(r)), " at ", peers[r].last_words);
        }
        start_abort(text("nothing has advanced for ", options.stall_seconds, " s; furthest behind: ", behind));
    }

    // ---- the end
    void start_abort(const std::string& why) {
        {
            std::lock_guard lock(mutex);
            if (is_aborted) return;
            reason = why;
            is_aborted = true;
        }
        if (place.rank == 0) send_to_all(abort_all + why);
    }

    [[noreturn]] void leave_by_force() {
        std::fprintf(stderr, "train_gpt: rank %d stops: %s\n", place.rank, reason.c_str());
        const double end = steady_seconds() + options.grace_seconds;
        while (!leaving && steady_seconds() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        std::fflush(nullptr);
        _exit(static_cast<int>(ErrorKind::resumable));
    }

    // Rank 0 stays until all have said goodbye, so that a loss among the last ones is still told.
    void await_goodbyes() {
        constexpr double patience = 10;
        for (const double end = steady_seconds() + patience; place.rank == 0 && steady_seconds() < end && !is_aborted;) {
            if (std::none_of(peers.begin(), peers.end(), [this](const Peer& p) { return is_connected(p); })) return;
            listen(0.05);
        }
    }

    ProcessPlace place;
    ControlOptions options;
    std::vector<Peer> peers;   // by rank on rank 0; elsewhere only [0], which is rank 0
    std::thread thread;
    std::atomic<bool> leaving = false, failing = false, is_aborted = false;
    std::atomic<std::int64_t> step = 0;
    std::atomic<std::uint64_t> ticks = 0;
    mutable std::mutex mutex;   // guards what follows
    std::string reason;
    std::vector<const Communicator*> watched;
    // of the thread alone
    std::uint64_t own_progress = 0, seen_own_progress = 0;
    double last_advance = steady_seconds();
};

Control::Control(Meeting& meeting, const ProcessPlace& place, const ControlOptions& options)
    : impl_(std::make_unique<Impl>(meeting, place, options)) {}

Control::~Control() = default;

void Control::watch(const Communicator& communicator) {
    std::lock_guard lock(impl_->mutex);
    impl_->watched.push_back(&communicator);
}

void Control::forget(const Communicator& communicator) {
    std::lock_guard lock(impl_->mutex);
    std::erase(impl_->watched, &communicator);
}

void Control::set_step(std::int64_t step) { impl_->step = step; }
void Control::tick() { impl_->ticks++; }

void Control::fail(const std::string& why) {
    if (impl_->place.ranks == 1 || impl_->is_aborted) return;
    impl_->failing = true;
    impl_->leaving = true;
    impl_->thread.join();
    if (impl_->place.rank == 0) {
        impl_->send_to_all(abort_all + text("rank 0 on ", impl_->place.host, " failed: ", why));
    } else {
        impl_->send_to_all(failure + why);
    }
}

bool Control::aborted() const { return impl_->is_aborted; }

std::string Control::abort_reason() const {
    std::lock_guard lock(impl_->mutex);
    return impl_->reason;
}

void Control::throw_if_aborted() const {
    if (aborted()) throw Error(ErrorKind::resumable, abort_reason(), "Start again with --resume to go on from the last checkpoint.");
}
