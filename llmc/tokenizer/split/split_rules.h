// Makes the hand-written splitters; see split.h for how to get one.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

class PieceSplitter;

std::unique_ptr<PieceSplitter> make_gpt2_splitter();
// `whole_end`: white space at the end of a text is one piece whatever it contains (cl100k), or is split like any other
// (Llama-3, Qwen). `digits`: a number's pieces have so many at most.
std::unique_ptr<PieceSplitter> make_cl100k_splitter(int digits, bool whole_end);

// Returns the length of the contraction ('s 't 'm 'd 're 've 'll) that `text` begins with; or 0. Its first byte is an
// apostrophe.
inline std::size_t gpt2_contraction(std::string_view text) {
    if (text.size() < 2) return 0;
    switch (text[1]) {
        case 's':
        case 't':
        case 'm':
        case 'd': return 2;
        case 'r':
        case 'v': return text.size() > 2 && text[2] == 'e' ? 3 : 0;
        case 'l': return text.size() > 2 && text[2] == 'l' ? 3 : 0;
        default: return 0;
    }
}
