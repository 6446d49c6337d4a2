// Converts to Unicode's normal form C, by ICU.

#include "llmc/base/error.h"
#include "llmc/base/utf8.h"
#include "llmc/tokenizer/split/split.h"

#ifdef USE_ICU

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

std::string_view to_nfc(std::string_view text, std::string& storage) {
    UErrorCode problem = U_ZERO_ERROR;
    const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(problem);
    auto piece = [](std::string_view part) { return icu::StringPiece(part.data(), static_cast<int>(part.size())); };
    std::string out;
    icu::StringByteSink<std::string> sink(&out);
    constexpr std::size_t most = 1 << 30;   // ICU counts in 32 bits, with a sign
    for (std::string_view rest = text; !rest.empty() && U_SUCCESS(problem);) {
        const std::string_view valid = rest.substr(0, valid_utf8_prefix(rest));
        if (valid.size() > most) {
            throw Error(ErrorKind::bad_data, ::text("a text of ", valid.size(), " bytes to be normalised (NFC)"),
                        "Give a --separator or smaller files.");
        }
        if (valid.size() == text.size() && nfc->isNormalizedUTF8(piece(valid), problem)) return text;
        nfc->normalizeUTF8(0, piece(valid), sink, nullptr, problem);
        rest.remove_prefix(valid.size());
        const std::size_t bad = rest.empty() ? 0 : invalid_utf8_length(rest);
        out += rest.substr(0, bad);
        rest.remove_prefix(bad);
    }
    if (U_FAILURE(problem)) throw Error(ErrorKind::bad_data, ::text("ICU cannot normalise: ", u_errorName(problem)));
    storage = std::move(out);
    return storage;
}

#else

std::string_view to_nfc(std::string_view text, std::string&) {
    constexpr unsigned char lead_of_u0300 = 0xcc, last_lead = 0xf4;   // bytes above begin no character
    for (std::size_t at = 0; at < text.size(); at++) {
        const auto byte = static_cast<unsigned char>(text[at]);
        if (byte < lead_of_u0300 || byte > last_lead) continue;
        throw Error(ErrorKind::usage,
                    ::text("this build has no ICU, which brings text to the tokenizer's normal form "
                           "(NFC): byte ",
                           at, " begins a character from U+0300 on"),
                    "Install libicu-dev and build again.");
    }
    return text;
}

#endif
