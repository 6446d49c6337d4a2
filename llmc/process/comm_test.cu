// Collectives on several ranks: values against what every rank can compute for itself, traffic against the formulas.
#include "llmc/process/comm.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>

#include "llmc/kernels/accumulate.cuh"
#include "llmc/process/nccl_version.h"
#include "llmc/process/on_ranks_testing.h"

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

namespace {

// Checks that set() sets the variable to `expected`, unless the user has set it to another value.
void check_set_unless_given(const char* name, const std::string& expected, const std::string& another,
                            const std::function<void()>& set) {
    const char* const before = std::getenv(name);
    const std::string kept = before != nullptr ? before : "";
    setenv(name, another.c_str(), 1);
    set();
    CHECK(std::getenv(name) == another);
    unsetenv(name);
    set();
    REQUIRE(std::getenv(name) != nullptr);
    CHECK(std::getenv(name) == expected);
    if (before != nullptr) {
        setenv(name, kept.c_str(), 1);
    } else {
        unsetenv(name);
    }
}

}   // namespace

TEST_CASE("comm: kernels are loaded at the start, unless the user has said when") {
    check_set_unless_given("CUDA_MODULE_LOADING", "EAGER", "LAZY", load_kernels_at_start);
}

TEST_CASE("comm: switches do not reduce, and collectives start in the host's order, unless the user has said so") {
    check_set_unless_given("NCCL_NVLS_ENABLE", "0", "1", [] { Communicator::make_unique_id(); });
    check_set_unless_given("NCCL_LAUNCH_ORDER_IMPLICIT", "1", "0", [] { Communicator::make_unique_id(); });
}

TEST_CASE("comm: what an older NCCL cannot do is said, and one that is too old is refused by its version") {
    CHECK(nccl_shortcoming(22602).empty());
    CHECK(nccl_shortcoming(22809).empty());
    CHECK(nccl_shortcoming(22505).find("NCCL 2.25.5 ignores NCCL_LAUNCH_ORDER_IMPLICIT") == 0);
    CHECK(!nccl_shortcoming(21801).empty());
    CHECK_THROWS_WITH_AS(nccl_shortcoming(21705), doctest::Contains("NCCL 2.17.5 is too old: 2.18.1"), Error);
}

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

TEST_CASE("comm: groups of a mesh, made by splitting, hold who they should, in order") {
    const MeshShape mesh{2, 1, 1, 3};
    on_ranks(mesh, [&](TestRank& me) {
        for (AxisSet axes : {AxisSet{Axis::pp}, AxisSet{Axis::tp}, zero_axes, AxisSet{Axis::pp, Axis::tp}}) {
            Communicator* group = me.world.group(axes);
            const std::vector<int> members = group_members(mesh, me.world.at(), axes);
            me.require((group == nullptr) == (members.size() == 1), "a group of more than one");
            if (group == nullptr) continue;
            me.require(group->size() == static_cast<int>(members.size()), "its size");
            me.require(group != &me.all, "not the world under another name");
            me.require(group == me.world.group(axes), "made once");
            me.require(group == me.world.group(axes | zero_axes), "one for equal groups: dp and cp are 1 here");
            DeviceBuffer<std::int32_t> own = me.on_device(std::vector<std::int32_t>{me.rank()});
            DeviceBuffer<std::int32_t> all = me.on_device(std::vector<std::int32_t>(members.size(), -1));
            group->all_gather(all.data(), own.data(), 1, me.stream);
            me.require(all.download(me.stream) == members, "its members");
        }
    });
    on_ranks(3, [](TestRank& me) {
        me.require(me.world.group({Axis::tp}) == nullptr, "no group of one");
        Communicator none(me.all, me.rank() == 0 ? -1 : 0, me.rank(), "others");
        me.require(none.size() == (me.rank() == 0 ? 0 : 2), "color -1 belongs nowhere");
    });
}

TEST_CASE("comm: point to point, all-to-all, and groups of calls") {
    on_ranks(3, [](TestRank& me) {
        std::vector<float> mine;
        for (int r = 0; r < 3; r++) mine.insert(mine.end(), 2, static_cast<float>(10 * me.rank() + r));
        DeviceBuffer<float> in = me.on_device(mine), out = me.on_device(std::vector<float>(6, -1));
        me.all.all_to_all(out.data(), in.data(), 2, me.stream);
        const std::vector<float> got = out.download(me.stream);
        for (int r = 0; r < 3; r++) {
            me.require(got[static_cast<std::size_t>(2 * r)] == static_cast<float>(10 * r + me.rank()), "from rank ", r);
        }
        me.require(me.all.traffic().point_to_point == 2 * 2 * sizeof(float), "its bytes: the own piece stays");

        DeviceBuffer<float> ring = me.on_device(std::vector<float>{static_cast<float>(me.rank()), -1});
        {
            Communicator::Group together(me.all);
            me.all.send(ring.data(), 1, (me.rank() + 1) % 3, me.stream);
            me.all.receive(ring.data() + 1, 1, (me.rank() + 2) % 3, me.stream);
        }
        me.require(ring.download(me.stream)[1] == static_cast<float>((me.rank() + 2) % 3), "the left neighbour's");
    });
}

TEST_CASE("comm: logical bytes by formula") {
    for (int ranks : {1, 2, 5}) {
        on_ranks(ranks, [ranks](TestRank& me) {
            const double n = ranks, f = (n - 1) / n;
            const std::size_t count = 30, whole = count * static_cast<std::size_t>(ranks);
            DeviceBuffer<float> x = me.on_device(std::vector<float>(whole)),
                                y = me.on_device(std::vector<float>(count));
            me.all.reset_traffic();
            me.all.all_reduce(x.data(), whole, ReduceOp::sum, me.stream);
            me.require(me.all.traffic().all_reduce == doctest::Approx(2 * f * static_cast<double>(4 * whole)),
                       "all-reduce");
            me.all.reduce_scatter(y.data(), x.data(), count, me.stream);
            me.require(me.all.traffic().reduce_scatter == doctest::Approx(f * static_cast<double>(4 * whole)),
                       "scatter");
            me.all.all_gather(x.data(), y.data(), count, me.stream);
            me.require(me.all.traffic().all_gather == doctest::Approx(f * static_cast<double>(4 * whole)),
                       "all-gather");
            me.all.broadcast(x.data(), whole, ranks - 1, me.stream);
            const bool sends = me.rank() == ranks - 1 && ranks > 1;
            me.require(me.all.traffic().broadcast == (sends ? (n - 1) * static_cast<double>(4 * whole) : 0.0),
                       "broadcast");
            me.all.reduce(x.data(), whole, ranks - 1, me.stream);
            const bool is_root = me.rank() == ranks - 1;
            me.require(me.all.traffic().reduce == (is_root ? 0.0 : static_cast<double>(4 * whole)), "reduce");
            me.require(me.all.progress().issued == 5 && std::string(me.all.progress().operation) == "reduce",
                       "progress");
            CUDA_CHECK(cudaStreamSynchronize(me.stream));
            me.all.note_all_done();
            me.require(me.all.progress().done == 5 && me.all.failure().empty(), "all done, none failed");
        });
    }
}

TEST_CASE("comm: a call refused inside a group is an Error, and another error on its way is kept") {
    on_ranks(1, [](TestRank& me) {
        DeviceBuffer<float> x = me.on_device(std::vector<float>(4));
        std::string caught;
        try {
            Communicator::Group together(me.all);
            me.all.send(x.data(), 4, 7, me.stream);   // there is no rank 7
        } catch (const Error& error) {
            caught = error.what();
        }
        // the stand-in says "rank 7", NCCL "invalid root 7"
        me.require(caught.find("ncclSend") != std::string::npos && caught.find(" 7") != std::string::npos,
                   "refused: ", caught);
        try {
            Communicator::Group together(me.all);
            throw Error(ErrorKind::io, "something else");
        } catch (const Error& error) {
            caught = error.message();
        }
        me.require(caught == "something else", "kept: ", caught);
    });
}

namespace {

// Returns what every rank holds after one call of each kind. A tap doubles what the chosen calls send or, for calls
// that only receive, throws away what comes.
std::string results_with_damage(TestRank& me, const std::string& damaged) {
    const std::size_t n = 8, all = 2 * n;
    DeviceBuffer<float> elsewhere = me.arena.allocate<float>("test/elsewhere", all);
    me.all.set_tap([&](const CommCall& call, const Communicator::Make& make) {
        if (damaged != call.operation) return make(call);
        CommCall changed = call;
        if (call.in == nullptr) {
            changed.out = elsewhere.data();
        } else {
            cudaMemcpyAsync(elsewhere.data(), call.in, call.count * sizeof(float), cudaMemcpyDeviceToDevice,
                            call.stream);
            accumulate(elsewhere.data(), elsewhere.data(), static_cast<std::int64_t>(call.count), call.stream);
            changed.in = elsewhere.data();
        }
        make(changed);
    });
    std::string story;
    auto tell = [&](const char* what, const DeviceBuffer<float>& values) {
        story += what;
        for (float value : values.download(me.stream)) story += text(" ", value);
        story += "\n";
    };
    const std::vector<float> mine = values<float>(me.rank(), all);
    DeviceBuffer<float> x = me.on_device(mine), y = me.on_device(mine), part = me.on_device(std::vector<float>(n));
    me.all.all_reduce(x.data(), all, ReduceOp::sum, me.stream);
    tell("all-reduce", x);
    me.all.reduce_scatter(part.data(), y.data(), n, me.stream);
    tell("reduce-scatter", part);
    x = me.on_device(mine), part = me.on_device(values<float>(me.rank(), n));
    me.all.all_gather(x.data(), part.data(), n, me.stream);
    tell("all-gather", x);
    x = me.on_device(mine);
    me.all.broadcast(x.data(), all, 1, me.stream);
    tell("broadcast", x);
    x = me.on_device(mine);
    me.all.reduce(x.data(), all, 1, me.stream);
    tell("reduce", x);
    x = me.on_device(mine);
    if (me.rank() == 0) me.all.send(x.data(), all, 1, me.stream);
    if (me.rank() == 1) me.all.receive(x.data(), all, 0, me.stream);
    tell("transfer", x);
    me.all.set_tap(nullptr);
    return story;
}

}   // namespace

TEST_CASE("comm: a tap can damage every kind of call, and no other result changes") {
    on_ranks(2, [](TestRank& me) {
        const std::string right = results_with_damage(me, "");
        for (const char* damaged :
             {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "reduce", "send", "receive"}) {
            const std::string wrong = results_with_damage(me, damaged);
            const std::string shows =
                damaged == std::string("send") || damaged == std::string("receive") ? "transfer" : damaged;
            std::istringstream before(right), after(wrong);
            for (std::string expected, found; std::getline(before, expected) && std::getline(after, found);) {
                const bool only_sends = (shows == "transfer" || shows == "reduce") && me.rank() == 0;
                const bool differs = expected.starts_with(shows + " ") && !only_sends;
                me.require((expected != found) == differs, damaged, " damaged: ", found, ", undamaged: ", expected);
            }
        }
    });
}
