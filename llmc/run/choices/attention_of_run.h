// Chooses a run's attention once, before its first step, and keeps it in the checkpoints, because our own and the
// library's attention differ in the last bits.
//
// An attention that --attention names comes first. With auto, a resumed run keeps the one it used before. If only speed
// decides, as on a GPU, rank 0 measures all that can serve at the run's shape and all ranks take its result. If the
// library fails on any rank (for lack of memory, say), all ranks take our own.
#pragma once

#include <string>

#include "llmc/model/stage/stage.h"
#include "llmc/process/world.h"

// Settles the attention on all ranks. `earlier`: the one that the resumed run used, or auto_. Collective. Returns an
// empty string or a warning: the earlier one cannot be used here, so results will differ in the last bits; or the
// library cannot serve, or fails here, so nothing was compared.
std::string settle_attention(Stage& model, AttentionKind requested, AttentionKind earlier, World& world);

// Returns a warning if the ring's hops take longer than the attention they should hide behind, as this rank measures it
// (ring_warning, llmc/model/attention/ring.h); else an empty string. Collective.
std::string warning_about_ring(Stage& model, World& world);

// Makes all ranks use the attention that rank 0 measures as the faster one. Collective. Returns an empty string or a
// warning.
std::string take_faster_attention(Stage& model, World& world);
