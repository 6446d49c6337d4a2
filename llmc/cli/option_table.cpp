#include "llmc/cli/option_table.h"

#include <limits>

#include "llmc/cli/auto_options.h"
#include "llmc/data/multiple_choice.h"

template <>
struct EnumNames<Picture> {
    static constexpr EnumName<Picture> list[]{{"none", Picture::none}, {"text", Picture::text}, {"svg", Picture::svg}};
};

template <>
struct EnumNames<LayoutChoice> {
    static constexpr EnumName<LayoutChoice> list[]{{"given", LayoutChoice::given}, {"auto", LayoutChoice::auto_}};
};

namespace {

constexpr int kMost = std::numeric_limits<int>::max();

// Lets a number take the value "auto", which is stored as kAutoMicroBatch.
void with_auto(OptionRow& row, int& target) {
    row.expected += ", or auto";
    row.read = [read_number = row.read, &target](const std::string& value) {
        if (value != "auto") return read_number(value);
        target = kAutoMicroBatch;
        return true;
    };
    row.spell = [spell_number = row.spell, &target] { return target == kAutoMicroBatch ? "auto" : spell_number(); };
}

}   // namespace

using enum Verb;

void OptionTable::add_options_of_models(Options& o, CommandLineOptions& beside) {
    const bool trains = takes_options_of_training(verb_);
    group_ = "General";
    taken_by(train, check);
    string("--config", beside.config, "read options from this file, lines of name = value").typed("").not_in_files();
    choice("--print-config", beside.print_config, "print all options as a file for --config, and exit")
        .typed("")
        .not_in_files();

    group_ = "Data";
    taken_by(train, check, evaluate);
    string("--data", beside.data_name,
           text("what data/NAME.sh has prepared (local, tinyshakespeare, ...), or a folder: stands for ",
                trains ? "--train-data FOLDER/ --val-data FOLDER/ where those are not given" : "--val-data FOLDER/",
                "; several with weights, as in web:0.7,code:0.3, are a mixture"))
        .not_in_files();   // files have what it stands for
    taken_by(train, check);
    string("--train-data,-i", o.train_data,
           "token files to train on: a pattern (quote it), or a folder for the training shards in it; "
           "PATTERN:WEIGHT,... mixes sources by shares of samples");
    string("--data-schedule", o.data_schedule,
           "a file of lines as in `1000 web:0.5,code:0.5`: weights of the mixture from a step on");
    taken_by(train, check, evaluate);
    choice("--document-mask", o.document_mask,
           "documents that share a sequence do not see each other, and the positions of each begin anew");
    choice("--boundary-loss", o.boundary_loss,
           "with --document-mask: the last token of a document is to predict that another one begins; 0: there is no "
           "loss")
        .unless("--document-mask", "0");
    string("--val-data,-j", o.val_data,
           text("token files to ", trains ? "validate" : "measure",
                " on: a pattern (quote it), or a folder for the validation shards in it",
                trains ? "; not read with --val-every 0" : ""));
    taken_by(train, check);
    taken_by(data);
    number("--samples", o.samples_of, 1, kMost, "the step whose samples are shown").not_in_files();
    number("--inspect", o.inspect_at, 0, std::int64_t{1} << 62,
           "a token, counted through the files of --train-data: the text of --seq-len tokens from there on, "
           "how long documents are, and what --document-mask would leave of attention")
        .not_in_files();
    taken_by(train, check);
    choice("--overfit-single-batch,-a", o.overfit_single_batch,
           "train on the first batch of the validation data only, to see the loss go to zero; --train-data is not "
           "read");

    group_ = "Model";
    taken_by(train, check, generate, evaluate, export_model);
    string("--model,-e", o.model,
           trains ? text("a size (", model_names(), "), an llm.c model file, a Hugging Face folder, a checkpoint or a ",
                         "run's output folder (its newest checkpoint)")
                  : "a checkpoint, the output folder of a run (its newest checkpoint), a Hugging Face folder or an "
                    "llm.c model file");
    string("--ignore-tensors", o.ignore_tensors,
           "names of tensors, as in 'model.layers.2.*,*.bias', that a Hugging Face folder may have though its "
           "config.json describes a model without them");
    taken_by(generate, evaluate, export_model);
    choice("--weights", o.weights, "which of a checkpoint's: the model's, or their average that --ema has kept");
    taken_by(train, check);
    number("--layers", o.layers, 0, 10000, "transformer blocks; with --heads and --channels instead of --model");
    number("--heads", o.heads, 0, 10000, "attention heads of a block");
    number("--channels", o.channels, 0, 1 << 20, "width of the residual stream");
    taken_by(train, check, evaluate);
    number("--vocab-size", o.vocab_size, 0, 1 << 24,
           trains ? "token ids the model knows; 0: as the data's tokenizer or the model file says, else GPT-2's 50257; "
                    "plan: a named model's own"
                  : "ids of the model, where it is meant to have more than the data's tokenizer");
    taken_by(train, check);
    string("--arch", o.arch, "a Hugging Face config.json: the model, with random weights; instead of --model");
    for (const ModelField& of : model_fields()) {
        if (!of.basic) field(of, o.architecture);
    }
}

void OptionTable::add_options_of_training(Options& o, CommandLineOptions& beside) {
    const bool trains = takes_options_of_training(verb_);
    group_ = "Shape of a step";
    taken_by(train, check, evaluate);
    OptionRow& size = number("--micro-batch,-b", o.micro_batch, 1, 1 << 20,
                             trains ? "sequences computed at once, B; auto: the most that divide --total-batch and fit"
                                    : "sequences computed at once, B");
    if (trains) with_auto(size, o.micro_batch);
    OptionRow& length = number(
        "--seq-len,-t", o.seq_len, 1, 1 << 24,
        trains
            ? "tokens of a sequence, T; by default the positions of a --model or --arch that is given; a rotary model "
              "gets more if T is more"
            : "tokens of a sequence, T; by default the model's positions");
    length.spell = [spell = length.spell, &o] { return o.seq_len == 0 ? "" : spell(); };
    taken_by(train, check);
    string("--seq-len-schedule", o.seq_len_schedule,
           "shorter sequences from some steps on, as in 1:256,2000:512,4000:1024: those of --seq-len tokens are cut in "
           "place, so that steps keep their tokens; validation does not cut them");
    number("--total-batch,-d", o.total_batch, -1, kMostTokensOfStep,
           "tokens per step, a multiple of B*T; -1 or 0: B*T, no accumulation");
    string("--batch-schedule", o.batch_schedule,
           "tokens per step from later steps on, as in 1000:65536,5000:131072; before them --total-batch");
    number("--max-steps,-x", o.max_steps, -1, kMost, "steps of the whole run; -1: one epoch");
    number("--stop-after", o.stop_after, 0, kMost, "end early after this step, the schedule unchanged; 0: do not")
        .of_start();
    number("--time-limit", o.time_limit, 0, kMost,
           "so many seconds after the program began, save after the step at hand and end with exit code 75; 0: none")
        .of_start();

    group_ = "Optimiser and schedule";
    choice("--schedule,-k", o.schedule,
           "the learning rate after the warm-up, with q = --final-lr-frac and x from 0 to 1 until the last step. "
           "cosine: lr (q + (1 - q) (1 + cos(pi x)) / 2); linear: lr (1 - (1 - q) x); wsd: lr until 80% of all "
           "steps, then lr (q + (1 - q) (1 - sqrt(y))), y from 0 to 1 over the last 20%; constant: lr in every "
           "step, --warmup and --final-lr-frac are ignored");
    number("--decay-steps", o.decay_steps, 0, kMost,
           "of --schedule wsd: the learning rate falls over the last so many steps; 0: over 20% of all")
        .with("--schedule", {"wsd"});
    number("--lr,-l", o.lr, 0, 10, "highest learning rate");
    choice("--lr-scaling", o.lr_scaling,
           "how learning rates follow the batch of a step, k times that of --lr-batch: times k, sqrt(k) or 1");
    number("--lr-batch", o.lr_batch, 0, kMostTokensOfStep,
           "tokens of a step for which --lr and --muon-lr are given; 0: those of the first step")
        .unless("--lr-scaling", "none");
    number("--warmup,-u", o.warmup, 0, kMost, "steps over which the learning rate rises: lr step / warmup");
    number("--final-lr-frac,-q", o.final_lr_frac, 0, 1,
           "learning rate at the end, as a fraction of --lr; 1 (llm.c's default): it never falls");
    choice("--optimizer", o.optimizer,
           "the rule by which weights follow gradients: adamw; muon makes the updates of layers' matrices orthogonal, "
           "adamw "
           "is for the rest; lamb and lars, for large batches, scale the update of "
           "every tensor to its weights; sgd: with momentum");
    number("--weight-decay,-c", o.weight_decay, 0, 10,
           "decay of the weight matrices, AdamW's: w -= lr decay w; biases and norms have none");
    number("--beta1", o.beta1, 0, 0.999999f, "adamw, lamb: decay of the first moment; lars, sgd: momentum");
    number("--beta2", o.beta2, 0, 0.999999f, "adamw, lamb: decay of the second moment");
    number("--eps", o.eps, 1e-20f, 1, "adamw, lamb: added to the root of the second moment");
    number("--lars-trust", o.lars_trust, 1e-9f, 1e3f,
           "lars: what a tensor may move in a step at --lr 1, as a fraction of its weights' norm")
        .with("--optimizer", {"lars"})
        .idle();
    number("--muon-lr", o.muon_lr, 0, 10, "muon: highest learning rate of layers' matrices; --lr is that of the rest")
        .with("--optimizer", {"muon"})
        .idle();
    number("--muon-momentum", o.muon_momentum, 0, 0.999999f, "muon: momentum of layers' matrices, Nesterov's")
        .with("--optimizer", {"muon"})
        .idle();
    choice("--muon-coefficients", o.muon_coefficients, "muon: the polynomials of its five iterations")
        .with("--optimizer", {"muon"})
        .idle();
    choice("--muon-scale", o.muon_scale,
           "muon: how far a matrix moves, original: sqrt(max(1, out / in)), match-rms-adamw: 0.2 sqrt(max(out, in)), "
           "which goes with a --muon-lr like AdamW's")
        .with("--optimizer", {"muon"})
        .idle();
    number("--ema", o.ema, 0, 0.9999999f,
           "keep an average of the weights with this decay (min(ema, (1 + t) / (10 + t)) at step t) beside them, for "
           "--weights ema of other verbs; 0: none");
    number(
        "--z-loss", o.z_loss, 0, 1,
        "c: training's loss of a token has c lse^2 more, lse the logarithm of the sum of exponentials of its logits, "
        "which keeps that near 0 (PaLM: 1e-4); losses of validation have not");
    number("--capacity-factor", o.capacity_factor, 0, 1e9f,
           "in training an expert takes at most this many times its even share of a rank's rows of a micro-batch, and "
           "later tokens go without it; 0: no token is dropped");
    number("--grad-clip", o.grad_clip, 0, 1e9f, "largest norm of all gradients together; 0: no clipping");
    number("--skip-loss-z", o.skip_loss_z, 0, 1e9f, "skip updates whose loss has a z-score above this; 0: never")
        .llmc("-sl");
    number("--skip-norm-z", o.skip_norm_z, 0, 1e9f, "the same for the gradient norm").llmc("-sg");
    number("--spike-rewind", o.spike_rewind, 0, kMost,
           "above those z-scores go back to the last checkpoint and pass over the samples since, at most so often "
           "from one checkpoint, then stop with exit code 65; 0: never")
        .unless("--output-dir", "")
        .unless_all({{"--skip-loss-z", "0"}, {"--skip-norm-z", "0"}});
    number("--max-bad-steps", o.max_bad_steps, 0, kMost,
           "stop, with exit code 65, after so many steps in a row whose loss or gradient norm is not finite; 0: never");
    taken_by(train, check, generate);
    number("--seed", o.seed, 0, std::numeric_limits<std::uint64_t>::max(),
           trains ? "of the initial weights, the sample order and stochastic rounding"
                  : "the same seed draws the same text");

    group_ = "Validation and sampling";
    taken_by(train, check);
    number("--val-every,-v", o.val_every, 0, kMost, "validate every this many steps, and first and last; 0: never");
    taken_by(train, check, evaluate);
    number("--val-max-batches", o.val_max_batches, -1, kMost, "sequences of a validation; -1: all");
    taken_by(train, check);
    number("--val-max-micro-batches,-m", beside.llmc_val_batches, -1, kMost,
           "the same in units of --micro-batch sequences, llm.c's -m; over all ranks together, where llm.c counts "
           "those of every rank; --val-max-batches wins; -1: all")
        .not_in_files();   // files have it in sequences
    number("--sample-every,-s", o.sample_every, 0, kMost, "let the model write every this many steps; 0: never");
    number("--sample-tokens,-g", o.sample_tokens, 1, 1 << 20, "tokens of a sample, with --sample-every");
    number("--sample-count", o.sample_count, 1, 1000, "samples at a time, with --sample-every");
    string("--sample-prompt", o.sample_prompt,
           "the text that samples go on from; empty: what follows an end-of-text token");
    taken_by(train, check, generate);
    number("--temperature", o.temperature, 0, 100, "of samples; 0: always the likeliest token, whatever --seed is");
    taken_by(train, check, evaluate);
    choice("--hellaswag", o.hellaswag,
           trains ? "answer multiple-choice questions with every validation but the first, llm.c's -h; none with "
                    "--val-every 0"
                  : "answer multiple-choice questions")
        .llmc("-h");
    string("--hellaswag-data", o.hellaswag_data, "the questions, in llm.c's format");
    string("--evaluate,--eval", o.evaluations,
           text("evaluations beside --hellaswag, when it is made: ", names_of_sources(),
                ", or several with commas between, as NAME or NAME=FILE; docs/data.md says how to prepare files"));
    choice("--strict", o.strict, "refuse questions longer than --seq-len, which else lose the left of their context");

    group_ = "Output";
    taken_by(train, check);
    string("--output-dir,-o", o.output_dir, "folder of metrics.jsonl, main.log and checkpoints; empty: write none")
        .of_start();
    choice("--tensorboard", o.tensorboard,
           "also write what metrics.jsonl has as an event file for TensorBoard, into --output-dir")
        .unless("--output-dir", "");
    number("--metrics-port", o.metrics_port, 0, 65535,
           "rank 0 serves metrics.jsonl's newest values at http://HOST:PORT/metrics, for Prometheus; 0: it does not");
    string("--metrics-host", o.metrics_host,
           "the HOST of --metrics-port, an address or name of rank 0's machine; 0.0.0.0 or :: is all of its addresses, "
           "for everyone who reaches them")
        .unless("--metrics-port", "0");
    number("--log-every", o.log_every, 0, kMost,
           "print a line every this many steps, and first and last; 0: the first ten, then one in five seconds; a "
           "terminal shows each step, in place");
    number("--checkpoint-every,-n", o.checkpoint_every, 0, kMost,
           "save every this many steps; in any case after the last one, and where the run is cut short")
        .unless("--output-dir", "");
    number(
        "--keep-checkpoints", o.keep_checkpoints, 0, kMost,
        "keep only the N newest periodic checkpoints, and the one that the run resumed from, llm.c's -nk; 0: keep all")
        .llmc("-nk");
    number("--major-checkpoint-every", o.major_checkpoint_every, 0, kMost,
           "checkpoints of every this many steps are kept for good, llm.c's -nm")
        .llmc("-nm");
    choice("--keep-best", o.keep_best, "save the state of the lowest validation loss too, in the folder best")
        .unless("--output-dir", "")
        .unless("--val-every", "0");
    choice("--resume,-y", o.resume,
           "continue from the newest checkpoint in --output-dir, if there is one; options that are not given are "
           "those of its options.json")
        .of_start()
        .unless("--output-dir", "");
    string(
        "--branch-from", o.branch_from,
        "a checkpoint of another run, or its folder (the newest): continue that run in --output-dir, as --resume does, "
        "with the options given now; as with a shorter --max-steps and --decay-steps, to end a wsd run")
        .of_start()
        .unless("--output-dir", "");
    choice("--reset-optimizer", o.reset_optimizer,
           "resume with moments that are zero: what --resume with another --optimizer needs")
        .of_start()
        .unless_all({{"--resume", "0"}, {"--branch-from", ""}});
    choice("--overwrite", o.overwrite, "begin anew where --output-dir holds results, which are removed").of_start();
    string("--export-llmc", o.export_llmc, "write the final weights to this file, in llm.c's format");
    elsewhere("--log-gpu-every", "-1", "print the GPU's state every this many steps, llm.c's -lg",
              "Leave -lg out, and run `nvidia-smi dmon -s puct` beside it: clocks, power, temperature, use.")
        .llmc("-lg");
    string("--trace", o.trace,
           "write the second step of the run to this file, as a Chrome trace on a virtual clock (build without a GPU)")
        .of_start();

    group_ = "Numerics and memory";
    taken_by(train, check, evaluate);
    choice("--attention", o.attention,
           "whose attention: own kernels or the library's; own-sm90: kernels for H100 and H200; auto: "
           "the fastest of them on a GPU, the library's on a CPU");
    taken_by(train, check);
    choice("--grad-dtype", o.grad_dtype, "type in which gradients accumulate");
    taken_by(train, check, evaluate);
    choice("--matmul-dtype", o.matmul_dtype,
           "operands of layers' matmuls: bf16, as they are stored (in fp32 builds fp32); fp8-emulated: rounded to e4m3 "
           "in blocks as for fp8, multiplied as stored; gradients of weights always as stored");
    choice("--tf32,-f", o.tf32, "let fp32 builds multiply in TF32; bf16 builds ignore it");
    taken_by(train, check);
    choice(
        "--master-weights,-w", o.master_weights,
        "keep fp32 copies of bf16 weights; compact: their lower 16 bits beside the bf16 weights, with the same result, "
        "2 bytes a parameter less; 0: stochastic rounding; fp32 builds have none of these")
        .is_switch = true;
    choice("--moments", o.moments,
           "type of the optimizer's moments; bf16: rounded stochastically, with AdamW 4 bytes a parameter less");
    number("--gelu-fusion", o.gelu_fusion, 0, 2,
           "GELU as part of a matmul, llm.c's -ge; 0: no, 1: in forward, 2: in backward too")
        .llmc("-ge");
    number(
        "--matmul-tries", o.matmul_tries, 0, 64,
        "cuBLASLt algorithms timed for each matmul before the first step, beside own kernels on an H100 or H200, the "
        "fastest kept; 1: its first, untimed; 0: 16 on a GPU, 1 on a CPU");
    choice("--force-balance", o.force_balance,
           "for measuring alone: experts are chosen in turn, so that each gets equally many tokens; goes with no "
           "--output-dir, because such a model is not worth keeping");
    choice("--recompute,-r", o.recompute,
           "what backward computes again instead of storing it; auto: the least with which nine tenths of every "
           "device's memory suffice");
    choice("--print-memory", o.print_memory,
           "print what one of --processes ranks, or of --dp replicas, will take of its device, and exit; no device of "
           "theirs is needed")
        .not_in_files();
}

void OptionTable::add_options_of_many(Options& o, CommandLineOptions& beside) {
    group_ = "Many devices";
    taken_by(train, check, evaluate);
    is_taken_ = verb_ == train;
    choice("--layout", beside.layout,
           "auto: of --tp, --pp, --dp, --cp, --cp-mode, --ep, --pp-schedule, --pp-chunks, --zero and --recompute those "
           "not given are set as `train_gpt plan --search` finds")
        .not_in_files();
    taken_by(train, check, evaluate);
    number("--zero,-z", o.zero, 0, 3, "ZeRO stage: what data-parallel ranks share out; one rank shares nothing");
    number(
        "--zero-group", o.zero_group, 0, kMost,
        "neighbouring ranks that ZeRO shares out over, while every such group keeps a copy; 0: all that hold the same")
        .unless_all({{"--zero", "0"}, {"--local-steps", "0"}});
    taken_by(train, check);
    number("--local-steps", o.local.every, 0, kMost,
           "DiLoCo: steps of each group of --zero-group ranks by itself before a common outer step; 0: none");
    number("--outer-lr", o.local.lr, 0, 1e6f,
           "learning rate of the outer step of --local-steps, from the last common weights to the groups' average")
        .unless("--local-steps", "0");
    number("--outer-momentum", o.local.momentum, 0, 0.9999999f,
           "momentum of the outer step of --local-steps, Nesterov's")
        .unless("--local-steps", "0");
    choice("--outer-compression", o.local.compression,
           "what travels in the outer step of --local-steps: weights in fp32, or their deltas, in 8 or 2 bits with a "
           "scale "
           "for 256 of them, or only the largest; what is left out is sent the next time")
        .unless("--local-steps", "0");
    number("--outer-topk", o.local.topk, 1.0f / 1024, 1,
           "fraction of each 1,024 deltas that --outer-compression topk sends; --outer-momentum is the share of the "
           "rest that is kept for the next outer step")
        .with("--outer-compression", {"topk"});
    number("--outer-fragments", o.local.fragments, 1, kMost,
           "parts of the model that take their outer steps in turns, each every --local-steps: layers are dealt out to "
           "them")
        .unless("--local-steps", "0");
    number("--outer-delay", o.local.delay, 0, kMost, "steps that an outer step travels, while ranks go on training")
        .unless("--local-steps", "0");
    number("--outer-blend", o.local.blend, 0, 0.9999999f,
           "share of its own weights that a group keeps when those of all arrive")
        .unless("--local-steps", "0");
    choice("--grad-compression", o.grad_compression.how,
           "in what gradients travel between data-parallel ranks under --zero 0 and 1, or between the groups of "
           "--zero-group: as they are, in bf16, in 8 bits with a scale for 256 of them, only the largest, or matrices "
           "as products of two thin ones; what is left out goes along in the next step");
    number("--grad-topk", o.grad_compression.topk, 1.0f / 1024, 1,
           "fraction of each 1,024 gradients that --grad-compression topk sends, 8 bytes for each that travels")
        .with("--grad-compression", {"topk"});
    number("--grad-rank", o.grad_compression.rank, 1, 256,
           "rank of the products that --grad-compression powersgd sends in place of matrices")
        .with("--grad-compression", {"powersgd"});
    number(
        "--grad-compression-start", o.grad_compression.start, GradCompressionOptions::from_default, kMost,
        "steps whose gradients travel as they are before --grad-compression begins; -1: a tenth of all with powersgd, "
        "else none")
        .unless("--grad-compression", "none");
    number("--staleness", o.staleness, 0, 1,
           "1: each step applies the gradients of the step before, whose sum over ranks travels meanwhile");
    taken_by(train, check, evaluate);
    number("--dp", o.dp, 0, kMost, "ranks of data parallelism; 0: what the number of processes leaves");
    number("--tp", o.tp, 1, 1 << 16, "ranks of tensor parallelism, which share every matrix; inside a node");
    number("--tp-chunks", o.tp_chunks, 1, 1 << 10,
           "chunks of rows in which tp ranks communicate forward, each behind the next one's matmul");
    number("--comm-sms", o.comm_sms, 0, 1024,
           "collectives take so many multiprocessors at most; matmuls leave them where that pays; 0: NCCL chooses");
    choice("--sequence-parallel", o.sequence_parallel,
           "tp ranks share the rows of layernorms and residual streams too");
    number("--ep", o.ep, 1, 1 << 16,
           "neighbouring ranks of dp x cp x tp that experts are dealt out to; tokens travel to them and back");
    number("--ep-chunks", o.ep_chunks, 1, 1 << 10,
           "chunks of a rank's experts: tokens of one chunk travel while another's are worked on")
        .unless("--ep", "1")
        .idle();
    number("--pp", o.pp, 1, 1 << 12, "ranks of pipeline parallelism: each has some of the layers");
    taken_by(train, check);
    choice("--pp-schedule", o.pipeline.kind, "in which order a pipeline stage works on its micro-batches")
        .unless("--pp", "1")
        .idle();
    number("--pp-chunks", o.pipeline.chunks, 1, 1 << 10,
           "pieces of the model that each stage has, for --pp-schedule interleaved")
        .with("--pp-schedule", {"interleaved"});
    number("--pp-warmup", o.pipeline.warmup, 0, 1 << 10,
           "micro-batches more that a pipeline keeps between two neighbours, which hides slow links")
        .unless("--pp", "1")
        .with("--pp-schedule", {"1f1b", "zb"});
    string("--schedule-costs", beside.costs,
           "for --print-schedule: what forward, gradients of inputs, of weights and a link take, in any unit")
        .not_in_files();
    choice("--print-schedule", beside.picture,
           "print the order of work of --pp stages (of --dp replicas), its bubble and what it keeps, as text or svg, "
           "and exit")
        .not_in_files();
    taken_by(train, check, evaluate);
    number("--cp", o.cp, 1, 1 << 16, "ranks of context parallelism, which share each sequence");
    choice("--cp-mode", o.cp_mode,
           "keys and values travel a ring, heads are exchanged for tokens, or both: rings of such groups")
        .unless("--cp", "1")
        .idle();
    number("--cp-ulysses", o.cp_ulysses, 0, 1 << 16,
           "for --cp-mode hybrid: ranks of a group that exchanges heads; 0: as the mode says")
        .with("--cp-mode", {"hybrid"})
        .idle();
    StartupOptions& start = o.startup;
    choice("--init", start.method, "how processes find each other, llm.c's -pi; auto: as they were started")
        .llmc("-pi")
        .of_start();
    string("--init-address", start.address,
           "HOST:PORT of rank 0 for --init tcp ([::1]:29500 for IPv6), llm.c's -ps; empty: MASTER_ADDR and MASTER_PORT")
        .llmc("-ps")
        .of_start();
    string("--init-folder", start.folder, "a folder that all processes see, for --init fs, llm.c's -pf")
        .llmc("-pf")
        .of_start();
    number("--init-timeout", start.timeout_seconds, 1, 1e6, "seconds to wait for the other processes").of_start();
    number("--processes", start.ranks, -1, 1 << 24, "how many there are, llm.c's -pn; -1: ask the launcher")
        .llmc("-pn")
        .of_start();
    number("--process-rank", start.rank, -1, 1 << 24, "which this one is, llm.c's -pr; -1: ask the launcher")
        .llmc("-pr")
        .not_in_files();
    number("--gpus-per-node", start.gpus_per_node, 0, 1 << 16,
           "process r of a node drives GPU r modulo this, llm.c's -pg; 0: ask the launcher")
        .llmc("-pg")
        .of_start();
    number("--peer-timeout", o.peer_timeout_s, 0.1, 1e6,
           "seconds after which a silent process counts as lost; all others end with exit code 75");
    number("--stall-timeout", o.stall_timeout_s, 0, 1e6,
           "the same for the one that the others wait for, when nothing advances for so long and none starts up or "
           "writes a checkpoint; 0: never");
    choice("--check-collectives", o.check_collectives,
           "debug: stop and say so when ranks call their collectives in different orders");
    taken_by(train, check);
    number("--check-replicas", o.check_replicas, 0, 1000000000,
           "compare every so many steps, and before each checkpoint, what ranks must hold alike, and stop naming a "
           "rank and a tensor that differ; 0: never");
}

void OptionTable::add_options_of_verbs(GenerateOptions& g, ExportOptions& e) {
    group_ = "Writing";
    taken_by(generate);
    string("--prompt", g.prompt, "the text to go on from; empty: what follows an end-of-text token");
    string("--prompt-file", g.prompt_file, "read it from this file, or from standard input (-)");
    taken_by(generate, export_model);
    string("--tokenizer", g.tokenizer,
           "bytes, or a file or folder, as for tokenize; empty: the one that lies beside the model");
    taken_by(generate);
    number("--tokens", g.tokens, 1, kMost, "most tokens to write");
    number("--top-k", g.top_k, 0, kMost, "draw from the so many likeliest tokens; 0: from all");
    number("--top-p", g.top_p, 0, 1, "draw from the likeliest tokens whose probabilities add up to this; 1: from all");
    choice("--stop-at-end", g.stop_at_end, "stop at a token that ends a text; 0: write on");

    group_ = "Export";
    taken_by(export_model);
    choice("--to", e.to, "whose format: a Hugging Face folder, or llm.c's model file");
    string("--output", e.output, "the folder or file to write; there must be none yet");
    choice("--dtype", e.dtype, "type of the weights, rounded to nearest; model: the one they have");
}

void OptionTable::add_options_of_plan(Options& o) {
    PlanOptions& p = o.plan;
    group_ = "Plan";
    is_taken_ = verb_ == check;
    string("--write-machine", o.write_machine,
           "also measure this machine, and write what `plan --machine` reads to this file")
        .not_in_files();
    auto of_plan = [](OptionRow& row) { row.not_in_files(); };
    is_taken_ = verb_ == plan;
    of_plan(
        string("--gpu", p.gpu,
               "the devices, by a name of the table of speeds (docs/plan.md): H100, H200, GH200, B200, GB200, GB300, "
               "A100, A100-PCIe, L40S, A6000, RTX4090, RTX5090"));
    OptionRow& memory = number("--gpu-memory", p.gpu_memory, 0, 1 << 20,
                               "GiB of memory of a device, as in 24 or 24GB; 0: the machine's");
    memory.read = [read_number = memory.read](const std::string& value) {
        for (const std::string_view unit : {"GiB", "GB"}) {
            if (value.ends_with(unit)) return read_number(value.substr(0, value.size() - unit.size()));
        }
        return read_number(value);
    };
    of_plan(memory);
    is_taken_ = verb_ == plan || verb_ == train;
    of_plan(string("--machine", p.machine,
                   verb_ == plan ? "a file of `train_gpt check --write-machine`, instead of --gpu"
                                 : "for --layout auto: a file of `train_gpt check --write-machine`, where the table of "
                                   "`train_gpt plan` does not have this device"));
    is_taken_ = verb_ == plan;
    of_plan(string("--link-intra", p.link_intra,
                   "GB/s,us: what a device sends inside a node, and a message's latency; empty: the machine's"));
    of_plan(string("--link-inter", p.link_inter, "the same between nodes"));
    OptionRow& price = number("--price", p.price, 0, 1e6, "of a GPU-hour, in any currency; may begin with $");
    price.read = [read_number = price.read](const std::string& value) {
        return read_number(value.starts_with("$") ? value.substr(1) : value);
    };
    of_plan(price);
    of_plan(number("--efficiency", p.efficiency, 0, 2,
                   "speed of the run as a share of the planned one, for one time instead of a range; 0: not known"));
    of_plan(
        string("--tokens", p.tokens,
               "to train on, as 300B or 300e9; 20x: per parameter, all experts counted; 20x-active: per parameter of a "
               "token's own experts and the rest; empty: those of --max-steps, else 20x"));
    OptionRow& deadline = number("--deadline", p.deadline, 0, 1e6,
                                 "find the cheapest number of GPUs with which the run ends within this time, as 36h, "
                                 "14d or 2w, at the late end of the range, and plan that; 0: none");
    deadline.expected = "expected a time in hours, days or weeks, as 36h, 14d or 2w";
    deadline.read = [&p, read_number = deadline.read](const std::string& value) {
        for (const auto& [unit, seconds] : {std::pair('h', 3600.0), {'d', 86400.0}, {'w', 7 * 86400.0}}) {
            if (!value.ends_with(unit)) continue;
            if (!read_number(value.substr(0, value.size() - 1)) || p.deadline == 0) return false;
            p.deadline *= seconds;
            return true;
        }
        return value == "0" && read_number(value);
    };
    of_plan(deadline.typed("TIME"));
    of_plan(choice("--search", p.search, "find the fastest layout of as many devices that fits, and plan that"));
    of_plan(string("--compare", p.compare,
                   "a run's --output-dir: what it measured stands beside what is planned of the same options"));
    of_plan(choice("--verbose", p.verbose,
                   "print the long form: parameters, memory of every kind of stage, traffic of every group, failures"));
    of_plan(choice("--json", p.json, "print JSON"));
    of_plan(string("--svg", p.svg, "a file to write: memory as bars, and the order of a step's work"));
}

OptionTable::OptionTable(Verb verb, Options& options, CommandLineOptions& beside) : verb_(verb) {
    add_options_of_models(options, beside);
    add_options_of_training(options, beside);
    add_options_of_many(options, beside);
    add_options_of_verbs(options.generate, options.exported);
    add_options_of_plan(options);
}

std::string OptionTable::lacks(const OptionRow& row,
                               const std::function<std::string(const OptionRow&)>& value_of) const {
    for (const OptionRow::Condition& cases : row.read_if) {
        std::string words;
        bool holds = false;
        for (const OptionRow::Case& is : cases) {
            const OptionRow* const other = find(is.option);   // an option that the verb has not is off
            holds = holds || (other != nullptr && (value_of(*other) == is.value) == is.equal);
            if (other == nullptr) continue;
            const std::string after = is.equal ? " " + is.value : "";
            words += words.empty() ? is.option + after : " or " + (words.starts_with(is.option) ? is.value : is.option);
        }
        if (!holds) return words;
    }
    return "";
}

const OptionRow* OptionTable::find(const std::string& flag) const {
    for (const OptionRow& row : rows_) {
        if (!flag.empty() && (flag == row.name || flag == row.letters)) return &row;
    }
    return nullptr;
}

OptionRow& OptionTable::row(const std::string& names, const std::string& type, const std::string& words) {
    const std::size_t comma = names.find(',');
    OptionRow added{.name = names.substr(0, comma),
                    .letters = comma == std::string::npos ? "" : names.substr(comma + 1),
                    .type = type,
                    .group = group_,
                    .words = words};
    return is_taken_ ? rows_.emplace_back(std::move(added)) : untaken_ = std::move(added);
}

OptionRow& OptionTable::elsewhere(const std::string& name, const std::string& only, const std::string& words,
                                  const std::string& instead) {
    OptionRow& added = row(name, "", words + " (not served)");
    added.group = "";   // not shown
    added.spell = [only] { return only; };
    added.read = [only](const std::string& value) { return value == only; };
    added.expected = "not part of this program, expected " + only;
    added.hint = instead;
    return added;
}
