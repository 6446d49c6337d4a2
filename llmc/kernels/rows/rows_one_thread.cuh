// The pieces of rows.cuh for rows that belong to one thread each, of any number of pieces: chosen, when compiling, by
// an extent of the type OneThread. For a CPU alone (loop_threads in launch.cuh); included by rows.cuh.
//
// The thread keeps nothing: what it read a moment ago it reads again, from the nearest cache.
#pragma once

// Base is Extent or PacketExtent.
template <class Base>
struct OneThread : Base {};

// Neighbouring rows, which a CPU fetches ahead.
template <class Base>
struct RowTurns<OneThread<Base>> {
    int first, end, step = 1;

    __device__ explicit RowTurns(int rows) {
        const int share = ceil_div(rows, static_cast<int>(gridDim.x));
        first = static_cast<int>(blockIdx.x) * share;
        end = min(first + share, rows);
    }
};

template <class Base>
struct RowOfThread<OneThread<Base>> {
    OneThread<Base> extent;
    std::int64_t row;
    bool inside;

    __device__ RowOfThread(int rows, OneThread<Base> row_extent, int index)
        : extent(row_extent), row(index), inside(index < rows) {}

    __device__ int C() const { return static_cast<int>(extent.count); }
    __device__ int parts() const { return inside ? ceil_div(C(), 8) : 0; }
    __device__ int column(int part) const { return part * 8; }
    __device__ bool has(int) const { return true; }   // of those below parts()
    __device__ bool leads() const { return inside; }

    template <class T>
    __device__ Vec8<T> load(const T* tensor, int part) const {
        return load8(tensor + row * extent.count, column(part), extent);
    }
    template <class T>
    __device__ Vec8<T> load_shared_by_rows(const T* vector, int part) const {
        return load8(vector, column(part), extent);
    }
    template <class T>
    __device__ void store(T* tensor, int part, const Vec8<T>& v) const {
        store8(tensor + row * extent.count, column(part), extent, v);
    }
    template <class T>
    __device__ void fetch_ahead(const T*, int) const {}

    __device__ float sum(float v) const { return v; }
    __device__ RowSums sums(RowSums v) const { return v; }
};

template <class T, class Base>
struct KeptRow<T, OneThread<Base>> {
    const T* tensor;

    __device__ explicit KeptRow(const T* of) : tensor(of) {}
    __device__ void keep(int, const Vec8<T>&) {}
    __device__ Vec8<T> piece(const RowOfThread<OneThread<Base>>& row, int part) const { return row.load(tensor, part); }
};

// Lane by lane, then the lanes.
template <class Base>
struct PieceSum<OneThread<Base>> {
    Vec8<float> lanes = {};

    __device__ void add(const Vec8<float>& piece) {
        VECTOR_LOOP
        for (int k = 0; k < 8; k++) lanes[k] += piece[k];
    }
    __device__ float total() const { return sum8(lanes); }
};

// Kept in `of_block` from the start.
template <class Base>
struct ColumnSums<OneThread<Base>> {
    float* of_block;
    Base extent;

    __device__ ColumnSums(float* sums, OneThread<Base> row) : of_block(sums), extent(row) {
        for (std::int64_t i = 0; i < 2 * extent.count; i++) of_block[i] = 0;
    }
    __device__ Vec8<float> x(int part) const { return load8(of_block, part * 8, extent); }
    __device__ Vec8<float> y(int part) const { return load8(of_block + extent.count, part * 8, extent); }
    __device__ void set(int part, const Vec8<float>& x, const Vec8<float>& y) {
        store8(of_block, part * 8, extent, x);
        store8(of_block + extent.count, part * 8, extent, y);
    }
    __device__ void store(float*, float*, const RowOfThread<OneThread<Base>>&) const {}
};
