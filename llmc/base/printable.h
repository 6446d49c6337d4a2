// Text that is safe on a terminal. Files and command lines can hold bytes that move the cursor, clear the screen or end
// a string; this makes them visible.
#pragma once

#include <string>
#include <string_view>

// Keeps line ends, tabs and well-formed UTF-8; writes other control characters (U+0000 to U+001F, U+007F to U+009F) and
// bytes that are not UTF-8 as \x and two hexadecimal digits each.
std::string printable(std::string_view bytes);
