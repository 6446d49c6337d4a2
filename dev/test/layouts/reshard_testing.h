// For tests of checkpoints under any mesh: states whose every element says where it belongs, and ranks that write and
// read them. No model need run under the mesh.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "llmc/base/log.h"
#include "llmc/base/rng.h"
#include "llmc/base/stream.h"
#include "llmc/io/forwarding_files_testing.h"
#include "llmc/kernels/optim/master_halves.cuh"
#include "llmc/mesh/element_home_testing.h"
#include "llmc/model/field_values_testing.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/options/option_names.h"
#include "llmc/run/save_training_state_testing.h"
#include "llmc/run/training_state.h"

namespace reshard_testing {

// ---------------------------------------------------------------------------------------------------------------------
// States whose every element says where it belongs

constexpr bool rounded_parameters = sizeof(floatX) == 2;

struct Case {
    MeshShape mesh;
    int zero = 0;
    bool tied = true;
    MasterWeights masters = rounded_parameters ? MasterWeights::fp32 : MasterWeights::none;
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
                    text(", masters ", name_of(masters)), interleaved ? ", interleaved" : "",
                    kv_heads > 0 ? text(", kv heads ", kv_heads) : "", deals ? ", matrices dealt out" : "",
                    field != nullptr ? text(", ", field->name, " ", value) : "",
                    llama ? text(", Llama with norm ", static_cast<int>(*llama)) : "",
                    experts > 0 ? text(", ", experts, " experts") : "", mesh.ep > 1 ? text(", ep ", mesh.ep) : "");
    }
};

// 24 channels stand for 24 heads: they are what tensor parallelism cuts. 201 ids in 256 rows: whole shards of padding.
inline ModelConfig of_four_heads() { return custom_model_config(2, 4, 64, 5, 201); }   // heads of 16: rotary ones too
inline ModelConfig config_of(const Case& c, std::int64_t channels = 24) {
    ModelConfig config = custom_model_config(8, channels / 8, channels, 5, 201);
    config.tied = c.tied;
    if (c.experts > 0) config.experts = c.experts, config.shared_experts = 1, config.own_expert_width = 8;
    if (c.kv_heads > 0) config.heads = 6, config.own_kv_heads = c.kv_heads, config.own_head_size = 8;
    if (c.llama) {
        config.norm = NormKind::rms, config.positions = PositionKind::rotary, config.bias = Bias::none;
        config.mlp = MlpKind::swiglu, config.own_mlp_width = 48, config.own_head_size = 16, config.qk_norm = *c.llama;
    }
    if (c.field != nullptr) config = plain_for(*c.field, of_four_heads()), c.field->set(config, c.value);
    return config;
}

inline StageUnits stage_of(const Case& c, int stage) {
    const int layers = static_cast<int>(config_of(c).layers);
    const int chunks = c.interleaved && 2 * c.mesh.pp <= layers ? 2 : 1;
    const std::vector<LayerRange> parts = balance_layers(layers, c.mesh.pp * chunks, 0.0, 0.5);
    StageUnits units{{}, stage == 0, stage == c.mesh.pp - 1};
    for (int chunk = 0; chunk < chunks; chunk++) {
        units.chunks.push_back(parts[static_cast<std::size_t>(chunk * c.mesh.pp + stage)]);
    }
    return units;
}

enum class Kind { master, m, v, momentum, lower };   // without masters, the first is the parameter

inline float value_of(Kind kind, const ParamInfo& info, std::int64_t element) {
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
                bytes += static_cast<std::uint64_t>(range.length) *
                         (states_[0].name == "m" ? sizeof(floatX) : sizeof(float));
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
            with_gradient_type<bf16>(state.type, [&]<class T> {
                visit(state.values.as<T>(), state.is_weights           ? Kind::master
                                            : state.is_lower_half      ? Kind::lower
                                            : state.name == "m"        ? Kind::m
                                            : state.name == "momentum" ? Kind::momentum
                                                                       : Kind::v);
            });
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
            const float value = value_of(kind == Kind::lower ? Kind::master : kind, info, element);
            values[static_cast<std::size_t>(local)] =
                kind == Kind::lower ? static_cast<T>(lower_half(value)) : parameter_of<T>(value);
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

inline std::map<std::string, std::string> files_in(const std::string& folder) {
    std::map<std::string, std::string> files;
    for (const std::string& name : real_files().list(folder))
        files[name] = read_whole(real_files(), folder + "/" + name);
    return files;
}

// The files that a rank should write: every ranks-th unit of its stage, the first rank what has no tensors besides.
inline std::set<std::string> files_of(const ParamStorage& storage, int rank_in_stage, int ranks) {
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
        if (storage.table().config().router == RouterScore::sigmoid) names.insert("router_bias.safetensors");
    }
    return names;
}

inline RunState run_state(const ModelConfig& config = {}) {
    RunState state;
    state.step = 7;
    state.windows = 123;
    if (config.router == RouterScore::sigmoid) {
        state.router_bias.assign(static_cast<std::size_t>(config.layers * config.experts), 0.25f);
    }
    return state;
}
inline const CheckpointExtras extras{"", "{}\n"};

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
        save_training_state(files, folder, run_state(state.storage().table().config()), state.tensors(), extras,
                            gatherer, ranks());
        me.require(files.created == files_of(state.storage(), gatherer.rank(), gatherer.ranks()), "wrote other files");
    }
    void load(const std::string& checkpoint) {
        state.spoil();
        load_training_state(files, checkpoint, state.tensors(), me.stream);
        const std::string where = state.difference();
        me.require(where.empty(), "other values than were saved in ", where);
        const std::uint64_t biases = sizeof(float) * run_state(state.storage().table().config()).router_bias.size();
        const std::uint64_t needed = state.needed_bytes() + biases, tensors = state.storage().tensors().size();
        me.require(files.data_bytes == needed, "read ", files.data_bytes, " bytes of tensors, needs ", needed);
        me.require(files.all_bytes <= needed + needed / 10 + (tensors << 16), "read ", files.all_bytes, " bytes");
    }
};

// The folder that one process writes.
inline std::string reference(const SharedFolder& folder, Case c, std::int64_t channels = 24) {
    c.mesh = {}, c.zero = 0, c.interleaved = false;
    const std::string path = folder / text("reference ", c.name());
    in_first_process([&] {
        if (real_files().exists(path)) return;
        Arena arena;
        OwnedStream stream;
        const RankState state(c, 0, arena, stream.get(), channels);
        state.fill();
        save_training_state(real_files(), path, run_state(state.storage().table().config()), state.tensors(), extras,
                            Gatherer(state.storage(), nullptr, false, arena, stream.get()));
    });
    return path + "/" + checkpoint_name(7);
}

// Writes under the mesh what one process writes, byte for byte, and reads what one process has written.
inline void reshard(const SharedFolder& folder, const Case& c) {
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
inline std::vector<MeshShape> meshes(int most) {
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

}   // namespace reshard_testing
