#include "llmc/run/options/part_options.h"
#include "llmc/io/json_file.h"

#include <algorithm>
#include <iterator>

#include "llmc/base/refuse.h"
#include "llmc/data/corpus/corpus_check.h"
#include "llmc/data/questions.h"
#include "llmc/model/families/weight_source.h"
#include "llmc/run/options/layout_options.h"

namespace {

// Gives a rotary model as many positions as --seq-len, if those are more.
void fit_positions(const Options& options, ModelConfig& config) {
    if (config.positions != PositionKind::rotary) return;
    config.max_seq_len = std::max<std::int64_t>(config.max_seq_len, options.seq_len);
}

// Begins the scaling that is asked for with its defaults, if the model has another one. `original_len`: default of
// --rope-original-len; 0: that of a new model.
void begin_asked_scaling(const Options& options, std::int64_t original_len, ModelConfig& config) {
    const auto asked = options.architecture.find("rope-scaling");
    if (asked == options.architecture.end()) return;
    const auto scaling = static_cast<RopeScaling>(asked->second);
    if (scaling == config.rope_scaling) return;
    for (const ModelField& field : model_fields()) {
        if (!field.of_scalings.empty()) field.set(config, field.get(ModelConfig{}));
        if (std::string_view(field.name) == "rope-original-len" && field.is_of(scaling)) {
            field.set(config, static_cast<double>(original_len));
        }
    }
    config.rope_scaling = scaling;
}

void check_asked_scaling(const Options& options, const ModelConfig& config) {
    const auto original_len = options.architecture.find("rope-original-len");
    refuse_if(original_len != options.architecture.end() && original_len->second == 0,
              "--rope-original-len 0: expected at least 1",
              "Give the positions that the model had before it was scaled, or leave the option out.");
    const bool is_asked = options.architecture.contains("rope-scaling") && config.rope_scaling != RopeScaling::none;
    refuse_if(is_asked && config.rope_factor == 1, "--rope-scaling without a --rope-factor above 1: it scales nothing",
              "Give the factor: the new --seq-len over the positions that the model had, or --rope-scaling none.");
}

}   // namespace

ModelConfig described_model(const Options& options, std::int64_t vocab_size) {
    ModelConfig config;
    if (!options.arch.empty()) {
        config = read_hugging_face_config(read_json_file(real_files(), options.arch), options.arch);
    } else if (options.layers > 0) {
        config = custom_model_config(options.layers, options.heads, options.channels, options.seq_len);
    } else {
        config = model_config(options.model);
    }
    begin_asked_scaling(options, 0, config);
    apply(options.architecture, config);
    // without windows, what the file says of layers that slide goes too; what was given is refused
    for (const auto& [option, plain] : {std::pair("layer-pattern", pattern_number("")), {"rope-window-theta", 0.0}}) {
        if (config.window == 0 && !options.architecture.contains(option)) apply({{option, plain}}, config);
    }
    fit_positions(options, config);
    check_asked_scaling(options, config);
    if (vocab_size > 0) config.vocab_size = vocab_size;
    config.padded_vocab_size = padded_vocab(config.vocab_size);
    check_model_config(config);
    return config;
}

ModelConfig continued_model(const ModelConfig& model, const Options& options) {
    if (model.positions != PositionKind::rotary) return model;
    ModelConfig config = model;
    fit_positions(options, config);
    begin_asked_scaling(options, model.max_seq_len, config);
    for (const ModelField& field : model_fields()) {
        const auto given = options.architecture.find(field.name);
        if (field.may_change && given != options.architecture.end()) field.set(config, given->second);
    }
    check_asked_scaling(options, config);
    check_model_config(config);
    return config;
}

WorldOptions world_options(const Options& options) {
    WorldOptions result;
    result.startup = options.startup;
    result.pp = options.pp;
    result.cp = options.cp;
    result.tp = options.tp;
    result.dp = options.dp;
    result.zero_group = options.zero_group;
    result.ep = options.ep;
    result.watchdog.silence_seconds = options.peer_timeout_s;
    result.watchdog.stall_seconds = options.stall_timeout_s;
    result.comm_sms = options.comm_sms;
    result.check_collectives = options.check_collectives;
    return result;
}

MatmulOptions matmul_options(const Options& options) {
    const bool may_serve = sizeof(floatX) == sizeof(bf16) && options.matmul_tries != 1;
    return {.allow_tf32 = options.tf32,
            .tries = options.matmul_tries,
            .own_kernels = may_serve ? OwnKernels::where_they_serve : OwnKernels::never};
}

StageOptions stage_options(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                           const MeshCoordinates& at) {
    StageOptions result{options};
    result.place.mesh = mesh, result.place.at = at;
    if (options.has_replicas()) {
        const Replica own = replica_of(mesh, at);
        result.place.mesh = own.mesh, result.place.at = own.at;
        result.replica = own.number, result.replicas = own.replicas;
    }
    const MeshShape& copy = result.place.mesh;
    const bool shares = group_size(copy, zero_axes) > 1 || (copy.ep > 1 && group_size(copy, holder_axes) > 1);
    result.place.zero_stage = shares ? options.zero : 0;   // a single rank keeps everything
    result.place.assigns_matrices = options.optimizer == OptimizerKind::muon;
    result.sequence_parallel = options.sequence_parallel && mesh.tp > 1;
    result.B = options.micro_batch;
    result.T = options.seq_len;
    for (std::int64_t length : options.shorter_lengths()) result.shorter_lengths.push_back(static_cast<int>(length));
    result.ulysses = options.ulysses();
    result.recompute = options.recompute.value();
    result.matmul = matmul_options(options);
    result.comm_sms = options.left_sms >= 0 ? options.left_sms : options.comm_sms;
    result.link_sms = mesh.pp > 1 ? 2 * link_sms(options.comm_sms) : 0;   // one to receive, one to send
    add_pipeline(result, options, config);
    return result;
}

std::unique_ptr<Sampler> make_sampler(const Options& options, Step& step, Arena& arena,
                                      const std::optional<Tokenizer>& tokenizer) {
    if (options.sample_every == 0) return nullptr;
    const SamplerOptions how{options.sample_tokens, options.temperature, options.seed, options.sample_prompt};
    return std::make_unique<Sampler>(step, arena, tokenizer, how);
}

std::vector<AskedEvaluation> asked_evaluations(const Options& options) {
    const std::string& list = options.evaluations;
    std::vector<AskedEvaluation> asked;
    if (options.hellaswag) asked.push_back({&hellaswag_source, options.hellaswag_data});
    for (std::size_t begin = 0; begin < list.size();) {
        const std::size_t end = std::min(list.find(',', begin), list.size()), equals = list.find('=', begin);
        const std::string name = list.substr(begin, std::min(equals, end) - begin);
        const auto known = std::ranges::find(question_sources, name, [](const auto& s) { return std::string(s.name); });
        if (known == std::end(question_sources) || end + 1 == list.size()) {
            throw Error(ErrorKind::usage, text("--evaluate ", list, ": '", name, "' is no evaluation"),
                        text("Give names of ", names_of_sources(), " with commas between, as NAME or NAME=FILE."));
        }
        if (std::ranges::find(asked, &*known, &AskedEvaluation::source) != asked.end()) {
            throw Error(ErrorKind::usage, text("--evaluate ", list, ": ", name, " is asked for twice"),
                        "Name it once; --hellaswag 1 names hellaswag too.");
        }
        asked.push_back({&*known, equals < end ? list.substr(equals + 1, end - equals - 1) : std::string(known->file)});
        begin = end + 1;
    }
    std::ranges::sort(asked, {}, &AskedEvaluation::source);
    return asked;
}

// Reads a file of questions; an error of reading names the option, too.
static std::string read_questions(const std::string& flag, const std::string& path) {
    try {
        return read_whole(real_files(), path);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::io) throw;
        throw Error(ErrorKind::io, text(flag, " ", error.message()), error.hint());
    }
}

// Loads the tokenizer of a folder; nothing where there is none, or one that is not supported.
static std::optional<Tokenizer> tokenizer_in(const std::string& folder) {
    if (folder.empty()) return std::nullopt;
    try {
        return Tokenizer::load(folder);
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_data && error.kind() != ErrorKind::io) throw;
        return std::nullopt;
    }
}

std::vector<AskedQuestions> read_asked_questions(const Options& options, std::int64_t vocab_size,
                                                 const std::string& tokenizer, const Log& log) {
    std::vector<AskedQuestions> read;
    const auto hash = tokenizer.empty() ? std::nullopt : tokenizer_hash(real_files(), tokenizer);
    const std::vector<AskedEvaluation> all_asked = asked_evaluations(options);
    const auto reads = all_asked.empty() ? std::nullopt : tokenizer_in(tokenizer);
    for (const auto& [asked, path] : all_asked) {
        // llm.c's option takes any multiple-choice file
        const bool any = options.hellaswag && asked == &hellaswag_source;
        const std::string content = read_questions(any ? "--hellaswag-data" : text("--evaluate ", asked->name), path);
        std::vector<Question> questions = parse_question_file(content, path, vocab_size, hash);
        if (const std::string warning = warning_of_questions(content, path); !warning.empty()) {
            log.warning("%s", warning.c_str());
        }
        if (const std::string warning = reads ? warning_of_contexts(questions, path, *reads) : ""; !warning.empty()) {
            log.warning("%s", warning.c_str());
        }
        const NamedSource& found = source_of_questions(content, path);
        if (&found != asked && !(any && found.source != QuestionSource::lambada)) {
            throw Error(ErrorKind::bad_data, text(path, ": questions of ", found.title, ", expected ", asked->title),
                        text("Prepare them as docs/data.md says, or with `tokenize --questions ", asked->name, "`."));
        }
        read.push_back({&found, path, std::move(questions)});
    }
    return read;
}

static void tell_left_out(const Evaluation& evaluation, const std::string& file, const Options& options, int T,
                          const Log& log) {
    const LeftOut& left_out = evaluation.left_out();
    if (left_out.questions == 0) return;
    const std::string longer =
        text(file, ": ", left_out.questions, " of ", evaluation.size(), " questions are longer than --seq-len ", T,
             " and lose the left part of their contexts, ", left_out.tokens, " tokens in all, at most ", left_out.most,
             " of one");
    refuse_if(options.strict, text("--strict 1: ", longer, "; question ", left_out.first, " is the first"),
              "Raise --seq-len, at most to the model's positions, or give --strict 0.");
    log.warning("%s", longer.c_str());
}

std::vector<std::unique_ptr<Evaluation>> make_evaluations(std::vector<AskedQuestions> asked, const Options& options,
                                                          Step& step, Arena& arena, const Log& log) {
    std::vector<std::unique_ptr<Evaluation>> evaluations;
    for (auto& [source, file, questions] : asked) {
        evaluations.push_back(std::make_unique<Evaluation>(step, std::move(questions), *source, &arena));
        tell_left_out(*evaluations.back(), file, options, step.stage().options().T, log);
    }
    return evaluations;
}
