#include "llmc/parallel/control.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "llmc/base/exit_code.h"
#include "llmc/parallel/sockets.h"

namespace {

// What is known of a rank at the other end of a connection.
struct Peer {
    Socket socket;
    std::string host;
    std::string last_words = "start-up";   // where it was, in words
    std::uint64_t progress = 0;            // grows with everything it does
    bool waits = false;                    // it has collectives under way
    double heard = 0;                      // steady_seconds of its last message
    bool gone = false;                     // it said goodbye
};

// The first letter of a message.
constexpr char beat = 'b', goodbye = 'g', failure = 'f', abort_all = 'a', collectives = 'c';

void print_and_exit(int rank, int exit_code, const std::string& why) {
    std::fflush(stdout);
    const bool stopped = exit_code == static_cast<int>(ErrorKind::resumable);
    std::fprintf(stderr, "train_gpt: rank %d: %s%s\n", rank, stopped ? "" : "error: ", why.c_str());
    std::fflush(nullptr);
    _exit(exit_code);
}

constexpr const char* kAllHaveCome = "all have come";
constexpr const char* kHint = "Start again with --resume to go on from the last checkpoint.";

}   // namespace

struct Control::Impl {
    Impl(Meeting& meeting, const ProcessPlace& own_place, const ControlOptions& chosen)
        : place(own_place), options(chosen) {
        if (place.ranks == 1) return;
        connect(meeting);
        last_advance = steady_seconds();
    }

    // ---- connecting

    // Rank 0 says where it listens, and a word by which it and its own ranks know each other from strangers.
    void connect(Meeting& meeting) {
        std::unique_ptr<ListeningSocket> listener;
        std::string at;
        if (place.rank == 0) {
            listener = std::make_unique<ListeningSocket>(0);
            at = text(listener->port(), " ", std::random_device{}(), std::random_device{}(), " ", own_host_identity());
            for (const std::string& address : own_addresses()) at += " " + address;
        }
        std::istringstream said(meeting.from_rank_0(at));
        int port = 0;
        std::string word, identity;
        said >> port >> word >> identity;
        const std::vector<std::string> hosts = meeting.all_gather(place.host);
        if (place.rank == 0) {
            accept_all(*listener, word, hosts);
            return;
        }
        // no names, which may not resolve: first the address by which rank 0 was met
        std::vector<std::string> addresses;
        if (std::string met = meeting.rank_0_address(); !met.empty()) addresses.push_back(met);
        if (identity == own_host_identity()) addresses.emplace_back("127.0.0.1");
        for (std::string address; said >> address;) addresses.push_back(address);
        join_rank_0(addresses, port, word, hosts[0]);
    }

    void join_rank_0(const std::vector<std::string>& addresses, int port, const std::string& word,
                     const std::string& host) {
        auto is_rank_0 = [&](Socket& socket) {
            return socket.send(text(place.rank, " ", word)) && socket.receive(5) == text("rank 0 ", word);
        };
        std::optional<Socket> socket = connect_to_any(addresses, port, options.connect_seconds, is_rank_0);
        if (!socket) {
            std::string tried;
            for (const std::string& address : addresses) tried += (tried.empty() ? "" : ", ") + address;
            throw Error(ErrorKind::no_device,
                        text("rank ", place.rank, " on ", place.host, " cannot reach the control plane of rank 0 on ",
                             host, " within ", options.connect_seconds, " s; tried port ", port, " of ", tried),
                        "Check that the hosts reach each other, on any port.");
        }
        // rank 0 is silent until all have come, which is no reason to take it for lost
        if (socket->receive(options.connect_seconds + 5) != std::string(kAllHaveCome)) {
            throw Error(ErrorKind::no_device,
                        text("rank ", place.rank, ": rank 0 on ", host, " has ended the control plane at start-up"),
                        "Look at that rank's own output for the reason.");
        }
        add_peer(0, std::move(*socket), host);
    }

    void accept_all(ListeningSocket& listener, const std::string& word, const std::vector<std::string>& hosts) {
        peers.resize(static_cast<std::size_t>(place.ranks));
        const double deadline = steady_seconds() + options.connect_seconds;
        for (int missing = place.ranks - 1; missing > 0;) {
            std::optional<Socket> socket = listener.accept(deadline - steady_seconds());
            if (steady_seconds() > deadline) throw_missing();
            std::optional<std::string> hello = socket ? socket->receive(5) : std::nullopt;
            const int rank = hello ? std::atoi(hello->c_str()) : 0;
            if (rank <= 0 || rank >= place.ranks || *hello != text(rank, " ", word)) continue;   // a stranger
            if (!socket->send(text("rank 0 ", word))) continue;
            // one that has given up on an earlier connection of its own comes twice
            missing -= !peers[static_cast<std::size_t>(rank)].socket.is_open();
            add_peer(rank, std::move(*socket), hosts[static_cast<std::size_t>(rank)]);
        }
        send_to_all(kAllHaveCome);
        for (Peer& peer : peers) peer.heard = steady_seconds();
    }

    void add_peer(int rank, Socket socket, const std::string& host) {
        peers.resize(std::max(peers.size(), static_cast<std::size_t>(rank) + 1));
        Peer& peer = peers[static_cast<std::size_t>(rank)];
        peer.socket = std::move(socket);
        peer.host = host;
        peer.heard = steady_seconds();
    }

    [[noreturn]] void throw_missing() const {
        std::string missing;
        for (std::size_t r = 1; r < peers.size(); r++) {
            if (!peers[r].socket.is_open()) missing += text(missing.empty() ? "" : ", ", r);
        }
        throw Error(
            ErrorKind::no_device,
            text("these ranks have not joined the control plane within ", options.connect_seconds, " s: ", missing),
            "Look at their own output for the reason.");
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
            look_for_failure();
            if (place.rank == 0) look_for_stall();
        }
        if (!is_aborted) {
            send_to_all(std::string(1, goodbye));
            await_goodbyes();
        }
        if (is_aborted) leave_after_grace();
    }

    bool is_connected(const Peer& peer) const { return peer.socket.is_open() && !peer.gone; }

    void send_to_all(const std::string& message) {
        std::lock_guard lock(sending);
        for (Peer& peer : peers) {
            if (is_connected(peer)) peer.socket.send(message);   // a failure shows itself when listening
        }
    }

    // "b<progress> <waits> <words>": where this rank is, the latest operation first.
    void send_beats() {
        if (options.collectives != nullptr) tell_collectives();
        own_waits = false;
        std::uint64_t progress = static_cast<std::uint64_t>(step.load());
        std::vector<std::pair<std::uint64_t, std::string>> groups;
        {
            std::lock_guard lock(mutex);
            for (const Communicator* c : watched) {
                const CommProgress p = c->progress();
                progress += p.issued;
                if (p.issued == 0) continue;
                own_waits |= p.issued > p.done;
                groups.emplace_back(p.issued_at, text(p.operation, " number ", p.issued, " of group ", c->name(),
                                                      p.issued > p.done ? " (under way)" : " (done)"));
            }
        }
        std::sort(groups.rbegin(), groups.rend());
        std::string words = text("step ", step.load());
        for (const auto& [when, what] : groups) words += ", " + what;
        own_progress = progress;
        send_to_all(text(beat, progress, " ", own_waits ? 1 : 0, " ", words));
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
                char* end = nullptr;
                const std::uint64_t progress = std::strtoull(rest.c_str(), &end, 10);
                peer.waits = std::strtol(end, &end, 10) != 0;
                if (progress != peer.progress || !peer.waits) last_advance = peer.heard;
                peer.progress = progress;
                peer.last_words = *end == ' ' ? end + 1 : end;
                break;
            }
            case goodbye: {
                std::lock_guard lock(sending);
                peer.gone = true;
                break;
            }
            case failure: start_abort(text(name_of(rank), " failed: ", rest)); break;
            case abort_all: start_abort(rest); break;
            case collectives: compare_collectives(rank, rest); break;
            default: break;
        }
    }

    std::string name_of(int rank) const {
        return text("rank ", rank, " on ", peers[static_cast<std::size_t>(rank)].host);
    }

    void declare_lost(int rank, const std::string& how) {
        const std::string& words = peers[static_cast<std::size_t>(rank)].last_words;
        start_abort(text(name_of(rank), " ", how, ", last heard at ", words));
    }

    void look_for_silence() {
        for (std::size_t r = 0; r < peers.size() && !is_aborted; r++) {
            if (is_connected(peers[r]) && steady_seconds() - peers[r].heard > options.silence_seconds) {
                declare_lost(static_cast<int>(r), text("has been silent for ", options.silence_seconds, " s"));
            }
        }
    }

    // Every rank is alive and none advances: those that have done least are what the others wait for.
    void look_for_stall() {
        if (own_progress != seen_own_progress || !own_waits) {
            seen_own_progress = own_progress;
            last_advance = steady_seconds();
        }
        if (options.stall_seconds <= 0 || steady_seconds() - last_advance < options.stall_seconds) return;
        std::uint64_t least = own_progress;
        for (std::size_t r = 1; r < peers.size(); r++) least = std::min(least, peers[r].progress);
        std::string behind = own_progress == least ? text("rank 0 on ", place.host) : "";
        for (std::size_t r = 1; r < peers.size(); r++) {
            if (peers[r].progress != least) continue;
            behind += text(behind.empty() ? "" : "; ", name_of(static_cast<int>(r)), " at ", peers[r].last_words);
        }
        start_abort(text("nothing has advanced for ", options.stall_seconds, " s; furthest behind: ", behind));
    }

    // What NCCL itself has noticed. A lost rank is better told by its own connection, so that gets some time first.
    void look_for_failure() {
        std::string found;
        {
            std::lock_guard lock(mutex);
            for (const Communicator* c : watched) {
                if (found.empty()) found = c->failure();
            }
        }
        if (found.empty()) {
            failing_since = 0;
        } else if (failing_since == 0) {
            failing_since = steady_seconds();
        } else if (steady_seconds() - failing_since > 2 * options.heartbeat_seconds + 1) {
            if (place.rank != 0) send_to_all(failure + found);
            start_abort(text("rank ", place.rank, " on ", place.host, " failed: ", found));
        }
    }

    void tell_collectives() {
        const std::string logged = options.collectives->take();
        if (logged.empty()) return;
        if (place.rank == 0) {
            compare_collectives(0, logged);
        } else {
            send_to_all(collectives + logged);
        }
    }

    void compare_collectives(int rank, const std::string& logged) {
        for (const CollectiveRecord& record : CollectiveLog::parse(logged)) {
            if (is_aborted) return;
            if (std::optional<std::string> difference = order.add(rank, record)) {
                start_abort(text("--check-collectives: ", *difference));
            }
        }
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

    std::string abort_reason() const {
        std::lock_guard lock(mutex);
        return reason;
    }

    void leave_after_grace() {
        const double end = steady_seconds() + options.grace_seconds;
        while (!leaving && steady_seconds() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (leaving) return;   // the main thread has come to its end
        end_process(static_cast<int>(ErrorKind::resumable), text(abort_reason(), "\n  ", kHint));
    }

    void end_process(int exit_code, const std::string& why) const {
        if (options.leave) {
            options.leave(exit_code, why);
        } else {
            print_and_exit(place.rank, exit_code, why);
        }
    }

    // Rank 0 stays until all have said goodbye, so that a loss among the last ones is still told.
    void await_goodbyes() {
        for (const double end = steady_seconds() + options.silence_seconds;
             place.rank == 0 && steady_seconds() < end && !is_aborted;) {
            if (std::none_of(peers.begin(), peers.end(), [this](const Peer& p) { return is_connected(p); })) return;
            listen(0.05);
        }
    }

    ProcessPlace place;
    ControlOptions options;
    std::vector<Peer> peers;   // by rank on rank 0; elsewhere only [0], which is rank 0
    std::thread thread;
    std::atomic<bool> leaving = false, is_aborted = false;
    std::atomic<std::int64_t> step = 0;
    std::mutex sending;         // one message at a time
    mutable std::mutex mutex;   // guards the next two
    std::string reason;
    std::vector<const Communicator*> watched;
    // of the thread alone
    std::uint64_t own_progress = 0, seen_own_progress = 0;
    bool own_waits = false;
    double last_advance = 0, failing_since = 0;
    CollectiveOrder order;   // on rank 0
};

Control::Control(Meeting& meeting, const ProcessPlace& place, const ControlOptions& options)
    : impl_(std::make_shared<Impl>(meeting, place, options)) {
    if (place.ranks > 1) impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Control::~Control() {
    impl_->leaving = true;
    if (impl_->thread.joinable()) impl_->thread.join();
}

void Control::watch(const Communicator& communicator) {
    std::lock_guard lock(impl_->mutex);
    impl_->watched.push_back(&communicator);
}

void Control::forget(const Communicator& communicator) {
    std::lock_guard lock(impl_->mutex);
    std::erase(impl_->watched, &communicator);
}

void Control::set_step(std::int64_t step) { impl_->step = step; }

void Control::leave(const std::exception& error) {
    const int exit_code = exit_code_of(error);
    if (exit_code == static_cast<int>(ErrorKind::resumable)) {
        // most likely a consequence of another rank's loss, which the control plane is about to name
        const double patience = steady_seconds() + impl_->options.heartbeat_seconds + 0.25;
        while (!impl_->is_aborted && steady_seconds() < patience) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
    }
    if (impl_->is_aborted) {
        impl_->end_process(exit_code, text(abort_reason(), "\n  ", kHint));
        return;
    }
    const std::string why = error.what();
    if (impl_->place.rank == 0) {
        impl_->send_to_all(abort_all + text("rank 0 on ", impl_->place.host, " failed: ", why));
    } else {
        impl_->send_to_all(failure + why);
    }
    impl_->end_process(exit_code, why);
}

bool Control::aborted() const { return impl_->is_aborted; }

std::string Control::abort_reason() const { return impl_->abort_reason(); }

void Control::throw_if_aborted() const {
    if (aborted()) throw Error(ErrorKind::resumable, abort_reason(), kHint);
}
