#include "llmc/cli/show_data.h"

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
    const auto asked = static_cast<std::uint64_t>(options.inspect_at);
    refuse_if(asked >= tokens.tokens(), text("--inspect ", asked, ": --train-data has ", tokens.tokens(), " tokens"),
              "They are counted from 0.");
    std::uint64_t at = asked;
    const TokenFile* shard = tokens.files().data();
    for (; at >= shard->count(); shard++) at -= shard->count();
    std::vector<std::int32_t> ids(std::min(shard->count() - at, static_cast<std::uint64_t>(options.seq_len)));
    shard->read(at, ids, tokenizer.vocab_size());
    const DocumentCounts counts = count_documents(
        tokens.files(), options.seq_len, static_cast<std::int32_t>(tokenizer.end_of_text()), tokenizer.vocab_size());
    const std::string words = text(
        "token ", asked, ": ", shard->path(), ", token ", at, "\n", printable(tokenizer.decode(ids.data(), ids.size())),
        "\n\n", counts.documents, " documents of ", tokens.tokens(), " tokens, the longest of ", counts.longest, ":\n",
        picture_of(counts),
        formatted("sequences of %d tokens: --document-mask leaves %.1f%% of attention (the mean of sum L^2 / T^2) and "
                  "saves %.1f%%\n",
                  options.seq_len, 100 * counts.attention_left, 100 * (1 - counts.attention_left)));
    std::fputs(words.c_str(), stdout);
}

}   // namespace

int show_data(const Options& options) {
    const bool inspects = options.inspect_at >= 0;
    refuse_if(options.samples_of == 0 && !inspects, "train_gpt data without --samples or --inspect",
              "Say of which step, or from which token on.");
    const std::string tokenizer_file = find_tokenizer_file("--train-data", options.train_data);
    std::optional<Tokenizer> tokenizer;
    if (!tokenizer_file.empty()) tokenizer = Tokenizer::load(tokenizer_file);
    const TokenSet tokens(real_files(), "--train-data", options.train_data, options.seq_len,
                          tokenizer ? tokenizer->vocab_size() : INT_MAX, 0);
    refuse_if(inspects && !tokenizer, "--inspect: there is no tokenizer.bin beside --train-data",
              "It says what tokens mean. `tokenize` and data/*.sh leave it there.");
    if (inspects) show_inside(options, tokens, *tokenizer);
    if (options.samples_of == 0) return 0;
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
