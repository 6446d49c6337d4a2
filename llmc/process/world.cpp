#include "llmc/process/world.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <sstream>

#include "llmc/base/check.h"
#include "llmc/base/limits/usable_cores.h"
#include "llmc/base/stand_in.h"
#include "llmc/process/sockets.h"

namespace {

std::string to_text(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }

ncclUniqueId to_id(const std::string& bytes) {
    ncclUniqueId id;
    ENSURE(bytes.size() == sizeof id.internal, "an NCCL id of ", bytes.size(), " bytes");
    bytes.copy(id.internal, sizeof id.internal);
    return id;
}

}   // namespace

void load_kernels_at_start() { setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

int open_device(int local_rank) {
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    if (devices == 0) CUDA_CHECK(cudaErrorNoDevice);
    const int device = local_rank % devices;
    CUDA_CHECK(cudaSetDevice(device));
    return device;
}

World::World() = default;

// Raises the limit on open files to what connections to all ranks need, and files besides. Throws Error(no_device)
// where that may not be: a rank that runs out of them later would only wait.
static void require_descriptors(int ranks) {
    const rlim_t needed = 32 + 4 * static_cast<rlim_t>(ranks);
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
    if (limit.rlim_max < needed) {
        throw Error(ErrorKind::no_device,
                    text("this process may have ", limit.rlim_max, " open files, ", ranks, " ranks need ", needed),
                    "Raise the limit (ulimit -n).");
    }
    limit.rlim_cur = needed;
    setrlimit(RLIMIT_NOFILE, &limit);
}

World::World(const WorldOptions& options) {
    const int expected = std::max(options.startup.ranks, read_launch_environment().ranks);
    if (expected > 1) {
        require_descriptors(expected);
        load_kernels_at_start();   // before MPI, which may call CUDA
    }
    Startup startup = start_up(options.startup);
    place_ = startup.place;
    rendezvous_ = std::move(startup.rendezvous);
    mesh_ = make_mesh(place_.ranks, options.pp, options.cp, options.tp, options.dp, options.zero_group, options.ep);
    at_ = coordinates_of(mesh_, place_.rank);
    comm_sms_ = options.comm_sms;
    if (ranks() == 1) return;
    if (stand_in()) stand_in()->share_machine(2 * options.watchdog.stall_seconds);
    WatchdogOptions watchdog = options.watchdog;
    watchdog.connect_seconds = options.startup.timeout_seconds;
    if (options.check_collectives) {
        log_ = std::make_unique<CollectiveLog>();
        watchdog.collectives = log_.get();
    }
    watchdog_ = std::make_unique<Watchdog>(*rendezvous_, place_, watchdog);
    guarded([&] {
        open_device(place_.local_rank);
        if (stand_in()) share_cores();
        make_world(to_id(rendezvous_->from_rank_0(is_first() ? to_text(Communicator::make_unique_id()) : "")));
    });
}

World::World(const MeshShape& mesh, int rank, const ncclUniqueId& id, std::unique_ptr<Rendezvous> rendezvous)
    : mesh_(mesh), at_(coordinates_of(mesh, rank)), rendezvous_(std::move(rendezvous)) {
    place_ = {rank, mesh.size(), rank, mesh.size(), ""};
    make_world(id);
}

World::World(const MeshShape& mesh, int rank, int comm_sms)
    : mesh_(mesh), at_(coordinates_of(mesh, rank)), comm_sms_(comm_sms), planned_(true) {
    place_ = {rank, mesh.size(), rank, mesh.size(), ""};
    if (ranks() > 1) all_ = planned("all", everyone(), comm_sms_);
}

World::~World() {
    if (watchdog_ == nullptr) return;
    for_communicators([this](Communicator& c) { watchdog_->forget(c); });
}

void World::for_communicators(const std::function<void(Communicator&)>& what) {
    if (all_) what(*all_);
    for (const auto& [_, group] : groups_) {
        if (group != nullptr) what(*group);
    }
}

void World::share_cores() {
    const std::vector<std::string> hosts = gather_text(own_host_identity()), masks = gather_text(core_mask());
    std::vector<std::string> here;
    for (std::size_t rank = 0; rank < masks.size(); rank++) {
        if (hosts[rank] == hosts[static_cast<std::size_t>(place_.rank)]) here.push_back(masks[rank]);
    }
    // a launcher may count ranks of containers that seem to be hosts
    here.resize(std::max(here.size(), static_cast<std::size_t>(place_.local_ranks)), core_mask());
    stand_in()->share_cores(here);
}

void World::make_world(const ncclUniqueId& id) {
    all_ = std::make_unique<Communicator>(id, rank(), ranks(), "all", comm_sms_);
    add_observers(*all_, everyone());
}

std::vector<int> World::everyone() const {
    std::vector<int> everyone(static_cast<std::size_t>(ranks()));
    std::iota(everyone.begin(), everyone.end(), 0);
    return everyone;
}

// Makes a planned group. It is known by its name and its first member: no two groups of one name share a rank.
std::unique_ptr<Communicator> World::planned(const std::string& name, const std::vector<int>& members, int sms) {
    planned_groups_[name] = members;
    const auto self = std::find(members.begin(), members.end(), rank());
    return std::make_unique<Communicator>(static_cast<int>(self - members.begin()), static_cast<int>(members.size()),
                                          std::hash<std::string>()(text(name, " of ", members.front())), name, sms);
}

// Registers a communicator with the collective log and the watchdog.
void World::add_observers(Communicator& communicator, const std::vector<int>& members) {
    if (log_) communicator.log_into(*log_, members);
    if (watchdog_) watchdog_->watch(communicator, members);
}

Communicator* World::group(AxisSet axes) {
    if (all_ == nullptr || group_size(mesh_, axes) == 1) return nullptr;
    return group(group_name(mesh_, axes), group_members(mesh_, at_, axes));
}

Communicator* World::link(const std::string& name, int from, int to) {
    const bool member = from >= 0;
    ENSURE(!member || rank() == from || rank() == to, "rank ", rank(), " is at neither end of link ", name, ": ", from,
           " to ", to);
    const std::pair key(name, std::vector<int>{from, to});
    if (const auto made = groups_.find(key); made != groups_.end()) return made->second.get();
    if (all_ == nullptr) return nullptr;
    const int sms = link_sms(comm_sms_);
    std::unique_ptr<Communicator> link;   // kept once it is made: where that throws, it is made anew
    if (!planned_) {
        link = std::make_unique<Communicator>(*all_, member ? from : -1, rank() == from ? 0 : 1, name, sms);
    } else if (member) {
        link = planned(name, {from, to}, sms);
    }
    if (!member) link = nullptr;   // others have nothing there, yet took part
    if (member && !planned_) add_observers(*link, {from, to});
    return (groups_[key] = std::move(link)).get();
}

Communicator* World::group(const std::string& name, const std::vector<int>& members) {
    const std::pair key(name, members);
    if (const auto made = groups_.find(key); made != groups_.end()) return made->second.get();
    const auto self = std::find(members.begin(), members.end(), rank());
    ENSURE(all_ != nullptr && self != members.end(), "rank ", rank(), " is not in its own group ", name);
    auto group = planned_ ? planned(name, members, comm_sms_)
                          : std::make_unique<Communicator>(*all_, *std::min_element(members.begin(), members.end()),
                                                           static_cast<int>(self - members.begin()), name, comm_sms_);
    if (!planned_) add_observers(*group, members);
    return (groups_[key] = std::move(group)).get();
}

void World::set_step(std::int64_t step) {
    if (watchdog_) watchdog_->set_step(step);
}

void World::will_wait() {
    for_communicators([](Communicator& c) { c.note_waiting(); });
}

void World::has_waited() {
    if (watchdog_ == nullptr) return;
    watchdog_->throw_if_aborted();
    for_communicators([](Communicator& c) { c.note_done(); });
}

std::vector<std::string> World::gather_text(const std::string& own) {
    if (rendezvous_ == nullptr || ranks() == 1) return {own};
    return rendezvous_->all_gather(own);
}

void World::require_same(const std::string& what, const std::string& value) {
    if (rendezvous_ == nullptr || ranks() == 1) return;
    const std::vector<std::string> all = rendezvous_->all_gather(value);
    for (std::size_t r = 1; r < all.size(); r++) {
        if (all[r] == all[0]) continue;
        std::istringstream first(all[0]), other(all[r]);
        std::string ours, theirs;
        bool more = true;
        while (more && ours == theirs) {
            const bool our_line = static_cast<bool>(std::getline(first, ours));
            const bool their_line = static_cast<bool>(std::getline(other, theirs));
            if (!our_line) ours = "nothing";
            if (!their_line) theirs = "nothing";
            more = our_line || their_line;
        }
        throw Error(ErrorKind::usage, text(what, " differs: rank 0 has ", ours, ", rank ", r, " has ", theirs),
                    "Start all processes alike, with the same files in view.");
    }
}

std::string World::from_first(const std::string& value) {
    return rendezvous_ == nullptr || ranks() == 1 ? value : rendezvous_->from_rank_0(value);
}

void World::leave(const std::exception& error) {
    if (watchdog_) watchdog_->leave(error);
}
