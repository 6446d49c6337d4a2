#include "llmc/model/weights.h"

#include "llmc/kernels/init.cuh"
#include "llmc/model/same_weights.h"

template <class T>
void initialize_parameters(const ModelState<T>& state, std::uint64_t seed, cudaStream_t stream) {
    const ParamStorage& storage = state.storage();
    state.zero(stream);
    for (const TensorLayout& tensor : storage.tensors()) {
        const ParamInfo& param = storage.table()[tensor.param];
        if (param.init == Init::zeros) continue;
        T* data = state.tensor(tensor.param);
        const std::uint64_t key = random_key(seed, param.random_tensor());
        for (const OwnedRange& range : storage.exported_ranges(tensor, state.state())) {
            T* first = data + range.local_begin;
            if (param.init == Init::ones) {
                fill<T>(first, range.length, 1.0f, stream);
            } else {
                fill_normal<T>(first, range.length, param.deviation, key, range.global, stream);
            }
        }
    }
}

template <class T>
void upload_tensor(const ModelState<T>& state, int param, std::span<const float> values, cudaStream_t stream) {
    const ParamStorage& storage = state.storage();
    const TensorLayout* place = storage.find(param);
    if (place == nullptr) return;
    const TensorSpec& tensor = storage.table()[param].tensor;
    ENSURE(values.size() == static_cast<std::size_t>(tensor.elements()), values.size(), " values for ",
           storage.table()[param].name);
    std::vector<T> stored(static_cast<std::size_t>(storage.padded_elements(*place, state.state())),
                          static_cast<T>(0.0f));
    for (const OwnedRange& range : owned_ranges(tensor, storage.place(), state.state())) {
        for_runs(range, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
            std::transform(values.begin() + global, values.begin() + global + count, stored.begin() + local,
                           [](float value) { return static_cast<T>(value); });
        });
    }
    state.unit(place->slot)
        .upload(stored, stream, static_cast<std::size_t>(storage.tensor_offset(*place, state.state())));
}

template <class T>
void load_parameters(const ModelState<T>& state, const WeightSource& source, cudaStream_t stream) {
    ENSURE(have_same_weights(source.config(), state.storage().table().config()), "weights of another model");
    for (const TensorLayout& tensor : state.storage().tensors()) {
        upload_tensor<T>(state, tensor.param, source.read(state.storage().table()[tensor.param]), stream);
    }
}

template void load_parameters(const ModelState<float>&, const WeightSource&, cudaStream_t);
template void load_parameters(const ModelState<bf16>&, const WeightSource&, cudaStream_t);
template void initialize_parameters(const ModelState<float>&, std::uint64_t, cudaStream_t);
template void initialize_parameters(const ModelState<bf16>&, std::uint64_t, cudaStream_t);
template void upload_tensor(const ModelState<float>&, int, std::span<const float>, cudaStream_t);
template void upload_tensor(const ModelState<bf16>&, int, std::span<const float>, cudaStream_t);
