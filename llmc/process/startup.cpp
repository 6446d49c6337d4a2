#include "llmc/process/startup.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <thread>

#include "llmc/base/check.h"
#include "llmc/base/error.h"
#include "llmc/base/log.h"
#include "llmc/io/file.h"
#include "llmc/process/pending_connections.h"
#include "llmc/process/sockets.h"

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

std::string list(const std::vector<int>& ranks) {
    std::string result;
    for (int r : ranks) result += (result.empty() ? "" : ", ") + std::to_string(r);
    return result;
}

[[noreturn]] void peers_missing(const std::vector<int>& missing, int ranks, double seconds) {
    throw Error(ErrorKind::no_device,
                text("of ", ranks, " ranks these have not come within ", seconds, " s: ", list(missing)),
                "Check that they were started, with the same --init settings, and that the hosts reach each other.");
}

class SingleProcess : public Rendezvous {
public:
    SingleProcess() : Rendezvous(0, 1) {}
    std::vector<std::string> all_gather(const std::string& own) override { return {own}; }
};

// Every rank is connected to rank 0, which gathers and broadcasts.
class TcpRendezvous : public Rendezvous {
public:
    TcpRendezvous(int rank, int ranks, const std::string& host, int port, double timeout)
        : Rendezvous(rank, ranks), timeout_(timeout), secret_(run_secret()) {
        if (rank == 0) {
            collect(host, port);
        } else {
            join(host, port);
        }
    }

    std::vector<std::string> all_gather(const std::string& own) override {
        std::vector<std::string> all(static_cast<std::size_t>(ranks()));
        if (rank() != 0) {
            if (!to_rank_0_.send(own)) lost(0);
            for (std::string& text : all) text = receive(to_rank_0_, 0);
            return all;
        }
        all[0] = own;
        for (int r = 1; r < ranks(); r++) all[static_cast<std::size_t>(r)] = receive(peer(r), r);
        for (int r = 1; r < ranks(); r++) {
            for (const std::string& text : all) {
                if (!peer(r).send(text)) lost(r);
            }
        }
        return all;
    }

    std::string rank_0_address() const override { return to_rank_0_.is_open() ? to_rank_0_.peer_address() : ""; }

private:
    Socket& peer(int r) { return peers_[static_cast<std::size_t>(r)]; }

    void collect(const std::string& host, int port) {
        ListeningSocket listener(port, is_loopback(host));
        peers_.resize(static_cast<std::size_t>(ranks()));
        PendingConnections pending(listener);
        int missing = ranks() - 1;
        for (const double deadline = steady_seconds() + timeout_; missing > 0 && steady_seconds() < deadline;) {
            pending.poll(deadline - steady_seconds(), [&](PendingConnection& peer, const std::string& hello) {
                if (welcome(peer.socket, hello)) missing--;
                return false;
            });
        }
        std::vector<int> absent;
        for (int r = 1; r < ranks(); r++) {
            if (!peer(r).is_open()) absent.push_back(r);
        }
        for (int r = 1; r < ranks(); r++) {
            if (peer(r).is_open()) peer(r).send(absent.empty() ? "yes" : "missing: " + list(absent));
        }
        if (!absent.empty()) peers_missing(absent, ranks(), timeout_);
    }

    // Whether a missing rank has joined.
    bool welcome(Socket& socket, const std::string& hello) {
        int rank = 0, of = 0, end = 0;
        if (std::sscanf(hello.c_str(), "train_gpt rank %d of %d %n", &rank, &of, &end) != 2 || end == 0) return false;
        if (hello.substr(static_cast<std::size_t>(end)) != secret_) {
            socket.send(text("no to rank ", rank, " of ", of, ": it is of another run (TRAIN_GPT_SECRET differs)"));
            return false;
        }
        if (of != ranks() || rank <= 0 || rank >= ranks() || peer(rank).is_open()) {
            socket.send(text("no to rank ", rank, " of ", of, ": it expects ranks 1 to ", ranks() - 1, " of ", ranks(),
                             ", each once"));
            return false;
        }
        peer(rank) = std::move(socket);
        return true;
    }

    // One attempt: rank 0's answer; none where it closes the connection, as it does with unknown peers, and with any
    // pending one when there are too many.
    std::optional<std::string> ask(const std::string& host, int port, double seconds) {
        std::optional<Socket> connection = connect_to_host(host, port, seconds);
        if (!connection) {
            throw Error(ErrorKind::no_device,
                        text("rank ", rank(), " cannot reach rank 0 at ", host, ":", port, " within ", timeout_, " s"),
                        "Check that rank 0 was started there and that no firewall stands between.");
        }
        to_rank_0_ = std::move(*connection);
        if (!to_rank_0_.send(text("train_gpt rank ", rank(), " of ", ranks(), " ", secret_))) return std::nullopt;
        bool timed_out = false;
        std::optional<std::string> answer = to_rank_0_.receive(timeout_ + 10, &timed_out);
        if (timed_out) lost(0);
        return answer;
    }

    void join(const std::string& host, int port) {
        std::optional<std::string> answer = ask(host, port, timeout_);
        for (int again = 0; !answer && again < 100; again++) {   // it is there, or has just ended
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            try {
                answer = ask(host, port, 1);
            } catch (const Error&) {
                break;
            }
        }
        if (!answer) lost(0);
        if (answer != "yes") {
            throw Error(ErrorKind::no_device, text("rank ", rank(), " at ", host, ":", port, ": rank 0 says ", *answer),
                        "Check that every rank was started once, with the same number of ranks.");
        }
    }

    std::string receive(Socket& socket, int from) {
        std::optional<std::string> got = socket.receive(timeout_ + 10);   // rank 0's own limit comes first
        if (!got) lost(from);
        return *got;
    }
    [[noreturn]] void lost(int rank) {
        throw Error(ErrorKind::resumable, text("lost the connection to rank ", rank, " at start-up"),
                    "Look at that rank's own output for the reason.");
    }

    double timeout_;
    std::string secret_;
    std::vector<Socket> peers_;
    Socket to_rank_0_;
};

// Differs from that of every other process and earlier run.
std::string make_nonce() {
    std::random_device random;
    return formatted("%08x%08x%08x", random(), random(), random());
}

// Every rank writes files into a folder, each complete under its final name, and waits for the others' files.
//
// Files of an earlier run may be there, so no file is trusted by its name alone. Rank r writes a nonce to hello.r. Rank
// 0 writes its own nonce and all of theirs to `welcome`, again whenever a hello appears or changes. A rank that finds
// its nonce there trusts the rest of it, and confirms with a file `<rank 0's nonce>.ready.r`. All other names carry
// rank 0's nonce.
class FolderRendezvous : public Rendezvous {
public:
    FolderRendezvous(int rank, int ranks, std::string folder, double timeout)
        : Rendezvous(rank, ranks), folder_(std::move(folder)), timeout_(timeout) {
        if (rank == 0) {
            welcome_all();
        } else {
            say_hello();
        }
    }

    // Rank 0 removes the files when every rank has read all of them, or soon after.
    ~FolderRendezvous() override {
        try {
            write_whole(real_files(), bye_file(rank()), "");
            if (rank() == 0) clear_up();
        } catch (const std::exception&) {
            // leftovers do the next run no harm
        }
    }

    std::vector<std::string> all_gather(const std::string& own) override {
        write_whole(real_files(), run_file(rounds_, rank()), own);
        std::vector<std::string> all;
        const double deadline = steady_seconds() + timeout_ + 5;   // rank 0's limit comes first
        for (int r = 0; r < ranks(); r++) {
            while (!real_files().exists(run_file(rounds_, r))) {
                if (steady_seconds() > deadline) peers_missing(absent(), ranks(), timeout_);
                pause();
            }
            all.push_back(read_whole(real_files(), run_file(rounds_, r)));
        }
        if (rounds_ > 0) remove(run_file(rounds_ - 1, rank()));   // whoever is in this round has read the one before
        rounds_++;
        return all;
    }

private:
    void clear_up() {
        const double deadline = steady_seconds() + 5;
        for (int r = 0; r < ranks(); r++) {
            while (!real_files().exists(bye_file(r)) && steady_seconds() < deadline) pause();
        }
        for (int r = 0; r < ranks(); r++) {
            if (rounds_ > 0) remove(run_file(rounds_ - 1, r));
            remove(file(text("hello.", r)));
            remove(ready_file(r));
            remove(bye_file(r));
        }
        remove(file("welcome"));
    }

    static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }
    static void remove(const std::string& path) {
        std::error_code ignored;
        std::filesystem::remove(path, ignored);
    }
    std::string file(const std::string& name) const { return folder_ + "/" + name; }
    std::string ready_file(int r) const { return file(text(nonce_, ".ready.", r)); }
    std::string bye_file(int r) const { return file(text(nonce_, ".bye.", r)); }
    std::string run_file(int round, int r) const { return file(text(nonce_, ".round", round, ".rank", r)); }

    // The content, or "" where there is no such file (yet, or any more).
    static std::string content(const std::string& path) {
        try {
            return real_files().exists(path) ? read_whole(real_files(), path) : std::string();
        } catch (const Error&) {
            return "";
        }
    }

    void welcome_all() {
        nonce_ = make_nonce();
        const double deadline = steady_seconds() + timeout_;
        std::string written;
        for (;;) {
            std::string welcome = nonce_;
            std::vector<int> missing;
            for (int r = 1; r < ranks(); r++) {
                const std::string nonce = content(file(text("hello.", r)));
                welcome += " " + (nonce.empty() ? "-" : nonce);
                if (!real_files().exists(ready_file(r))) missing.push_back(r);
            }
            if (welcome != written) write_whole(real_files(), file("welcome"), welcome);
            written = welcome;
            if (missing.empty()) return;
            if (steady_seconds() > deadline) peers_missing(missing, ranks(), timeout_);
            pause();
        }
    }

    void say_hello() {
        const std::string own = make_nonce();
        write_whole(real_files(), file(text("hello.", rank())), own);
        for (const double deadline = steady_seconds() + timeout_; steady_seconds() < deadline; pause()) {
            std::istringstream welcome(content(file("welcome")));
            std::string of_rank_0, nonce;
            welcome >> of_rank_0;
            for (int r = 0; r < rank(); r++) welcome >> nonce;
            if (nonce != own) continue;
            nonce_ = of_rank_0;
            write_whole(real_files(), ready_file(rank()), "");
            return;
        }
        peers_missing({0}, ranks(), timeout_);
    }

    std::vector<int> absent() const {
        std::vector<int> result;
        for (int r = 0; r < ranks(); r++) {
            if (!real_files().exists(run_file(rounds_, r))) result.push_back(r);
        }
        return result;
    }

    std::string folder_;
    std::string nonce_;   // of rank 0 and this run
    double timeout_;
    int rounds_ = 0;
};

struct HostPort {
    std::string host;
    int port;
};

HostPort parse_address(const std::string& given) {
    std::string address = given;
    if (address.empty()) {
        const char *host = std::getenv("MASTER_ADDR"), *port = std::getenv("MASTER_PORT");
        if (host == nullptr) {
            throw Error(ErrorKind::usage, "--init tcp needs the address of rank 0",
                        "Pass --init-address HOST:PORT, or set MASTER_ADDR and MASTER_PORT.");
        }
        address = port == nullptr ? std::string(host) : text(host, ":", port);
    }
    const std::size_t colon = address.find(':');
    if (colon == std::string::npos) return {address, kDefaultPort};
    char* end = nullptr;
    const long port = std::strtol(address.c_str() + colon + 1, &end, 10);
    if (colon == 0 || *end != '\0' || port <= 0 || port > 65535) {
        throw Error(ErrorKind::usage, text("the address of rank 0 is ", address),
                    "Expected HOST:PORT, for example node1:29500.");
    }
    return {address.substr(0, colon), static_cast<int>(port)};
}

// Counts what the launcher did not say: local ranks are the ranks on the same host, in order. The launcher does not
// speak of this process where flags give it another rank (several processes started by hand within one task).
ProcessPlace find_place(Rendezvous& rendezvous, const LaunchEnvironment& environment, int gpus_per_node) {
    const bool is_of_launcher = rendezvous.rank() == environment.rank && rendezvous.ranks() == environment.ranks;
    ProcessPlace place{rendezvous.rank(), rendezvous.ranks(), is_of_launcher ? environment.local_rank : -1,
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

std::unique_ptr<Rendezvous> meet(InitMethod method, int rank, int ranks, const StartupOptions& options) {
    switch (method) {
        case InitMethod::automatic: break;
        case InitMethod::mpi: return rendezvous_by_mpi();
        case InitMethod::tcp: {
            if (ranks == 1) break;
            HostPort at = parse_address(options.address);
            return std::make_unique<TcpRendezvous>(rank, ranks, at.host, at.port, options.timeout_seconds);
        }
        case InitMethod::fs:
            if (options.folder.empty()) {
                throw Error(ErrorKind::usage, "--init fs needs a folder that all ranks see", "Pass --init-folder DIR.");
            }
            if (!real_files().exists(options.folder + "/.")) {
                throw Error(ErrorKind::usage, text("--init-folder ", options.folder, ": there is no such folder"),
                            "Make it before the start, where all ranks see the same one.");
            }
            return std::make_unique<FolderRendezvous>(rank, ranks, options.folder, options.timeout_seconds);
    }
    return std::make_unique<SingleProcess>();
}

}   // namespace

LaunchEnvironment read_launch_environment() {
    struct Names {
        const char *launcher, *rank, *ranks, *local_rank, *local_ranks;
    };
    static constexpr Names known[] = {
        {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr},
        {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    };
    for (const Names& names : known) {
        if (std::string(names.launcher) == "srun" && !is_started_by_srun()) continue;
        LaunchEnvironment found{number_from_environment(names.rank), number_from_environment(names.ranks),
                                number_from_environment(names.local_rank), -1, names.launcher};
        if (found.rank < 0 || found.ranks <= 0) continue;
        if (names.local_ranks != nullptr) found.local_ranks = number_from_environment(names.local_ranks);
        return found;
    }
    return {};
}

std::string run_secret() {
    auto value = [](const char* name) {
        const char* found = std::getenv(name);
        return std::string(found != nullptr ? found : "");
    };
    if (const std::string given = value("TRAIN_GPT_SECRET"); !given.empty()) return given;
    if (is_started_by_srun()) return text("slurm ", value("SLURM_JOB_ID"));   // of all its steps
    return value("TORCHELASTIC_RUN_ID");
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
