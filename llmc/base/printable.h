// Text as a terminal takes it. What comes from files and command lines can hold bytes that move the cursor, clear the
// screen or end a string; they are shown, not obeyed.
#pragma once

#include <string>
#include <string_view>

// Line ends, tabs and well-formed UTF-8 stay; other control characters (U+0000 to U+001F, U+007F to U+009F) and bytes
// that are not UTF-8 become \x and two hexadecimal digits each.
std::string printable(std::string_view bytes);
