// Initial weights, and tensors to and from the host.
#include "llmc/kernels/init.cuh"
#include "llmc/model/gpt.h"

namespace {

// Fills one slab with its initial values: ranges of the global tensor land where shard.h says, drawn by global element.
void init_slab(floatX* slab, const ParamInfo& param, const ShardPlace& place, std::uint64_t seed, cudaStream_t stream) {
    if (param.init == Init::zeros) return;
    const std::uint64_t key = random_key(seed, param.rng_tensor);
    for (const OwnedRange& range : slab_ranges(param.tensor, place.mesh.tp, place.at.tp)) {
        // rows that only pad the vocabulary stay zero
        const std::int64_t length = std::min(range.length, param.exported_elements() - range.global_begin);
        if (length <= 0) continue;
        if (param.init == Init::ones) {
            fill<floatX>(slab + range.local_begin, length, 1.0f, stream);
        } else {
            fill_normal<floatX>(slab + range.local_begin, length, param.deviation, key, GlobalSpan{range.global_begin},
                                stream);
        }
    }
}

template <class T>
const TensorPlace& whole_tensor(const ModelState<T>& state, int param) {
    const ModelLayout& layout = state.layout();
    const TensorPlace* place = layout.find(param);
    ENSURE(place != nullptr, "this rank holds no ", layout.table()[param].name);
    ENSURE(place->elements == layout.table()[param].tensor.elements() &&
               layout.tensor_room(*place, state.state()) >= place->elements,
           layout.table()[param].name, " is cut over ranks");
    return *place;
}

}   // namespace

void Gpt::initialize(std::uint64_t seed) {
    parameters_.zero(stream_);
    for (const TensorPlace& tensor : layout_->tensors()) {
        init_slab(parameters_.tensor(tensor.param), table()[tensor.param], layout_->place(), seed, stream_);
    }
}

template <class T>
std::vector<float> download_tensor(const ModelState<T>& state, int param, cudaStream_t stream) {
    const TensorPlace& place = whole_tensor(state, param);
    const std::vector<T> values =
        state.unit(place.slot)
            .download(stream, static_cast<std::size_t>(state.layout().tensor_offset(place, state.state())),
                      static_cast<std::size_t>(place.elements));
    std::vector<float> result(values.size());
    std::transform(values.begin(), values.end(), result.begin(), [](T value) { return static_cast<float>(value); });
    return result;
}

template <class T>
void upload_tensor(const ModelState<T>& state, int param, std::span<const float> values, cudaStream_t stream) {
    const TensorPlace& place = whole_tensor(state, param);
    ENSURE(values.size() == static_cast<std::size_t>(place.elements), values.size(), " values for ", place.elements,
           " elements of ", state.layout().table()[param].name);
    std::vector<T> converted(values.size());
    std::transform(values.begin(), values.end(), converted.begin(), [](float value) { return static_cast<T>(value); });
    state.unit(place.slot)
        .upload(converted, stream, static_cast<std::size_t>(state.layout().tensor_offset(place, state.state())));
}

template std::vector<float> download_tensor(const ModelState<float>&, int, cudaStream_t);
template std::vector<float> download_tensor(const ModelState<bf16>&, int, cudaStream_t);
template void upload_tensor(const ModelState<float>&, int, std::span<const float>, cudaStream_t);
template void upload_tensor(const ModelState<bf16>&, int, std::span<const float>, cudaStream_t);
