#include "llmc/model/attention/kv_cache.h"

#include <algorithm>

#include "llmc/base/check.h"

KvCache::KvCache(Arena& arena, const std::string& name, std::int64_t positions, int width, std::int64_t window,
                 int rows_at_once)
    : width_(width),
      tokens_(window > 0 ? std::min(positions, window - 1 + rows_at_once + window / 8) : positions),
      window_(window),
      kept_(arena.allocate<floatX>(name, static_cast<std::size_t>(tokens_ * width))) {}

int KvCache::add(const floatX* qkv, int qkv_width, int position, int rows, cudaStream_t stream) {
    if (position == 0) first_ = 0;
    ENSURE(rows <= tokens_ && (window_ > 0 || position + rows <= tokens_), rows, " tokens after ", position,
           " in a cache of ", tokens_);
    if (window_ > 0 && position - first_ + rows > tokens_) {
        const int seen = static_cast<int>(std::min<std::int64_t>(window_ - 1, position - first_));
        move_to_front(position - first_ - seen, seen, stream);
        first_ = position - seen;
    }
    const int row = position - first_;
    const auto bytes = [](std::int64_t elements) { return sizeof(floatX) * static_cast<std::size_t>(elements); };
    CUDA_CHECK(cudaMemcpy2DAsync(kept_.data() + std::int64_t{row} * width_, bytes(width_), qkv + (qkv_width - width_),
                                 bytes(qkv_width), bytes(width_), static_cast<std::size_t>(rows),
                                 cudaMemcpyDeviceToDevice, stream));
    return row;
}

// Moves in pieces that do not overlap the places they come from.
void KvCache::move_to_front(int row, int rows, cudaStream_t stream) {
    for (int done = 0; done < rows; done += row) {
        const std::int64_t count = std::int64_t{std::min(row, rows - done)} * width_;
        CUDA_CHECK(cudaMemcpyAsync(kept_.data() + std::int64_t{done} * width_,
                                   kept_.data() + std::int64_t{row + done} * width_,
                                   sizeof(floatX) * static_cast<std::size_t>(count), cudaMemcpyDeviceToDevice, stream));
    }
}
