// Reads and writes vocab.bpe, tiktoken ranks and llm.c's tokenizer.bin; huggingface.cpp does tokenizer.json.

#include "llmc/tokenizer/files/files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"

namespace {

constexpr std::size_t llmc_header_words = 256;
constexpr std::size_t llmc_header_bytes = llmc_header_words * sizeof(std::int32_t);
constexpr std::int32_t llmc_magic = 20240328, llmc_version = 2;

// Hands out the lines of a text with their offsets.
class Lines {
public:
    explicit Lines(std::string_view content) : content_(content) {}
    bool next(std::string_view& line) {
        if (next_ >= content_.size()) return false;
        offset_ = next_;
        std::size_t end = content_.find('\n', next_);
        if (end == std::string_view::npos) end = content_.size();
        line = content_.substr(offset_, end - offset_);
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        next_ = end + 1;
        return true;
    }
    std::size_t offset() const { return offset_; }

private:
    std::string_view content_;
    std::size_t offset_ = 0, next_ = 0;
};

int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool from_base64(std::string_view digits, std::string& bytes) {
    if (digits.empty() || digits.size() % 4 != 0) return false;
    std::size_t padding = digits.ends_with("==") ? 2 : digits.ends_with("=") ? 1 : 0;
    std::uint32_t bits = 0;
    int count = 0;
    for (char c : digits.substr(0, digits.size() - padding)) {
        int value = base64_value(c);
        if (value < 0) return false;
        bits = bits << 6 | static_cast<std::uint32_t>(value);
        count += 6;
        if (count >= 8) bytes.push_back(static_cast<char>(bits >> (count -= 8)));
    }
    return true;
}

std::string to_base64(std::string_view bytes) {
    constexpr char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
        std::uint32_t bits = 0;
        for (std::size_t j = 0; j < 3; j++) bits = bits << 8 | (j < n ? static_cast<unsigned char>(bytes[i + j]) : 0u);
        for (std::size_t j = 0; j < 4; j++) out += j <= n ? digits[bits >> (18 - 6 * j) & 63] : '=';
    }
    return out;
}

void add_special(TokenizerData& data, std::uint32_t id, std::string bytes) {
    if (id >= data.tokens.size()) data.tokens.resize(id + 1);
    data.tokens[id] = std::move(bytes);
    data.is_special.resize(data.tokens.size(), 0);
    data.is_special[id] = 1;
}

// Adds split rule and special tokens. Published rank files are told apart by their number of ranks.
void complete_ranks(TokenizerData& data) {
    auto id = static_cast<std::uint32_t>(data.tokens.size());
    auto add = [&](std::initializer_list<const char*> tokens) {
        for (const char* token : tokens) add_special(data, id++, token);
    };
    data.is_special.assign(data.tokens.size(), 0);
    data.end_of_text = id;
    switch (id) {
        case 100256:   // cl100k_base
            data.pattern.rule = SplitRule::cl100k;
            data.end_of_text = id = 100257;
            add({"<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"});
            id = 100276;
            add({"<|endofprompt|>"});
            break;
        case 128000:   // Llama-3; documents begin with begin_of_text, as in llm.c's data
            data.pattern.rule = SplitRule::llama3;
            add({"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                 "<|reserved_special_token_2|>", "<|reserved_special_token_3|>", "<|start_header_id|>",
                 "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"});
            for (int i = 5; id < 128256; i++) add_special(data, id++, text("<|reserved_special_token_", i, "|>"));
            break;
        default:   // r50k_base (GPT-2, 50256 ranks), and a vocabulary of one's own, as `tokenize --train` writes it
            data.pattern.rule = SplitRule::gpt2;
            add({"<|endoftext|>"});
    }
}

}   // namespace

void malformed_tokenizer(const std::string& name, std::size_t offset, const std::string& what) {
    throw Error(ErrorKind::bad_data, text(name, ": offset ", offset, ": ", what),
                "Make the tokenizer file again, or take it from where it was published.");
}

std::vector<int> missing_bytes(const TokenizerData& data) {
    bool has_byte[256] = {};
    for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
        const std::string& bytes = data.tokens[id];
        if (bytes.size() == 1 && !data.is_special[id]) has_byte[static_cast<unsigned char>(bytes[0])] = true;
    }
    std::vector<int> missing;
    for (int byte = 0; byte < 256; byte++) {
        if (!has_byte[byte]) missing.push_back(byte);
    }
    return missing;
}

TokenizerData parse_gpt2_merges(std::string_view content, const std::string& name) {
    TokenizerData data;
    data.name = name;
    data.pattern.rule = SplitRule::gpt2;
    // single bytes come first: those spelled as themselves, then the others
    for (int itself = 1; itself >= 0; itself--) {
        for (unsigned byte = 0; byte < 256; byte++) {
            if ((byte_to_character(static_cast<unsigned char>(byte)) == byte) == (itself == 1))
                data.tokens.push_back(std::string(1, static_cast<char>(byte)));
        }
    }
    std::unordered_map<std::string, std::uint32_t> ids;
    ids.reserve(data.tokens.size() + static_cast<std::size_t>(std::ranges::count(content, '\n')));
    for (std::uint32_t id = 0; id < data.tokens.size(); id++) ids[data.tokens[id]] = id;
    Lines lines(content);
    std::string_view line;
    if (!lines.next(line) || !line.starts_with("#version")) {
        malformed_tokenizer(name, 0, "the first line does not begin with #version");
    }
    while (lines.next(line)) {
        if (line.empty()) continue;
        std::size_t gap = line.find(' ');
        std::string left, right;
        if (gap == std::string_view::npos || !from_characters(line.substr(0, gap), left) ||
            !from_characters(line.substr(gap + 1), right)) {
            malformed_tokenizer(name, lines.offset(), text("'", line.substr(0, 80), "' is not a merge of two tokens"));
        }
        auto left_id = ids.find(left), right_id = ids.find(right);
        if (left_id == ids.end() || right_id == ids.end()) {
            malformed_tokenizer(name, lines.offset(), "a merge of a token that no earlier merge makes");
        }
        std::uint32_t id = static_cast<std::uint32_t>(data.tokens.size());
        if (!ids.emplace(left + right, id).second) malformed_tokenizer(name, lines.offset(), "a token is made twice");
        data.merges.push_back({left_id->second, right_id->second, id, static_cast<std::uint32_t>(data.merges.size())});
        data.tokens.push_back(left + right);
    }
    data.end_of_text = static_cast<std::uint32_t>(data.tokens.size());
    data.is_special.assign(data.tokens.size(), 0);
    add_special(data, data.end_of_text, "<|endoftext|>");
    return data;
}

TokenizerData parse_tiktoken_ranks(std::string_view content, const std::string& name) {
    TokenizerData data;
    data.name = name;
    data.merge_by_rank = data.whole_piece_first = true;
    // a protocol buffer whose first field is a piece
    if (content.starts_with('\n')) {
        throw Error(
            ErrorKind::bad_data, text(name, ": offset 0: a SentencePiece model, which is not supported"),
            "Take the model's tokenizer.json, which says the same; transformers writes one where there is none.");
    }
    Lines lines(content);
    std::string_view line;
    std::size_t ranks = 0;
    std::unordered_set<std::string> known;
    while (lines.next(line)) {
        if (line.empty()) continue;
        std::size_t gap = line.find(' ');
        std::string bytes;
        std::uint32_t id = 0;
        bool good = gap != std::string_view::npos && from_base64(line.substr(0, gap), bytes);
        if (good) {
            auto [end, problem] = std::from_chars(line.data() + gap + 1, line.data() + line.size(), id);
            good = problem == std::errc() && end == line.data() + line.size() && id < content.size();
        }
        if (!good) {
            malformed_tokenizer(name, lines.offset(),
                                text("'", line.substr(0, 80), "' is not a token in base64 and its rank"));
        }
        if (id >= data.tokens.size()) data.tokens.resize(id + 1);
        if (!data.tokens[id].empty()) malformed_tokenizer(name, lines.offset(), text("rank ", id, " is given twice"));
        if (!known.insert(bytes).second)
            malformed_tokenizer(name, lines.offset(), "this token has another rank before");
        data.tokens[id] = std::move(bytes);
        ranks++;
    }
    if (ranks == 0) malformed_tokenizer(name, 0, "no ranks");
    if (ranks != data.tokens.size()) {
        malformed_tokenizer(name, content.size(), text(ranks, " ranks, the highest ", data.tokens.size() - 1));
    }
    complete_ranks(data);
    const std::vector<int> missing = missing_bytes(data);
    if (!missing.empty()) {
        malformed_tokenizer(name, content.size(), text("the file ends and has no token for byte ", missing[0]));
    }
    return data;
}

bool is_llmc_tokenizer(std::string_view content) {
    return content.starts_with(std::string_view(reinterpret_cast<const char*>(&llmc_magic), sizeof llmc_magic));
}

TokenizerData parse_llmc_tokenizer(std::string_view content, const std::string& name) {
    std::array<std::int32_t, llmc_header_words> header;
    if (content.size() < llmc_header_bytes) {
        malformed_tokenizer(name, content.size(),
                            text("the file ends inside its header of ", llmc_header_bytes, " bytes"));
    }
    std::memcpy(header.data(), content.data(), llmc_header_bytes);
    auto [magic, version, vocab_size, end_of_text] = std::array{header[0], header[1], header[2], header[3]};
    if (magic != llmc_magic) malformed_tokenizer(name, 0, text("magic number ", magic, ", expected ", llmc_magic));
    if (version != llmc_version) malformed_tokenizer(name, 4, text("version ", version, ", expected ", llmc_version));
    if (vocab_size <= 0 || end_of_text < 0 || end_of_text >= vocab_size) {
        malformed_tokenizer(name, 8, text("a vocabulary of ", vocab_size, " tokens with end of text ", end_of_text));
    }
    TokenizerData data;
    data.name = name;
    data.can_encode = false;
    data.end_of_text = static_cast<std::uint32_t>(end_of_text);
    std::size_t at = llmc_header_bytes;
    for (std::int32_t id = 0; id < vocab_size; id++) {
        std::size_t length = at < content.size() ? static_cast<unsigned char>(content[at]) : 0;
        if (at >= content.size() || at + 1 + length > content.size()) {
            malformed_tokenizer(name, at, text("the file ends inside token ", id, " of ", vocab_size));
        }
        data.tokens.emplace_back(content.substr(at + 1, length));
        at += 1 + length;
    }
    if (at != content.size()) malformed_tokenizer(name, at, text(content.size() - at, " bytes follow the last token"));
    data.is_special.assign(data.tokens.size(), 0);
    data.is_special[data.end_of_text] = 1;
    return data;
}

std::string to_tiktoken_ranks(const TokenizerData& data) {
    std::string out;
    for (std::uint32_t id = 0; id < data.tokens.size(); id++) {
        if (!data.is_special[id] && !data.tokens[id].empty()) out += text(to_base64(data.tokens[id]), " ", id, "\n");
    }
    return out;
}

std::string to_llmc_tokenizer(const TokenizerData& data) {
    std::array<std::int32_t, llmc_header_words> header{};
    header[0] = llmc_magic;
    header[1] = llmc_version;
    header[2] = static_cast<std::int32_t>(data.tokens.size());
    header[3] = static_cast<std::int32_t>(data.end_of_text);
    std::string out(reinterpret_cast<const char*>(header.data()), llmc_header_bytes);
    for (const std::string& bytes : data.tokens) {
        std::size_t length = std::min<std::size_t>(bytes.size(), 255);   // a longer token loses its end
        out.push_back(static_cast<char>(length));
        out.append(bytes, 0, length);
    }
    return out;
}
