// Checkpoints under any mesh: what is written does not show the mesh, each rank reads what it keeps and nothing else,
// and none holds more than a tensor on the host. Only states are here: no model need run under the mesh.
#include <doctest/doctest.h>

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <optional>
#include <set>

#include "llmc/base/log.h"
#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/io/faulty_files_testing.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/io/throttled_files_testing.h"
#include "llmc/mesh/element_home_testing.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/model/field_values_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/flip_bit_testing.h"
#include "llmc/run/save_training_state_testing.h"
#include "llmc/run/stopping/health.h"
#include "llmc/run/training_state.h"

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

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// States whose every element says where it belongs

constexpr bool rounded_parameters = sizeof(floatX) == 2;

struct Case {
    MeshShape mesh;
    int zero = 0;
    bool tied = true;
    bool masters = rounded_parameters;
    bool interleaved = false;            // two chunks a stage, where there are enough layers
    int kv_heads = 0;                    // with six heads; 0: no grouped queries
    bool deals = false;                  // matrices whole to ZeRO ranks, as for Muon
    const ModelField* field = nullptr;   // model field that is set to `value`
    double value = 0;
    int experts = 0;
    std::optional<QkNorm> llama = {};   // a model of Llama's kind with this norm of queries and keys; none: a GPT-2
    std::string name() const {
        return text("pp ", mesh.pp, ", dp ", mesh.dp, ", cp ", mesh.cp, ", tp ", mesh.tp, ", zero ", zero,
                    mesh.zero_group > 0 ? text(" in groups of ", mesh.zero_group) : "", tied ? "" : ", untied",
                    masters ? ", masters" : "", interleaved ? ", interleaved" : "",
                    kv_heads > 0 ? text(", kv heads ", kv_heads) : "", deals ? ", matrices dealt out" : "",
                    field != nullptr ? text(", ", field->name, " ", value) : "",
                    llama ? text(", Llama with norm ", static_cast<int>(*llama)) : "",
                    experts > 0 ? text(", ", experts, " experts") : "", mesh.ep > 1 ? text(", ep ", mesh.ep) : "");
    }
};

// 24 channels stand for 24 heads: they are what tensor parallelism cuts. 201 ids in 256 rows: whole shards of padding.
ModelConfig of_four_heads() { return custom_model_config(2, 4, 64, 5, 201); }   // heads of 16: rotary ones too
ModelConfig config_of(const Case& c, std::int64_t channels = 24) {
    ModelConfig config = custom_model_config(8, channels / 8, channels, 5, 201);
    config.tied = c.tied;
    if (c.experts > 0) config.experts = c.experts, config.shared_experts = 1, config.own_expert_width = 8;
    if (c.kv_heads > 0) config.heads = 6, config.own_kv_heads = c.kv_heads, config.own_head_size = 8;
    if (c.llama) {
        config.norm = NormKind::rms, config.positions = PositionKind::rotary, config.bias = false;
        config.mlp = MlpKind::swiglu, config.own_mlp_width = 48, config.own_head_size = 16, config.qk_norm = *c.llama;
    }
    if (c.field != nullptr) config = plain_for(*c.field, of_four_heads()), c.field->set(config, c.value);
    return config;
}

StageUnits stage_of(const Case& c, int stage) {
    const int layers = static_cast<int>(config_of(c).layers);
    const int chunks = c.interleaved && 2 * c.mesh.pp <= layers ? 2 : 1;
    const std::vector<LayerRange> parts = balance_layers(layers, c.mesh.pp * chunks, 0.0, 0.5);
    StageUnits units{{}, stage == 0, stage == c.mesh.pp - 1};
    for (int chunk = 0; chunk < chunks; chunk++) {
        units.chunks.push_back(parts[static_cast<std::size_t>(chunk * c.mesh.pp + stage)]);
    }
    return units;
}

enum class Kind { master, m, v, momentum };   // without masters, the first is the parameter

float value_of(Kind kind, const ParamInfo& info, std::int64_t element) {
    if (element >= info.exported_elements()) return 0;   // padding
    const std::uint64_t bits =
        mix64(name_hash(info.name) + static_cast<std::uint64_t>(element) * 4 + static_cast<std::uint64_t>(kind));
    return static_cast<float>(bits >> 40) * 0x1p-23f - 1;
}

// One rank's part of the state, and its expected content.
class RankState {
public:
    RankState(const Case& c, int rank, Arena& arena, cudaStream_t stream, std::int64_t channels = 24)
        : table_(config_of(c, channels)),
          storage_(table_, {c.mesh, coordinates_of(c.mesh, rank), c.zero, c.deals},
                   stage_of(c, coordinates_of(c.mesh, rank).pp)),
          stream_(stream),
          parameters_(arena, "parameters", storage_, StateKind::parameters) {
        OptimizerOptions options;
        options.master_weights = c.masters;
        std::vector<OptimizerStateSpec> specs = optimizer_states(options, {});
        specs.push_back({.name = "momentum", .keeps = [](const ParamInfo& info) { return info.is_matrix(); }});
        for (const OptimizerStateSpec& spec : specs) states_.emplace_back(spec, storage_, arena);
    }

    const ParamStorage& storage() const { return storage_; }
    TrainedTensors tensors() const { return {parameters_, states_}; }

    // Every element as it should be, found one by one (home_of), padding zero.
    void fill() const {
        for_states([&](const auto& state, Kind kind) {
            for (const TensorLayout& place : state.storage().tensors()) {
                const auto values = expected(state, kind, place);
                state.unit(place.slot).upload(values, stream_, offset(state, place));
            }
        });
    }
    void spoil() const {
        for_states([&](const auto& state, Kind) {
            for (std::size_t slot = 0; slot < storage_.units().size(); slot++) {
                const auto& buffer = state.unit(static_cast<int>(slot));
                CUDA_CHECK(cudaMemsetAsync(buffer.data(), 0x7f, buffer.bytes(), stream_));
            }
        });
    }
    // "" or the first tensor that is not as it should be, to the bit.
    std::string difference() const {
        std::string where;
        for_states([&](const auto& state, Kind kind) {
            for (const TensorLayout& place : state.storage().tensors()) {
                const auto right = expected(state, kind, place);
                const auto found = state.unit(place.slot).download(stream_, offset(state, place), right.size());
                if (where.empty() && std::memcmp(found.data(), right.data(), right.size() * sizeof right[0]) != 0) {
                    where = text(table_[place.param].name, " of state ", static_cast<int>(kind), ", ", sizeof right[0],
                                 " bytes an element");
                }
            }
        });
        return where;
    }

    // Bytes of the files that this rank needs.
    std::uint64_t needed_bytes() const {
        std::uint64_t bytes = 0;
        for (const TensorLayout& place : storage_.tensors()) {
            for (const OwnedRange& range : storage_.exported_ranges(place, StateKind::parameters)) {
                bytes +=
                    static_cast<std::uint64_t>(range.length) * (states_[0].is_weights ? sizeof(float) : sizeof(floatX));
            }
            const std::uint64_t states = table_[place.param].is_matrix() ? 3 : 2;
            for (const OwnedRange& range : storage_.exported_ranges(place, StateKind::optimizer)) {
                bytes += states * static_cast<std::uint64_t>(range.length) * sizeof(float);
            }
        }
        return bytes;
    }
    std::int64_t largest_tensor_bytes() const {
        std::int64_t most = 0;
        for (const TensorLayout& place : storage_.tensors()) {
            most = std::max(most, table_[place.param].tensor.elements() * static_cast<std::int64_t>(sizeof(float)));
        }
        return most;
    }

private:
    template <class Visit>
    void for_states(Visit&& visit) const {
        visit(parameters_, Kind::master);
        for (const OptimizerState& state : states_) {
            visit(state.values, state.is_weights           ? Kind::master
                                : state.name == "m"        ? Kind::m
                                : state.name == "momentum" ? Kind::momentum
                                                           : Kind::v);
        }
    }
    template <class T>
    std::size_t offset(const ModelState<T>& state, const TensorLayout& place) const {
        return static_cast<std::size_t>(state.storage().tensor_offset(place, state.state()));
    }
    template <class T>
    std::vector<T> expected(const ModelState<T>& state, Kind kind, const TensorLayout& place) const {
        const ParamInfo& info = table_[place.param];
        const RankLayout& here = storage_.place();
        std::vector<T> values(static_cast<std::size_t>(storage_.padded_elements(place, state.state())),
                              static_cast<T>(0.0f));
        for (const auto& [element, local] : homes(place, state.state(), here)) {
            values[static_cast<std::size_t>(local)] = static_cast<T>(value_of(kind, info, element));
        }
        return values;
    }
    // Elements of the tensor that are kept here, and where; looked up once.
    using Homes = std::vector<std::pair<std::int64_t, std::int64_t>>;
    const Homes& homes(const TensorLayout& place, StateKind state, const RankLayout& here) const {
        const auto [found, is_new] = homes_.try_emplace({place.param, is_sharded(state, here.zero_stage)});
        if (!is_new) return found->second;
        const TensorSpec& tensor = storage_.table()[place.param].tensor;
        for (std::int64_t element = 0; element < tensor.elements(); element++) {
            const ElementHome home = home_of(tensor, here, state, element);
            const int copy = here.at.tp - home.tp_rank;   // index among the copies on several tp ranks
            if (home.tp_rank != -1 && (copy < 0 || copy >= home.tp_copies)) continue;
            if (home.ep_rank != -1 && home.ep_rank != coordinate(here.mesh, here.at, Axis::ep)) continue;
            const int zero_rank = group_rank(here.mesh, here.at, zero_axes_of(tensor, here.mesh));
            if (home.zero_rank != -1 && home.zero_rank != zero_rank) continue;
            found->second.push_back({element, home.local});
        }
        return found->second;
    }

    ParamTable table_;
    ParamStorage storage_;
    cudaStream_t stream_;
    ModelState<floatX> parameters_;
    std::vector<OptimizerState> states_;
    mutable std::map<std::pair<int, bool>, Homes> homes_;
};

// ---------------------------------------------------------------------------------------------------------------------
// What is done to files

// Remembers which files were created, and the bytes that were read of each behind a safetensors file's header.
class WatchedFiles : public ForwardingFiles {
public:
    WatchedFiles() : ForwardingFiles(real_files()) {}
    std::set<std::string> created;
    mutable std::uint64_t data_bytes = 0, all_bytes = 0;

    std::unique_ptr<File> create(const std::string& path) override {
        if (!created.insert(path.substr(path.rfind('/') + 1)).second) throw std::runtime_error(path + " written twice");
        return inner_.create(path);
    }
    std::unique_ptr<File> open(const std::string& path) const override {
        auto file = inner_.open(path);
        std::uint64_t header = 0;
        if (path.ends_with(".safetensors")) file->read_at(0, std::as_writable_bytes(std::span(&header, 1)));
        return std::make_unique<WatchedFile>(std::move(file), 8 + header, *this);
    }

private:
    class WatchedFile : public File {
    public:
        WatchedFile(std::unique_ptr<File> inner, std::uint64_t data, const WatchedFiles& files)
            : inner_(std::move(inner)), data_(data), files_(files) {}
        const std::string& path() const override { return inner_->path(); }
        std::uint64_t size() const override { return inner_->size(); }
        void read_at(std::uint64_t offset, std::span<std::byte> into) const override {
            files_.all_bytes += into.size();
            if (offset >= data_) files_.data_bytes += into.size();
            inner_->read_at(offset, into);
        }
        void write(std::span<const std::byte>) override { throw std::runtime_error("written to"); }
        void sync() override {}

    private:
        std::unique_ptr<File> inner_;
        std::uint64_t data_;
        const WatchedFiles& files_;
    };
};

std::map<std::string, std::string> files_in(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const std::string& name : real_files().list(folder))
        files[name] = read_whole(real_files(), folder + "/" + name);
    return files;
}

// The files that a rank should write: every ranks-th unit of its stage, the first rank what has no tensors besides.
std::set<std::string> files_of(const ParamStorage& storage, int rank_in_stage, int ranks) {
    std::set<std::string> names;
    for (std::size_t slot = 0; slot < storage.units().size(); slot++) {
        if (static_cast<int>(slot) % ranks != rank_in_stage) continue;
        for (const char* kind : {"model", "optimizer"}) {
            names.insert(formatted("%s-%05d-of-%05d.safetensors", kind, storage.units()[slot].unit + 1,
                                   storage.table().units()));
        }
    }
    if (storage.place().at == MeshCoordinates{}) {
        names.insert({"config.json", "manifest.json", "matmul.json", "model.safetensors.index.json", "run.json"});
    }
    return names;
}

RunState run_state() {
    RunState state;
    state.step = 7;
    state.windows = 123;
    return state;
}
const CheckpointExtras extras{"", "{}\n"};

// One rank of a case.
struct ReshardRank {
    TestRank& me;
    RankState state;
    Gatherer gatherer;
    WatchedFiles files;

    ReshardRank(const Case& c, TestRank& rank, std::int64_t channels = 24)
        : me(rank),
          state(c, rank.rank(), rank.arena, rank.stream, channels),
          gatherer(state.storage(), rank.world.group(stage_axes), true, rank.arena, rank.stream,
                   channels > 24 ? 1 << 20 : 1000) {}

    CheckpointRanks ranks() const {
        return {me.rank(), me.ranks(), [this](const std::string& own) { return me.world.gather_text(own); }};
    }
    void save(const std::string& folder) {
        save_training_state(files, folder, run_state(), state.tensors(), extras, gatherer, ranks());
        me.require(files.created == files_of(state.storage(), gatherer.rank(), gatherer.ranks()), "wrote other files");
    }
    void load(const std::string& checkpoint) {
        state.spoil();
        load_training_state(files, checkpoint, state.tensors(), me.stream);
        const std::string where = state.difference();
        me.require(where.empty(), "other values than were saved in ", where);
        const std::uint64_t needed = state.needed_bytes(), tensors = state.storage().tensors().size();
        me.require(files.data_bytes == needed, "read ", files.data_bytes, " bytes of tensors, needs ", needed);
        me.require(files.all_bytes <= needed + needed / 10 + (tensors << 16), "read ", files.all_bytes, " bytes");
    }
};

// The folder that one process writes.
std::string reference(const SharedFolder& folder, Case c, std::int64_t channels = 24) {
    c.mesh = {}, c.zero = 0, c.interleaved = false;
    const std::string path = folder / text("reference ", c.name());
    in_first_process([&] {
        if (real_files().exists(path)) return;
        Arena arena;
        OwnedStream stream;
        const RankState state(c, 0, arena, stream.get(), channels);
        state.fill();
        save_training_state(real_files(), path, run_state(), state.tensors(), extras,
                            Gatherer(state.storage(), nullptr, false, arena, stream.get()));
    });
    return path + "/" + checkpoint_name(7);
}

// Writes under the mesh what one process writes, byte for byte, and reads what one process has written.
void reshard(const SharedFolder& folder, const Case& c) {
    INFO(c.name());
    const std::string expected = reference(folder, c), own = folder / c.name();
    const bool ran = on_ranks(c.mesh, [&](TestRank& me) {
        ReshardRank rank(c, me);
        rank.state.fill();
        rank.save(own);
        rank.load(expected);
    });
    in_first_process([&] {
        if (!ran) return;
        CHECK((files_in(own + "/" + checkpoint_name(7)) == files_in(expected)));
        CHECK(real_files().list(own).size() == 1);
        real_files().remove_all(own);
    });
}

// Every mesh of at most so many ranks: 24 heads over tp, 8 layers over pp.
std::vector<MeshShape> meshes(int most) {
    std::vector<MeshShape> result;
    for (int pp = 1; pp <= std::min(most, 8); pp++) {
        for (int dp = 1; pp * dp <= most; dp++) {
            for (int cp = 1; pp * dp * cp <= most; cp++) {
                for (int tp = 1; pp * dp * cp * tp <= most; tp++) {
                    if (24 % tp != 0) continue;
                    result.push_back({pp, dp, cp, tp});
                    for (int group = 2; group < dp * cp; group++) {
                        if (dp * cp % group == 0) result.push_back({pp, dp, cp, tp, group});
                    }
                }
            }
        }
    }
    return result;
}

}   // namespace

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
                const auto right = static_cast<floatX>(value_of(Kind::master, info, static_cast<std::int64_t>(i)));
                REQUIRE(values[i] == static_cast<float>(right));
            }
        }
    }
}

TEST_CASE("reshard: a sample of meshes writes the folder of one process, and reads it") {
    const SharedFolder folder;
    for (const MeshShape& mesh : {MeshShape{1, 1, 1, 2}, MeshShape{2, 1, 1, 1}, MeshShape{1, 2, 1, 3},
                                  MeshShape{2, 1, 2, 2}, MeshShape{3, 1, 1, 2}}) {
        for (int zero : {0, 1, 2, 3}) reshard(folder, {mesh, zero});
    }
    for (const MeshShape& mesh : {MeshShape{1, 3, 1, 1}, MeshShape{2, 2, 1, 2}, MeshShape{1, 1, 2, 6}}) {
        for (const int kv_heads : {0, 2}) reshard(folder, {mesh, 1, true, rounded_parameters, false, kv_heads, true});
    }
    for (int zero : {1, 3}) reshard(folder, {{1, 4, 1, 1, 2}, zero});
    reshard(folder, {{1, 2, 2, 2, 2}, 1, true, rounded_parameters, false, 0, true});
    reshard(folder, {{2, 2, 1, 2}, 3, false});
    reshard(folder, {{3, 1, 1, 1}, 0, false});
    reshard(folder, {{2, 1, 1, 2}, 1, true, rounded_parameters, true});
    reshard(folder, {{1, 3, 1, 1}, 2, true, false});
    reshard(folder, {{2, 1, 1, 2}, 0, true, false});
    reshard(folder, {{8, 1, 1, 1}, 1});
    reshard(folder, {{1, 1, 1, 8}, 1});
    for (const MeshShape& mesh : {MeshShape{1, 1, 1, 2}, MeshShape{1, 1, 1, 6}, MeshShape{2, 2, 1, 2}}) {
        for (const int kv_heads : {1, 2}) {   // held by one rank or several
            for (int zero : {0, 1, 3}) reshard(folder, {mesh, zero, true, rounded_parameters, false, kv_heads});
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
                Case c{mesh, zero, tied, rounded_parameters, interleaved, kv_heads, deals};
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

// A full disk, say, at any operation of one rank of three. The others' files are whole; none is left behind.
TEST_CASE("reshard: where one rank cannot write, no folder is left, that rank says why and the others can be resumed") {
    const SharedFolder folder;
    if (!ranks_are_threads()) return;   // they end alike here
    const Case c{{1, 3, 1, 1}, 1};
    const std::string path = folder / "full";
    for (int victim : {0, 1, 2}) {
        std::uint64_t at = 2;   // the folder was made
        for (int well = 0; well == 0; at += 9) {
            INFO("rank ", victim, ", operation ", at);
            std::atomic<int> codes[3] = {0, 0, 0};
            on_ranks(c.mesh, [&](TestRank& me) {
                ReshardRank rank(c, me);
                rank.state.fill();
                FaultyFiles full(real_files(), me.rank() == victim ? at : UINT64_MAX);
                try {
                    save_training_state(full, path, run_state(), rank.state.tensors(), extras, rank.gatherer,
                                        rank.ranks());
                } catch (const Error& error) {
                    codes[me.rank()] = error.exit_code();
                }
            });
            well = static_cast<int>(std::count(std::begin(codes), std::end(codes), 0));
            for (int rank = 0; rank < 3 && well == 0; rank++) CHECK(codes[rank] == (rank == victim ? 74 : 75));
            // else it was the manifest or what follows it, which rank 0 alone writes, or nothing failed
            if (well > 0) CHECK((well == 3 || (victim == 0 && codes[0] == 74)));
            for (const std::string& name : real_files().list(path)) CHECK(!name.ends_with(".tmp"));
            real_files().remove_all(path);
        }
        CHECK(at > 50);
    }
}

TEST_CASE("reshard: four ranks share the writing: at least three times as fast as one, on a disk that is slow") {
    const SharedFolder folder;
    if (!ranks_are_threads()) return;   // one disk for all is another matter
    const std::int64_t channels = 48;   // layers outweigh the embedding
    // the best of some, since a busy machine may delay any rank
    double seconds[2] = {1e9, 1e9};
    for (int attempt = 0; attempt < 8 && (attempt == 0 || seconds[0] < 3 * seconds[1]); attempt++) {
        for (int i : {0, 1}) {
            const Case c{{1, i == 0 ? 1 : 4, 1, 1}, 0};
            on_ranks(c.mesh, [&](TestRank& me) {
                ReshardRank rank(c, me, channels);
                rank.state.fill();
                ThrottledFiles slow(real_files(), 2e6);
                HostTensors memory(rank.state.tensors(), rank.gatherer);
                CheckpointWriter save(slow, folder / (c.name() + "-" + std::to_string(attempt)), run_state().step,
                                      rank.ranks());
                start_save(save, run_state(), rank.state.tensors(), memory, extras, rank.gatherer);
                me.world.gather_text("");
                const auto start = std::chrono::steady_clock::now();
                save.finish();
                const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
                if (me.rank() == 0) seconds[i] = std::min(seconds[i], taken.count());
            });
        }
    }
    MESSAGE(seconds[0] << " s and " << seconds[1] << " s");
    CHECK(seconds[0] >= 3 * seconds[1]);
}

TEST_CASE("reshard: a bit that flips in a copy is found, with its tensor and the rank, whatever is copied") {
    if (!ranks_are_threads()) return;
    struct Flip {
        Case c;
        int rank;
        std::string expected;   // message about this tensor; empty: there is no copy
    };
    const std::string name = "h.1.ln_1.weight", vocabulary = "wte.weight";
    const Flip flips[] = {{{{1, 3, 1, 1}, 0}, 1, "rank 1 has another parameter " + name + " than ranks 0, 2"},
                          {{{1, 1, 1, 2}, 1}, 1, "ranks 0, 1 should have the same parameter " + name},
                          {{{1, 2, 2, 1}, 2}, 3, "rank 3 has another parameter " + name + " than ranks 0, 1, 2"},
                          {{{1, 3, 1, 1}, 3}, 1, ""},
                          {{{2, 1, 1, 1}, 0}, 1, "ranks 0, 1 should have the same parameter " + vocabulary}};
    for (const Flip& flip : flips) {
        INFO(flip.c.name());
        on_ranks(flip.c.mesh, [&](TestRank& me) {
            ReshardRank rank(flip.c, me);
            rank.state.fill();
            auto differs = [&] {
                const ReplicaHashes own = replica_hashes(rank.state.tensors(), me.stream);
                const std::string of_groups = differing_replicas(me.world.gather_text(own.groups)),
                                  of_tensors = differing_replicas(me.world.gather_text(own.tensors));
                me.require(of_groups.empty() == of_tensors.empty(), "groups: ", of_groups, "; tensors: ", of_tensors);
                const auto states = static_cast<int>(1 + rank.state.tensors().states.size());
                me.require(std::ranges::count(own.groups, '\n') <= 4 * states, "more lines than groups: ", own.groups);
                return of_tensors;
            };
            me.require(differs() == "", "equal copies: ", differs());
            if (me.rank() == flip.rank) {
                const ModelState<floatX>& state = rank.state.tensors().parameters;
                const ParamTable& table = state.storage().table();
                const bool first_stage_only = flip.c.mesh.pp > 1;
                floatX* const at = first_stage_only ? state.tensor("wte.weight") : state.tensor("ln_1.weight", 1);
                me.require(at != nullptr && table.size() > 0, "it holds no such tensor");
                flip_bit(at, me.stream);
            }
            const std::string found = differs();
            me.require(flip.expected.empty() ? found.empty() : found.starts_with(flip.expected), "found: ", found);
        });
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
        from.masters = rounded_parameters && draw(3) > 0;
        from.interleaved = draw(2) == 0, from.deals = draw(2) == 0;
        Case to = from;
        to.mesh = all[draw(all.size())], to.zero = static_cast<int>(draw(4)), to.interleaved = draw(2) == 0,
        to.deals = draw(2) == 0;
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

TEST_CASE("reshard: a folder is verified once, by all ranks together, and one damaged file is everyone's") {
    const SharedFolder folder;
    const std::string good = reference(folder, {}), parent = good.substr(0, good.rfind('/'));
    std::uint64_t bytes = 0;
    for (const auto& [name, content] : files_in(good)) bytes += name == "manifest.json" ? 0 : content.size();
    for (int ranks : {1, 3, 8}) {
        for (const char* damaged : {"", "optimizer-00002-of-00010.safetensors", "run.json"}) {
            if (!ranks_are_threads()) continue;   // the bytes they read are added up here
            const std::string file = good + "/" + damaged;
            const std::string content = damaged[0] ? read_whole(real_files(), file) : "";
            if (damaged[0]) write_whole(real_files(), file, content + " ");
            std::atomic<std::uint64_t> read = 0;
            on_ranks(ranks, [&](TestRank& me) {
                WatchedFiles files;
                std::vector<std::string> skipped;
                const auto found = newest_checkpoint(
                    files, parent, skipped,
                    {me.rank(), ranks, [&](const std::string& own) { return me.world.gather_text(own); }});
                me.require(found.has_value() == (damaged[0] == '\0'), "found another checkpoint");
                me.require(skipped.size() == (damaged[0] ? 1 : 0), skipped.size(), " passed over");
                if (damaged[0]) me.require(skipped[0].find(damaged) != std::string::npos, skipped[0]);
                read += files.all_bytes;
            });
            if (damaged[0]) write_whole(real_files(), file, content);
            if (!damaged[0]) {
                const std::uint64_t manifests =
                    static_cast<std::uint64_t>(ranks) * read_whole(real_files(), good + "/manifest.json").size();
                CHECK(read == bytes + manifests);
            }
        }
    }
}
