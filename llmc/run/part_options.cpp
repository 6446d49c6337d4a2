#include "llmc/run/part_options.h"

#include "llmc/data/corpus_check.h"

#include "llmc/model/families/weight_source.h"
#include "llmc/run/layout_options.h"

ModelConfig described_model(const Options& options, std::int64_t vocab_size) {
    ModelConfig config;
    if (!options.arch.empty()) {
        config = read_hugging_face_config(read_json_file(real_files(), options.arch), options.arch);
    } else if (options.layers > 0) {
        config = custom_model_config(options.layers, options.heads, options.channels, options.seq_len);
    } else {
        config = model_config(options.model);
    }
    apply(options.architecture, config);
    if (vocab_size > 0) config.vocab_size = vocab_size;
    config.padded_vocab_size = padded_vocab(config.vocab_size);
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
    result.zero_group = options.zero > 0 ? options.zero_group : 0;
    result.watchdog.silence_seconds = options.peer_timeout_s;
    result.watchdog.stall_seconds = options.stall_timeout_s;
    result.comm_sms = options.comm_sms;
    result.check_collectives = options.check_collectives;
    return result;
}

StageOptions stage_options(const Options& options, const ModelConfig& config, const MeshShape& mesh,
                           const MeshCoordinates& at) {
    StageOptions result;
    const bool shares = group_size(mesh, zero_axes) > 1;   // one rank alone keeps everything
    result.place = {mesh, at, shares ? options.zero : 0, options.optimizer == OptimizerKind::muon};
    result.tp_chunks = options.tp_chunks;
    result.sequence_parallel = options.sequence_parallel && mesh.tp > 1;
    result.B = options.micro_batch;
    result.T = options.seq_len;
    result.ulysses = options.ulysses();
    result.attention = options.attention;
    result.recompute = options.recompute.value();
    result.gelu_fusion = options.gelu_fusion;
    result.matmul.allow_tf32 = options.tf32;
    result.matmul.tries = options.matmul_tries;
    result.comm_sms = options.comm_sms;
    result.link_sms = mesh.pp > 1 ? 2 * link_sms(options.comm_sms) : 0;   // one receives, one sends
    result.grad_dtype = options.grad_dtype;
    result.z_loss = options.z_loss;
    add_pipeline(result, options, config);
    return result;
}

std::unique_ptr<Sampler> make_sampler(const Options& options, Step& step, Arena& arena,
                                      const std::optional<Tokenizer>& tokenizer) {
    if (options.sample_every == 0) return nullptr;
    const SamplerOptions how{options.sample_tokens, options.temperature, options.seed, options.sample_prompt};
    return std::make_unique<Sampler>(step, arena, tokenizer, how);
}

std::unique_ptr<Evaluation> make_evaluation(const Options& options, Step& step, const std::string& tokenizer) {
    if (!options.hellaswag) return nullptr;
    const std::string &path = options.hellaswag_data, content = read_whole(real_files(), path);
    const auto hash = tokenizer.empty() ? std::nullopt : tokenizer_hash(real_files(), tokenizer);
    return std::make_unique<Evaluation>(step,
                                        parse_question_file(content, path, step.stage().config().vocab_size, hash),
                                        title_of_questions(content, path));
}
