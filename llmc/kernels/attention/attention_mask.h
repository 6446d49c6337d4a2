// Says which keys each query of a sequence sees. Every kernel of attention asks it, and so does the library's choice.
//
// Query i sees the keys begin(i) .. end(i) - 1, or none. Neither bound decreases from one query to the next. So a tile
// of queries sees no key outside begin(first query) .. end(last query) - 1, and no query outside first_query(first key)
// .. query_end(last key + 1) - 1 sees a tile of keys.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "llmc/kernels/attention/attention.h"

// Keys that a query sees.
struct KeyRange {
    int begin, end;   // end <= begin: none
    __host__ __device__ bool has(int key) const { return key >= begin && key < end; }
};

// A piece of the matrix of scores.
struct ScoreTile {
    int first_query, queries, first_key, keys;
};

struct AttentionMask {
    int queries, keys;   // Tq, Tk
    int diagonal;        // query i sees no key after i + diagonal
    // (Tq), of documents: query i sees no key before first_keys[i]; null: there are none.
    const int* first_keys = nullptr;

    // Return the first key that a query sees, and the one after the last, which may be negative where it sees none.
    // Queries past the end repeat the last one's first key: tiles may reach beyond Tq and Tk.
    __host__ __device__ int begin(int query) const {
        return first_keys == nullptr ? 0 : first_keys[std::min(query, queries - 1)];
    }
    __host__ __device__ int end(int query) const { return std::min(keys, query + diagonal + 1); }
    __host__ __device__ KeyRange seen_by(int query) const { return {begin(query), end(query)}; }

    // Returns true if a query's first key comes after this one.
    __host__ __device__ bool begins_after(int query, int key) const {
        return first_keys != nullptr && begin(query) > key;
    }
    __host__ __device__ bool sees(int query, int key) const {
        return key < keys && key <= query + diagonal && !begins_after(query, key);
    }

    // Returns the first query whose causal bound lets it see `key` or a later one; Tq or more if none does.
    __host__ __device__ int first_query(int key) const { return std::max(0, key - diagonal); }

    // Returns the first query from which on no query sees a key before `key_end`, by bisection.
    __host__ __device__ int query_end(int key_end) const {
        if (first_keys == nullptr) return queries;
        int from = 0, to = queries;
        while (from < to) {
            const int middle = (from + to) / 2;
            if (begin(middle) < key_end) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        return to;
    }

    // Returns true only if no query of the tile sees a key of it. May return false although none does: at keys past the
    // end, or where the last queries begin after the keys that the first ones see.
    __host__ __device__ bool sees_none(const ScoreTile& tile) const {
        return tile.first_key > tile.first_query + tile.queries - 1 + diagonal ||
               begins_after(tile.first_query, tile.first_key + tile.keys - 1);
    }
    // Returns true if every query of the tile sees every key of it.
    __host__ __device__ bool sees_all(const ScoreTile& tile) const {
        const int last_key = tile.first_key + tile.keys - 1;
        return last_key < keys && last_key <= tile.first_query + diagonal &&
               !begins_after(tile.first_query + tile.queries - 1, tile.first_key);
    }

    // Returns true if every query of the sequence sees every key.
    __host__ __device__ bool is_full() const { return sees_all({0, queries, 0, keys}); }
    // Returns true if query i sees the keys 0 .. i, as plain causal attention does.
    __host__ __device__ bool is_triangle() const { return diagonal == 0 && first_keys == nullptr; }
};

// Returns the mask of sequence `batch`. Without DOCUMENTS it is without those of the shape: for kernels that are never
// called with any, so that no register keeps them.
template <bool DOCUMENTS>
__host__ __device__ AttentionMask attention_mask(const AttentionShape& shape, int batch) {
    AttentionMask mask{shape.Tq, shape.Tk, shape.Tk};
    if (shape.causal) {
        mask.diagonal = static_cast<int>(std::max(
            -std::int64_t{shape.Tq}, std::min<std::int64_t>(shape.q0 - shape.k0, shape.Tk)));   // sums fit an int
    }
    if (DOCUMENTS && shape.documents.first != nullptr) {
        mask.first_keys = shape.documents.first + batch * shape.documents.batch;
    }
    return mask;
}
