// GPT-2's pieces, 64 bytes at a time, without a branch per character.
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// Read as a rule for where pieces start, this needs only a character's class and its neighbours':
//   - a letter, number or other character starts a piece when the character before is of another class, unless that is
//     the space U+0020, which then belongs to the piece and starts it;
//   - a white-space character starts a piece when the one before is none, or when the next one is none (of a run of
//     white space the last one stands alone or joins what follows); nothing follows the end of the text;
//   - an apostrophe that starts a piece, followed by s t m d re ve ll, makes a piece of just these characters.
// The first two are bit operations on masks; apostrophes are looked at one by one.

#include <bit>
#include <cstring>

#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/simd.h"
#include "llmc/tokenizer/split/split.h"
#include "llmc/tokenizer/split/split_rules.h"
#include "llmc/tokenizer/split/unicode.h"

namespace {

constexpr std::size_t block_bytes = 64;

// Masks with one bit per byte of a block. All bytes of a character are in its class.
struct Masks {
    std::uint64_t letter, number, space;
    std::uint64_t continuation = 0;       // bytes after the first of a character
    std::uint64_t before_non_space = 0;   // first bytes of white space of several bytes that is followed by none
    std::uint64_t other() const { return ~(letter | number | space); }
};

class Gpt2Splitter : public PieceSplitter {
public:
    void begin(std::string_view text) override {
        text_ = text;
        at_ = 0;
        done_ = text.empty();
        previous_ = Previous{};
    }

    std::size_t next(std::uint32_t* ends, std::size_t capacity) override {
        std::size_t count = 0;
        while (at_ < text_.size() && count + block_bytes < capacity) {
            std::uint64_t starts = at_ + block_bytes <= text_.size() ? block(text_.data() + at_) : last_block();
            if (at_ == 0) starts &= ~1ull;   // the first piece's start is nobody's end
            for (; starts != 0; starts &= starts - 1) {
                ends[count++] = static_cast<std::uint32_t>(at_) + static_cast<std::uint32_t>(std::countr_zero(starts));
            }
            at_ += block_bytes;
        }
        if (at_ >= text_.size() && !done_) {
            ends[count++] = static_cast<std::uint32_t>(text_.size());
            done_ = true;
        }
        return count;
    }

private:
    // State that a block leaves for the next one; bits are in position 0.
    struct Previous {
        std::uint64_t letter = 0, number = 0, other = 0, space = 0;   // class of the last byte
        std::uint64_t blank = 0;                                      // it is U+0020
        std::uint32_t open_bytes = 0;                                 // bytes that a character has in the next block
        CharClass open_class = CharClass::other;
        std::uint64_t forced = 0, denied = 0;   // starts that a contraction sets and removes
    };

    // Finds the starts in the text's last bytes, padded with spaces: what follows the end counts as white space.
    std::uint64_t last_block() {
        char padded[block_bytes];
        std::size_t count = text_.size() - at_;
        std::memset(padded, ' ', sizeof padded);
        std::memcpy(padded, text_.data() + at_, count);
        return block(padded) & ((1ull << count) - 1);
    }

    // Returns the starts of pieces among the 64 bytes of the block at at_.
    std::uint64_t block(const char* bytes) {
        Bytes64 block(bytes);
        std::uint64_t blank = block.equal(' ');
        Masks m{block.ascii_letters(), block.in_range('0', 10), blank | block.in_range('\t', 5)};
        std::uint64_t ascii_space = m.space;
        std::uint64_t above_ascii = block.above_ascii();
        if (above_ascii != 0) [[unlikely]]
            add_characters(above_ascii, m);

        std::uint64_t other = m.other();
        std::uint64_t next_non_space = ~m.space >> 1;
        if (ascii_space >> 63 != 0) next_non_space |= std::uint64_t{non_space_at(at_ + block_bytes)} << 63;
        std::uint64_t same_class = (m.letter & (m.letter << 1 | previous_.letter)) |
                                   (m.number & (m.number << 1 | previous_.number)) |
                                   (other & (other << 1 | previous_.other));
        std::uint64_t starts = ~m.space & ~same_class & ~(blank << 1 | previous_.blank);
        starts |= m.space & (~(m.space << 1 | previous_.space) | (ascii_space & next_non_space) | m.before_non_space);
        starts &= ~m.continuation;
        starts = (starts & ~previous_.denied) | previous_.forced;

        previous_.letter = m.letter >> 63;
        previous_.number = m.number >> 63;
        previous_.other = other >> 63;
        previous_.space = m.space >> 63;
        previous_.blank = blank >> 63;
        previous_.forced = previous_.denied = 0;
        std::uint64_t apostrophes = block.equal('\'') & starts;
        if (apostrophes != 0) contractions(apostrophes, starts);
        return starts;
    }

    void contractions(std::uint64_t apostrophes, std::uint64_t& starts) {
        for (; apostrophes != 0; apostrophes &= apostrophes - 1) {
            unsigned i = static_cast<unsigned>(std::countr_zero(apostrophes));
            std::size_t length = gpt2_contraction(text_.substr(at_ + i));
            if (length == 0) continue;
            // the letters belong to the apostrophe, and a piece starts behind them
            set(i + 1, starts, previous_.denied, false);
            if (at_ + i + length < text_.size()) set(i + static_cast<unsigned>(length), starts, previous_.forced, true);
        }
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
    void add_characters(std::uint64_t above_ascii, Masks& m) {
        if (previous_.open_bytes > 0) {
            std::uint64_t bytes = (1ull << previous_.open_bytes) - 1;
            add(previous_.open_class, bytes, m);
            m.continuation |= bytes;
            above_ascii &= ~bytes;
            previous_.open_bytes = 0;
        }
        while (above_ascii != 0) {
            unsigned i = static_cast<unsigned>(std::countr_zero(above_ascii));
            Utf8Char c = decode_utf8(text_.data() + at_ + i);
            CharClass char_class = table_[c.code];
            std::uint64_t bytes = ((1ull << c.length) - 1) << i;
            add(char_class, bytes, m);
            m.continuation |= bytes & ~(1ull << i);
            if (char_class == CharClass::space && non_space_at(at_ + i + c.length)) m.before_non_space |= 1ull << i;
            if (i + c.length > block_bytes) {
                previous_.open_bytes = i + c.length - static_cast<unsigned>(block_bytes);
                previous_.open_class = char_class;
            }
            above_ascii &= ~bytes;
        }
    }

    static void add(CharClass char_class, std::uint64_t bytes, Masks& m) {
        if (char_class == CharClass::letter) m.letter |= bytes;
        if (char_class == CharClass::number) m.number |= bytes;
        if (char_class == CharClass::space) m.space |= bytes;
    }

    const CharTable& table_ = CharTable::get();
    std::string_view text_;
    std::size_t at_ = 0;   // place of the current block
    bool done_ = true;
    Previous previous_;
};

}   // namespace

std::unique_ptr<PieceSplitter> make_gpt2_splitter() { return std::make_unique<Gpt2Splitter>(); }
