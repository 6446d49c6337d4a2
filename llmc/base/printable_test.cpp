#include "llmc/base/printable.h"

#include <doctest/doctest.h>

using namespace std::string_literals;

TEST_CASE("printable: text and UTF-8 stay, controls and broken bytes are shown") {
    CHECK(printable("plain text\n\twith \\x1b and ~") == "plain text\n\twith \\x1b and ~");
    CHECK(printable("h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80") == "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80");
    CHECK(printable("a\0b"s) == "a\\x00b");
    CHECK(printable("\x1b[2J\x07\r\x7f") == "\\x1b[2J\\x07\\x0d\\x7f");
    CHECK(printable("\xc2\x9b\x31m \xc2\xa0") == "\\xc2\\x9b1m \xc2\xa0");   // U+009B is an escape of its own
    CHECK(printable("\xff\x80 \xc3") == "\\xff\\x80 \\xc3");
    CHECK(printable("\xc0\xaf \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80") ==
          "\\xc0\\xaf \\xe0\\x80\\x80 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80");   // too long, surrogates, too large
    CHECK(printable("\xe2\x82z") == "\\xe2\\x82z");
    CHECK(printable("") == "");
}
