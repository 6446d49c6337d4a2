// Which attention a run uses: decided once, before its first step, and kept in its checkpoints, because own and library
// attention differ in the last bits.
//
// What --attention asks for by name comes first. With auto, a resumed run goes on with what it used before. Where both
// can serve and only their speed decides, as on a GPU, rank 0 measures both at the run's shape and all ranks take its
// result.
#pragma once

#include <string>

#include "llmc/model/gpt.h"
#include "llmc/parallel/world.h"

// `earlier`: what the run to be resumed used; auto_ where there is none, or an old checkpoint does not say. Collective.
// Returns an empty string, or why the earlier one is not used (the library is missing here): then results will differ
// in the last bits.
std::string settle_attention(Gpt& model, AttentionKind asked, AttentionKind earlier, World& world);

// The faster one as rank 0 finds it, taken on all ranks. Collective.
void take_faster_attention(Gpt& model, World& world);
