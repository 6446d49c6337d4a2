#include "llmc/model/memory/rank_sizes.h"

#include <numeric>

#include "llmc/base/error.h"

RankSizes rank_sizes(const ModelConfig& config, const RankLayout& place, bool sequence_parallel, int B, int T,
                     int ulysses) {
    const MeshShape& mesh = place.mesh;
    const TensorSpec wte{config.padded_vocab_size, config.channels, TensorCut::vocabulary};
    const std::int64_t Vp = tp_shard_of(wte, mesh.tp).rows, first = place.at.tp * Vp;
    RankSizes sizes{};
    sizes.B = B;
    sizes.T = T / mesh.cp;
    sizes.C = static_cast<int>(config.channels);
    sizes.NH = static_cast<int>(config.heads) / mesh.tp;
    sizes.KV = static_cast<int>(config.kv_heads()) * config.kv_copies(mesh.tp) / mesh.tp;
    sizes.HS = static_cast<int>(config.head_size());
    sizes.F = static_cast<int>(config.mlp_width()) / mesh.tp;
    sizes.V = static_cast<int>(std::clamp<std::int64_t>(config.vocab_size - first, 0, Vp));
    sizes.Vp = static_cast<int>(Vp);
    sizes.first_token = static_cast<int>(first);
    sizes.residual_parts = sequence_parallel ? mesh.tp : 1;
    sizes.whole_T = T;
    sizes.ulysses = ulysses;
    sizes.ep = mesh.ep;
    sizes.model = config;
    return sizes;
}

int sequence_unit(int cp, int residual_parts) { return std::lcm(cp * residual_parts, cp > 1 ? 2 * cp : 1); }

void check_tensor_parallel(const ModelConfig& config, const MeshShape& mesh, bool sequence_parallel, int B, int T) {
    const int tp = mesh.tp, cp = mesh.cp;
    const std::int64_t mlp = config.experts > 0 ? 0 : config.mlp_width();   // experts are not cut
    auto require = [&](bool holds, std::int64_t count, const char* what) {
        auto works = [&](std::int64_t ranks) { return config.shares_heads(ranks) && mlp % ranks == 0; };
        if (holds) return;
        std::int64_t below = tp, above = tp;
        while (!works(below)) below--;
        while (above <= config.heads && !works(above)) above++;
        throw Error(ErrorKind::usage, text("--tp ", tp, ": ranks cannot share the model's ", count, what, " evenly"),
                    above > config.heads ? text("The nearest value that works is ", below, ".")
                                         : text("The nearest values that work are ", below, " and ", above, "."));
    };
    require(config.heads % tp == 0, config.heads, " heads");
    require(config.shares_heads(tp), config.kv_heads(), " heads of keys and values");
    require(mlp % tp == 0, mlp, " channels inside the MLP");
    if (!sequence_parallel) return;
    // T must also be enough for a single sequence (sampling)
    const int single = sequence_unit(cp, tp), unit = sequence_unit(cp, tp / std::gcd(B, tp));
    if (T % unit != 0 || T < single) {
        const int least = (single + unit - 1) / unit * unit;
        const int below = T / unit * unit < least ? 0 : T / unit * unit, above = std::max(below + unit, least);
        throw Error(ErrorKind::usage,
                    text("--micro-batch ", B, " x --seq-len ", T, cp > 1 ? text(" / --cp ", cp) : "", ": the ", tp,
                         " ranks of --tp cannot share its rows evenly"),
                    text(below > 0 ? text("The nearest sequence lengths that work are ", below, " and ", above)
                                   : text("The nearest sequence length that works is ", above),
                         "; or give --sequence-parallel 0."));
    }
}
