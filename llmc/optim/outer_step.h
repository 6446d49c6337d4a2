// Outer step of local steps: replicas update their own weights, and take one together every so many steps (Douillard et
// al., "DiLoCo", 2023, algorithm 1), or a part of the model at a time while they go on (Douillard et al., "Streaming
// DiLoCo with overlapping communication", 2025, algorithm 2).
//
// Units of the model (embedding, layers, head) are dealt out in turns: unit u is of fragment u mod F. Fragment f leaves
// after the steps s with s mod H = ((f + 1) H / F) mod H, for H = LocalSteps::every, and arrives LocalSteps::delay
// steps later, or when its turn comes again. After the run's last step all fragments leave and arrive at once; what
// still travels then never arrives, for the weights still hold it.
//
// Without delay and blend weights are summed in place, on the stage's stream. Else the weights that leave are copied to
// the state "outer_flight", which becomes the replicas' mean on a stream of its own, beside the steps.
//
// For P elements that a rank owns, fragments send 8P (R - 1) / R bytes in H steps between R replicas, compressed fewer
// (compressed_average.h). Sums in fp32 are then sent inside each replica, 4 bytes an element, from the first of the
// ranks that hold copies to the others: all at ZeRO stage 0, tensors that tp does not cut, copied heads, and a tied
// tensor, from a pipeline's first stage to the last.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "llmc/base/stream.h"
#include "llmc/model/stage/stage.h"
#include "llmc/optim/compressed_average.h"
#include "llmc/optim/optimizer_state.h"
#include "llmc/parallel/training_groups.h"

template <class Real>
struct UpdateTable;   // llmc/kernels/optim/update.cuh

class OuterStep {
public:
    // `states`: of the optimizer, with those of optimizer_states() for these local steps.
    OuterStep(Stage& stage, const LocalSteps& local, const std::vector<OptimizerState>& states,
              const TrainingGroups& groups, Arena& arena);
    ~OuterStep();

    // Takes the outer step of fragments that arrive after step `step`, and sends those that leave. Returns whether
    // weights have changed. `last`: the run ends here. Collective over the ranks of `outer`, and inside a replica.
    bool after(int step, bool last);

    // Makes later work on the stage's stream see "outer_flight" as it arrives. Collective inside a replica.
    void wait_for_flights();

    // Step after which each fragment left that still travels; 0: it does not. What a checkpoint keeps besides states.
    const std::vector<int>& left() const { return left_; }
    // Puts a checkpoint's in their place, whose "outer_flight" has been read. Returns false if the run deals out other
    // fragments, or none that travel: then all that did stay out, for the weights still hold them.
    bool restore(const std::vector<int>& left);

private:
    struct Fragment;   // tables of what this rank owns of it
    struct Flights;
    bool is_compressed() const;
    ModelState<float> state(std::string_view name) const;
    void make_tables(Arena& arena);
    template <class Use>
    void for_each_owned(int fragment, const Use& use);
    void average(int fragment, cudaStream_t stream);
    void average_compressed(int fragment, cudaStream_t stream);
    void share(int fragment);
    void share_copied_heads(int fragment);
    void send(int fragment);
    void arrive(int fragment);
    void take(int fragment, int step, float blend);
    void drop(const std::vector<int>& left);

    Stage& stage_;
    LocalSteps local_;
    const std::vector<OptimizerState>& states_;
    std::optional<ModelState<float>> masters_;   // without, the parameters are the exact weights
    Communicator *outer_, *zero_, *holders_, *tensor_, *same_heads_, *tied_;   // or null
    std::vector<Fragment> fragments_;
    std::vector<int> left_;
    std::unique_ptr<Flights> flights_;                // null: weights are summed in place
    std::unique_ptr<CompressedAverage> compressed_;   // null: outer steps are not compressed
};
