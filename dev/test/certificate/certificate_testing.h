// The certificate: a small model trained under some layout must give the losses, norms and first-step gradients of one
// process (docs/numerics.md, "How close"). Shared by the tests of layouts.
#pragma once

#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dev/test/certificate/certificate_layout_testing.h"
#include "llmc/base/stream.h"
#include "llmc/io/hash.h"
#include "llmc/mesh/copy_ranks_testing.h"
#include "llmc/model/download_testing.h"
#include "llmc/parallel/gather.h"
#include "llmc/parallel/schedule_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/step/step.h"

namespace certificate {

// How far a layout may be from one process; relative, gradients by tensor norm.
struct Tolerance {
    double first_loss, losses, norm, gradients;
};
constexpr Tolerance tolerance =
    sizeof(floatX) == 4 ? Tolerance{1e-6, 1e-5, 1e-6, 5e-6} : Tolerance{5e-4, 5e-4, 5e-3, 2e-2};
// In fp8 a last bit of bf16, in which layouts differ, may decide a rounding to e4m3, whose last bit is 32 of it.
constexpr Tolerance tolerance_in_fp8{5e-4, 5e-4, 5e-3, sizeof(floatX) == 4 ? 2e-2 : 0.2};
constexpr Tolerance tolerance_of(const Layout& layout) {
    return layout.matmul_dtype == MatmulDType::stored ? tolerance : tolerance_in_fp8;
}

struct Result {
    std::vector<float> losses, norms;
    std::vector<std::vector<float>> gradients;   // after the first step, indexed as the table, global shapes
    bool operator==(const Result&) const = default;
};

// One rank of a run: model and optimizer, made and stepped as the trainer does it.
class Rank {
public:
    // Without groups: one process. `world`: where the stage needs communicators.
    explicit Rank(const Layout& layout, const MeshCoordinates& at = {}, const TrainingGroups& groups = {},
                  World* world = nullptr);
    ~Rank();

    // From now on another list for this stage.
    void follow(const std::vector<PipelineSchedule>& lists);

    static StageOptions options(const Layout& layout, const MeshCoordinates& at, World* world = nullptr,
                                ExpertRanks* expert_ranks = nullptr);

    // Everything of step number `step` (from 1) but the update.
    void gradients(int step);

    Result train(
        int steps, const std::function<void()>& step_begins = [] {});

    // A gradient of the step at hand in its global shape, on every rank (collective).
    std::vector<float> gradient(int param);

    // Every parameter as this rank sees it, in its global shape. Not under stage 3, where it sees only its own part.
    std::vector<std::vector<float>> parameters();

    Stage& stage() { return model_; }
    const Stage& stage() const { return model_; }
    ExpertRanks* expert_ranks() const { return expert_ranks_.get(); }
    const TrainingGroups& groups() const { return groups_; }
    std::vector<Communicator*> communicators() const;   // each once
    Step& step() { return *step_; }
    Arena& arena() { return arena_; }
    cudaStream_t stream() const { return stream_.get(); }

private:
    // Fills the document starts of the sequences from `sequence` on.
    void read_starts(int sequence, std::span<std::int32_t> starts) const;
    // Positions of this rank's tokens in a step that have a target; 1 where none has.
    int own_targets(int step) const;
    // Returns, on all ranks, the values that one stage has; the others pass zeros.
    std::vector<float> from_stages(const std::vector<float>& own);
    // Wraps the product's ExpertRanks, to replay or record choices.
    KnownChoices* know_choices(const MeshCoordinates& at);
    static PipelineSchedule schedule(const Layout& layout, const MeshCoordinates& at);

    Layout layout_;
    TrainingGroups groups_;
    OwnedStream stream_;
    Arena arena_;
    std::unique_ptr<ExpertRanks> expert_ranks_;
    KnownChoices* choices_;   // or null
    Stage model_;
    std::optional<Step> step_;
    PipelineSchedule schedule_;
};

double distance(const std::vector<float>& a, const std::vector<float>& b);
inline double length(const std::vector<float>& a) { return distance(a, std::vector<float>(a.size(), 0.0f)); }

// How far a run is from another at most.
Tolerance distances(const Result& found, const Result& expected);

// Describes where two runs differ by more than allowed; empty: nowhere.
std::string difference(const Result& found, const Result& expected, const ParamTable& table,
                       const Tolerance& allowed = tolerance);

// Runs `body` on every rank of a layout, which has the communicators that the product would have; a single rank has
// that of all for both. False where it was passed over (on_ranks_testing.h).
bool on_layout(const Layout& layout, const std::function<void(Rank&, TestRank&)>& body);

// Fails where another rank has another result, to the bit.
void require_same_everywhere(const Result& result, TestRank& me);

// Fails where two copies of a tensor of this state, on any ranks of the mesh (copy_ranks), are not equal to the bit.
// Collective.
template <class T>
void require_equal_copies(const ModelState<T>& state, const std::string& name, TestRank& me) {
    const ParamStorage& storage = state.storage();
    const auto tensors = static_cast<std::size_t>(storage.table().size());
    std::vector<std::uint64_t> own(tensors, 0);
    for (const TensorLayout& place : storage.tensors()) {
        const auto values =
            state.unit(place.slot)
                .download(me.stream, static_cast<std::size_t>(storage.tensor_offset(place, state.state())),
                          static_cast<std::size_t>(storage.padded_elements(place, state.state())));
        Hash64 hash;
        hash.update(values.data(), values.size() * sizeof(T));
        own[static_cast<std::size_t>(place.param)] = hash.digest();
    }
    const DeviceBuffer<std::uint64_t> sent = me.on_device(own);
    const auto came = me.arena.allocate<std::uint64_t>("test/hashes", tensors * static_cast<std::size_t>(me.ranks()));
    me.all.all_gather(came.data(), sent.data(), tensors, me.stream);
    const std::vector<std::uint64_t> hashes = came.download(me.stream);
    for (const TensorLayout& place : storage.tensors()) {
        const ParamInfo& info = storage.table()[place.param];
        for (int rank : copy_ranks(info.tensor, storage.place(), state.state())) {
            const std::size_t i = static_cast<std::size_t>(rank) * tensors + static_cast<std::size_t>(place.param);
            me.require(hashes[i] == own[static_cast<std::size_t>(place.param)], name, " of ", info.name,
                       " are not those of rank ", rank);
        }
    }
}

// Compares all copies of the state that a run leaves.
void require_equal_copies(Rank& rank, TestRank& me);

// Trains the same batches in one process, without communicators.
Result train_alone(int micro_batches, int steps, bool master_weights = true, bool tied = true, int heads = 3,
                   int layers = 3);

// Trains under a layout, as many steps as `expected` has, and fails where that differs from one process's, or one rank
// from another.
void certify(const Layout& layout, const Result& expected);

}   // namespace certificate
