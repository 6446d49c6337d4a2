// Initial weights, and tensors to and from the host.
#include "llmc/kernels/init.cuh"
#include "llmc/model/gpt.h"

namespace {

// Ranges that are equal pieces at equal distances in the global tensor and follow each other in memory (the rows of a
// cut by columns): `count` of them, from one call of the kernel.
struct RangeRun {
    OwnedRange first;
    std::int64_t count = 1;
    std::int64_t stride = 0;   // global elements from piece to piece
};

std::vector<RangeRun> runs_of(const std::vector<OwnedRange>& ranges) {
    std::vector<RangeRun> runs;
    for (const OwnedRange& range : ranges) {
        if (!runs.empty()) {
            RangeRun& run = runs.back();
            const std::int64_t stride = run.count == 1 ? range.global_begin - run.first.global_begin : run.stride;
            if (range.length == run.first.length && stride >= run.first.length &&
                range.local_begin == run.first.local_begin + run.count * run.first.length &&
                range.global_begin == run.first.global_begin + run.count * stride) {
                run.stride = stride;
                run.count++;
                continue;
            }
        }
        runs.push_back({range, 1, 0});
    }
    return runs;
}

// Rows that only pad the vocabulary are left out: they stay zero.
std::vector<OwnedRange> without_padding(std::vector<OwnedRange> ranges, std::int64_t exported_elements) {
    std::erase_if(ranges, [&](const OwnedRange& range) { return range.global_begin >= exported_elements; });
    for (OwnedRange& range : ranges) range.length = std::min(range.length, exported_elements - range.global_begin);
    return ranges;
}

template <class T>
const TensorPlace& whole_tensor(const ModelState<T>& state, int param) {
    const ParamStorage& storage = state.storage();
    const TensorPlace* place = storage.find(param);
    ENSURE(place != nullptr, "this rank holds no ", storage.table()[param].name);
    ENSURE(place->elements == storage.table()[param].tensor.elements() &&
               storage.padded_elements(*place, state.state()) >= place->elements,
           storage.table()[param].name, " is cut over ranks");
    return *place;
}

}   // namespace

void Gpt::initialize(std::uint64_t seed) { initialize_parameters(parameters_, seed, stream_); }

template <class T>
void initialize_parameters(const ModelState<T>& state, std::uint64_t seed, cudaStream_t stream) {
    const ParamStorage& storage = state.storage();
    state.zero(stream);
    for (const TensorPlace& tensor : storage.tensors()) {
        const ParamInfo& param = storage.table()[tensor.param];
        if (param.init == Init::zeros) continue;
        T* data = state.tensor(tensor.param);
        const std::uint64_t key = random_key(seed, param.random_tensor());
        const std::vector<OwnedRange> owned = owned_ranges(param.tensor, storage.place(), state.state());
        for (const RangeRun& run : runs_of(without_padding(owned, param.exported_elements()))) {
            T* first = data + run.first.local_begin;
            const std::int64_t elements = run.count * run.first.length;
            if (param.init == Init::ones) {
                fill<T>(first, elements, 1.0f, stream);
            } else {
                const GlobalSpan span{run.first.global_begin, run.count > 1 ? run.first.length : 0, run.stride};
                fill_normal<T>(first, elements, param.deviation, key, span, stream);
            }
        }
    }
}

template <class T>
std::vector<float> download_tensor(const ModelState<T>& state, int param, cudaStream_t stream) {
    const TensorPlace& place = whole_tensor(state, param);
    const std::vector<T> values =
        state.unit(place.slot)
            .download(stream, static_cast<std::size_t>(state.storage().tensor_offset(place, state.state())),
                      static_cast<std::size_t>(place.elements));
    std::vector<float> result(values.size());
    std::transform(values.begin(), values.end(), result.begin(), [](T value) { return static_cast<float>(value); });
    return result;
}

template <class T>
void upload_tensor(const ModelState<T>& state, int param, std::span<const float> values, cudaStream_t stream) {
    const ParamStorage& storage = state.storage();
    const TensorPlace* place = storage.find(param);
    if (place == nullptr) return;
    const GlobalTensor& tensor = storage.table()[param].tensor;
    ENSURE(values.size() == static_cast<std::size_t>(tensor.elements()), values.size(), " values for ",
           storage.table()[param].name);
    std::vector<T> stored(static_cast<std::size_t>(storage.padded_elements(*place, state.state())),
                          static_cast<T>(0.0f));
    for (const OwnedRange& range : owned_ranges(tensor, storage.place(), state.state())) {
        std::transform(values.begin() + range.global_begin, values.begin() + range.global_begin + range.length,
                       stored.begin() + range.local_begin, [](float value) { return static_cast<T>(value); });
    }
    state.unit(place->slot)
        .upload(stored, stream, static_cast<std::size_t>(storage.tensor_offset(*place, state.state())));
}

template <class T>
void load_parameters(const ModelState<T>& state, const WeightSource& source, cudaStream_t stream) {
    ENSURE(source.config() == state.storage().table().config(), "weights of another model");
    for (const TensorPlace& tensor : state.storage().tensors()) {
        upload_tensor<T>(state, tensor.param, source.read(state.storage().table()[tensor.param]), stream);
    }
}

template void load_parameters(const ModelState<float>&, const WeightSource&, cudaStream_t);
template void load_parameters(const ModelState<bf16>&, const WeightSource&, cudaStream_t);
template void initialize_parameters(const ModelState<float>&, std::uint64_t, cudaStream_t);
template void initialize_parameters(const ModelState<bf16>&, std::uint64_t, cudaStream_t);
template std::vector<float> download_tensor(const ModelState<float>&, int, cudaStream_t);
template std::vector<float> download_tensor(const ModelState<bf16>&, int, cudaStream_t);
template void upload_tensor(const ModelState<float>&, int, std::span<const float>, cudaStream_t);
template void upload_tensor(const ModelState<bf16>&, int, std::span<const float>, cudaStream_t);
