// The command line: what a run is asked to do, parsed and checked.
//
// Long names, with llm.c's letters beside them, so that its scripts carry over. Its two-letter flags (`-nk`, `-sl` ...)
// and `-h` are translated before parsing, because the parser knows only one-letter names and -h as help.
// `--config FILE` reads `name = value` lines (the command line wins), `--print-config` writes them.
//
// A value is that of the command line, else of --config, else of the run that is resumed, else the default. Every one
// is checked where it is read: Error(usage) names the flag, the value and what is expected. Defaults are llm.c's,
// except:
//   --train-data, --val-data  what data/tinyshakespeare.sh leaves
//   --model            d12 (llm.c: gpt2_124M_bf16.bin, a file one would have to download first)
//   --tf32             0 (llm.c: 1), so that a build for fp32 computes in fp32
//   --gelu-fusion      2 (llm.c: 0, and 2 on an H100)
//   --val-max-batches  80 sequences, which is llm.c's 20 batches of 4, the same for every micro-batch size and layout
// With --resume, what neither the command line nor --config says is as the output folder's options.json has it.
// What other programs serve is listed by name and refused, never ignored.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llmc/cli/verbs.h"
#include "llmc/run/options/options.h"
#include "llmc/run/run_record.h"

struct CommandLine {
    Verb verb = Verb::train;
    Options options;
    std::string print_and_exit;          // help, version, configuration or schedule, where it was asked for
    std::string shared;                  // the configuration as it must be on every rank
    std::vector<OptionText> texts;       // every option that --print-config prints
    std::string chosen;                  // options that auto_options.h has settled, in words
    std::vector<std::string> warnings;   // about options that are given twice
    std::optional<RunRecord> recorded;   // the run to resume or branch from; its options replace defaults only
    // Options from each of these steps on, as the run was started with them; the last are `options`. For `data`.
    struct Start {
        int after_step;
        Options options;
    };
    std::vector<Start> starts;
};

// Parses and checks `arguments`, which lack the program's name.
CommandLine parse_command_line(std::vector<std::string> arguments);
