#include "llmc/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <set>
#include <type_traits>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/io/file.h"
#include "llmc/io/hash.h"
#include "llmc/tokenizer/files/files.h"

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t gpt2_hash = 0x2336331e4ddf736d;

std::uint64_t hash_of(const TokenizerData& data) {
    Hash64 hash;
    hash.update(&data.end_of_text, sizeof data.end_of_text);
    for (const std::string& bytes : data.tokens) {
        std::uint64_t length = bytes.size();
        hash.update(&length, sizeof length);
        hash.update(bytes.data(), bytes.size());
    }
    return hash.digest();
}

template <class T>
void update(Hash64& hash, const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);   // no padding
    hash.update(&value, sizeof value);
}

template <class T>
void update(Hash64& hash, const std::vector<T>& values) {
    static_assert(std::has_unique_object_representations_v<T>);
    update(hash, values.size());
    hash.update(values.data(), values.size() * sizeof(T));
}

void check(const TokenizerData& data) {
    auto fail = [&](const std::string& what) {
        throw Error(ErrorKind::bad_data, text("tokenizer ", data.name, ": ", what));
    };
    if (data.is_special.size() != data.tokens.size() || data.end_of_text >= data.tokens.size()) {
        fail("the vocabulary is inconsistent");
    }
    if (!data.can_encode) return;
    if (std::max(data.tokens.size(), data.merges.size()) > BpeModel::most_merges) {
        fail(text("more than ", BpeModel::most_merges, " tokens or merges"));
    }
    const std::vector<int> missing = missing_bytes(data);
    if (!missing.empty() && data.merges.empty()) {
        fail(text("no token for byte ", missing[0], ", so not every text could be encoded"));
    }
}

// Loads GPT-2's vocab.bpe, or merges.txt, another name of it; encoder.json or vocab.json beside it, with what stands in
// front of such a name (gpt2-merges.txt, gpt2-vocab.json), holds nothing that this does not imply, and is only checked.
// merges.txt must have it, for other families have a merges.txt of another vocabulary.
TokenizerData load_gpt2(const std::string& path, std::string_view content) {
    TokenizerData data = parse_gpt2_merges(content, path);
    for (const auto& [merges, ids] : {std::pair("vocab.bpe", "encoder.json"), {"merges.txt", "vocab.json"}}) {
        const std::string name = fs::path(path).filename().string();
        if (!name.ends_with(merges)) continue;
        const std::string front = name.substr(0, name.size() - std::string_view(merges).size());
        const std::string ids_path = fs::path(path).replace_filename(front + ids).string();
        if (name == "merges.txt" || real_files().exists(ids_path)) {
            check_gpt2_ids(data, read_whole(real_files(), ids_path), ids_path);
        }
    }
    return data;
}

TokenizerData parse_file(const std::string& path) {
    std::string extension = fs::path(path).extension().string();
    if (fs::path(path).filename() == "tokenizer.json") return load_huggingface(real_files(), path);
    if (extension == ".bin") return load_llmc_tokenizer(real_files(), path);
    std::string content = read_whole(real_files(), path);
    if (content.starts_with(byte_order_mark)) content.erase(0, byte_order_mark.size());
    if (extension == ".bpe" || content.starts_with("#version") || fs::path(path).filename() == "merges.txt")
        return load_gpt2(path, content);
    if (extension == ".json") return parse_huggingface(content, path);
    return parse_tiktoken_ranks(content, path);
}

// Loads a file. The tokenizer's name is that of the file, or of the next folder above that is not called tokenizer like
// any other.
TokenizerData load_file(const std::string& path) {
    TokenizerData data = parse_file(path);
    fs::path place = fs::absolute(path).lexically_normal();
    place.replace_extension();
    while (place.filename() == "tokenizer" || place.filename() == "vocab" || place.filename() == "merges")
        place = place.parent_path();
    data.name = place.filename().string();
    return data;
}

// Collects the tokens of the model's own vocabulary that stand for bytes.
ByteFallback byte_fallback_of(const TokenizerData& data) {
    ByteFallback ids;
    ids.fill(BpeModel::no_token);
    for (std::uint32_t id = 0; id < data.spelled.size(); id++) {
        if (data.rules_of(id).outside) continue;
        if (const std::optional<unsigned char> byte = byte_of_token(data.spelled[id])) ids[*byte] = id;
    }
    return ids;
}

}   // namespace

std::optional<std::uint32_t> TokenizerData::named(std::string_view token) const {
    for (std::uint32_t id = 0; id < tokens.size(); id++) {
        if (has(id) && spelling(id) == token) return id;
    }
    return std::nullopt;
}

Tokenizer::Tokenizer(TokenizerData data) {
    check(data);
    if (data.special == SpecialIds{}) data.special = usual_special_ids(data);
    if (data.special.eos.empty()) data.special.eos = usual_special_ids(data).eos;
    auto state = std::make_shared<State>();
    state->hash = hash_of(data);
    state->data = std::move(data);
    if (state->hash == gpt2_hash) state->data.name = "gpt2";   // whatever its file is called
    state_ = state;
}

Tokenizer Tokenizer::bytes() {
    TokenizerData data;
    data.name = "bytes";
    for (int byte = 0; byte < 256; byte++) data.tokens.push_back(std::string(1, static_cast<char>(byte)));
    data.tokens.push_back("<|endoftext|>");
    data.is_special.assign(data.tokens.size(), 0);
    data.end_of_text = 256;
    data.is_special[256] = 1;
    return Tokenizer(std::move(data));
}

Tokenizer Tokenizer::load(const std::string& specification) {
    if (specification == "bytes") return bytes();
    return Tokenizer(load_file(file_of(specification)));
}

std::string Tokenizer::file_in(const FileSystem& files, const std::string& folder) {
    for (const char* name : {"tokenizer.json", "vocab.bpe", "tokenizer.model", "tokenizer.bin", "merges.txt"}) {
        std::string path = (fs::path(folder) / name).string();
        if (files.exists(path)) return path;
    }
    return "";
}

std::string Tokenizer::file_of(const std::string& specification) {
    if (!real_files().exists(specification + "/.")) return specification;
    if (std::string path = file_in(real_files(), specification); !path.empty()) return path;
    throw Error(
        ErrorKind::io, text("no tokenizer in the folder ", specification),
        "It should hold tokenizer.json, vocab.bpe, merges.txt with vocab.json, tokenizer.model or tokenizer.bin.");
}

std::uint64_t Tokenizer::hash_of_rules() const {
    // names every field, so that none is added and forgotten
    const auto& [name, tokens, spelled, is_special, added_rules, end_of_text, can_encode, pattern, merges,
                 merge_by_rank, whole_piece_first, unknown, pre_tokenizer, decoder, spaces_before, post_processor,
                 front, back, special_ids, kept, unknown_eos] = data();
    Hash64 hash;
    update(hash, is_special);
    for (const auto& [id, rules] : added_rules) {
        update(hash, id);
        for (const bool rule : {rules.lstrip, rules.rstrip, rules.single_word, rules.normalized, rules.outside}) {
            update(hash, rule);
        }
    }
    update(hash, pattern.rule);
    const auto update_text = [&](const std::string& value) {
        update(hash, std::vector<char>(value.begin(), value.end()));
    };
    update_text(pattern.regex);
    update(hash, merges);
    for (const bool rule : {pattern.nfc, can_encode, merge_by_rank, whole_piece_first}) update(hash, rule);
    if (unknown) {
        update(hash, unknown->id);
        update(hash, unknown->fuse);
    }
    for (const SplitStep& step : pattern.steps) {
        update(hash, step.kind);
        update(hash, step.rule);
        update_text(step.regex);
        update(hash, step.behavior);
        update(hash, step.invert);
        update_text(step.text);
        update_text(step.from);
        update(hash, step.first_only);
    }
    for (const TextChange& change : pattern.changes) {
        update(hash, change.kind);
        update_text(change.text);
        update_text(change.from);
    }
    for (const std::string& characters : spelled) update_text(characters);
    return hash.digest();
}

std::vector<std::uint32_t> Tokenizer::text_bytes() const {
    std::vector<std::uint32_t> bytes;
    for (std::uint32_t id = 0; id < vocab_size(); id++) {
        const bool is_special = id == end_of_text() || (id < data().is_special.size() && data().is_special[id] == 1);
        bytes.push_back(is_special ? 0 : static_cast<std::uint32_t>(data().tokens[id].size()));
    }
    return bytes;
}

void Tokenizer::decode_one(std::uint32_t id, std::string& out) const {
    if (!data().has(id)) {
        throw Error(ErrorKind::bad_data,
                    text("token ", id, " is not in the vocabulary of ", vocab_size(), " ids of tokenizer ", name()));
    }
    out += data().tokens[id];
}

void DocumentDecoder::decode_one(std::uint32_t id, std::string& out) {
    const std::size_t begin = out.size();
    tokenizer_.decode_one(id, out);
    if (id == tokenizer_.end_of_text()) {
        to_drop_ = tokenizer_.data().spaces_before;
        return;
    }
    const std::size_t first = std::min(out.find_first_not_of(' ', begin), out.size());
    const std::size_t dropped = std::min(first - begin, to_drop_);
    out.erase(begin, dropped);
    to_drop_ = first < out.size() + dropped ? 0 : to_drop_ - dropped;   // some text has begun
}

bool Tokenizer::ends_text(std::uint32_t id) const {
    return id == end_of_text() || std::ranges::find(special().eos, id) != special().eos.end();
}

std::vector<std::string> Tokenizer::save(const std::string& folder) const {
    std::vector<std::pair<std::string, std::string>> files = {{"tokenizer.bin", to_llmc_tokenizer(data())}};
    if (data().can_encode) files.emplace_back("tokenizer.json", to_huggingface(data()));
    if (!data().kept.empty() || special() != usual_special_ids(data())) {
        for (auto& file : files_on_texts(data())) files.push_back(std::move(file));
    }
    auto path_of = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
    std::set<std::string> others(std::begin(kept_file_names), std::end(kept_file_names));
    others.insert("tokenizer.json");
    std::vector<std::string> names;
    for (const auto& [name, content] : files) others.erase(name);
    for (const std::string& name : others) real_files().remove_all(path_of(name));
    for (const auto& [name, content] : files) {
        names.push_back(name);
        write_whole(real_files(), path_of(name), content);
    }
    return names;
}

bool Tokenizer::single_bytes() const {
    const TokenizerData& d = data();
    return d.can_encode && d.merges.empty() && !d.merge_by_rank && d.pattern.rule != SplitRule::steps &&
           d.pattern.changes.empty() && !d.by_characters();
}

const BpeModel& Tokenizer::model() const {
    static std::mutex building;
    std::lock_guard lock(building);
    const TokenizerData& d = data();
    if (!state_->model) {
        const std::vector<BpeMerge> merges = d.merge_by_rank ? all_merges(d.tokens, d.is_special) : d.merges;
        std::vector<std::uint8_t> unknown_to_model = d.is_special;
        for (std::uint32_t id = 0; d.by_characters() && id < d.tokens.size(); id++) {
            unknown_to_model[id] = d.rules_of(id).outside;
        }
        state_->model = std::make_unique<BpeModel>(
            d.by_characters() ? d.spelled : d.tokens, unknown_to_model, merges, d.whole_piece_first, d.unknown,
            d.by_characters() ? std::optional(byte_fallback_of(d)) : std::nullopt);
    }
    return *state_->model;
}
