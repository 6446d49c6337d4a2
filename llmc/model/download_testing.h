// For tests: a tensor of a state on the host.
#pragma once

#include <vector>

#include "llmc/model/parameters/gradients.h"

// As float, in its global shape. For states that are not cut over ranks. Waits for the stream.
template <class T>
std::vector<float> download_tensor(const ModelState<T>& state, int param, cudaStream_t stream) {
    const ParamStorage& storage = state.storage();
    const TensorLayout* place = storage.find(param);
    ENSURE(place != nullptr, "this rank holds no ", storage.table()[param].name);
    ENSURE(place->elements == storage.table()[param].tensor.elements() &&
               storage.padded_elements(*place, state.state()) >= place->elements,
           storage.table()[param].name, " is cut over ranks");
    const std::vector<T> values =
        state.unit(place->slot)
            .download(stream, static_cast<std::size_t>(storage.tensor_offset(*place, state.state())),
                      static_cast<std::size_t>(place->elements));
    return {values.begin(), values.end()};
}
inline std::vector<float> download_tensor(const Gradients& gradients, int param, cudaStream_t stream) {
    return with_gradient_type<floatX>(
        gradients.type(), [&]<class G> { return download_tensor(gradients.kept().as<G>(), param, stream); });
}
