// Makes the hand-written splitters; see split.h for how to get one.
#pragma once

#include <memory>

#include "llmc/tokenizer/split/byte_masks.h"

class PieceSplitter;

// The ways in which the known rules differ; split_blocks.cpp has their expressions.
struct SplitFamily {
    bool gpt2;         // else cl100k's family
    unsigned digits;   // characters of a number's pieces; GPT-2's have no limit
    bool whole_end;    // white space at the end of a text is one piece whatever it contains
};
inline constexpr SplitFamily gpt2_family{true, 0, false}, cl100k_family{false, 3, true}, llama3_family{false, 3, false},
    qwen_family{false, 1, false};

std::unique_ptr<PieceSplitter> make_block_splitter(const SplitFamily& family, FindMasks find_masks = fastest_masks());
