#include "llmc/run/choices/attention_of_run.h"

#include "llmc/model/attention/ring.h"

namespace {

// Makes all ranks use `kind`. If any rank cannot, all use our own attention; returns the reason, else an empty string.
std::string take_on_all(Stage& model, AttentionKind kind, World& world) {
    std::string why_not;
    try {
        model.attention().use(kind);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::no_device) throw;
        why_not = error.message();
    }
    if (world.all() == nullptr) return why_not;
    Arena arena;
    const auto refused = arena.allocate<std::int32_t>("attention/refused", 1);
    refused.upload(std::vector<std::int32_t>{why_not.empty() ? 0 : 1}, model.stream());
    world.all()->all_reduce(refused.data(), 1, ReduceOp::max, model.stream());
    const bool by_any = refused.download(model.stream())[0] != 0;
    world.synchronised();
    if (!by_any || !why_not.empty()) return why_not;
    model.attention().use(AttentionKind::own);
    return "another rank cannot use it";
}

}   // namespace

std::string take_faster_attention(Stage& model, World& world) {
    CoreAttention::Fastest faster{model.attention().kind(), ""};
    if (world.is_first()) faster = model.attention().fastest();
    if (world.all() != nullptr) {
        Arena arena;
        const auto shared = arena.allocate<std::int32_t>("attention/choice", 1);
        shared.upload(std::vector<std::int32_t>{static_cast<std::int32_t>(faster.kind)}, model.stream());
        world.all()->broadcast(shared.data(), 1, 0, model.stream());
        faster.kind = static_cast<AttentionKind>(shared.download(model.stream())[0]);
        world.synchronised();
    }
    const std::string refused = take_on_all(model, faster.kind, world);
    const std::string& why_not = faster.library_failed.empty() ? refused : faster.library_failed;
    return why_not.empty() ? "" : "own attention is used, because the library's fails: " + why_not;
}

std::string settle_attention(Stage& model, AttentionKind requested, AttentionKind earlier, World& world) {
    if (requested != AttentionKind::auto_) return "";
    if (earlier != AttentionKind::auto_) {
        const std::string why_not = take_on_all(model, earlier, world);
        return why_not.empty() ? "" : "another attention than before: " + why_not;
    }
    if (model.attention().is_open()) {
        if (const std::string why = take_faster_attention(model, world); !why.empty()) return why;
    }
    const std::string why_not = model.attention().refusal(AttentionKind::library);
    return why_not.empty() ? ""
                           : text(name_of(model.attention().kind()),
                                  " attention is used, because the library cannot serve: ", why_not);
}

std::string warning_about_ring(Stage& model, World& world) {
    if (model.sizes().attention().masks_documents)
        return "";   // the work that masks leave per block is not known beforehand
    const std::optional<RingTimes> times = model.attention().time_ring();
    if (!times) return "";
    world.synchronised();
    const int unit = sequence_unit(world.mesh().cp, model.sizes().residual_parts);
    return ring_warning(*times, model.options().T, unit);
}
