// Building blocks of rows.cuh for rows of any width, each handled by all threads of a block; chosen at compile time by
// an extent of type WideRows. For rows too wide for a block's registers; included by rows.cuh.
//
// Threads keep nothing: they read the same data again, from the nearest cache. So any number of threads works, and a
// CPU takes one.
#pragma once

// Base is Extent or PacketExtent.
template <class Base>
struct WideRows : Base {};
template <class Base>
constexpr int kUnrolledParts<WideRows<Base>> = 1;

// Columns of this thread in rows of C, eight at a time.
struct WideColumns {
    int first = static_cast<int>(threadIdx.x * 8), step = static_cast<int>(blockDim.x * 8);

    __device__ int parts(int C) const { return first < C ? ceil_div(C - first, step) : 0; }
    __device__ int at(int part) const { return first + part * step; }
};

// Neighbouring rows. Blocks are one row high.
template <class Base>
struct RowTurns<WideRows<Base>> {
    int first, end, step = 1;

    __device__ explicit RowTurns(int rows) {
        const int share = ceil_div(rows, static_cast<int>(gridDim.x));
        first = static_cast<int>(blockIdx.x) * share;
        end = min(first + share, rows);
    }
};

template <class Base>
struct RowOfThread<WideRows<Base>> {
    static constexpr bool whole_pieces = std::is_same_v<Base, PacketExtent>;
    WideRows<Base> extent;
    std::int64_t row;
    bool inside;
    WideColumns columns;

    __device__ RowOfThread(int rows, WideRows<Base> row_extent, int index)
        : extent(row_extent), row(index), inside(index < rows) {}

    __device__ int C() const { return static_cast<int>(extent.count); }
    // Returns the number of pieces that this thread has; each lies in the row.
    __device__ int parts() const { return inside ? columns.parts(C()) : 0; }
    __device__ int column(int part) const { return columns.at(part); }
    __device__ bool has(int) const { return true; }
    __device__ bool leads() const { return inside && threadIdx.x == 0; }

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

    __device__ float sum(float v) const { return blockDim.x == 1 ? v : over_row_threads(v, ReduceSum()); }
    __device__ RowSums sums(RowSums v) const { return blockDim.x == 1 ? v : over_row_threads(v, AddRowSums()); }
};

template <class T, class Base>
struct KeptRow<T, WideRows<Base>> {
    const T* tensor;

    __device__ explicit KeptRow(const T* of) : tensor(of) {}
    __device__ void keep(int, const Vec8<T>&) {}
    __device__ Vec8<T> piece(const RowOfThread<WideRows<Base>>& row, int part) const { return row.load(tensor, part); }
};

// Sums lane by lane, then over the lanes.
template <class Base>
struct PieceSum<WideRows<Base>> {
    Vec8<float> lanes = {};

    __device__ void add(const Vec8<float>& piece) {
#pragma unroll
        for (int k = 0; k < 8; k++) lanes[k] += piece[k];
    }
    __device__ float total() const { return sum8(lanes); }
};

// Keeps the sums in `of_block` from the start; each column belongs to one thread.
template <class Base>
struct ColumnSums<WideRows<Base>> {
    float* of_block;
    Base extent;
    WideColumns columns;

    static std::size_t shared_bytes(int) { return 0; }

    __device__ ColumnSums(float* sums, WideRows<Base> row) : of_block(sums), extent(row) {
        for (int part = 0; part < columns.parts(static_cast<int>(extent.count)); part++) set(part, {}, {});
    }
    __device__ Vec8<float> x(int part) const { return load8(of_block, columns.at(part), extent); }
    __device__ Vec8<float> y(int part) const { return load8(of_block + extent.count, columns.at(part), extent); }
    __device__ void set(int part, const Vec8<float>& x, const Vec8<float>& y) {
        store8(of_block, columns.at(part), extent, x);
        store8(of_block + extent.count, columns.at(part), extent, y);
    }
    __device__ void store(float*, float*, const RowOfThread<WideRows<Base>>&) const {}
};
