// Reads and writes Hugging Face's tokenizer.json, for byte-level BPE.

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
            const std::string& type = normalizer->at("type").as_text();
            if (type != "NFC") fail(*normalizer, place_, text("normalizer ", type, " is not supported, only NFC is"));
            data_.pattern.nfc = true;
        }
        const Json& model = json_.at("model");
        place_ = "/model";
        if (const Json* type = model.find("type"); type != nullptr && *type != "BPE")
            fail(*type, "/model/type", text("only BPE is supported, not ", type->as_text()));
        if (flag(model, "byte_fallback")) {
            fail(model.at("byte_fallback"), "/model/byte_fallback",
                 "only byte-level BPE is supported, not SentencePiece's");
        }
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
        if (const Json* pre = json_.find("pre_tokenizer")) read_pre_tokenizer(*pre);
        place_ = "/post_processor";
        if (const Json* post = json_.find("post_processor")) {
            data_.post_processor = to_text(*post);
            read_post_processor(*post);
        }
        choose_end_of_text();
        const int byte = missing_byte(data_);
        if (byte >= 0) fail(vocab, "/model/vocab", text("no token for byte ", byte));
    }

    [[noreturn]] void fail(std::size_t offset, const std::string& where, const std::string& what) const {
        throw Error(ErrorKind::bad_data, text(name_, ": offset ", offset, " (", where, "): ", what),
                    "A tokenizer.json must be of byte-level BPE, as GPT-2's, Llama-3's and Qwen's are.");
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
            if (!from_characters(characters, bytes)) {
                bytes = characters;
                unspelled_.push_back(characters);
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
                                        .normalized = flag(token, "normalized")};
            if (rules != AddedTokenRules{}) data_.rules[id] = rules;
        }
    }

    void read_pre_tokenizer(const Json& pre) {
        if (pre.is_null()) fail(pre, "/pre_tokenizer", "missing: this is not a byte-level tokenizer");
        bool byte_level = false;
        std::vector<Json> steps;
        if (pre.at("type") == "Sequence") {
            steps = pre.at("pretokenizers").elements();
        } else {
            steps.push_back(pre);
        }
        for (const Json& step : steps) {
            const std::string& type = step.at("type").as_text();
            if (type == "ByteLevel") {
                if (flag(step, "add_prefix_space")) fail(pre, "/pre_tokenizer", "add_prefix_space is not supported");
                byte_level = true;
                if (const Json* regex = step.find("use_regex"); regex == nullptr || regex->as_bool())
                    set_pattern(pre, {SplitRule::gpt2, ""});
            } else if (type == "Split" && step.at("pattern").contains("Regex") && keeps_pieces(step)) {
                const Json& regex = step.at("pattern").at("Regex");
                check_pattern(regex);
                set_pattern(pre, pattern_of(regex.as_text()));
            } else {
                fail(pre, "/pre_tokenizer", text("a step of type ", type, " like this is not supported"));
            }
        }
        if (!byte_level) fail(pre, "/pre_tokenizer", "no ByteLevel step");
    }

    // Returns true if pieces are the matches, and what lies between them, if anything, is kept.
    static bool keeps_pieces(const Json& step) {
        const Json* behavior = step.find("behavior");
        return behavior != nullptr && (*behavior == "Isolated" || (*behavior == "Removed" && flag(step, "invert")));
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

    void set_pattern(const Json& pre, SplitPattern pattern) {
        if (data_.pattern.rule != SplitRule::none)
            fail(pre, "/pre_tokenizer", "more than one pattern is not supported");
        pattern.nfc = data_.pattern.nfc;
        data_.pattern = std::move(pattern);
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
            for (std::uint32_t id = 0; id < data_.tokens.size(); id++) {
                if (data_.is_special[id] && data_.tokens[id] == name) {
                    data_.end_of_text = id;
                    return;
                }
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
        spelled.push_back(to_characters(data.tokens[id]));
        if (data.tokens[id].empty()) continue;
        vocab.add(data.is_special[id] ? data.tokens[id] : spelled[id], id);
        if (!data.is_special[id]) continue;
        const AddedTokenRules rules = data.rules_of(id);
        added.append(Json::object({{"id", id},
                                   {"content", data.tokens[id]},
                                   {"single_word", rules.single_word},
                                   {"lstrip", rules.lstrip},
                                   {"rstrip", rules.rstrip},
                                   {"normalized", rules.normalized},
                                   {"special", data.is_special[id] == 1}}));
    }
    for (const BpeMerge& merge : merges_of(data)) {
        merges.append(Json::array({spelled[merge.left], spelled[merge.right]}));
    }
    Json model = parse_json(R"({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false})");
    model.add("ignore_merges", data.whole_piece_first);
    model.add("vocab", std::move(vocab));
    model.add("merges", std::move(merges));
    Json json = parse_json(R"({"version": "1.0", "truncation": null, "padding": null})");
    json.add("added_tokens", std::move(added));
    json.add("normalizer", data.pattern.nfc ? Json::object({{"type", "NFC"}}) : Json());
    json.add("pre_tokenizer", pre_tokenizer_of(data.pattern));
    json.add("post_processor", parse_json(data.post_processor));
    json.add("decoder", byte_level_step(true));
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
