#include "llmc/run/step/step_state.h"

#include <algorithm>
#include <utility>

#include "llmc/base/json.h"

void add_to(Json& json, const StepState& state) {
    if (state.moments_began > 0) json.add("moments_began", state.moments_began);
    if (state.compressed_from > 0) json.add("compressed_from", state.compressed_from);
    if (std::ranges::any_of(state.outer_left, [](int step) { return step > 0; })) {
        Json left = Json::array();
        for (const int step : state.outer_left) left.append(step);
        json.add("outer_left", std::move(left));
    }
}

StepState step_state_from(const Json& json, int step) {
    const auto whole = [&](const Json& value) {
        return static_cast<int>(value.as_whole(static_cast<std::uint64_t>(step)));
    };
    StepState state;
    if (const Json* began = json.find("moments_began")) state.moments_began = whole(*began);
    if (const Json* from = json.find("compressed_from")) state.compressed_from = whole(*from);
    if (const Json* left = json.find("outer_left")) {
        for (const Json& each : left->elements()) state.outer_left.push_back(whole(each));
    }
    return state;
}
