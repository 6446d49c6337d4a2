// Checkpoints under any mesh: what is written does not show the mesh, each rank reads what it keeps and nothing else,
// and none holds more than a tensor on the host.
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "dev/test/layouts/reshard_testing.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/field_values_testing.h"

// ---------------------------------------------------------------------------------------------------------------------
// What a thread holds on the host

namespace {
struct HostMemory {
    bool counts = false;
    std::int64_t now = 0, most = 0;
};
thread_local HostMemory host_memory;
}   // namespace

#if !defined(__SANITIZE_ADDRESS__)
constexpr bool counts_host_memory = true;
void* operator new(std::size_t bytes) {
    void* memory = std::malloc(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    if (host_memory.counts) {
        host_memory.now += static_cast<std::int64_t>(malloc_usable_size(memory));
        host_memory.most = std::max(host_memory.most, host_memory.now);
    }
    return memory;
}
void operator delete(void* memory) noexcept {
    if (host_memory.counts) host_memory.now -= static_cast<std::int64_t>(malloc_usable_size(memory));
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
#else
constexpr bool counts_host_memory = false;
#endif

using namespace reshard_testing;

TEST_CASE("reshard: one process writes what other programs and its own reader take for the model") {
    const SharedFolder folder;
    for (bool tied : {true, false}) {
        Case c;
        c.tied = tied;
        const auto weights = open_weights(real_files(), reference(folder, c));
        const ParamTable table(config_of(c));
        CHECK(weights->config() == table.config());
        for (const ParamInfo& info : table.all()) {
            const std::vector<float> values = weights->read(info);
            REQUIRE(values.size() == static_cast<std::size_t>(info.tensor.elements()));
            for (std::size_t i = 0; i < values.size(); i++) {
                const auto right = parameter_of<floatX>(value_of(Kind::master, info, static_cast<std::int64_t>(i)));
                REQUIRE(values[i] == static_cast<float>(right));
            }
        }
    }
}

TEST_CASE("reshard: a sample of meshes writes the folder of one process, and reads it") {
    const SharedFolder folder;
    const MasterWeights masters = Case().masters;
    for (const MeshShape& mesh : {MeshShape{1, 1, 1, 2}, MeshShape{2, 1, 1, 1}, MeshShape{1, 2, 1, 3},
                                  MeshShape{2, 1, 2, 2}, MeshShape{3, 1, 1, 2}}) {
        for (int zero : {0, 1, 2, 3}) reshard(folder, {mesh, zero});
    }
    for (const MeshShape& mesh : {MeshShape{1, 3, 1, 1}, MeshShape{2, 2, 1, 2}, MeshShape{1, 1, 2, 6}}) {
        for (const int kv_heads : {0, 2}) reshard(folder, {mesh, 1, true, masters, false, kv_heads, true});
    }
    for (int zero : {1, 3}) reshard(folder, {{1, 4, 1, 1, 2}, zero});
    reshard(folder, {{1, 2, 2, 2, 2}, 1, true, masters, false, 0, true});
    reshard(folder, {{2, 2, 1, 2}, 3, false});
    reshard(folder, {{3, 1, 1, 1}, 0, false});
    reshard(folder, {{2, 1, 1, 2}, 1, true, masters, true});
    reshard(folder, {{1, 3, 1, 1}, 2, true, MasterWeights::none});
    reshard(folder, {{2, 1, 1, 2}, 0, true, MasterWeights::none});
    for (const MeshShape& mesh : {MeshShape{2, 2, 1, 2}, MeshShape{1, 2, 1, 3}}) {
        if (rounded_parameters) reshard(folder, {mesh, mesh.pp, true, MasterWeights::compact});
    }
    reshard(folder, {{8, 1, 1, 1}, 1});
    reshard(folder, {{1, 1, 1, 8}, 1});
    for (const MeshShape& mesh : {MeshShape{1, 1, 1, 2}, MeshShape{1, 1, 1, 6}, MeshShape{2, 2, 1, 2}}) {
        for (const int kv_heads : {1, 2}) {   // held by one rank or several
            for (int zero : {0, 1, 3}) reshard(folder, {mesh, zero, true, masters, false, kv_heads});
        }
    }
}

TEST_CASE("reshard: blocks of gate and up, norms of queries and keys and grouped queries together, likewise") {
    const SharedFolder folder;
    struct Sample {
        MeshShape mesh;
        int zero;
        bool tied = false, interleaved = false, deals = false;
    };
    for (const QkNorm norm : {QkNorm::none, QkNorm::head, QkNorm::row}) {
        for (const auto& [mesh, zero, tied, interleaved, deals] :
             {Sample{{1, 1, 1, 2}, 0}, Sample{{1, 2, 1, 2}, 3}, Sample{{1, 3, 1, 2}, 1, true}, Sample{{2, 2, 1, 2}, 2},
              Sample{{1, 1, 1, 6}, 1}, Sample{{1, 2, 2, 1}, 3}, Sample{{1, 4, 1, 1, 2}, 2},
              Sample{{2, 1, 1, 2}, 1, true, true}, Sample{{1, 2, 1, 2}, 1, false, false, true},
              Sample{{1, 3, 1, 1}, 1, true, false, true}}) {
            for (const int kv_heads : {2, 6}) {
                Case c{mesh, zero, tied, Case().masters, interleaved, kv_heads, deals};
                c.llama = norm;
                reshard(folder, c);
            }
        }
    }
}

TEST_CASE("reshard: experts that are dealt out make the folder of one process, and read it") {
    const SharedFolder folder;
    for (const MeshShape& mesh : {MeshShape{1, 4, 1, 1, 0, 4}, MeshShape{1, 4, 1, 1, 0, 2}, MeshShape{1, 2, 1, 2, 0, 4},
                                  MeshShape{1, 1, 1, 4, 0, 2}, MeshShape{2, 1, 2, 1, 0, 2}}) {
        for (const int zero : {0, 1, 3}) {
            Case c{mesh, zero};
            c.experts = 4;
            reshard(folder, c);
        }
    }
}

TEST_CASE("reshard: every value of every field of a model survives a checkpoint, and another mesh reads it") {
    const SharedFolder folder;
    for (const ModelField& field : model_fields()) {
        const ModelConfig plain = plain_for(field, of_four_heads());
        for (const double value : values_to_try(field, plain)) {
            ModelConfig wanted = plain;
            field.set(wanted, value);
            if (field.basic || field.is_default(wanted)) continue;
            Case c{{2, 1, 1, 1}, 1};
            c.field = &field, c.value = value;
            INFO(c.name());
            const std::string path = folder / c.name();
            const bool wrote = on_ranks(c.mesh, [&](TestRank& me) {
                ReshardRank rank(c, me);
                rank.state.fill();
                rank.save(path);
            });
            if (!wrote) continue;
            in_first_process([&] {
                const ModelConfig saved = open_weights(real_files(), path + "/" + checkpoint_name(7))->config();
                CHECK(field.get(saved) == value);
                CHECK(saved == wanted);
            });
            c.mesh = {1, 1, 1, 2}, c.zero = 3;
            on_ranks(c.mesh, [&](TestRank& me) { ReshardRank(c, me).load(path + "/" + checkpoint_name(7)); });
        }
    }
}

TEST_CASE("reshard: all meshes of up to 8 ranks x ZeRO 0-3" * doctest::skip()) {
    const SharedFolder folder;
    int states = 0;
    for (const MeshShape& mesh : meshes(8)) {
        for (int zero : {0, 1, 2, 3}) reshard(folder, {mesh, zero}), states++;
    }
    MESSAGE(states << " states");
}

namespace {

// Written under one mesh, read under another.
void reshard_pairs(int count) {
    const SharedFolder folder;
    const std::vector<MeshShape> all = meshes(8);
    std::uint64_t counter = 0;
    auto draw = [&](std::size_t n) { return static_cast<std::size_t>(mix64(0x5eed + counter++) % n); };
    for (int i = 0; i < count; i++) {
        Case from{all[draw(all.size())], static_cast<int>(draw(4)), draw(2) == 0};
        const MasterWeights kinds[] = {MasterWeights::none, MasterWeights::fp32, MasterWeights::compact};
        from.masters = kinds[rounded_parameters ? draw(3) : 0];
        from.interleaved = draw(2) == 0, from.deals = draw(2) == 0;
        Case to = from;
        to.mesh = all[draw(all.size())], to.zero = static_cast<int>(draw(4)), to.interleaved = draw(2) == 0,
        to.deals = draw(2) == 0;
        if (from.masters != MasterWeights::none) to.masters = kinds[1 + draw(2)];
        INFO(from.name(), " to ", to.name());
        const std::string path = folder / text("pair ", i);
        const bool wrote = on_ranks(from.mesh, [&](TestRank& me) {
            ReshardRank rank(from, me);
            rank.state.fill();
            rank.save(path);
        });
        if (wrote) from_first_process("");
        if (wrote) on_ranks(to.mesh, [&](TestRank& me) { ReshardRank(to, me).load(path + "/" + checkpoint_name(7)); });
    }
}

}   // namespace

TEST_CASE("reshard: from one mesh to another, 4 random pairs") { reshard_pairs(4); }
TEST_CASE("reshard: from one mesh to another, 50 random pairs" * doctest::skip()) { reshard_pairs(50); }

TEST_CASE("reshard: besides what it writes a rank holds a tensor and 16 MiB on the host, and as much when it reads") {
    if (!counts_host_memory) return;
    const SharedFolder folder;
    const Case c{{2, 1, 1, 2}, 1};
    constexpr std::int64_t channels = 24 * 16, allowed = 16 << 20;
    const std::string path = folder / "large";
    on_ranks(c.mesh, [&](TestRank& me) {
        ReshardRank rank(c, me, channels);
        rank.state.spoil();
        auto most_of = [&](const std::function<void()>& work) {
            host_memory = {true};
            work();
            host_memory.counts = false;
            return host_memory.most - rank.state.largest_tensor_bytes();
        };
        const std::int64_t writing = most_of([&] { rank.save(path); });
        me.require(writing <= allowed, "held ", writing, " bytes besides a tensor and what it writes");
        me.world.gather_text("");   // the folder is finished
        const std::int64_t reading = most_of(
            [&] { load_training_state(rank.files, path + "/" + checkpoint_name(7), rank.state.tensors(), me.stream); });
        me.require(reading <= allowed - rank.state.largest_tensor_bytes(), "held ", reading, " bytes while reading");
    });
}
