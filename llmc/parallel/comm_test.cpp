// Collectives on several ranks: values against what every rank can compute for itself, traffic against the formulas.
#include "llmc/parallel/comm.h"

#include <doctest/doctest.h>

#include "llmc/parallel/on_ranks.h"

namespace {

// Element i of rank r's contribution; sums over up to 8 ranks are exact in every type, bf16 included.
template <class T>
std::vector<T> values(int rank, std::size_t count) {
    std::vector<T> result(count);
    for (std::size_t i = 0; i < count; i++) {
        result[i] = static_cast<T>(
            static_cast<float>((rank + 1) * (1 + static_cast<int>((i + static_cast<std::size_t>(rank)) % 7))));
    }
    return result;
}

template <class T>
double as_double(T x) {
    if constexpr (std::is_same_v<T, bf16>)
        return static_cast<double>(static_cast<float>(x));
    else
        return static_cast<double>(x);
}

template <class T>
double sum_of_values(int ranks, std::size_t i) {
    double sum = 0;
    for (int r = 0; r < ranks; r++) sum += as_double(values<T>(r, i + 1)[i]);
    return sum;
}

template <class T>
void require_sum(TestRank& me, const std::vector<T>& got, std::size_t first, const char* what) {
    for (std::size_t i = 0; i < got.size(); i++) {
        const double expected = sum_of_values<T>(me.ranks(), first + i);
        me.require(as_double(got[i]) == expected, what, ": element ", i, " is ", as_double(got[i]), ", not ", expected);
    }
}

// Every collective in one type, in place and not.
template <class T>
void collectives(TestRank& me) {
    const std::size_t n = 37, ranks = static_cast<std::size_t>(me.ranks()), all = n * ranks;
    const std::size_t own = n * static_cast<std::size_t>(me.rank());
    DeviceBuffer<T> x = me.on_device(values<T>(me.rank(), all));
    me.all.all_reduce(x.data(), all, ReduceOp::sum, me.stream);
    require_sum(me, x.download(me.stream), 0, "all-reduce");

    DeviceBuffer<T> in = me.on_device(values<T>(me.rank(), all)), out = me.on_device(std::vector<T>(n));
    me.all.reduce_scatter(out.data(), in.data(), n, me.stream);
    require_sum(me, out.download(me.stream), own, "reduce-scatter");
    me.all.reduce_scatter(in.data() + own, in.data(), n, me.stream);
    require_sum(me, in.download(me.stream, own, n), own, "reduce-scatter in place");

    DeviceBuffer<T> gathered = me.on_device(std::vector<T>(all));
    me.all.all_gather(gathered.data(), out.data(), n, me.stream);
    require_sum(me, gathered.download(me.stream), 0, "all-gather");
    me.all.all_gather(in.data(), in.data() + own, n, me.stream);
    require_sum(me, in.download(me.stream), 0, "all-gather in place");

    DeviceBuffer<T> largest = me.on_device(values<T>(me.rank(), 1));
    me.all.all_reduce(largest.data(), 1, ReduceOp::max, me.stream);
    double expected = 0;
    for (int r = 0; r < me.ranks(); r++) expected = std::max(expected, as_double(values<T>(r, 1)[0]));
    me.require(as_double(largest.download(me.stream)[0]) == expected, "max");

    for (int root = 0; root < me.ranks(); root++) {
        DeviceBuffer<T> told = me.on_device(values<T>(me.rank(), n));
        me.all.broadcast(told.data(), n, root, me.stream);
        const std::vector<T> got = told.download(me.stream), wanted = values<T>(root, n);
        for (std::size_t i = 0; i < n; i++)
            me.require(as_double(got[i]) == as_double(wanted[i]), "broadcast from ", root);
    }
}

}   // namespace

TEST_CASE("comm: every collective in every type, 1 to 5 ranks") {
    for (int ranks : {1, 2, 3, 5}) {
        on_ranks(ranks, [](TestRank& me) {
            collectives<float>(me);
            collectives<bf16>(me);
            collectives<double>(me);
            collectives<std::int32_t>(me);
            collectives<std::int64_t>(me);
            collectives<std::uint64_t>(me);
        });
    }
}
