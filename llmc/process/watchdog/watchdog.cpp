#include "llmc/process/watchdog/watchdog.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "llmc/base/exit_code.h"
#include "llmc/base/outlet.h"
#include "llmc/base/printable.h"
#include "llmc/base/stream.h"
#include "llmc/io/hash.h"
#include "llmc/process/joining.h"
#include "llmc/process/watchdog/heartbeat.h"

namespace {

bool is_under_way(Activity activity) { return activity == Activity::waits || activity == Activity::has_asked; }

// State of a rank at the other end of a connection.
struct Peer {
    Socket socket;
    std::string host;
    RankProgress latest = {};
    double heard = 0;    // when its last message came (Impl::clock)
    double quiet = 0;    // seconds of turns that had nothing of it to read, since an error is suspected
    bool gone = false;   // it said goodbye
};

// The first letter of a message.
constexpr char beat = 'b', goodbye = 'g', failure = 'f', suspicion = 's', abort_all = 'a', collectives = 'c';

void print_and_exit(int rank, int exit_code, const std::string& why) {
    // whatever becomes of the output: it may go to a pipe that nobody empties, where the main thread is stuck too
    std::thread([exit_code] {
        std::this_thread::sleep_for(std::chrono::seconds(2));
        _exit(exit_code);
    }).detach();
    const bool stopped = exit_code == static_cast<int>(ErrorKind::resumable);
    if (!why.empty()) {
        put_text(stderr, text("train_gpt: rank ", rank, ": ", stopped ? "" : "error: ", printable(why), "\n"));
    }
    std::fflush(nullptr);
    await_readers();
    _exit(exit_code);
}

constexpr const char* kBugHint = "This is a bug in the program; to resume would meet it again. Please report it.";
constexpr const char* kHint = "Start again with --resume to go on from the last checkpoint.";

}   // namespace

struct Watchdog::Impl {
    Impl(Rendezvous& rendezvous, const ProcessInfo& own_place, const WatchdogOptions& chosen)
        : place(own_place), options(chosen) {
        if (place.ranks > 1) connect(rendezvous);
    }

    void connect(Rendezvous& rendezvous) {
        const std::vector<std::string> identities = rendezvous.all_gather(own_host_identity());   // who is where
        const bool on_one_host =
            std::ranges::all_of(identities, [&](const std::string& other) { return other == identities[0]; });
        std::optional<ListeningSocket> listener;
        std::string line;
        if (place.rank == 0) line = invitation_to(listener.emplace(0, on_one_host), make_nonce(), on_one_host);
        Invitation invitation = read_invitation(rendezvous.from_rank_0(line));
        const std::vector<std::string> hosts = rendezvous.all_gather(place.host);
        const Joining self{place.rank, place.ranks, invitation.secret, options.connect_seconds};
        if (place.rank == 0) {
            for (Socket& socket : accept_ranks(*listener, self))
                peers.push_back({std::move(socket), hosts[peers.size()]});
            return;
        }
        if (const std::string met = rendezvous.rank_0_address(); !met.empty() && !on_one_host) {
            invitation.hosts.insert(invitation.hosts.begin(), met);   // who has answered before comes first
        }
        peers.push_back({join_rank_0(invitation.hosts, invitation.port, self, self.seconds), hosts[0]});
    }

    // ---- the thread

    void run() {
        double next_beat = 0;
        listened_at = steady_seconds();
        while (!leaving && !is_aborted) {
            if (steady_seconds() >= next_beat) {
                send_beats();
                next_beat = steady_seconds() + options.heartbeat_seconds;
            }
            advance_clock();   // before listening, so that messages that have arrived are read before peers are judged
            listen(turn_seconds());
            look_for_silence();
            look_for_failure();
            look_at_suspicion();
            if (place.rank == 0) look_for_stall();
        }
        if (!is_aborted) {
            send_to_all(std::string(1, goodbye));
            await_goodbyes();
        }
        if (is_aborted) leave_after_grace();
    }

    // Others are judged by the time that this thread has spent listening. Time in which it could not (the machine was
    // suspended, all processes were stopped, others had the cores) says nothing of them, so a turn counts a quarter of
    // the limit at most.
    void advance_clock() {
        const double now = steady_seconds();
        last_turn = now - listened_at;
        clock += std::min(last_turn, options.silence_seconds / 4);
        listened_at = now;
    }

    double turn_seconds() const { return std::min(0.05, options.heartbeat_seconds / 2); }   // at most

    bool is_connected(const Peer& peer) const { return peer.socket.is_open() && !peer.gone; }

    void send_to_all(const std::string& message) {
        std::lock_guard lock(sending);
        for (Peer& peer : peers) {
            if (is_connected(peer)) peer.socket.send(message);   // a failure shows itself when listening
        }
    }

    // Sets `own` to this rank's progress; its words name the latest operation first.
    void look_at_own_place() {
        bool waits = false;
        std::string local_work;
        own.progress = static_cast<std::uint64_t>(step.load());
        own.asked_for.clear();
        std::vector<std::pair<std::uint64_t, std::string>> groups;
        {
            std::lock_guard lock(mutex);
            for (const auto& [c, group] : watched) {
                const CommProgress p = c->progress();
                own.progress += p.issued;
                own.asked_for[group] = p.of_all;
                if (p.local_work != nullptr) local_work = text(" (alone: ", p.local_work, ")");
                if (p.issued == 0) continue;
                waits |= p.issued > p.done;
                groups.emplace_back(
                    p.issued_at,
                    text(p.operation, " number ", p.issued, " of group ", c->name(),
                         p.micro_batch < 0 ? std::string() : text(", micro-batch ", p.micro_batch, ", chunk ", p.chunk),
                         p.issued > p.done ? " (under way)" : " (done)"));
            }
        }
        std::sort(groups.rbegin(), groups.rend());
        own.activity = !local_work.empty()         ? Activity::local
                       : waits && *host_is_waiting ? Activity::waits
                       : waits                     ? Activity::has_asked
                       : has_stepped               ? Activity::computes
                                                   : Activity::local;
        own.words = (groups.empty() && step == 0 ? "start-up" : text("step ", step.load())) + local_work;
        for (const auto& [when, what] : groups) own.words += ", " + what;
    }

    void send_beats() {
        if (options.collectives != nullptr) tell_collectives();
        look_at_own_place();
        send_to_all(beat + to_text(own));
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
            double& quiet = peers[static_cast<std::size_t>(ranks[i])].quiet;
            if (waiting[i].revents == 0) quiet += std::min(last_turn, turn_seconds());
            if (waiting[i].revents != 0) take_message(ranks[i]);
        }
    }

    void take_message(int rank) {
        Peer& peer = peers[static_cast<std::size_t>(rank)];
        bool timed_out = false;
        std::optional<std::string> message = peer.socket.receive(options.silence_seconds, &timed_out);
        if (!message || message->empty()) {
            declare_lost(rank, timed_out ? silent() : "died or was cut off");
            return;
        }
        peer.heard = clock;
        const std::string rest = message->substr(1);
        switch ((*message)[0]) {
            case beat: {
                const std::optional<RankProgress> place_now = progress_from(rest);
                if (!place_now) break;
                if (place_now->progress != peer.latest.progress) last_advance = peer.heard;
                peer.latest = *place_now;
                break;
            }
            case goodbye: {
                std::lock_guard lock(sending);
                peer.gone = true;
                rank_0_has_left = place.rank > 0;
                break;
            }
            case failure: start_abort(text(name_of(rank), " failed: ", rest)); break;
            case suspicion: suspect(text(name_of(rank), " failed: ", rest)); break;
            case abort_all: {   // "a<exit code> <reason>"
                const std::size_t space = rest.find(' ');
                start_abort(rest.substr(space + 1), static_cast<ErrorKind>(std::atoi(rest.c_str())));
                break;
            }
            case collectives: compare_collectives(rank, rest); break;
            default: break;
        }
    }

    std::string name_of(int rank) const {
        return text("rank ", rank, " on ", peers[static_cast<std::size_t>(rank)].host);
    }

    // The peer's last words can be a heartbeat old; this rank's own place shows what waits for it now.
    void declare_lost(int rank, const std::string& how) {
        look_at_own_place();
        start_abort(text(name_of(rank), " ", how, ", last heard at ",
                         peers[static_cast<std::size_t>(rank)].latest.words, "; rank ", place.rank, " is at ",
                         own.words));
    }

    std::string silent() const { return text("has been silent for ", options.silence_seconds, " s"); }

    void look_for_silence() {
        for (std::size_t r = 0; r < peers.size() && !is_aborted; r++) {
            if (is_connected(peers[r]) && clock - peers[r].heard > options.silence_seconds) {
                declare_lost(static_cast<int>(r), silent());
            }
        }
    }

    // Aborts when all ranks are alive, some wait in collectives, and none advances. Ranks that do not wait are to
    // blame: they are elsewhere, in a loop perhaps. No rank is while one does local work.
    void look_for_stall() {
        std::vector<int> ranks{0};
        for (std::size_t r = 1; r < peers.size(); r++) {
            if (is_connected(peers[r])) ranks.push_back(static_cast<int>(r));
        }
        auto activity = [this](int rank) { return progress_of(rank).activity; };
        const bool some_wait = std::ranges::any_of(ranks, is_under_way, activity);
        const bool all_wait = std::ranges::all_of(ranks, is_under_way, activity);
        if (own.progress != seen_own_progress || !some_wait ||
            std::ranges::count(ranks, Activity::local, activity) > 0) {
            seen_own_progress = own.progress;
            last_advance = clock;
        }
        if (options.stall_seconds <= 0 || clock - last_advance < options.stall_seconds) return;
        start_abort(
            text("nothing has advanced for ", options.stall_seconds, " s; ",
                 all_wait ? "all wait, the others for: " : "the others wait for: ", stalled_ranks(ranks, all_wait)));
    }

    const RankProgress& progress_of(int rank) const {
        return rank == place.rank ? own : peers[static_cast<std::size_t>(rank)].latest;
    }

    // Names the ranks that have nothing under way. Where all have, considers those whose hosts do not wait (all, if
    // every host does), and of these names the ones that keep another rank waiting and wait for none; in a cycle, all
    // that keep another waiting; else all.
    std::string stalled_ranks(const std::vector<int>& ranks, bool all_wait) const {
        std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> ends;   // the least and the most of a group
        bool all_hosts_wait = true;
        for (int rank : ranks) {
            all_hosts_wait &= progress_of(rank).activity == Activity::waits;
            for (const auto& [group, count] : progress_of(rank).asked_for) {
                auto& [least, most] = ends.try_emplace(group, count, count).first->second;
                least = std::min(least, count);
                most = std::max(most, count);
            }
        }
        auto is_to_blame = [&](const RankProgress& latest, int strictness) {
            if (!all_wait) return !is_under_way(latest.activity);
            if (!all_hosts_wait && latest.activity == Activity::waits) return false;
            bool is_waited_for = strictness == 0, waits = false;
            for (const auto& [group, count] : latest.asked_for) {
                is_waited_for |= count < ends.at(group).second;
                waits |= count > ends.at(group).first;
            }
            return is_waited_for && !(strictness == 2 && waits);
        };
        std::string found;
        for (int strictness = 2; found.empty() && strictness >= 0; strictness--) {
            for (int rank : ranks) {
                if (!is_to_blame(progress_of(rank), strictness)) continue;
                found += text(found.empty() ? "" : "; ", name_of(rank), " has not advanced, last heard at ",
                              progress_of(rank).words);
            }
        }
        return found;
    }

    // Ends the run if NCCL keeps reporting an error. A lost rank is told better by its own connection, so that gets
    // some time first.
    void look_for_failure() {
        std::string found;
        {
            std::lock_guard lock(mutex);
            for (const auto& [c, group] : watched) {
                if (found.empty()) found = c->failure();
            }
        }
        if (found.empty()) {
            failing_since = 0;
        } else if (failing_since == 0) {
            failing_since = steady_seconds();
        } else if (steady_seconds() - failing_since > 2 * options.heartbeat_seconds + 1) {
            if (place.rank != 0) send_to_all(failure + found);
            start_abort(failed(found));
        }
    }

    std::string failed(const std::string& why) const {   // this rank
        return text("rank ", place.rank, " on ", place.host, " failed: ", why);
    }

    // Notes on rank 0 the first error that is most likely the consequence of another rank's loss, which is to be told
    // instead if it shows itself.
    void suspect(const std::string& why) {
        std::lock_guard lock(mutex);
        if (suspected.empty()) suspected = why;
    }

    // Aborts because of what is suspected when this thread has listened for long enough since without finding a loss:
    // to each rank, in turns in which all that it had said was read, since its end comes behind that.
    void look_at_suspicion() {
        const std::string why = guarded(suspected);
        if (why.empty()) {
            for (Peer& peer : peers) peer.quiet = 0;
            return;
        }
        const double enough = options.heartbeat_seconds + 0.25;
        auto may_yet_end = [&](const Peer& p) { return is_connected(p) && p.quiet <= enough; };
        if (std::ranges::none_of(peers, may_yet_end)) start_abort(why);
    }

    // Tells rank 0 of an error of this rank's main thread, and waits for what all are told: that, or what came before.
    // Nothing is told where rank 0 has left.
    void report(const std::string& own_error, bool may_be_consequence) {
        if (peers.empty()) return;
        if (place.rank > 0) {
            send_to_all((may_be_consequence ? suspicion : failure) + own_error);
        } else if (may_be_consequence) {
            suspect(failed(own_error));
        } else {
            start_abort(failed(own_error));
        }
        while (!is_aborted && !rank_0_has_left) std::this_thread::sleep_for(std::chrono::milliseconds(5));
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
        const std::optional<std::vector<CollectiveEvent>> events = CollectiveLog::parse(logged);
        if (!events) return start_abort(text("--check-collectives: rank ", rank, " sends no log"), ErrorKind::bug);
        for (const CollectiveEvent& event : *events) {
            if (is_aborted) return;
            if (std::optional<std::string> difference = order.add(rank, event)) {
                start_abort(text("--check-collectives: ", *difference), ErrorKind::bug);
            }
        }
    }

    // ---- the end

    // Tells all ranks before this one knows of it itself: its main thread may end the process as soon as it does.
    void start_abort(const std::string& why, ErrorKind kind = ErrorKind::resumable) {
        std::lock_guard telling(aborting);
        if (is_aborted) return;
        if (place.rank == 0) send_to_all(text(abort_all, static_cast<int>(kind), " ", why));
        std::lock_guard lock(mutex);
        reason = why;
        abort_kind = kind;
        is_aborted = true;
    }

    const char* hint() const { return abort_kind == ErrorKind::resumable ? kHint : kBugHint; }

    std::string guarded(const std::string& words) const {   // reason or suspected
        std::lock_guard lock(mutex);
        return words;
    }
    std::string abort_reason() const { return guarded(reason); }

    void leave_after_grace() {
        const double end = steady_seconds() + options.grace_seconds;
        auto main_thread_ends = [this] { return leaving || is_failing; };
        while (!main_thread_ends() && steady_seconds() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (main_thread_ends()) return;
        end_process(static_cast<int>(abort_kind.load()), text(abort_reason(), "\n  ", hint()));
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

    ProcessInfo place;
    WatchdogOptions options;
    const std::atomic<bool>* host_is_waiting = &host_waits;   // flag of the thread that makes the watchdog and trains
    std::vector<Peer> peers;                                  // by rank on rank 0; elsewhere only [0], which is rank 0
    std::thread thread;
    std::atomic<bool> leaving = false, is_aborted = false;
    std::atomic<bool> is_failing = false;                       // the main thread has an error and ends by itself
    std::atomic<bool> rank_0_has_left = false;                  // in good order; known elsewhere alone
    std::atomic<ErrorKind> abort_kind = ErrorKind::resumable;   // its value is the exit code of those that are well
    std::atomic<std::int64_t> step = 0;
    std::atomic<bool> has_stepped = false;   // since this process started
    std::mutex sending, aborting;            // one message at a time; the first reason stands
    mutable std::mutex mutex;                // guards the next three
    std::string reason, suspected;
    std::vector<std::pair<const Communicator*, std::uint64_t>> watched;   // with what tells its group
    // used by the watchdog's thread only
    RankProgress own;
    std::uint64_t seen_own_progress = 0;
    double clock = 0, listened_at = 0, last_turn = 0;   // seconds; see advance_clock
    double last_advance = 0, failing_since = 0;
    CollectiveOrder order;   // on rank 0
};

Watchdog::Watchdog(Rendezvous& rendezvous, const ProcessInfo& place, const WatchdogOptions& options)
    : impl_(std::make_shared<Impl>(rendezvous, place, options)) {
    if (place.ranks > 1) impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

Watchdog::~Watchdog() {
    impl_->leaving = true;
    if (impl_->thread.joinable()) impl_->thread.join();
}

void Watchdog::watch(const Communicator& communicator, const std::vector<int>& members) {
    std::string group = communicator.name();
    for (int rank : members) group += text(" ", rank);
    std::lock_guard lock(impl_->mutex);
    impl_->watched.emplace_back(&communicator, hash64(group));
}

void Watchdog::forget(const Communicator& communicator) {
    std::lock_guard lock(impl_->mutex);
    std::erase_if(impl_->watched, [&](const auto& watched) { return watched.first == &communicator; });
}

void Watchdog::set_step(std::int64_t step) {
    impl_->step = step;
    impl_->has_stepped = true;
}

void Watchdog::leave(const std::exception& error) {
    const int own_code = exit_code_of(error);
    const bool may_be_consequence = own_code == static_cast<int>(ErrorKind::resumable);
    const std::string met = error.what();
    impl_->is_failing = true;
    impl_->report(met, may_be_consequence);
    const std::string reason = abort_reason();
    if (reason.empty() || reason == impl_->failed(met)) return impl_->end_process(own_code, met);
    if (reason.ends_with(met)) return impl_->end_process(own_code, "");   // another rank has met it too, and says it
    // Both are told: who reads only one of them may look for the cause in the wrong place.
    const bool is_same = met.find(reason) != std::string::npos;
    const std::string loss = text(reason, "\n  ", impl_->hint());
    impl_->end_process(may_be_consequence ? static_cast<int>(impl_->abort_kind.load()) : own_code,
                       is_same              ? met
                       : may_be_consequence ? text(loss, "\n  what this rank met: ", met)
                                            : text(met, "\n  besides: ", reason));
}

bool Watchdog::aborted() const { return impl_->is_aborted; }

std::string Watchdog::abort_reason() const { return impl_->abort_reason(); }

void Watchdog::throw_if_aborted() const {
    if (aborted()) throw Error(impl_->abort_kind, abort_reason(), impl_->hint());
}
