// KV cache of one layer: keys and values of the tokens of one sequence that generation has read.
//
// A layer with a window keeps those of the window. Beyond them there is room for as many tokens as are read at once and
// for an eighth of the window, so that what is kept moves to the front only now and then.
#pragma once

#include <cstdint>
#include <string>

#include "llmc/base/arena.h"
#include "llmc/model/precision.h"

class KvCache {
public:
    // `width`: elements of a token's keys and values, 2 KV HS. `window`: 0 keeps all of `positions` tokens.
    KvCache(Arena& arena, const std::string& name, std::int64_t positions, int width, std::int64_t window,
            int rows_at_once);

    // Keeps `rows` tokens more, the first of which is at `position`: 0, or where the last call's tokens end. Their keys
    // and values are the last elements of the rows of `qkv`, (rows, qkv_width). Returns the first one's row in data().
    int add(const floatX* qkv, int qkv_width, int position, int rows, cudaStream_t stream);

    const floatX* data() const { return kept_.data(); }   // (tokens kept, width), by position

private:
    void move_to_front(int row, int rows, cudaStream_t stream);

    int width_;
    std::int64_t tokens_, window_;   // tokens there is room for; window or 0
    int first_ = 0;                  // position of row 0
    DeviceBuffer<floatX> kept_;
};
