// Runs the steps of a pre-tokenizer one after another, each over all pieces of the one before.

#include <algorithm>
#include <utility>

#include "llmc/base/error.h"
#include "llmc/tokenizer/split/byte_characters.h"
#include "llmc/tokenizer/split/pattern_parts.h"
#include "llmc/tokenizer/split/split.h"

namespace {

// Pieces one behind the other.
struct Pieces {
    std::string text;
    std::vector<std::uint32_t> ends;

    void clear() {
        text.clear();
        ends.clear();
    }
    void add(std::string_view piece) {
        if (piece.empty()) return;
        text += piece;
        if (text.size() > 0xffffff00u) {
            throw Error(ErrorKind::bad_data, "a text of more than 4 GB after the steps of its pre-tokenizer",
                        "Cut it into documents.");
        }
        ends.push_back(static_cast<std::uint32_t>(text.size()));
    }
    template <class F>
    void for_each(const F& f) const {
        std::uint32_t begin = 0;
        for (const std::uint32_t end : ends) {
            f(std::string_view(text).substr(begin, end - begin));
            begin = end;
        }
    }
};

class Step {
public:
    virtual ~Step() = default;
    // `first`: the piece begins a document
    virtual void apply(std::string_view piece, bool first, Pieces& out) = 0;
};

class Prefix : public Step {
public:
    explicit Prefix(const SplitStep& step) : text_(step.text), first_only_(step.first_only) {}
    void apply(std::string_view piece, bool first, Pieces& out) override {
        const bool stays = piece.starts_with(text_) || (first_only_ && !first);
        out.add(stays ? std::string(piece) : text_ + std::string(piece));
    }

private:
    std::string text_;
    bool first_only_;
};

class Replace : public Step {
public:
    explicit Replace(const SplitStep& step) : from_(step.from), text_(step.text) {}
    void apply(std::string_view piece, bool, Pieces& out) override { out.add(replaced(piece, from_, text_)); }

private:
    std::string from_, text_;
};

class SpellBytes : public Step {
    void apply(std::string_view piece, bool, Pieces& out) override { out.add(to_characters(piece)); }
};

class Words : public Step {
public:
    explicit Words(const SplitStep& step) : text_(step.text) {}
    void apply(std::string_view piece, bool, Pieces& out) override {
        std::size_t begin = 0, behind = 0;   // begin of the word, end of the last `text_`
        for (std::size_t at; (at = piece.find(text_, behind)) != std::string_view::npos; behind = at + text_.size()) {
            if (at == behind) continue;   // it follows another, or begins the piece
            out.add(piece.substr(begin, at - begin));
            begin = at;
        }
        out.add(piece.substr(begin));
    }

private:
    std::string text_;
};

class IsolatingSplit : public Step {
public:
    explicit IsolatingSplit(const SplitStep& step) : splitter_(make_splitter({step.rule, step.regex})) {}
    void apply(std::string_view piece, bool, Pieces& out) override {
        std::uint32_t ends[split_capacity], begin = 0;
        piece = splitter_->begin(piece);
        while (const std::size_t count = splitter_->next(ends, split_capacity)) {
            for (std::size_t i = 0; i < count; i++) {
                out.add(piece.substr(begin, ends[i] - begin));
                begin = ends[i];
            }
        }
    }

private:
    std::unique_ptr<PieceSplitter> splitter_;
};

// Joins or drops parts as the package's NormalizedString::split does, empty matches included.
class JoiningSplit : public Step {
public:
    explicit JoiningSplit(const SplitStep& step)
        : parts_(make_pattern_parts(regex_of({step.rule, step.regex}))),
          behavior_(step.behavior),
          invert_(step.invert) {}

    void apply(std::string_view piece, bool, Pieces& out) override {
        ranges_.clear();
        parts_->begin(piece);
        std::uint32_t begin = 0;
        for (PatternPart part; parts_->next(part); begin = part.end) {
            ranges_.push_back({begin, part.end, part.is_match != invert_});
        }
        const bool from_behind = behavior_ == SplitBehavior::merged_with_next;
        if (from_behind) std::ranges::reverse(ranges_);
        join();
        if (from_behind) std::ranges::reverse(joined_);
        for (const Range& range : joined_) out.add(piece.substr(range.begin, range.end - range.begin));
    }

private:
    struct Range {
        std::uint32_t begin, end;
        bool is_match;
    };

    void join() {
        joined_.clear();
        bool match_before = false;
        for (const Range& range : ranges_) {
            if (behavior_ == SplitBehavior::removed && range.is_match) continue;
            const bool joins =
                behavior_ == SplitBehavior::contiguous ? range.is_match == match_before
                : behavior_ == SplitBehavior::merged_with_previous || behavior_ == SplitBehavior::merged_with_next
                    ? range.is_match && !match_before
                    : false;
            if (joins && !joined_.empty()) {
                joined_.back().begin = std::min(joined_.back().begin, range.begin);
                joined_.back().end = std::max(joined_.back().end, range.end);
            } else {
                joined_.push_back(range);
            }
            match_before = range.is_match;
        }
    }

    std::unique_ptr<PatternParts> parts_;
    SplitBehavior behavior_;
    bool invert_;
    std::vector<Range> ranges_, joined_;
};

std::unique_ptr<Step> make_step(const SplitStep& step) {
    switch (step.kind) {
        case SplitStep::Kind::prefix: return std::make_unique<Prefix>(step);
        case SplitStep::Kind::replace: return std::make_unique<Replace>(step);
        case SplitStep::Kind::words: return std::make_unique<Words>(step);
        case SplitStep::Kind::spell_bytes: return std::make_unique<SpellBytes>();
        case SplitStep::Kind::split: break;
    }
    if (step.behavior == SplitBehavior::isolated) return std::make_unique<IsolatingSplit>(step);
    return std::make_unique<JoiningSplit>(step);
}

class StepSplitter : public PieceSplitter {
public:
    explicit StepSplitter(const std::vector<SplitStep>& steps) {
        for (const SplitStep& step : steps) {
            spelled_ |= step.kind == SplitStep::Kind::spell_bytes;
            steps_.push_back(make_step(step));
        }
    }

    std::string_view begin(std::string_view text, bool first) override {
        pieces_.clear();
        pieces_.add(text);
        const auto replace_pieces = [&](const auto& make) {
            others_.clear();
            pieces_.for_each(make);
            std::swap(pieces_, others_);
        };
        for (const auto& step : steps_) {
            replace_pieces([&](std::string_view piece) { step->apply(piece, first && others_.ends.empty(), others_); });
        }
        if (spelled_) {
            replace_pieces([&](std::string_view piece) {
                std::string bytes;
                from_characters(piece, bytes);
                others_.add(bytes);
            });
        }
        handed_out_ = 0;
        return pieces_.text;
    }

    std::size_t next(std::uint32_t* ends, std::size_t capacity) override {
        const std::size_t count = std::min(capacity, pieces_.ends.size() - handed_out_);
        std::copy_n(pieces_.ends.begin() + static_cast<std::ptrdiff_t>(handed_out_), count, ends);
        handed_out_ += count;
        return count;
    }

private:
    std::vector<std::unique_ptr<Step>> steps_;
    bool spelled_ = false;
    Pieces pieces_, others_;
    std::size_t handed_out_ = 0;
};

}   // namespace

std::unique_ptr<PieceSplitter> make_step_splitter(const std::vector<SplitStep>& steps) {
    return std::make_unique<StepSplitter>(steps);
}
