// Every option of every verb: names, range, words for --help. What they mean together is in options.cpp.
#pragma once

#include <string>

#include "llmc/run/options.h"

namespace CLI {
class App;
}

enum class Picture : std::uint8_t { none, text, svg };

// What options say that only the command line itself needs.
struct OptionsBeside {
    std::string data_name;      // --data, which stands for two patterns
    int llmc_val_batches = 0;   // -m, which counts batches of B sequences where --val-max-batches counts sequences
    Picture picture = Picture::none;
    std::string costs = "1,1,1,0";   // of the picture
};

// They write to `options` and `beside`, which outlive the parser.
void add_options(CLI::App& app, Options& options, OptionsBeside& beside);
