#include "llmc/train/attention_of_run.h"

void take_faster_attention(Gpt& model, World& world) {
    auto faster = static_cast<std::int32_t>(model.attention());
    if (world.is_first()) faster = static_cast<std::int32_t>(model.faster_attention());
    if (world.all() != nullptr) {
        Arena arena;
        const auto shared = arena.allocate<std::int32_t>("attention/choice", 1);
        shared.upload(std::vector<std::int32_t>{faster}, model.stream());
        world.all()->broadcast(shared.data(), 1, 0, model.stream());
        faster = shared.download(model.stream())[0];
        world.synchronised();
    }
    model.use_attention(static_cast<AttentionKind>(faster));
}

std::string settle_attention(Gpt& model, AttentionKind asked, AttentionKind earlier, World& world) {
    if (asked != AttentionKind::auto_) return "";
    std::string why_not;
    if (earlier != AttentionKind::auto_) {
        try {
            model.use_attention(earlier);
            return "";
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::no_device) throw;
            why_not = error.message();
        }
    }
    if (model.attention_is_open()) take_faster_attention(model, world);
    return why_not;
}
