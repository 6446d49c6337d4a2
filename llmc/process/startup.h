// How processes find out who they are and meet, before there is NCCL (--init).
//
//   mpi   mpirun started them: MPI exchanges short texts and is not used for anything else
//   tcp   rank 0 listens at one address that all know; no MPI needed
//   fs    the same, its address found in a folder that all see. For one run at a time; leftovers do no harm
//   auto  one process alone, or mpi / tcp by what the environment says
//
// Unknown peers cost a run nothing: a rank and rank 0 prove to each other that they know the run's secret, which is
// never sent, and rank 0 handshakes all pending connections at once (joining.h). The secret of tcp is TRAIN_GPT_SECRET,
// which scripts/launch.sh makes anew for each run, else what the batch system calls the job (Slurm, torchrun), which
// tells runs apart but can be guessed: rank 0 warns where its address is not one of loopback. mpi has its own; whoever
// may write to fs's folder is trusted. Where the address of rank 0 is one of loopback (127.0.0.1, ::1, localhost), it
// listens there only.
//
// Ranks and their number come from the flags, else from what launchers put into the environment: mpirun, srun (Slurm),
// and torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, which scripts/launch.sh also
// sets. One process drives one GPU: the one with its local rank's number.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "llmc/process/address.h"

enum class InitMethod { automatic, mpi, tcp, fs };

struct StartupOptions {
    InitMethod method = InitMethod::automatic;
    int rank = -1, ranks = -1;      // -1: ask the environment
    int gpus_per_node = 0;          // local rank = rank modulo this; 0: by the environment, else by host
    std::string address;            // tcp: HOST[:PORT] of rank 0, [::1]:PORT for IPv6; empty: MASTER_ADDR, MASTER_PORT
    std::string folder;             // fs: a folder that all ranks see
    double timeout_seconds = 120;   // how long to wait for peers
    std::function<Resolution(const std::string& host, int port)> resolver = resolve;   // tests give another one
};

inline constexpr int kDefaultPort = 29500;   // used by --init tcp where the address has none

struct ProcessInfo {
    int rank = 0, ranks = 1;
    int local_rank = 0, local_ranks = 1;   // among the processes on this machine
    std::string host;                      // its name, for messages
};

// Exchanges between all processes, before NCCL and apart from it. Collective: every rank makes the same calls.
class Rendezvous {
public:
    Rendezvous(int rank, int ranks) : rank_(rank), ranks_(ranks) {}
    virtual ~Rendezvous() = default;
    Rendezvous(const Rendezvous&) = delete;
    Rendezvous& operator=(const Rendezvous&) = delete;

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }

    // Every rank's text, by rank. Throws Error(no_device) naming the ranks that have not joined in time.
    virtual std::vector<std::string> all_gather(const std::string& own) = 0;
    std::string from_rank_0(const std::string& own) { return all_gather(rank_ == 0 ? own : "")[0]; }
    // The address by which this rank has reached rank 0, in digits; empty where it has not by any.
    virtual std::string rank_0_address() const { return ""; }

private:
    int rank_, ranks_;
};

struct Startup {
    std::unique_ptr<Rendezvous> rendezvous;
    ProcessInfo place;
};

// A text of the environment that all ranks of this run know.
struct RunSecret {
    std::string text = {};        // empty: the environment has none
    bool can_be_guessed = true;   // it is the name of a job, or nothing
};
RunSecret run_secret();

// Joins the other processes. Local ranks that the environment does not give are counted by host (own_host_identity).
// Errors: Error(usage) for a rank outside its range, a missing or malformed address, a missing folder, mpi in
// a build without MPI; Error(no_device) naming who did not come, or a name that has not resolved in time.
Startup start_up(const StartupOptions& options);

// This process's rank, before it has met anyone: for messages.
int own_rank(const StartupOptions& options);

// Ranks that the environment gives, -1 where it gives none. For tests and messages.
struct LaunchEnvironment {
    int rank = -1, ranks = -1, local_rank = -1, local_ranks = -1;
    const char* launcher = "";   // "mpirun", "srun", "torchrun" or ""
};
LaunchEnvironment read_launch_environment();

// Implemented by startup_mpi.cpp. Without MPI in the build: Error(usage), false.
std::unique_ptr<Rendezvous> rendezvous_by_mpi();
bool built_with_mpi();
