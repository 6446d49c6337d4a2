#include "llmc/cli/show_data.h"

#include <climits>
#include <cstdio>

#include "llmc/base/printable.h"
#include "llmc/base/refuse.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/run/run_inputs.h"

int show_data(const Options& options) {
    refuse_if(options.samples_of == 0, "train_gpt data without --samples", "Say of which step.");
    const std::string tokenizer_file = find_tokenizer_file(options);
    std::optional<Tokenizer> tokenizer;
    if (!tokenizer_file.empty()) tokenizer = Tokenizer::load(tokenizer_file);
    const TokenSet tokens(real_files(), "--train-data", options.train_data, options.seq_len,
                          tokenizer ? tokenizer->vocab_size() : INT_MAX, 0);
    const ByStep tokens_of = options.tokens_by_step();
    const auto of_step = static_cast<std::uint64_t>(tokens_of.at(options.samples_of) / options.seq_len);
    Loader loader(tokens, options.seed, phases_of(options, tokens));
    int after = 0;
    for (int saved : list_checkpoints(real_files(), options.output_dir)) {
        if (saved < options.samples_of) after = saved;
    }
    if (after > 0) loader.seek(saved_loader(real_files(), options.output_dir + "/" + checkpoint_name(after)));
    loader.advance(static_cast<std::uint64_t>(tokens_of.sum(after, options.samples_of - 1) / options.seq_len));

    int number = 0;
    for (const SampleId& id : loader.samples(0, of_step)) {
        const TokenSet::Place place = tokens.place_of(id.window);
        const std::string& name = tokens.sources()[id.source].data.name;
        std::string words =
            text("step ", options.samples_of, ", sample ", number++, ": ", name.empty() ? "" : name + ", ", "epoch ",
                 id.epoch, ", ", place.shard.path(), ", token ", place.token, "\n");
        if (tokenizer) {
            std::vector<std::int32_t> inputs(static_cast<std::size_t>(options.seq_len)), targets(inputs.size());
            tokens.read_window(id.window, inputs, targets);
            words += printable(tokenizer->decode(inputs.data(), inputs.size())) + "\n\n";
        }
        std::fputs(words.c_str(), stdout);
    }
    return 0;
}
