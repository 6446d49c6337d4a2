// Translates a pattern of a tokenizer.json, which is Oniguruma's in Ruby's syntax as Hugging Face's tokenizers package
// runs it, for PCRE2.
//
// PCRE2 sees no characters. Two characters that no part of the pattern tells apart are of one kind; a text becomes a
// string of bytes, one for each character, and the translated pattern matches these bytes. So what a class means comes
// from our table of Unicode alone, whatever tables PCRE2 was built with. What PCRE2 would read in another way is
// written out: anchors, repeats, case. What has no translation is refused by name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct TranslatedPattern {
    std::string regex;                 // for PCRE2 without UTF
    std::vector<std::uint8_t> kinds;   // by code point
};

// Throws Error bad_data.
TranslatedPattern translate_oniguruma(const std::string& pattern);
