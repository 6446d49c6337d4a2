#include "llmc/cli/show_data.h"

#include <algorithm>
#include <climits>
#include <cstdio>

#include "llmc/base/log.h"
#include "llmc/base/printable.h"
#include "llmc/base/refuse.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/data/inspect.h"
#include "llmc/run/run_inputs.h"

namespace {

void show_inside(const Options& options, const TokenSet& tokens, const Tokenizer& tokenizer) {
    const auto requested = static_cast<std::uint64_t>(options.inspect_at);
    refuse_if(requested >= tokens.tokens(),
              text("--inspect ", requested, ": --train-data has ", tokens.tokens(), " tokens"),
              "They are counted from 0.");
    std::uint64_t at = requested;
    const TokenFile* shard = tokens.files().data();
    for (; at >= shard->count(); shard++) at -= shard->count();
    std::vector<std::int32_t> ids(std::min(shard->count() - at, static_cast<std::uint64_t>(options.seq_len)));
    shard->read(at, ids, tokenizer.vocab_size());
    const DocumentCounts counts = count_documents(
        tokens.files(), options.seq_len, static_cast<std::int32_t>(tokenizer.end_of_text()), tokenizer.vocab_size());
    const std::string words = text(
        "token ", requested, ": ", shard->path(), ", token ", at, "\n",
        printable(tokenizer.decode(ids.data(), ids.size())), "\n\n", counts.documents, " documents of ",
        tokens.tokens(), " tokens, the longest of ", counts.longest, ":\n", picture_of(counts),
        formatted("sequences of %d tokens: --document-mask leaves %.1f%% of attention (the mean of sum L^2 / T^2) and "
                  "saves %.1f%%\n",
                  options.seq_len, 100 * counts.attention_left, 100 * (1 - counts.attention_left)));
    std::fputs(words.c_str(), stdout);
}

// The tokens that a start of the run reads, all of them below the vocabulary where that is known.
TokenSet tokens_of(const Options& options, const std::optional<Tokenizer>& tokenizer) {
    return {real_files(),
            "--train-data",
            options.train_data,
            options.seq_len,
            tokenizer ? tokenizer->vocab_size() : INT_MAX,
            0};
}

// Returns the loader's state before step --samples: it begins at the newest checkpoint before it, and is moved from
// there on by the batches of each start.
LoaderState state_before(const std::vector<CommandLine::Start>& starts, const std::optional<Tokenizer>& tokenizer) {
    const Options& last = starts.back().options;
    int after = 0;   // the step behind which the state is
    for (int saved : list_checkpoints(real_files(), last.output_dir)) {
        if (saved < last.samples_of) after = saved;
    }
    LoaderState state;
    if (after > 0) state = saved_loader(real_files(), last.output_dir + "/" + checkpoint_name(after));
    for (std::size_t i = 0; i < starts.size() && after < last.samples_of - 1; i++) {
        int end = last.samples_of - 1;
        if (i + 1 < starts.size()) end = std::min(end, starts[i + 1].after_step);
        if (end <= after) continue;
        const Options& options = starts[i].options;
        const TokenSet tokens = tokens_of(options, tokenizer);
        Loader loader(tokens, options.seed, phases_of(options, tokens));
        if (after > 0) loader.seek(state);
        loader.advance(static_cast<std::uint64_t>(options.tokens_by_step().sum(after, end) / options.seq_len));
        state = loader.state();
        after = end;
    }
    return state;
}

void show_samples(const std::vector<CommandLine::Start>& starts, const std::optional<Tokenizer>& tokenizer) {
    const int step = starts.back().options.samples_of;
    const CommandLine::Start* start = starts.data();   // which made the step
    for (const CommandLine::Start& later : starts) {
        if (later.after_step < step) start = &later;
    }
    const Options& options = start->options;
    const TokenSet tokens = tokens_of(options, tokenizer);
    Loader loader(tokens, options.seed, phases_of(options, tokens));
    if (step > 1) loader.seek(state_before(starts, tokenizer));
    const auto of_step = static_cast<std::uint64_t>(options.tokens_by_step().at(step) / options.seq_len);
    int number = 0;
    for (const SampleId& id : loader.samples(0, of_step)) {
        const TokenSet::Location place = tokens.location_of(id.window);
        const std::string& name = tokens.sources()[id.source].data.name;
        std::string words = text("step ", step, ", sample ", number++, ": ", name.empty() ? "" : name + ", ", "epoch ",
                                 id.epoch, ", ", place.shard.path(), ", token ", place.token, "\n");
        if (tokenizer) {
            std::vector<std::int32_t> inputs(static_cast<std::size_t>(options.seq_len)), targets(inputs.size());
            tokens.read_window(id.window, inputs, targets);
            words += printable(tokenizer->decode(inputs.data(), inputs.size())) + "\n\n";
        }
        std::fputs(words.c_str(), stdout);
    }
}

}   // namespace

int show_data(const CommandLine& command_line) {
    const Options& options = command_line.options;
    const bool inspects = options.inspect_at >= 0;
    refuse_if(options.samples_of == 0 && !inspects, "train_gpt data without --samples or --inspect",
              "Say of which step, or from which token on.");
    const std::string tokenizer_file = find_tokenizer_file("--train-data", options.train_data);
    std::optional<Tokenizer> tokenizer;
    if (!tokenizer_file.empty()) tokenizer = Tokenizer::load(tokenizer_file);
    if (inspects) {
        const TokenSet tokens = tokens_of(options, tokenizer);
        refuse_if(!tokenizer, "--inspect: there is no tokenizer.bin beside --train-data",
                  "It says what tokens mean. `tokenize` and data/*.sh leave it there.");
        show_inside(options, tokens, *tokenizer);
    }
    if (options.samples_of > 0) show_samples(command_line.starts, tokenizer);
    return 0;
}
