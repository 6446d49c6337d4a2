#include "llmc/cli/evaluate_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "llmc/base/log.h"
#include "llmc/base/stream.h"
#include "llmc/checkpoint/model_file.h"
#include "llmc/data/corpus/corpus_check.h"
#include "llmc/kernels/self_check.h"
#include "llmc/run/choices/attention_of_run.h"
#include "llmc/run/evaluation/validation.h"
#include "llmc/run/evaluation/windows.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"
#include "llmc/run/run_inputs.h"
#include "llmc/run/run_parts.h"

namespace {

// Returns the sequences of --val-data, which must belong to the model; none where it is not given.
std::optional<TokenSet> find_tokens(const Options& options, const ModelConfig& config) {
    if (options.val_data.empty()) return std::nullopt;
    check_data(options, config, "", named_patterns("--val-data", options.val_data),
               CorpusExpectation{}.max_hashed_bytes);
    TokenSet tokens(real_files(), "--val-data", options.val_data, options.seq_len, config.vocab_size);
    std::string tokenizer = find_tokenizer_file("--val-data", options.val_data);
    if (tokenizer.empty()) tokenizer = tokenizer_of_model(real_files(), options.model, "");
    apply_tokenizer(tokens, options, tokenizer.empty() ? std::nullopt : std::optional(Tokenizer::load(tokenizer)));
    return tokens;
}

// Returns how long the sequences must be: as --seq-len says for --val-data, else no longer than the questions need.
int needed_seq_len(const Options& options, const std::vector<AskedQuestions>& asked) {
    if (!options.val_data.empty()) return options.seq_len;
    std::size_t longest = 1;
    for (const AskedQuestions& of_one : asked) {
        for (const Question& question : of_one.questions) longest = std::max(longest, question.longest() - 1);
    }
    const int unit = sequence_unit(options.cp, options.sequence_parallel ? options.tp : 1);
    return std::cmp_less(longest, options.seq_len) ? window_size_for(options.seq_len, static_cast<int>(longest), unit)
                                                   : options.seq_len;
}

bool measure(const Options& options, Step& step, const std::vector<std::unique_ptr<Evaluation>>& evaluations,
             const TokenSet* tokens, Agreement& agreement, const Log& log) {
    if (tokens != nullptr) {
        Validation validation(step, *tokens, options.val_max_batches, agreement);
        const std::optional<float> loss = validation.loss();
        if (!loss) return false;
        log.line("val loss %f | perplexity %.3f%s | %llu sequences of %d tokens", static_cast<double>(*loss),
                 std::exp(static_cast<double>(*loss)), in_words(validation.bits_per_byte()).c_str(),
                 static_cast<unsigned long long>(validation.sequences()), options.seq_len);
        if (!validation.bits_per_byte()) {
            log.line("bits per byte are not known: there is no tokenizer beside --val-data or the model");
        }
        for (const SourceLoss& source : validation.by_source()) {
            log.line("  %s: val loss %f%s", source.name.c_str(), static_cast<double>(source.loss),
                     in_words(source.bits_per_byte).c_str());
        }
    }
    for (const std::unique_ptr<Evaluation>& evaluation : evaluations) {
        const std::optional<EvaluationResult> result = evaluation->run(agreement);
        if (!result) return false;
        log.line("%s", evaluation->in_words(*result).c_str());
    }
    return true;
}

}   // namespace

int evaluate_model(Options options, World& world, const StopSignals& signals) {
    const Log log(world.is_first());
    open_device(world.place().local_rank);
    const std::unique_ptr<WeightSource> weights = only_finite(find_weights(
        real_files(), options.model, log, ranks_of(world), state_of(options.weights), options.ignore_tensors));
    const ModelConfig config = weights ? weights->config() : model_config(options.model);
    if (!weights) log.warning("--model %s: its weights are random", options.model.c_str());
    if (options.seq_len == 0) options.seq_len = static_cast<int>(config.max_seq_len);
    options.recompute = Recompute::block;   // there is no backward to keep anything for
    check_layout(options);
    check_model_fits(options, config);
    fit_to_ranks(options, world.mesh().dp);
    const std::optional<TokenSet> tokens = find_tokens(options, config);
    std::vector<AskedQuestions> asked =
        read_asked_questions(options, config.vocab_size, tokenizer_of_model(real_files(), options.model, ""), log);
    if (options.seq_len <= config.max_seq_len) options.seq_len = needed_seq_len(options, asked);   // else refused
    signals.leave_if_received();

    OwnedStream stream;
    check_hardware(stream.get());
    Arena arena;
    RunParts parts(options, config, world, arena, stream.get(), false);
    Stage& stage = parts.stage;
    start_weights(stage.parameters(), stage.router_bias(), weights.get(), options.seed, stream.get());
    Step& step = parts.make_step(options, arena);
    const auto evaluations = make_evaluations(std::move(asked), options, step, arena, log);   // before any is measured
    const std::string about_attention = settle_attention(stage, options.attention, AttentionKind::auto_, world);
    if (!about_attention.empty()) log.warning("%s", about_attention.c_str());
    Agreement agreement(arena, parts.groups.all, &world, signals, stream.get());
    log.line("device memory: %.2f MiB, of which parameters %.2f", static_cast<double>(arena.bytes()) / (1 << 20),
             static_cast<double>(stage.parameters().bytes()) / (1 << 20));
    if (measure(options, step, evaluations, tokens ? &*tokens : nullptr, agreement, log)) return 0;
    log.line("%s: stopped before the end", agreement.stop().words().c_str());
    return static_cast<int>(ErrorKind::resumable);
}
