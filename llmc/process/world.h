// Places this process among the others: its rank, the mesh, the communicators, the watchdog. Made once by main and
// taken by reference by whatever communicates.
//
// With one process nothing is started: there is no communicator, and every function here does nothing.
//
// What must hold: all ranks make their worlds with the same options; work that the watchdog should see runs inside
// `guarded`, so that a rank that fails tells the others, which then end with exit code 75 instead of waiting for it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "llmc/mesh/mesh.h"
#include "llmc/process/comm.h"
#include "llmc/process/startup.h"
#include "llmc/process/watchdog/watchdog.h"

struct WorldOptions {
    StartupOptions startup;
    int pp = 1, cp = 1, tp = 1;
    int dp = 0;                   // 0: the ranks that the others leave
    int zero_group = 0, ep = 1;   // MeshShape
    WatchdogOptions watchdog;
    int comm_sms = 0;                 // multiprocessors that a group's operations take at most; 0: as NCCL chooses
    bool check_collectives = false;   // debug: collective_order.h
};

// Returns how many of these a link of a pipeline takes, which carries one message at a time.
constexpr int link_sms(int comm_sms) { return comm_sms < 2 ? comm_sms : 2; }

class World {
public:
    World();   // alone
    // Meets the other processes, opens this rank's device, makes the communicators and the watchdog. Collective. Throws
    // the errors of start_up, make_mesh and Communicator.
    explicit World(const WorldOptions& options);
    // Connects ranks that know each other already, without a watchdog: for tests, where ranks may be threads. Here even
    // a single rank has a communicator. Without `rendezvous`, exchanged texts are this rank's own.
    World(const MeshShape& mesh, int rank, const ncclUniqueId& id, std::unique_ptr<Rendezvous> rendezvous = nullptr);
    // Makes the world of a run that is only planned: it meets nobody, and its groups are planned ones (comm.h).
    World(const MeshShape& mesh, int rank, int comm_sms);
    ~World();
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    int rank() const { return place_.rank; }
    int ranks() const { return place_.ranks; }
    bool is_first() const { return place_.rank == 0; }   // the rank that logs and writes files
    const ProcessInfo& place() const { return place_; }
    const MeshShape& mesh() const { return mesh_; }
    const MeshCoordinates& at() const { return at_; }

    Communicator* all() const { return all_.get(); }   // communicator of all ranks; null when alone
    // Returns the communicator of the ranks that differ from this one along `axes` only; null where that is this rank
    // alone. The first call makes it, and is collective. Sets of axes whose groups are the same get the same one. It is
    // never the communicator of all ranks under another name: operations of one communicator wait for each other, and
    // those of all ranks have other work than a group's.
    Communicator* group(AxisSet axes);

    // Returns a communicator of these ranks of the world, in this order, under a name of its own: for work that must
    // not wait for other work of the same ranks. Every rank names its own group. The first call is collective over the
    // world.
    Communicator* group(const std::string& name, const std::vector<int>& members);

    // Makes links between several pairs of ranks, on which `from` sends and `to` receives. Every rank names its own; a
    // rank without one gives no ranks (-1) and a name of that call, and gets null. The first call is collective over
    // the world.
    Communicator* link(const std::string& name, int from, int to);

    bool is_planned() const { return planned_; }
    // Returns every group of a planned world so far, by name, with its ranks.
    const std::map<std::string, std::vector<int>>& planned_groups() const { return planned_groups_; }

    // Throws Error(usage) if `value` is not the same on all ranks, naming a rank and the first line that differs from
    // rank 0's. Collective.
    void require_same(const std::string& what, const std::string& value);
    // Returns rank 0's value. Collective.
    std::string from_first(const std::string& value);

    // Returns every rank's text, by rank. Collective, by the rendezvous and not by NCCL.
    std::vector<std::string> gather_text(const std::string& own);

    // ---- what the watchdog tells of this rank
    void set_step(std::int64_t step);   // completed steps
    // Called before the host waits for the collectives issued so far, and after. Collectives issued in between may
    // still be under way then. has_waited() throws Error(resumable) if a rank was lost.
    void will_wait();
    void has_waited();
    void synchronised() { will_wait(), has_waited(); }   // nothing was issued in between

    // Runs body(). If it throws while there are other ranks, they are told, and this process ends (Watchdog::leave).
    template <class Body>
    auto guarded(Body&& body) {
        try {
            return body();
        } catch (const std::exception& error) {
            leave(error);
            throw;   // alone
        }
    }

private:
    void leave(const std::exception& error);
    void share_cores();   // tells the stand-in which cores the ranks of this machine have
    void make_world(const ncclUniqueId& id);
    std::vector<int> everyone() const;
    std::unique_ptr<Communicator> planned(const std::string& name, const std::vector<int>& members, int sms);
    void add_observers(Communicator& communicator, const std::vector<int>& members);
    void for_communicators(const std::function<void(Communicator&)>& what);

    ProcessInfo place_;
    MeshShape mesh_;
    MeshCoordinates at_;
    int comm_sms_ = 0;
    bool planned_ = false;
    std::unique_ptr<Rendezvous> rendezvous_;
    std::unique_ptr<CollectiveLog> log_;   // with --check-collectives
    std::unique_ptr<Watchdog>
        watchdog_;   // goes after the communicators: losses in their last operations are still told
    std::unique_ptr<Communicator> all_;
    // Groups split from all_, by name and members; null: a link that this rank is no member of.
    std::map<std::pair<std::string, std::vector<int>>, std::unique_ptr<Communicator>> groups_;
    std::map<std::string, std::vector<int>> planned_groups_;
};

// Sets what CUDA reads at its first call, which must come later: kernels are loaded then. Loading one at its first
// launch may wait for the device (CUDA's guide, "Lazy Loading"), which may wait for another rank in a kernel of NCCL.
// It costs time at the start and device memory, so a rank that is alone leaves it out. A CUDA_MODULE_LOADING that is
// set stays.
void load_kernels_at_start();

// Opens the device of a local rank: the one with its number; ranks beyond the last device start again from the first,
// which NCCL refuses unless it was told that each is a host of its own (NCCL_HOSTID). Error(no_device) where there is
// none.
int open_device(int local_rank);
