#include "llmc/tokenizer/split/unicode.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

namespace {

constexpr CharClass letter = CharClass::letter, number = CharClass::number, space = CharClass::space;

struct ClassRange {
    std::uint32_t first, last;
    CharClass char_class;
};
constexpr ClassRange class_ranges[] = {
#include "llmc/tokenizer/split/unicode_table.inc"
};

struct CodeRange {
    std::uint32_t first, last;
};
constexpr CodeRange word_ranges[] = {
#include "llmc/tokenizer/split/word_table.inc"
};

}   // namespace

bool is_word_character(std::uint32_t code) {
    const CodeRange* range = std::ranges::lower_bound(word_ranges, code, {}, &CodeRange::last);
    return range != std::end(word_ranges) && range->first <= code;
}

const CharTable& CharTable::get() {
    static const CharTable table;
    return table;
}

CharTable::CharTable() {
    std::vector<CharClass> flat(block_count * 256, CharClass::other);
    for (const ClassRange& range : class_ranges) {
        std::fill(flat.begin() + range.first, flat.begin() + range.last + 1, range.char_class);
    }
    std::size_t distinct = 0;
    for (std::size_t block = 0; block < block_count; block++) {
        const CharClass* classes = flat.data() + block * 256;
        std::size_t same = 0;
        while (same < distinct && std::memcmp(classes_[same], classes, 256) != 0) same++;
        if (same == distinct) std::memcpy(classes_[distinct++], classes, 256);
        block_[block] = static_cast<std::uint16_t>(same);
    }
}
