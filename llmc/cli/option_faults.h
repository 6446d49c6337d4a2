// Reports arguments that belong to no option.
#pragma once

#include <string>

#include "llmc/cli/option_table.h"

// Throws Error(usage) naming the nearest option. `where`: the prefix of the message.
[[noreturn]] void throw_unknown_option(const OptionTable& table, const std::string& given, const std::string& where);

// Throws Error(usage) about an option of another verb, an unknown one, or a file where none is expected.
[[noreturn]] void throw_unused_argument(Verb verb, const OptionTable& table, const std::string& given);
