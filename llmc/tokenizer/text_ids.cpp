#include "llmc/tokenizer/text_ids.h"

#include <algorithm>

#include "llmc/base/refuse.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/files/files.h"

namespace {

using Ids = std::vector<std::uint32_t>;

// Returns true for white space as Python's str.rstrip has it.
bool is_white_space(std::uint32_t code) {
    constexpr std::uint32_t single[] = {0x85, 0xa0, 0x1680, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
    return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || (code >= 0x2000 && code <= 0x200a) ||
           std::ranges::find(single, code) != std::end(single);
}

std::string_view without_white_space_behind(std::string_view text) {
    while (!text.empty()) {
        std::size_t last = text.size() - 1;   // first byte of the last character
        while (last > 0 && text.size() - last < 4 && (text[last] & 0xc0) == 0x80) last--;
        const std::string_view character = text.substr(last);
        const bool valid = valid_utf8_prefix(character) == character.size();
        if (!valid || !is_white_space(decode_utf8(character.data()).code)) break;
        text.remove_suffix(character.size());
    }
    return text;
}

EncodeOptions as_a_model_reads() {
    EncodeOptions how;
    how.special = SpecialText::encode;
    return how;
}

const Tokenizer& able_to_encode(const Tokenizer& tokenizer) {
    refuse_if(!tokenizer.data().can_encode, text("tokenizer ", tokenizer.name(), " can only turn tokens into text"),
              "Name a file that can encode text with --tokenizer: tokenizer.json, vocab.bpe, tiktoken ranks.");
    return tokenizer;
}

std::string spelled(const Tokenizer& tokenizer, const Ids& ids) { return tokenizer.decode(ids.data(), ids.size()); }

}   // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer)
    : front_(tokenizer.data().front), encoder_(able_to_encode(tokenizer), as_a_model_reads()) {}

Ids TextEncoder::encode(std::string_view text) {
    Ids ids;
    encoder_.encode(text, ids);
    const bool has_its_own = !ids.empty() && !front_.empty() && ids.front() == front_.front();
    if (!has_its_own) ids.insert(ids.begin(), front_.begin(), front_.end());
    return ids;
}

ContinuedText TextEncoder::encode_continued(std::string_view context, std::string_view completion) {
    ContinuedText result{encode(without_white_space_behind(context)), {}};
    const Ids whole = encode(std::string(context) + std::string(completion));
    result.completion.assign(whole.begin() + static_cast<std::ptrdiff_t>(std::min(result.context.size(), whole.size())),
                             whole.end());
    return result;
}

std::string front_of_texts(const Tokenizer& tokenizer) { return spelled(tokenizer, tokenizer.data().front); }

std::string warning_of_tokens_behind(const Tokenizer& tokenizer) {
    const Ids& back = tokenizer.data().back;
    if (back.empty()) return "";
    return text("tokenizer ", tokenizer.name(), ": its post-processor puts ", spelled(tokenizer, back),
                " behind a text; it is left out here, where a text goes on, but lm-evaluation-harness leaves it in");
}

std::string warning_of_unknown_eos(const Tokenizer& tokenizer) {
    const std::string& unknown = tokenizer.data().unknown_eos;
    if (unknown.empty()) return "";
    return text(unknown, "; texts end with ", spelled(tokenizer, tokenizer.special().eos));
}

std::string warning_of_missing_bytes(const Tokenizer& tokenizer) {
    const TokenizerData& data = tokenizer.data();
    if (!data.can_encode) return "";
    const auto occurs_in_utf8 = [](int byte) { return byte != 0xc0 && byte != 0xc1 && byte < 0xf5; };
    const std::vector<int> missing = missing_bytes(data);
    const auto first = std::ranges::find_if(missing, occurs_in_utf8);
    if (first == missing.end()) return "";
    return text("tokenizer ", tokenizer.name(), " has no token for byte ", *first, " and ",
                std::ranges::count_if(missing, occurs_in_utf8) - 1, " others: ",
                data.unknown ? "in a text they become " + data.tokens[data.unknown->id] : "a text loses them",
                ", as with the tokenizers package");
}
