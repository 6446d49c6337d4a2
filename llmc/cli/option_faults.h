// What is said of arguments that belong to no option.
#pragma once

#include <string>

#include "llmc/cli/option_table.h"

// Error(usage) naming the option that is nearest. `where`: in front of the message.
[[noreturn]] void unknown_option(const OptionTable& table, const std::string& given, const std::string& where);

// Error(usage): an option of another verb, an unknown one, or a file where none is expected.
[[noreturn]] void left_over(Verb verb, const OptionTable& table, const std::string& given);
