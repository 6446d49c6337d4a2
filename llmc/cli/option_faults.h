// What is said where the parser cannot go on: about options that there are not, and about files for --config, which it
// reads without saying in which line a fault is.
#pragma once

#include <string>
#include <vector>

#include "llmc/cli/option_group.h"
#include "llmc/cli/verbs.h"

// Error(usage) where the first unknown option is one that another verb takes.
void refuse_option_of_others(const CLI::App& app, Verb verb, const std::vector<std::string>& of_others);

// `where`: in front of the message.
[[noreturn]] void unknown_option(const CLI::App& app, const std::string& given, const std::string& where);

// An argument that belongs to no option.
[[noreturn]] void left_over(const CLI::App& app, const std::string& given);

// Error(io) where --config names a device or a folder. A device never ends, and what its first bytes are taken for is
// chance. Pipes are read: they come from other programs.
void check_config_file(const std::vector<std::string>& arguments);

// Error(usage) at the first key that is no option, or none that a file may have.
void look_for_unknown_keys(const CLI::App& app, const std::string& path);

// "--config FILE: line N: " of the line that gives an option this value; empty: none does.
std::string where_in_config(const CLI::App& app, const std::string& path, const WrongValue& wrong);
