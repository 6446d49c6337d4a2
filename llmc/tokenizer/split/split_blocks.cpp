// The pieces of GPT-2, cl100k (GPT-3.5, GPT-4), Llama 3 and Qwen, 64 bytes at a time, without a branch per character.
//
//   GPT-2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   cl100k   '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
//            |\s+\z|\s*[\r\n]|\s+(?!\S)|\s
//   Llama 3  the same without \s+\z
//   Qwen     Llama 3's with \p{N} alone
//
// Read as a rule for where pieces start, an expression needs only a character's class and what stands beside it.
//   - A run of letters, numbers or other characters starts a piece, unless the character before joins it; then that one
//     starts the piece. GPT-2: a blank (U+0020) joins all three. The others: a blank joins a run of other characters;
//     white space but newlines joins letters, and so does a single other character that no blank has joined.
//   - In a run of numbers every third, or every, character starts a piece; GPT-2's are one piece.
//   - Newlines behind other characters belong to these, but for GPT-2.
//   - White space starts a piece when what stands before is none (or is such a newline), and its last character when
//     something else follows; nothing follows the end of the text. But for GPT-2, the last character must not be a
//     newline, and what follows the last newline of the run starts a piece (not at the end of a text, for cl100k).
//   - An apostrophe that starts a piece, followed by s t m d re ve ll, makes a piece of just these characters.
// These are bit operations on masks; apostrophes and long numbers are looked at one by one.

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/byte_masks.h"
#include "llmc/tokenizer/split/split.h"
#include "llmc/tokenizer/split/split_rules.h"
#include "llmc/tokenizer/split/unicode.h"

namespace {

constexpr std::size_t block_bytes = 64;
constexpr std::uint32_t long_s = 0x17f;   // matched by (?i:s), besides s and S

// Masks of a block. All bytes of a character are in its class.
struct Classes {
    std::uint64_t letter, number, space;
    std::uint64_t blank, newline;
    std::uint64_t continuation = 0;       // bytes after the first of a character
    std::uint64_t before_non_space = 0;   // first bytes of white space of several bytes that is followed by none
    std::uint64_t other() const { return ~(letter | number | space); }
};

class BlockSplitter : public PieceSplitter {
public:
    BlockSplitter(const SplitFamily& family, FindMasks path) : family_(family), find_masks_(path) {}

    std::string_view begin(std::string_view text, bool) override {
        text_ = text;
        at_ = 0;
        done_ = text.empty();
        previous_ = Previous{};
        masks_end_ = 0;
        whole_from_ = family_.whole_end ? space_before_end() : text.size();
        return text;
    }

    std::size_t next(std::uint32_t* ends, std::size_t capacity) override {
        std::uint32_t* end = ends;
        while (at_ < text_.size() && static_cast<std::size_t>(end - ends) + block_bytes < capacity) {
            const std::size_t left = text_.size() - at_;
            if (left < block_bytes) {
                end = write(last_block(), end);
            } else {
                if (at_ >= masks_end_) find_masks(left / block_bytes);
                end = write(block(masks_[(at_ - masks_begin_) / block_bytes]), end);
            }
            at_ += block_bytes;
        }
        if (at_ >= text_.size() && !done_) {
            *end++ = static_cast<std::uint32_t>(text_.size());
            done_ = true;
        }
        return static_cast<std::size_t>(end - ends);
    }

private:
    // State that a block leaves for the next one: properties of its last byte, as bit 0.
    struct Previous {
        std::uint64_t letter = 0, number = 0, other = 0, space = 0, blank = 0, newline = 0;
        std::uint64_t joins_letters = 0;    // a letter behind it starts no piece
        std::uint64_t joins_newlines = 0;   // it is of class other, or a newline behind such
        unsigned digits = 0;                // characters that the last piece has if it is a number
        std::uint32_t open_bytes = 0;       // bytes that a character has in the next block
        CharClass open_class = CharClass::other;
        std::uint64_t forced = 0, denied = 0;   // starts that a contraction sets and removes
    };

    void find_masks(std::size_t blocks) {
        blocks = std::min(blocks, std::size(masks_));
        find_masks_(text_.data() + at_, blocks, masks_);
        masks_begin_ = at_;
        masks_end_ = at_ + blocks * block_bytes;
    }

    // Writes the places of the starts of the block at at_; returns what is behind the last. Writes eight at a time,
    // also beyond the last: a branch for each could not be predicted.
    std::uint32_t* write(std::uint64_t starts, std::uint32_t* out) const {
        if (at_ == 0) starts &= ~1ull;   // the first piece's start is nobody's end
        const int count = std::popcount(starts);
        for (int written = 0; written < count; written += 8) {
            for (int i = 0; i < 8; i++, starts &= starts - 1) {
                out[written + i] =
                    static_cast<std::uint32_t>(at_) + static_cast<std::uint32_t>(std::countr_zero(starts));
            }
        }
        return out + count;
    }

    // Finds the starts in the text's last bytes, padded with blanks: what follows the end counts as white space.
    std::uint64_t last_block() {
        char padded[block_bytes];
        std::size_t count = text_.size() - at_;
        std::memset(padded, ' ', sizeof padded);
        std::memcpy(padded, text_.data() + at_, count);
        ByteMasks masks;
        find_masks_(padded, 1, &masks);
        return block(masks) & ((1ull << count) - 1);
    }

    // Returns the starts of pieces among the 64 bytes of the block at at_.
    std::uint64_t block(const ByteMasks& masks) {
        Classes c{masks.letter, masks.digit, masks.space, masks.blank, masks.newline};
        if (masks.above_ascii != 0) [[unlikely]]
            add_characters(masks.above_ascii, c);
        const std::uint64_t other = c.other();
        const std::uint64_t behind_blank = c.blank << 1 | previous_.blank;
        const std::uint64_t letters = c.letter & ~(c.letter << 1 | previous_.letter);
        const std::uint64_t others = other & ~(other << 1 | previous_.other) & ~behind_blank;
        std::uint64_t next_non_space = ~c.space >> 1;
        if (masks.space >> 63 != 0) next_non_space |= std::uint64_t{non_space_at(at_ + block_bytes)} << 63;
        const std::uint64_t last_space = (masks.space & next_non_space) | c.before_non_space;

        std::uint64_t starts = others;
        if (family_.gpt2) {
            starts |= (letters | (c.number & ~(c.number << 1 | previous_.number))) & ~behind_blank;
            starts |= (c.space & ~(c.space << 1 | previous_.space)) | last_space;
            previous_.space = c.space >> 63;
        } else {
            starts |= letters & ~letters_joined(c, others);
            starts |= numbers(c);
            starts |= spaces(c, other, last_space);
        }
        starts = (starts & ~c.continuation & ~previous_.denied) | previous_.forced;

        previous_.letter = c.letter >> 63;
        previous_.number = c.number >> 63;
        previous_.other = other >> 63;
        previous_.blank = c.blank >> 63;
        previous_.newline = c.newline >> 63;
        previous_.forced = previous_.denied = 0;
        // an apostrophe in the last byte: the next block may begin with a letter
        const std::uint64_t apostrophes = masks.apostrophe & starts & (c.letter >> 1 | 1ull << 63);
        if (apostrophes != 0) contractions(apostrophes, starts);
        return starts;
    }

    // Returns the bytes behind characters that join letters; `others`: starts of other characters without a blank.
    std::uint64_t letters_joined(const Classes& c, std::uint64_t others) {
        std::uint64_t single = others;   // all bytes of their first characters
        for (int i = 0; c.continuation != 0 && i < 3; i++)
            single |= (single << 1 | previous_.joins_letters) & c.continuation & c.other();
        const std::uint64_t joining = single | (c.space & ~c.newline);
        const std::uint64_t joined = joining << 1 | previous_.joins_letters;
        previous_.joins_letters = joining >> 63;
        return joined;
    }

    std::uint64_t numbers(const Classes& c) {
        const std::uint64_t firsts = c.number & ~c.continuation;
        if (family_.digits == 1) return firsts;
        const std::uint64_t begins = c.number & ~(c.number << 1 | previous_.number);
        const bool goes_on = (c.number & previous_.number) != 0;
        const std::uint64_t four = c.number & c.number >> 1 & c.number >> 2 & c.number >> 3;
        if (!goes_on && four == 0) {
            previous_.digits =
                static_cast<unsigned>(std::countl_one(c.number));   // if bytes are characters; else unused
            if (c.continuation == 0 || c.number >> 63 == 0) return begins;
        }
        std::uint64_t starts = 0;
        unsigned digits = previous_.digits;
        if (!goes_on) digits = 0;
        for (std::uint64_t rest = firsts; rest != 0; rest &= rest - 1) {
            const std::uint64_t bit = rest & -rest;
            if ((begins & bit) != 0 || digits == family_.digits) {
                starts |= bit;
                digits = 0;
            }
            digits++;
        }
        previous_.digits = digits;
        return starts;
    }

    // Returns the starts of white space. `last`: white space that is followed by something else.
    std::uint64_t spaces(const Classes& c, std::uint64_t other, std::uint64_t last) {
        // newlines behind other characters: a carry runs through them
        const std::uint64_t seeds = c.newline & (other << 1 | previous_.joins_newlines);
        const std::uint64_t joined = c.newline & ~(c.newline + seeds);
        const std::uint64_t space = c.space & ~joined, not_newline = c.space & ~c.newline;
        std::uint64_t starts = (space & ~(space << 1 | previous_.space)) | (last & not_newline);
        const std::uint64_t behind_newline = not_newline & (c.newline << 1 | previous_.newline);
        if (behind_newline != 0) starts |= behind_newline & ~before_newline(c.newline, not_newline) & ~whole_end();
        previous_.joins_newlines = (other | joined) >> 63;
        previous_.space = space >> 63;
        return starts;
    }

    // Returns the bytes of white space from which on a newline follows with nothing between but such bytes.
    std::uint64_t before_newline(std::uint64_t newline, std::uint64_t not_newline) {
        std::uint64_t before = newline >> 1 & not_newline;
        if (not_newline >> 63 != 0)
            before |= std::uint64_t{newline_follows(at_ + block_bytes + previous_.open_bytes)} << 63;
        std::uint64_t through = not_newline;
        for (int step = 1; step < 64; step *= 2) {
            before |= before >> step & through;
            through &= through >> step;
        }
        return before;
    }

    // Returns true if white space from `position` on has a newline. A long run is read once: for the block in which it
    // begins.
    bool newline_follows(std::size_t position) const {
        while (position < text_.size()) {
            const Utf8Char c = decode_utf8(text_.data() + position);
            if (c.code == '\n' || c.code == '\r') return true;
            if (table_[c.code] != CharClass::space) return false;
            position += c.length;
        }
        return false;
    }

    // Returns the bit of the byte from which on the text is one piece of white space.
    std::uint64_t whole_end() const {
        return whole_from_ >= at_ && whole_from_ < at_ + block_bytes ? 1ull << (whole_from_ - at_) : 0;
    }
    std::size_t space_before_end() const {
        std::size_t end = text_.size();
        while (end > 0) {
            std::size_t begin = end - 1;
            while ((static_cast<unsigned char>(text_[begin]) & 0xc0) == 0x80) begin--;
            const std::uint32_t code = decode_utf8(text_.data() + begin).code;
            if (table_[code] != CharClass::space || code == '\n' || code == '\r') break;
            end = begin;
        }
        return end;
    }

    void contractions(std::uint64_t apostrophes, std::uint64_t& starts) {
        for (; apostrophes != 0; apostrophes &= apostrophes - 1) {
            unsigned i = static_cast<unsigned>(std::countr_zero(apostrophes));
            std::size_t length = contraction(at_ + i + 1);
            if (length == 0) continue;
            // the letters belong to the apostrophe, and a piece starts behind them
            set(i + 1, starts, previous_.denied, false);
            const std::size_t behind = i + 1 + length;
            if (at_ + behind < text_.size()) set(static_cast<unsigned>(behind), starts, previous_.forced, true);
        }
    }

    // Returns the length of s d m t ll ve re at `at`, but for GPT-2 in any case; or 0.
    std::size_t contraction(std::size_t at) const {
        if (at >= text_.size()) return 0;
        const std::uint32_t any_case = family_.gpt2 ? 0 : 0x20;
        auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text_[i]); };
        if (byte(at) >= 0x80) return !family_.gpt2 && decode_utf8(text_.data() + at).code == long_s ? 2 : 0;
        const std::uint32_t first = byte(at) | any_case;
        if (first == 's' || first == 'd' || first == 'm' || first == 't') return 1;
        if (at + 1 >= text_.size()) return 0;
        const std::uint32_t second = byte(at + 1) | any_case;
        const bool two = (first == 'l' && second == 'l') || ((first == 'v' || first == 'r') && second == 'e');
        return two ? 2 : 0;
    }

    static void set(unsigned position, std::uint64_t& here, std::uint64_t& in_next_block, bool start) {
        if (position >= block_bytes) {
            in_next_block |= 1ull << (position - block_bytes);
        } else if (start) {
            here |= 1ull << position;
        } else {
            here &= ~(1ull << position);
        }
    }

    bool non_space_at(std::size_t position) const {
        return position < text_.size() && table_[decode_utf8(text_.data() + position).code] != CharClass::space;
    }

    // Completes the masks of a block that has characters beyond ASCII.
    void add_characters(std::uint64_t above_ascii, Classes& c) {
        if (previous_.open_bytes > 0) {
            std::uint64_t bytes = (1ull << previous_.open_bytes) - 1;
            add(previous_.open_class, bytes, c);
            c.continuation |= bytes;
            above_ascii &= ~bytes;
            previous_.open_bytes = 0;
        }
        while (above_ascii != 0) {
            unsigned i = static_cast<unsigned>(std::countr_zero(above_ascii));
            Utf8Char character = decode_utf8(text_.data() + at_ + i);
            CharClass char_class = table_[character.code];
            std::uint64_t bytes = ((1ull << character.length) - 1) << i;
            add(char_class, bytes, c);
            c.continuation |= bytes & ~(1ull << i);
            if (char_class == CharClass::space && non_space_at(at_ + i + character.length)) {
                c.before_non_space |= 1ull << i;
            }
            if (i + character.length > block_bytes) {
                previous_.open_bytes = i + character.length - static_cast<unsigned>(block_bytes);
                previous_.open_class = char_class;
            }
            above_ascii &= ~bytes;
        }
    }

    static void add(CharClass char_class, std::uint64_t bytes, Classes& c) {
        if (char_class == CharClass::letter) c.letter |= bytes;
        if (char_class == CharClass::number) c.number |= bytes;
        if (char_class == CharClass::space) c.space |= bytes;
    }

    const CharTable& table_ = CharTable::get();
    const SplitFamily family_;
    const FindMasks find_masks_;
    std::string_view text_;
    std::size_t at_ = 0;   // place of the current block
    bool done_ = true;
    ByteMasks masks_[16];   // for the text from masks_begin_ to masks_end_
    std::size_t masks_begin_ = 0, masks_end_ = 0;
    Previous previous_;
    std::size_t whole_from_ = 0;
};

}   // namespace

std::unique_ptr<PieceSplitter> make_block_splitter(const SplitFamily& family, FindMasks find_masks) {
    return std::make_unique<BlockSplitter>(family, find_masks);
}
