// Which attention a run uses: decided once, before its first step, and kept in its checkpoints, because own and library
// attention differ in the last bits.
//
// What --attention asks for by name comes first. With auto, a resumed run goes on with what it used before. Where only
// speed decides, as on a GPU, rank 0 measures all that can serve at the run's shape and all ranks take its result. Where the library fails on any rank, for lack of memory, say, all ranks take our own.
#pragma once

#include <string>

#include "llmc/model/stage.h"
#include "llmc/process/world.h"

// `earlier`: what the run to be resumed used; auto_ where there is none. Collective.
// Returns an empty string, or a warning: that the earlier one is not used (the library is missing here), so that
// results will differ in the last bits, that the library cannot serve, and why, or that it fails here, so that nothing was
// compared.
std::string settle_attention(Stage& model, AttentionKind asked, AttentionKind earlier, World& world);

// A warning where hops of a ring take longer than the attention that they are to hide behind, as this rank measures it
// (ring_doubt, llmc/parallel/ring.h); else empty. Collective.
std::string doubt_about_ring(Stage& model, World& world);

// The faster one as rank 0 finds it, taken on all ranks. Collective. Returns an empty string or a warning.
std::string take_faster_attention(Stage& model, World& world);
