// For tests of compressed gradients: codecs, what a step applies, and what compression has left out.
#pragma once

#include "llmc/run/trainee_testing.h"

namespace grad_compression_testing {

using namespace trainee_testing;

inline constexpr GradCompressionOptions bf16_blocks{GradCompression::bf16_}, int8_blocks{GradCompression::int8},
    largest_ones{GradCompression::topk, 0.25f}, low_rank{.how = GradCompression::powersgd, .rank = 2};
inline constexpr GradCompressionOptions codecs[]{bf16_blocks, int8_blocks, largest_ones, low_rank};

inline OptimizerOptions compressed(const GradCompressionOptions& codec) {
    OptimizerOptions how = options();
    how.grad_compression = codec;
    return how;
}

// Values of a state laid out as gradients are: of all this rank holds, or only of what it owns. Zeros for tensors that
// do not have it.
inline Floats values_of(Trainee& own, const ModelState<float>& state, bool owned) {
    own.step.sync().finish();
    Floats all;
    const ParamStorage& storage = own.stage.storage();
    for (const TensorLayout& tensor : storage.tensors()) {
        const StateKind kind = owned ? StateKind::optimizer : StateKind::gradients;
        const auto count = static_cast<std::size_t>(storage.padded_elements(tensor, kind));
        Floats part(count);
        if (const TensorLayout* const place = state.storage().find(tensor.param); place != nullptr) {
            const float* const from = owned ? state.owned(place->param) : state.tensor(place->param);
            const auto buffer = state.unit(place->slot);
            part = buffer.download(own.stream, static_cast<std::size_t>(from - buffer.data()), count);
        }
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}
inline Floats errors(Trainee& own) { return values_of(own, own.step.optimizer().state(kGradientError), false); }

// What a step applies of the sum over ranks, of all elements that this rank owns.
inline Floats applied(Trainee& own) { return values_of(own, own.stage.gradients().kept().as<float>(), true); }

// Checks that what `own` applies in `steps` steps of the same samples and sum_of_errors(own), of what this rank owns,
// add up to what `plain` applies, and that `forgetful`, whose errors are dropped, misses more than `times` as many
// squares.
template <class SumOfErrors>
void check_feedback(TestRank& me, Trainee& plain, Trainee& own, Trainee& forgetful, int steps, const Samples& of,
                    double times, const SumOfErrors& sum_of_errors) {
    std::vector<double> off, off_without;   // applied less given, over all steps, in which a bias adds up
    double largest = 0;
    for (int step = 1; step <= steps; step++) {
        for (Trainee* one : {&plain, &own, &forgetful}) one->gradients(1, of);
        const Floats given = applied(plain), sent = applied(own), unfed = applied(forgetful);
        off.resize(given.size()), off_without.resize(given.size());
        for (std::size_t i = 0; i < given.size(); i++) {
            off[i] += static_cast<double>(sent[i]) - static_cast<double>(given[i]);
            off_without[i] += static_cast<double>(unfed[i]) - static_cast<double>(given[i]);
            largest = std::max(largest, std::abs(static_cast<double>(given[i])));
        }
        forgetful.step.optimizer().state(kGradientError).zero(me.stream);
    }
    const std::vector<double> left = sum_of_errors(me, own);
    me.require(left.size() == off.size(), left.size(), " errors for ", off.size(), " gradients");
    double most = 0, squares = 0, squares_without = 0;
    for (std::size_t i = 0; i < off.size(); i++) {
        most = std::max(most, std::abs(off[i] + left[i]));
        squares += off[i] * off[i], squares_without += off_without[i] * off_without[i];
    }
    me.require(most < 2e-5 * largest, "an element is ", most, " off, of gradients to ", largest);
    me.require(squares > 0 && squares_without > times * squares, "with feedback ", squares,
               " squares are missing, without ", squares_without);
}

}   // namespace grad_compression_testing
