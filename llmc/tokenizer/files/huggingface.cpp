// Reads and writes Hugging Face's tokenizer.json, for BPE of bytes, and of characters with tokens for bytes.

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "llmc/base/error.h"
#include "llmc/base/json.h"
#include "llmc/tokenizer/files/files.h"

namespace {

std::string_view first_characters(std::string_view text, std::size_t count) {
    std::size_t end = 0;
    while (end < text.size() && (count > 0 || (text[end] & 0xc0) == 0x80)) {
        if ((text[end++] & 0xc0) != 0x80) count--;
    }
    return text.substr(0, end);
}

// The package's step Punctuation: ASCII's, and Unicode's as they were in version 8.
const std::string punctuation =
    R"([\p{P}!-/:-@\[-`{-~\x{166d}\x{111c9}&&[^\x{61d}\x{9fd}-\x{a76}\x{c77}-\x{c84}\x{1b4e}-\x{1b4f}\x{1b7d}-\x{1b7f})"
    R"(\x{2e43}-\x{2e63}\x{10d6e}-\x{10f89}\x{113d4}-\x{1145d}\x{11660}-\x{116b9}\x{1183b}-\x{11fff})"
    R"(\x{12ff1}-\x{12ff2}\x{16d6d}-\x{16fe2}\x{1e5ff}-\x{1e95f}]])";

constexpr std::size_t most_steps = 32;   // each copies every text, and some have a table of all code points

constexpr std::size_t most_added_tokens = std::size_t{1} << 18;   // each takes about a kilobyte until all are read

// Stands for a space in SentencePiece's vocabularies: U+2581.
const std::string space_mark = "\xe2\x96\x81";

// Returns an expression that matches a text and nothing else.
std::string literally(std::string_view text) {
    std::string regex;
    for (const char c : text) {
        if (std::string_view(R"(\.+*?()|[]{}^$)").find(c) != std::string_view::npos) regex += '\\';
        regex += c;
    }
    return regex;
}

// Reads the parts of the file in turn; `place_` names the one being read, as JSON pointers do.
class HuggingFaceReader {
public:
    // Ids lie below `max_ids`, so that a broken one does not make a table of gigabytes.
    HuggingFaceReader(const Json& json, const std::string& name, std::size_t max_ids)
        : json_(json), name_(name), max_ids_(max_ids) {
        data_.name = name;
    }

    TokenizerData read() {
        try {
            read_parts();
        } catch (const JsonError& problem) {   // something is missing, or of another type
            fail(problem.offset, place_, text("not as in a tokenizer.json: ", problem.what()));
        }
        return std::move(data_);
    }

private:
    void read_parts() {
        if (const Json* normalizer = json_.find("normalizer"); normalizer != nullptr && !normalizer->is_null()) {
            place_ = "/normalizer";
            read_normalizer(*normalizer);
        }
        const Json& model = json_.at("model");
        place_ = "/model";
        if (const Json* type = model.find("type"); type != nullptr && *type != "BPE")
            fail(*type, "/model/type", text("only BPE is supported, not ", type->as_text()));
        by_characters_ = flag(model, "byte_fallback");
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
            if (const Json* affix = model.find(key); affix != nullptr && affix->is_text() && *affix != "") {
                fail(*affix, text("/model/", key), "not supported");
            }
        }
        if (const Json* dropout = model.find("dropout"); dropout != nullptr && !dropout->is_null() && *dropout != 0) {
            fail(*dropout, "/model/dropout",
                 text("found ", quoted(*dropout), ", which makes ids random, expected null"));
        }
        data_.whole_piece_first = flag(model, "ignore_merges");
        const Json& vocab = model.at("vocab");
        read_vocabulary(vocab);
        read_merges(model.at("merges"));
        place_ = "/added_tokens";
        if (const Json* added = json_.find("added_tokens")) read_added_tokens(*added);
        for (const std::string& characters : unspelled_) {
            if (data_.is_special[ids_.at(characters)]) continue;
            fail(vocab.at(characters), "/model/vocab/" + characters,
                 "not spelled in the characters that stand for bytes");
        }
        place_ = "/pre_tokenizer";
        const Json* pre = json_.find("pre_tokenizer");
        read_pre_tokenizer(pre == nullptr ? Json() : *pre);
        if (by_characters_) read_decoder();
        place_ = "/post_processor";
        if (const Json* post = json_.find("post_processor")) {
            data_.post_processor = to_text(*post);
            read_post_processor(*post);
        }
        choose_end_of_text();
        read_unknown(model);
    }

    void read_normalizer(const Json& normalizer) {
        std::vector<TextChange>& changes = data_.pattern.changes;
        if (changes.size() > most_steps) fail(normalizer, place_, text("more than ", most_steps, " normalizers"));
        const std::string& type = normalizer.at("type").as_text();
        if (type == "Sequence") {
            for (const Json& step : normalizer.at("normalizers").elements()) read_normalizer(step);
        } else if (type == "NFC") {
            if (!data_.pattern.changes.empty())
                fail(normalizer, place_, "normalizer NFC behind others is not supported");
            data_.pattern.nfc = true;
        } else if (type == "Prepend") {
            changes.push_back({TextChange::Kind::prepend, normalizer.at("prepend").as_text()});
        } else if (type == "Replace") {
            const auto& [from, to] = read_replace(normalizer);
            changes.push_back({TextChange::Kind::replace, to, from});
        } else {
            fail(normalizer, place_,
                 text("normalizer ", type, " is not supported, only NFC, Prepend, Replace and a Sequence of them are"));
        }
    }

    // Reads which text a step Replace of a normalizer or a decoder replaces, and by which.
    std::pair<std::string, std::string> read_replace(const Json& step) const {
        const Json* from = step.at("pattern").find("String");
        if (from == nullptr || *from == "") {
            fail(step, place_, "a Replace by an expression is not supported, only one of a String is");
        }
        return {from->as_text(), step.at("content").as_text()};
    }

    // Reads what a byte becomes that has no token.
    void read_unknown(const Json& model) {
        const Json* token = model.find("unk_token");
        if (token == nullptr || token->is_null()) return;
        const auto found = ids_.find(token->as_text());
        if (found == ids_.end() && missing_bytes(data_).empty()) return;   // no text has use for it
        if (found == ids_.end()) {
            fail(*token, "/model/unk_token", text("found ", quoted(*token), ", which is not in the vocabulary"));
        }
        data_.unknown = UnknownByte{.id = found->second, .fuse = flag(model, "fuse_unk")};
    }

    [[noreturn]] void fail(std::size_t offset, const std::string& where, const std::string& what) const {
        throw Error(ErrorKind::bad_data, text(name_, ": offset ", offset, " (", where, "): ", what),
                    "A tokenizer.json must be of byte-level BPE, as GPT-2's, Llama 3's and Qwen's are, or of BPE with "
                    "byte_fallback, as Llama 2's, Mistral's and Gemma's are.");
    }
    [[noreturn]] void fail(const Json& value, const std::string& where, const std::string& what) const {
        fail(value.offset(), where, what);
    }

    static bool flag(const Json& object, const char* key) {
        const Json* value = object.find(key);
        return value != nullptr && *value == true;
    }

    std::uint32_t id_of(const Json& value, const std::string& of_object, const std::string& key) const {
        try {
            return static_cast<std::uint32_t>(value.as_whole(max_ids_ - 1));
        } catch (const JsonError&) {
            fail(value, text(of_object, "/", key), "not a token id");
        }
    }

    std::string& slot(std::uint32_t id) {
        if (id >= data_.tokens.size()) {
            data_.tokens.resize(id + 1);
            data_.is_special.resize(id + 1, 0);
        }
        return data_.tokens[id];
    }

    void read_vocabulary(const Json& vocab) {
        if (!vocab.is_object()) fail(vocab, "/model/vocab", "not an object");
        for (const auto& [characters, value] : vocab.members()) {
            const std::uint32_t id = id_of(value, "/model/vocab", characters);
            std::string bytes;
            // tokens that are not in the alphabet of bytes can only be added tokens, which come later
            if (by_characters_ || !from_characters(characters, bytes)) {
                bytes = characters;
                if (!by_characters_) unspelled_.push_back(characters);
            }
            if (bytes.empty()) fail(value, "/model/vocab/" + characters, "a token without bytes");
            if (!slot(id).empty()) fail(value, "/model/vocab/" + characters, text("id ", id, " is given twice"));
            slot(id) = bytes;
            ids_[characters] = id;
        }
    }

    void read_merges(const Json& merges) {
        if (!merges.is_array()) fail(merges, "/model/merges", "not a list");
        auto two_texts = [](const std::vector<Json>& pair) {
            return pair.size() == 2 && pair[0].is_text() && pair[1].is_text();
        };
        for (const Json& merge : merges.elements()) {
            std::string left, right;
            auto fail_here = [&](const std::string& what) {
                fail(merge, text("/model/merges/", data_.merges.size()), what);
            };
            if (merge.is_text()) {
                const std::string& pair = merge.as_text();
                std::size_t gap = pair.find(' ');
                if (gap == std::string::npos) fail_here("not two tokens");
                left = pair.substr(0, gap);
                right = pair.substr(gap + 1);
            } else if (merge.is_array() && two_texts(merge.elements())) {
                left = merge.elements()[0].as_text();
                right = merge.elements()[1].as_text();
            } else {
                fail_here("not two tokens");
            }
            auto l = ids_.find(left), r = ids_.find(right), both = ids_.find(left + right);
            if (l == ids_.end() || r == ids_.end() || both == ids_.end()) {
                fail_here(text("'", left, "' and '", right, "' or what they make is not in the vocabulary"));
            }
            std::uint32_t priority = static_cast<std::uint32_t>(data_.merges.size());
            data_.merges.push_back({l->second, r->second, both->second, priority});
        }
    }

    void read_added_tokens(const Json& added) {
        if (added.elements().size() > most_added_tokens) {
            fail(added, place_,
                 text(added.elements().size(), " added tokens, expected at most ", most_added_tokens,
                      "; tokens of a model stand in /model/vocab"));
        }
        for (std::size_t i = 0; i < added.elements().size(); i++) {
            const Json& token = added.elements()[i];
            place_ = text("/added_tokens/", i);
            const std::uint32_t id = id_of(token.at("id"), place_, "id");
            const std::string& content = token.at("content").as_text();
            if (content.empty()) fail(token, place_, "a token without content");
            // in the vocabulary, too, it must have this id, and no other token may have it
            const auto [same, is_new] = ids_.try_emplace(content, id);
            if (same->second != id || (is_new && !slot(id).empty() && slot(id) != content)) {
                fail(token, place_, text("id ", id, " or '", content.substr(0, 80), "' belongs to another token"));
            }
            slot(id) = content;
            data_.is_special[id] = flag(token, "special") ? 1 : 2;
            const AddedTokenRules rules{.lstrip = flag(token, "lstrip"),
                                        .rstrip = flag(token, "rstrip"),
                                        .single_word = flag(token, "single_word"),
                                        .normalized = flag(token, "normalized"),
                                        .outside = by_characters_ && (is_new || data_.rules_of(id).outside)};
            if (rules != AddedTokenRules{}) data_.rules[id] = rules;
        }
    }

    void read_pre_tokenizer(const Json& pre) {
        std::vector<SplitStep> steps;
        if (!pre.is_null()) read_steps(pre, steps);
        if (by_characters_ && byte_level_) {
            fail(json_.at("model").at("byte_fallback"), "/model/byte_fallback",
                 "byte_fallback beside a ByteLevel step is not supported");
        }
        if (!by_characters_ && !byte_level_) {
            fail(pre, place_, "no ByteLevel step, and no byte_fallback: only BPE with one of them is supported");
        }
        if (by_characters_ && words_are_apart()) steps.push_back({.kind = SplitStep::Kind::words, .text = space_mark});
        if (by_characters_) data_.pre_tokenizer = to_text(pre);
        // needs no last step that spells: bytes are spelled anyway
        if (!steps.empty() && steps.back().kind == SplitStep::Kind::spell_bytes) steps.pop_back();
        SplitPattern& pattern = data_.pattern;
        if (steps.size() == 1 && isolates(steps[0])) {
            pattern.rule = steps[0].rule;
            pattern.regex = steps[0].regex;
        } else if (!steps.empty()) {
            pattern.rule = SplitRule::steps;
            pattern.steps = std::move(steps);
            data_.pre_tokenizer = to_text(pre);
        }
    }

    // Returns true if no token reaches over the beginning of a word, so that a text of many words can be cut there:
    // with Llama 2's files a whole text is one piece.
    bool words_are_apart() const {
        const auto reaches_over = [&](const BpeMerge& merge) {   // the vocabulary is still spelled in characters
            return !data_.tokens[merge.left].ends_with(space_mark) && data_.tokens[merge.right].starts_with(space_mark);
        };
        return !data_.whole_piece_first && ids_.contains(space_mark) &&
               std::ranges::none_of(data_.merges, reaches_over);
    }

    // Reads how tokens become text: a Sequence as Llama 2's, of which Strip may be missing. Then tokens are bytes.
    void read_decoder() {
        place_ = "/decoder";
        const Json& decoder = json_.at("decoder");
        const bool is_sequence = decoder.is_object() && decoder.at("type") == "Sequence";
        static const std::vector<Json> none;
        const std::vector<Json>& steps = is_sequence ? decoder.at("decoders").elements() : none;
        std::string types;
        for (const Json& step : steps) types += (types.empty() ? "" : ", ") + step.at("type").as_text();
        if (types != "Replace, ByteFallback, Fuse" && types != "Replace, ByteFallback, Fuse, Strip") {
            fail(decoder, place_,
                 "expected a Sequence of Replace, ByteFallback, Fuse and perhaps Strip, as in Llama 2's and Gemma's "
                 "files");
        }
        if (steps.size() == 4) {
            const Json& strip = steps[3];
            if (strip.at("content") != " " || strip.at("stop") != 0) {
                fail(strip, place_, "a Strip of anything but spaces in front of a text is not supported");
            }
            data_.spaces_before = strip.at("start").as_whole(1 << 20);
        }
        const auto& [from, to] = read_replace(steps[0]);
        data_.decoder = to_text(decoder);
        data_.spelled = data_.tokens;
        for (std::uint32_t id = 0; id < data_.tokens.size(); id++) {
            std::string storage;   // the package decodes an added token that is `normalized` in its normal form
            const std::string_view token = data_.is_special[id] && data_.rules_of(id).normalized
                                               ? normalized(data_.pattern, data_.spelled[id], storage)
                                               : std::string_view(data_.spelled[id]);
            const std::optional<unsigned char> byte = byte_of_token(token);
            data_.tokens[id] = byte ? std::string(1, static_cast<char>(*byte)) : replaced(token, from, to);
        }
    }

    static bool isolates(const SplitStep& step) {
        return step.kind == SplitStep::Kind::split && step.behavior == SplitBehavior::isolated;
    }

    // Appends the steps of a pre-tokenizer.
    void read_steps(const Json& pre, std::vector<SplitStep>& steps) {
        if (steps.size() > most_steps) fail(pre, place_, text("more than ", most_steps, " steps"));
        const std::string& type = pre.at("type").as_text();
        if (type == "Sequence") {
            for (const Json& step : pre.at("pretokenizers").elements()) read_steps(step, steps);
        } else if (type == "ByteLevel") {
            if (byte_level_) fail(pre, place_, "two ByteLevel steps are not supported");
            byte_level_ = true;
            if (flag(pre, "add_prefix_space")) steps.push_back({.kind = SplitStep::Kind::prefix, .text = " "});
            const Json* regex = pre.find("use_regex");
            if (regex == nullptr || regex->as_bool()) steps.push_back({.rule = SplitRule::gpt2});
            steps.push_back({.kind = SplitStep::Kind::spell_bytes});
        } else if (type == "Digits") {
            const bool alone = pre.at("individual_digits").as_bool();
            steps.push_back(split_by("\\p{N}", alone ? SplitBehavior::isolated : SplitBehavior::contiguous));
        } else if (type == "Punctuation") {
            const Json* behavior = pre.find("behavior");
            steps.push_back(split_by(punctuation, behavior ? behavior_of(*behavior) : SplitBehavior::isolated));
        } else if (type == "Split") {
            read_split(pre, steps);
        } else if (type == "Metaspace") {
            read_metaspace(pre, steps);
        } else {
            fail(pre, place_, text("a step of type ", type, " is not supported"));
        }
    }

    void read_metaspace(const Json& step, std::vector<SplitStep>& steps) {
        const std::string& mark = step.at("replacement").as_text();
        if (mark.empty()) fail(step, place_, "a Metaspace without a replacement");
        if (byte_level_) fail(step, place_, "a Metaspace behind a ByteLevel step is not supported");
        const Json* scheme = step.find("prepend_scheme");
        const bool first = scheme != nullptr && *scheme == "first", always = scheme == nullptr || *scheme == "always";
        if (!first && !always && *scheme != "never") {
            fail(*scheme, place_, text("found ", quoted(*scheme), ", expected first, always or never"));
        }
        if (first && !steps.empty()) fail(step, place_, "a Metaspace of prepend_scheme first behind other steps");
        steps.push_back({.kind = SplitStep::Kind::replace, .text = mark, .from = " "});
        if (first || always) steps.push_back({.kind = SplitStep::Kind::prefix, .text = mark, .first_only = first});
        const Json* split = step.find("split");
        if (split == nullptr || split->as_bool()) {
            steps.push_back(split_by(literally(mark), SplitBehavior::merged_with_next));
        }
    }

    static SplitStep split_by(const std::string& regex, SplitBehavior behavior, bool invert = false) {
        SplitPattern pattern = pattern_of(regex);
        // the known rules match all of a text, so nothing lies between the pieces that is dropped
        const bool all_kept = behavior == SplitBehavior::removed && invert && pattern.rule != SplitRule::regex;
        return {.rule = pattern.rule,
                .regex = std::move(pattern.regex),
                .behavior = all_kept ? SplitBehavior::isolated : behavior,
                .invert = invert};
    }

    void read_split(const Json& step, std::vector<SplitStep>& steps) {
        const Json& pattern = step.at("pattern");
        const Json* regex = pattern.find("Regex");
        const std::string expression = regex ? regex->as_text() : literally(pattern.at("String").as_text());
        const SplitBehavior behavior = behavior_of(step.at("behavior"));
        if (expression.empty()) return;   // matches nowhere
        if (regex) check_pattern(*regex);
        steps.push_back(split_by(expression, behavior, flag(step, "invert")));
    }

    SplitBehavior behavior_of(const Json& name) const {
        constexpr std::pair<const char*, SplitBehavior> behaviors[] = {
            {"Isolated", SplitBehavior::isolated},
            {"Removed", SplitBehavior::removed},
            {"MergedWithPrevious", SplitBehavior::merged_with_previous},
            {"MergedWithNext", SplitBehavior::merged_with_next},
            {"Contiguous", SplitBehavior::contiguous}};
        for (const auto& [known, behavior] : behaviors) {
            if (name == known) return behavior;
        }
        fail(name, place_,
             text("found the behavior ", quoted(name), ", expected Isolated, Removed, MergedWithPrevious, ",
                  "MergedWithNext or Contiguous"));
    }

    void check_pattern(const Json& regex) const {
        try {
            make_splitter(pattern_of(regex.as_text()));
        } catch (const Error& problem) {
            if (problem.kind() != ErrorKind::bad_data) return;   // without PCRE2 only splitting fails
            throw Error(ErrorKind::bad_data,
                        text(name_, ": offset ", regex.offset(), " (", place_, "): ", problem.message(), ": ",
                             first_characters(regex.as_text(), 80)),
                        "docs/data.md says which constructs of a pattern are supported.");
        }
    }

    // Reads the tokens that are put in front of a text, and behind it.
    void read_post_processor(const Json& post) {
        if (post.is_null()) return;
        const std::string& type = post.at("type").as_text();
        if (type == "Sequence") {
            for (const Json& step : post.at("processors").elements()) read_post_processor(step);
            return;
        }
        const bool is_template = type == "TemplateProcessing";
        if (!is_template && type != "BertProcessing" && type != "RobertaProcessing") return;   // adds no tokens
        // the tokenizers package takes what the first step has added for a second text
        if (!data_.front.empty() || !data_.back.empty()) fail(post, place_, "two steps that add tokens");
        if (is_template) {
            read_template(post);
        } else {
            for (const auto& [key, side] : {std::pair("cls", &data_.front), std::pair("sep", &data_.back)}) {
                const Json& pair = post.at(key);   // the token's text and its id
                if (pair.elements().size() != 2) fail(pair, place_, text(key, ": expected a token and its id"));
                side->push_back(added_id(pair.elements()[1]));
            }
        }
    }

    void read_template(const Json& post) {
        std::vector<std::uint32_t>* side = &data_.front;
        for (const Json& part : post.at("single").elements()) {
            const Json* token = part.find("SpecialToken");
            if (token == nullptr) {   // the text itself
                if (side == &data_.back) fail(part, place_, "a template that has the text twice");
                side = &data_.back;
                continue;
            }
            const Json& ids = post.at("special_tokens").at(token->at("id").as_text()).at("ids");
            for (const Json& id : ids.elements()) side->push_back(added_id(id));
        }
    }

    // Reads an id that the post-processor adds.
    std::uint32_t added_id(const Json& id) const {
        const std::uint32_t known = id_of(id, place_, "special_tokens");
        if (known >= data_.tokens.size()) fail(id, place_, text("no token has the id ", known));
        return known;
    }

    // Chooses the end of text for this file alone; files beside it may name another one (special_ids.cpp).
    void choose_end_of_text() {
        for (const char* name :
             {"<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<eos>", "</s>", "<|eos|>", "[EOS]"}) {
            const std::optional<std::uint32_t> id = data_.named(name);
            if (id && data_.is_special[*id]) {
                data_.end_of_text = *id;
                return;
            }
        }
        auto first = std::find(data_.is_special.begin(), data_.is_special.end(), 1);
        if (first == data_.is_special.end()) fail(json_, "/added_tokens", "no token to separate documents");
        data_.end_of_text = static_cast<std::uint32_t>(first - data_.is_special.begin());
    }

    const Json& json_;
    const std::string& name_;
    std::string place_;
    std::size_t max_ids_;
    TokenizerData data_;
    std::unordered_map<std::string, std::uint32_t>
        ids_;                              // ids of the vocabulary and the added tokens, by their characters
    std::vector<std::string> unspelled_;   // tokens of the vocabulary outside the alphabet of bytes
    bool byte_level_ = false;              // a step ByteLevel has been read
    bool by_characters_ = false;           // byte_fallback
};

Json byte_level_step(bool use_regex) {
    return Json::object(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}});
}

Json pre_tokenizer_of(const SplitPattern& pattern) {
    if (pattern.rule == SplitRule::none) return byte_level_step(false);
    if (pattern.rule == SplitRule::gpt2) return byte_level_step(true);
    const Json regex = Json::object({{"Regex", regex_of(pattern)}});
    const Json split =
        Json::object({{"type", "Split"}, {"pattern", regex}, {"behavior", "Isolated"}, {"invert", false}});
    return Json::object({{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level_step(false)})}});
}

Json normalizer_of(const SplitPattern& pattern) {
    Json steps = Json::array();
    if (pattern.nfc) steps.append(Json::object({{"type", "NFC"}}));
    for (const TextChange& change : pattern.changes) {
        steps.append(change.kind == TextChange::Kind::prepend
                         ? Json::object({{"type", "Prepend"}, {"prepend", change.text}})
                         : Json::object({{"type", "Replace"},
                                         {"pattern", Json::object({{"String", change.from}})},
                                         {"content", change.text}}));
    }
    if (steps.elements().size() < 2) return steps.elements().empty() ? Json() : steps.elements()[0];
    return Json::object({{"type", "Sequence"}, {"normalizers", std::move(steps)}});
}

// Returns a token as the file's merges have it.
std::string merge_spelling(const TokenizerData& data, std::uint32_t id) {
    return data.by_characters() ? data.spelled[id] : to_characters(data.tokens[id]);
}
// Returns a token as the file's vocabulary has it.
std::string vocab_spelling(const TokenizerData& data, std::uint32_t id) {
    return data.is_special[id] ? data.spelling(id) : merge_spelling(data, id);
}

std::vector<BpeMerge> merges_of(const TokenizerData& data) {
    if (!data.merge_by_rank) return data.merges;
    std::vector<BpeMerge> merges = all_merges(data.tokens, data.is_special);
    auto key = [](const BpeMerge& merge) { return std::tuple(merge.priority, merge.left, merge.right); };
    std::sort(merges.begin(), merges.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    return merges;
}

}   // namespace

TokenizerData parse_huggingface(std::string_view content, const std::string& name) {
    try {
        Json json = parse_json(content);
        return HuggingFaceReader(json, name, content.size()).read();   // a token takes bytes
    } catch (const JsonSyntaxError& problem) {
        malformed_tokenizer(name, problem.byte, text("not JSON: ", problem.what()));
    }
}

std::string to_huggingface(const TokenizerData& data) {
    Json vocab = Json::object(), merges = Json::array(), added = Json::array();
    std::vector<std::string> spelled;
    for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
        spelled.push_back(merge_spelling(data, id));
        if (!data.has(id)) continue;
        const AddedTokenRules rules = data.rules_of(id);
        if (!rules.outside) vocab.add(vocab_spelling(data, id), id);
        if (!data.is_special[id]) continue;
        added.append(Json::object({{"id", id},
                                   {"content", data.spelling(id)},
                                   {"single_word", rules.single_word},
                                   {"lstrip", rules.lstrip},
                                   {"rstrip", rules.rstrip},
                                   {"normalized", rules.normalized},
                                   {"special", data.is_special[id] == 1}}));
    }
    for (const BpeMerge& merge : merges_of(data)) {
        merges.append(Json::array({spelled[merge.left], spelled[merge.right]}));
    }
    Json model = parse_json(R"({"type": "BPE", "dropout": null})");
    model.add("unk_token", data.unknown ? Json(vocab_spelling(data, data.unknown->id)) : Json());
    for (const char* none : {"continuing_subword_prefix", "end_of_word_suffix"}) model.add(none, Json());
    model.add("fuse_unk", data.unknown && data.unknown->fuse);
    model.add("byte_fallback", data.by_characters());
    model.add("ignore_merges", data.whole_piece_first);
    model.add("vocab", std::move(vocab));
    model.add("merges", std::move(merges));
    Json json = parse_json(R"({"version": "1.0", "truncation": null, "padding": null})");
    json.add("added_tokens", std::move(added));
    json.add("normalizer", normalizer_of(data.pattern));
    json.add("pre_tokenizer",
             data.pre_tokenizer.empty() ? pre_tokenizer_of(data.pattern) : parse_json(data.pre_tokenizer));
    json.add("post_processor", parse_json(data.post_processor));
    json.add("decoder", data.by_characters() ? parse_json(data.decoder) : byte_level_step(true));
    json.add("model", std::move(model));
    return to_text(json, 1) + "\n";
}

void check_gpt2_ids(const TokenizerData& data, std::string_view content, const std::string& name) {
    try {
        Json ids = parse_json(content);
        for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
            std::string spelled = data.is_special[id] ? data.tokens[id] : to_characters(data.tokens[id]);
            if (const Json* given = ids.find(spelled); given == nullptr || *given != id) {
                throw Error(ErrorKind::bad_data,
                            text(name, ": offset ", (given ? *given : ids).offset(), ": token '", spelled,
                                 "' does not have the id ", id),
                            "The file does not belong to the vocab.bpe beside it.");
            }
        }
        if (ids.members().size() != data.tokens.size()) {
            malformed_tokenizer(
                name, 0, text(ids.members().size(), " tokens, the vocab.bpe beside it makes ", data.tokens.size()));
        }
    } catch (const JsonSyntaxError& problem) {
        malformed_tokenizer(name, problem.byte, text("not JSON: ", problem.what()));
    }
}
