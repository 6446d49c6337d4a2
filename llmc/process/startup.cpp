#include "llmc/process/startup.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/process/address.h"
#include "llmc/process/ended_ranks.h"
#include "llmc/process/joining.h"

namespace {

int number_from_environment(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return -1;
    char* end = nullptr;
    long number = std::strtol(value, &end, 10);
    if (*end != '\0' || number < 0 || number > 1 << 24) {
        throw Error(ErrorKind::usage, text("the environment has ", name, "=", value), "Expected a number of a rank.");
    }
    return static_cast<int>(number);
}

// Slurm gives the job's number of tasks, and rank 0, to the shell of sbatch and salloc too, which is one process alone:
// only in a step that srun has started are there others. Steps of Slurm's own have numbers above all real ones.
bool is_started_by_srun() {
    const char* step = std::getenv("SLURM_STEP_ID");
    return step != nullptr && *step != '\0' && std::strtoull(step, nullptr, 10) < 0xfffffff0u;
}

// Every rank is connected to rank 0, which gathers and broadcasts.
class TcpRendezvous : public Rendezvous {
public:
    // `sockets`: by rank on rank 0; elsewhere only [0], which is rank 0.
    TcpRendezvous(int rank, int ranks, double timeout, std::vector<Socket> sockets)
        : Rendezvous(rank, ranks), timeout_(timeout), sockets_(std::move(sockets)) {}

    std::vector<std::string> all_gather(const std::string& own) override {
        std::vector<std::string> all(static_cast<std::size_t>(ranks()));
        if (rank() != 0) {
            send(0, own);
            for (std::string& text : all) text = receive(0);
            return all;
        }
        all[0] = own;
        for (std::size_t r = 1; r < all.size(); r++) all[r] = receive(r);
        for (std::size_t r = 1; r < all.size(); r++) {
            for (const std::string& text : all) send(r, text);
        }
        return all;
    }

    std::string rank_0_address() const override { return rank() > 0 ? sockets_[0].peer_address() : ""; }

private:
    void send(std::size_t to, const std::string& text) {
        if (!sockets_[to].send(text)) lost(to);
    }
    std::string receive(std::size_t from) {
        std::optional<std::string> got = sockets_[from].receive(timeout_ + 10);   // rank 0's own limit comes first
        if (!got) lost(from);
        return *got;
    }
    [[noreturn]] static void lost(std::size_t rank) {
        throw Error(ErrorKind::resumable, text("lost the connection to rank ", rank, " at start-up"),
                    "Look at that rank's own output for the reason.");
    }

    double timeout_;
    std::vector<Socket> sockets_;
};

// A file's content, or "" where there is none (yet, or any more).
std::string content_of(const std::string& path) {
    try {
        return real_files().exists(path) ? read_whole(real_files(), path) : std::string();
    } catch (const Error&) {
        return "";
    }
}

HostPort address_of_rank_0(const std::string& given) {
    if (!given.empty()) return read_host_port(given, kDefaultPort, given);
    const char *host = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
    if (host == nullptr) {
        throw Error(ErrorKind::usage, "--init tcp needs the address of rank 0",
                    "Pass --init-address HOST:PORT, or set MASTER_ADDR and MASTER_PORT.");
    }
    if (port == nullptr) return read_host_and_port(host, "", kDefaultPort, text("MASTER_ADDR=", host));
    return read_host_and_port(host, port, kDefaultPort, text("MASTER_ADDR=", host, " MASTER_PORT=", port));
}

// Waits until a name resolves, which it may not do before rank 0 is up: the record of a pod appears with it. Returns
// the seconds that are left then.
double await_name(const HostPort& at, const Joining& own, const StartupOptions& options) {
    const double deadline = steady_seconds() + own.seconds;
    bool is_told = false;
    for (;;) {
        throw_if_a_rank_has_ended(own.rank, own.ranks);
        const Resolution found = options.resolver(at.host, at.port);
        const double left = deadline - steady_seconds();
        if (!found.addresses.empty()) return left;
        if (left <= 0) {
            throw Error(ErrorKind::no_device,
                        text("rank ", own.rank, " cannot reach rank 0 at ", to_text(at), " within ", own.seconds,
                             " s: ", at.host, " does not resolve: ", found.failure),
                        "Check the name's spelling, /etc/hosts and the name server, or give the address in digits.");
        }
        if (!is_told) {
            Log().warning("rank %d: %s does not resolve: %s; trying until --init-timeout %g s", own.rank,
                          at.host.c_str(), found.failure.c_str(), own.seconds);
        }
        is_told = true;
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, 0.1)));
    }
}

// Counts what the launcher did not say: local ranks are the ranks on the same host, in order. The launcher does not
// speak of this process where flags give it another rank (several processes started by hand within one task).
ProcessInfo find_place(Rendezvous& rendezvous, const LaunchEnvironment& environment, int gpus_per_node) {
    const bool is_of_launcher = rendezvous.rank() == environment.rank && rendezvous.ranks() == environment.ranks;
    ProcessInfo place{rendezvous.rank(), rendezvous.ranks(), is_of_launcher ? environment.local_rank : -1,
                      is_of_launcher ? environment.local_ranks : -1, own_host_name()};
    const std::string own = own_host_identity();
    const std::vector<std::string> hosts = rendezvous.all_gather(own);
    if (gpus_per_node > 0) {
        place.local_rank = place.rank % gpus_per_node;
        place.local_ranks = std::min(gpus_per_node, place.ranks);
    }
    if (place.local_rank < 0) {
        place.local_rank = static_cast<int>(std::count(hosts.begin(), hosts.begin() + place.rank, own));
    }
    if (place.local_ranks <= 0) {
        // containers with a network of their own count as hosts, yet there are as many ranks as the number tells
        place.local_ranks =
            std::max(static_cast<int>(std::count(hosts.begin(), hosts.end(), own)), place.local_rank + 1);
    }
    return place;
}

std::vector<Socket> meet_by_tcp(const StartupOptions& options, Joining own) {
    const HostPort at = address_of_rank_0(options.address);
    const RunSecret secret = run_secret();
    own.secret = secret.text;
    own.address_is_given = true;
    std::vector<Socket> sockets;
    if (own.rank > 0) {
        const double left = await_name(at, own, options);
        sockets.push_back(join_rank_0({at.host}, at.port, own, left));
        return sockets;
    }
    if (secret.can_be_guessed && !is_loopback(at.host)) {
        Log().warning(
            "rank 0: without TRAIN_GPT_SECRET whoever reaches port %d of this machine can join as a rank: set "
            "it to one random text on all ranks, as scripts/launch.sh does",
            at.port);
    }
    ListeningSocket listener(at.port, is_loopback(at.host));
    return accept_ranks(listener, own);
}

// Rank 0 writes into the folder where it listens, and a nonce that is the secret. What an earlier run has left there
// leads to nobody, or to one who does not know that nonce: then the file is read again.
std::vector<Socket> meet_in_folder(const StartupOptions& options, Joining own) {
    if (options.folder.empty()) {
        throw Error(ErrorKind::usage, "--init fs needs a folder that all ranks see", "Pass --init-folder DIR.");
    }
    if (!real_files().exists(options.folder + "/.")) {
        throw Error(ErrorKind::usage, text("--init-folder ", options.folder, ": there is no such folder"),
                    "Make it before the start, where all ranks see the same one.");
    }
    const std::string file = options.folder + "/rank_0";
    if (own.rank == 0) {
        ListeningSocket listener(0);
        own.secret = make_nonce();
        write_whole(real_files(), file, invitation_to(listener, own.secret, false));
        const std::shared_ptr<void> at_end(nullptr, [&](void*) { ::unlink(file.c_str()); });
        return accept_ranks(listener, own);
    }
    std::vector<Socket> sockets;
    for (const double deadline = steady_seconds() + own.seconds; steady_seconds() < deadline;) {
        throw_if_a_rank_has_ended(own.rank, own.ranks);
        const Invitation found = read_invitation(content_of(file));
        own.secret = found.secret;
        std::optional<Socket> socket;
        if (found.port > 0) socket = find_rank_0(found.hosts, found.port, own, 1);
        if (socket) {
            sockets.push_back(std::move(*socket));
            return sockets;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    peers_missing("0", own.ranks, own.seconds);
}

std::unique_ptr<Rendezvous> meet(InitMethod method, int rank, int ranks, const StartupOptions& options) {
    if (method == InitMethod::mpi) return rendezvous_by_mpi();
    const Joining own{.rank = rank, .ranks = ranks, .seconds = options.timeout_seconds};
    std::vector<Socket> sockets(1);
    if (method == InitMethod::tcp && ranks > 1) sockets = meet_by_tcp(options, own);
    if (method == InitMethod::fs) sockets = meet_in_folder(options, own);
    return std::make_unique<TcpRendezvous>(rank, ranks, options.timeout_seconds, std::move(sockets));
}

}   // namespace

LaunchEnvironment read_launch_environment() {
    struct Names {
        const char *launcher, *rank, *ranks, *local_rank, *local_ranks;
        bool is_all = false;   // no other row has one of them: half of it is a mistake
    };
    static constexpr Names known[] = {
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE", true},
        {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
        {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    };
    for (const Names& names : known) {
        if (std::string(names.launcher) == "srun" && !is_started_by_srun()) continue;
        LaunchEnvironment found{number_from_environment(names.rank), number_from_environment(names.ranks),
                                number_from_environment(names.local_rank), -1, names.launcher};
        const bool is_half = std::max(found.rank, found.ranks) >= 0 && (found.rank < 0 || found.ranks <= 0);
        if (is_half && names.is_all) {
            throw Error(ErrorKind::usage,
                        text("the environment has ", found.rank >= 0 ? names.rank : names.ranks, "=",
                             found.rank >= 0 ? found.rank : found.ranks, " without ",
                             found.rank >= 0 ? names.ranks : names.rank),
                        "Set both, or neither: a process alone needs none.");
        }
        if (found.rank < 0 || found.ranks <= 0) continue;
        if (names.local_ranks != nullptr) found.local_ranks = number_from_environment(names.local_ranks);
        return found;
    }
    return {};
}

RunSecret run_secret() {
    auto value = [](const char* name) {
        const char* found = std::getenv(name);
        return std::string(found != nullptr ? found : "");
    };
    if (const std::string given = value("TRAIN_GPT_SECRET"); !given.empty()) return {given, false};
    if (is_started_by_srun()) return {text("slurm ", value("SLURM_JOB_ID"))};   // shared by all steps of the job
    return {value("TORCHELASTIC_RUN_ID")};
}

int own_rank(const StartupOptions& options) {
    return options.rank >= 0 ? options.rank : std::max(read_launch_environment().rank, 0);
}

Startup start_up(const StartupOptions& options) {
    const LaunchEnvironment environment = read_launch_environment();
    const int rank = own_rank(options);
    const int ranks = options.ranks > 0 ? options.ranks : std::max(environment.ranks, 1);
    if (rank >= ranks) {
        throw Error(ErrorKind::usage, text("--process-rank ", rank, " of --processes ", ranks),
                    ranks == 1 ? "Give both, or start with mpirun, srun or scripts/launch.sh."
                               : text("Ranks count from 0 to ", ranks - 1, "."));
    }
    InitMethod method = options.method;
    if (method == InitMethod::automatic && ranks > 1) {
        const bool by_mpirun = std::string(environment.launcher) == "mpirun";
        method = by_mpirun && built_with_mpi() ? InitMethod::mpi : InitMethod::tcp;
    }
    Startup result;
    result.rendezvous = meet(method, rank, ranks, options);
    result.place = find_place(*result.rendezvous, environment, options.gpus_per_node);
    return result;
}
