#include "llmc/process/world.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "llmc/base/check.h"

// Defined by the stand-in; null on a GPU.
extern "C" __attribute__((weak)) void stand_in_shares_machine(int local_ranks, double stall_seconds);

namespace {

std::string to_text(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }

ncclUniqueId to_id(const std::string& bytes) {
    ncclUniqueId id;
    ENSURE(bytes.size() == sizeof id.internal, "an NCCL id of ", bytes.size(), " bytes");
    bytes.copy(id.internal, sizeof id.internal);
    return id;
}

}   // namespace

int open_device(int local_rank) {
    int devices = 0;
    CUDA_CHECK(cudaGetDeviceCount(&devices));
    if (devices == 0) CUDA_CHECK(cudaErrorNoDevice);
    const int device = local_rank % devices;
    CUDA_CHECK(cudaSetDevice(device));
    return device;
}

World::World() = default;

World::World(const WorldOptions& options) {
    Startup startup = start_up(options.startup);
    place_ = startup.place;
    rendezvous_ = std::move(startup.rendezvous);
    mesh_ = make_mesh(place_.ranks, options.pp, options.cp, options.tp, options.dp, options.zero_group, options.ep);
    at_ = coordinates_of(mesh_, place_.rank);
    comm_sms_ = options.comm_sms;
    if (ranks() == 1) return;
    if (stand_in_shares_machine) stand_in_shares_machine(place_.local_ranks, 2 * options.watchdog.stall_seconds);
    WatchdogOptions watchdog = options.watchdog;
    watchdog.connect_seconds = options.startup.timeout_seconds;
    if (options.check_collectives) {
        log_ = std::make_unique<CollectiveLog>();
        watchdog.collectives = log_.get();
    }
    watchdog_ = std::make_unique<Watchdog>(*rendezvous_, place_, watchdog);
    guarded([&] {
        open_device(place_.local_rank);
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
    for (const auto& [_, group] : groups_) what(*group);
    for (const auto& link : link_groups_) what(*link);
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

// Groups are known by their names and their first members: no two of one name share a rank.
std::unique_ptr<Communicator> World::planned(const std::string& name, const std::vector<int>& members, int sms) {
    planned_groups_[name] = members;
    const auto own = std::find(members.begin(), members.end(), rank());
    return std::make_unique<Communicator>(static_cast<int>(own - members.begin()), static_cast<int>(members.size()),
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

// One of the links between pairs of stages that are split off together: the ranks of the other stages are in none.
Communicator* World::make_link(int from, int to, bool exists, const char* what) {
    const bool member = exists && (at_.pp == from || at_.pp == to);
    auto rank_at = [&](int stage) {
        MeshCoordinates place = at_;
        place.pp = stage;
        return rank_of(mesh_, place);
    };
    if (planned_ && !member) return nullptr;
    const std::string name = text("pp ", what, " ", from, " to ", to);
    const int sms = link_sms(comm_sms_);
    auto link = planned_ ? planned(name, {rank_at(from), rank_at(to)}, sms)
                         : std::make_unique<Communicator>(*all_, member ? rank_at(from) : -1, at_.pp == from ? 0 : 1,
                                                          name, sms);
    if (!member) return nullptr;
    add_observers(*link, {rank_at(from), rank_at(to)});
    link_groups_.push_back(std::move(link));
    return link_groups_.back().get();
}

// Links i -> i + 1 of even i are made at once, then those of odd i; where the last one closes a ring of odd size, it
// comes after them.
Communicator* World::same_heads(int copies) {
    if (copies == 1) return nullptr;
    std::vector<int> members;
    for (int i = 0; i < copies; i++) {
        MeshCoordinates at = at_;
        at.tp = at_.tp / copies * copies + i;
        members.push_back(rank_of(mesh_, at));
    }
    return group("tp same heads", members);
}

const PipelineLinks& World::pipeline_links(bool ring, bool tied) {
    const int p = mesh_.pp;
    if (all_ == nullptr || p == 1 || !link_groups_.empty()) return links_;
    auto turn = [&](int i) { return i == p - 1 && p % 2 == 1 ? 2 : i % 2; };
    for (int turns = 0; turns < (ring && p % 2 == 1 ? 3 : 2); turns++) {
        const int next = at_.pp, previous = (at_.pp + p - 1) % p;   // the links to the next stage and from the previous
        const bool up = turn(next) == turns, down = turn(previous) == turns;   // never both
        const int link = up ? next : previous, after = (link + 1) % p;
        const bool exists = (up || down) && (ring || link < p - 1);
        Communicator* const forward = make_link(link, after, exists, "forward");
        Communicator* const backward = make_link(after, link, exists, "backward");
        if (up) links_.output = forward, links_.output_gradient = backward;
        if (down) links_.input = forward, links_.input_gradient = backward;
    }
    if (tied) links_.tied = make_link(0, p - 1, true, "tied");
    return links_;
}

Communicator* World::group(const std::string& name, const std::vector<int>& members) {
    std::unique_ptr<Communicator>& group = groups_[{name, members}];
    if (group != nullptr) return group.get();
    const auto own = std::find(members.begin(), members.end(), rank());
    ENSURE(all_ != nullptr && own != members.end(), "rank ", rank(), " is not in its own group ", name);
    if (planned_) return (group = planned(name, members, comm_sms_)).get();
    group = std::make_unique<Communicator>(*all_, *std::min_element(members.begin(), members.end()),
                                           static_cast<int>(own - members.begin()), name, comm_sms_);
    add_observers(*group, members);
    return group.get();
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
