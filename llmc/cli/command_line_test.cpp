#include "llmc/cli/command_line.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "llmc/base/error.h"
#include "llmc/io/file.h"
#include "llmc/io/temporary_folder_testing.h"
#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/part_options.h"

namespace {

Options parse(std::vector<std::string> arguments) { return parse_command_line(std::move(arguments)).options; }

// Returns the message about these arguments, with the exit code in front.
std::string complaint(std::vector<std::string> arguments) {
    try {
        parse_command_line(std::move(arguments));
    } catch (const Error& error) {
        return text(error.exit_code(), " ", error.what());
    }
    return "";
}

}   // namespace

TEST_CASE("options: defaults are llm.c's where nothing else is said") {
    Options o = parse({});
    CHECK(o.micro_batch == 4);
    CHECK(o.seq_len == 1024);
    CHECK(o.tokens_per_step() == 4096);
    CHECK(o.micro_steps() == 1);
    CHECK(o.max_steps == -1);
    CHECK(o.lr == 3e-4f);
    CHECK(o.final_lr_frac == 1.0f);
    CHECK(o.weight_decay == 0.0f);
    CHECK(o.val_every == 20);
    CHECK(o.val_max_batches == 80);
    CHECK(o.sample_tokens == 64);
    CHECK(o.master_weights == MasterWeights::fp32);
    CHECK(!o.recompute.has_value());   // auto
    CHECK(!o.tf32);
    CHECK(o.output_dir.empty());
}

TEST_CASE("options: an llm.c command line keeps its meaning") {
    Options o = parse({"-i",  "t*.bin", "-j",  "v*.bin", "-o",  "log", "-e",  "d24",    "-b",  "2",  "-t", "64",
                       "-d",  "512",    "-x",  "100",    "-k",  "wsd", "-l",  "0.0006", "-u",  "7",  "-q", "0.0",
                       "-c",  "0.1",    "-sl", "4.5",    "-sg", "6",   "-v",  "250",    "-m",  "10", "-s", "200",
                       "-g",  "144",    "-h",  "1",      "-a",  "0",   "-f",  "1",      "-r",  "2",  "-w", "0",
                       "-ge", "1",      "-z",  "1",      "-n",  "5",   "-nk", "3",      "-nm", "20", "-y", "1",
                       "-lg", "-1",     "-pn", "1",      "-pr", "0",   "-pg", "8",      "-pi", "mpi"});
    CHECK(o.train_data == "t*.bin");
    CHECK(o.val_data == "v*.bin");
    CHECK(o.output_dir == "log");
    CHECK(o.model == "d24");
    CHECK(o.micro_batch == 2);
    CHECK(o.seq_len == 64);
    CHECK(o.micro_steps() == 4);
    CHECK(o.max_steps == 100);
    CHECK(o.schedule == ScheduleKind::wsd);
    CHECK(o.lr == 0.0006f);
    CHECK(o.warmup == 7);
    CHECK(o.final_lr_frac == 0.0f);
    CHECK(o.weight_decay == 0.1f);
    CHECK(o.skip_loss_z == 4.5f);
    CHECK(o.skip_norm_z == 6.0f);
    CHECK(o.val_every == 250);
    CHECK(o.val_max_batches == 20);   // 10 batches of 2 sequences
    CHECK(o.sample_every == 200);
    CHECK(o.sample_tokens == 144);
    CHECK(o.tf32);
    CHECK(o.master_weights == MasterWeights::none);
    CHECK(o.recompute == Recompute::gelu_norm);
    CHECK(o.gelu_fusion == 1);
    CHECK(o.checkpoint_every == 5);
    CHECK(o.keep_checkpoints == 3);
    CHECK(o.major_checkpoint_every == 20);
    CHECK(o.resume);
    CHECK(o.hellaswag);
}

TEST_CASE("options: long names, = and the last of several") {
    Options o = parse({"--lr=1e-3",
                       "--lr",
                       "2e-3",
                       "--max-steps=-1",
                       "--total-batch",
                       "-1",
                       "--overfit-single-batch",
                       "--attention",
                       "own",
                       "--grad-dtype",
                       "bf16",
                       "--layers",
                       "2",
                       "--heads",
                       "3",
                       "--channels",
                       "48",
                       "--vocab-size",
                       "256",
                       "--seed",
                       "18446744073709551615",
                       "-m",
                       "-1"});
    CHECK(o.lr == 2e-3f);
    CHECK(o.max_steps == -1);
    CHECK(o.tokens_per_step() == 4096);
    CHECK(o.overfit_single_batch);
    CHECK(o.attention == AttentionKind::own);
    CHECK(o.grad_dtype == DType::bf16);
    CHECK(o.channels == 48);
    CHECK(o.vocab_size == 256);
    CHECK(o.seed == 18446744073709551615ull);
    CHECK(o.val_max_batches == -1);
}

TEST_CASE("options: what is wrong is named with flag, value and what is expected") {
    struct Case {
        std::vector<std::string> arguments;
        std::string expected;
    };
    const Case cases[] = {
        {{"--lr", "abc"}, "--lr abc: expected a number from 0 to 10"},
        {{"--lr", "-1"}, "--lr -1: expected a number from 0 to 10"},
        {{"-l", "nan"}, "--lr nan: expected"},
        {{"-l", "1e-3x"}, "--lr 1e-3x: expected"},
        {{"-b", "0"}, "--micro-batch 0: expected an integer from 1 to"},
        {{"-b", "1.5"}, "--micro-batch 1.5: expected an integer"},
        {{"-b", "99999999999999999999"}, "--micro-batch 99999999999999999999: expected an integer"},
        {{"-t", ""}, "--seq-len (empty): expected"},
        {{"-x", "0"}, "--max-steps 0: expected -1 or an integer from 1"},
        {{"-x", "-2"}, "--max-steps -2: expected"},
        {{"-k", "cosin"}, "--schedule cosin: expected one of cosine|linear|constant|wsd"},
        {{"-w", "2"}, "--master-weights 2: expected one of 0|1|compact"},
        {{"-ge", "3"}, "--gelu-fusion 3: expected an integer from 0 to 2"},
        {{"-r", "4"}, "--recompute 4: expected one of auto|none|gelu|gelu+norm|block"},
        {{"-q", "1.1"}, "--final-lr-frac 1.1: expected a number from 0 to 1"},
        {{"-u", "11", "-x", "10"}, "--warmup 11: expected at most --max-steps = 10"},
        {{"-z", "4"}, "--zero 4: expected an integer from 0 to 3"},
        {{"--zero-group", "2"}, "--zero-group 2 without --zero or --local-steps"},
        {{"--zero-group", "2", "--zero", "0", "--dp", "4"}, "--zero-group 2 without --zero or --local-steps"},
        {{"evaluate", "--model", "x", "--val-data", "y", "--zero-group", "4"}, "--zero-group 4 without --zero"},
        {{"--zero-group", "2"}, "Give --zero or --local-steps, or leave --zero-group out."},
        {{"--zero", "1", "--zero-group", "1"}, "--zero-group 1: one rank shares nothing"},
        {{"--local-steps", "5", "--zero-group", "3", "--cp", "2"}, "--local-steps 5 --zero-group 3 --cp 2"},
        {{"--local-steps", "5", "--dp", "2"}, "--local-steps 5 without --zero-group"},
        {{"--local-steps", "5", "--dp", "2"}, "1: each by itself"},
        {{"--local-steps", "-1"}, "--local-steps -1: expected an integer from 0"},
        {{"--local-steps", "2.5"}, "--local-steps 2.5: expected an integer"},
        {{"--outer-lr", "-1"}, "--outer-lr -1: expected a number from 0"},
        {{"--outer-momentum", "1"}, "--outer-momentum 1: expected a number from 0 to"},
        {{"--outer-lr", "0.5"}, "--outer-lr 0.5 without --local-steps"},
        {{"--outer-lr", "0.5"}, "Give --local-steps, or leave --outer-lr out."},
        {{"--outer-momentum", "0", "--zero-group", "2", "--zero", "1"}, "--outer-momentum 0 without --local-steps"},
        {{"--outer-compression", "int8", "--local-steps", "0"}, "--outer-compression int8 without --local-steps"},
        {{"--outer-compression", "int2"}, "--outer-compression int2 without --local-steps"},
        {{"--outer-compression", "int4", "--local-steps", "5"},
         "--outer-compression int4: expected one of none|int8|int2|topk"},
        {{"plan", "--outer-lr", "1"}, "--outer-lr 1 without --local-steps"},
        {{"--local-steps", "5", "--zero-group", "1", "--outer-compression", "topk", "--outer-blend", "0.5"},
         "--local-steps 5 --outer-compression topk --outer-blend 0.5"},
        {{"--outer-topk", "0.1"}, "--outer-topk 0.1 without --outer-compression topk"},
        {{"--outer-fragments", "2"}, "--outer-fragments 2 without --local-steps"},
        {{"--outer-delay", "1"}, "--outer-delay 1 without --local-steps"},
        {{"--outer-blend", "0.5"}, "--outer-blend 0.5 without --local-steps"},
        {{"--local-steps", "5", "--zero-group", "1", "--outer-fragments", "6"}, "--local-steps 5 --outer-fragments 6"},
        {{"--local-steps", "5", "--zero-group", "1", "--outer-delay", "5"}, "--local-steps 5 --outer-delay 5"},
        {{"--local-steps", "5", "--zero-group", "1", "--layout", "auto"}, "--local-steps 5 --layout auto: the search"},
        {{"plan", "--local-steps", "5", "--zero-group", "1"}, "plan --local-steps 5: a plan knows only steps"},
        {{"plan", "--local-steps", "5", "--zero-group", "2", "--search", "1"}, "plan --local-steps 5"},
        {{"--staleness", "2"}, "--staleness 2: expected an integer from 0 to 1"},
        {{"--staleness", "-1"}, "--staleness -1: expected an integer from 0 to 1"},
        {{"--staleness", "1", "--zero", "2"}, "--staleness 1 --zero 2: gradients are summed into shards"},
        {{"--staleness", "1", "--zero", "3"}, "--staleness 1 --zero 3"},
        {{"--staleness", "1", "--local-steps", "5", "--zero-group", "1"}, "--staleness 1 --local-steps 5"},
        {{"--staleness", "1", "--ep", "2", "--experts", "4", "--dp", "2"}, "--staleness 1 --ep 2"},
        {{"--staleness", "1", "--grad-dtype", "bf16"}, "--staleness 1 --grad-dtype bf16"},
        {{"--staleness", "1", "--skip-loss-z", "5"}, "--staleness 1 --skip-loss-z 5: the step that has the loss"},
        {{"--staleness", "1", "--skip-norm-z", "5", "--spike-rewind", "2", "-o", "x"},
         "--staleness 1 --spike-rewind 2: a checkpoint"},
        {{"--matmul-dtype", "int8"}, "--matmul-dtype int8: expected one of bf16|fp8-emulated"},
        {{"--grad-compression", "fp8"}, "--grad-compression fp8: expected one of none|bf16|int8|topk|powersgd"},
        {{"--grad-compression", "topk", "--grad-topk", "0"}, "--grad-topk 0: expected a number from 0.0009765625 to 1"},
        {{"--grad-compression", "topk", "--grad-topk", "1.5"},
         "--grad-topk 1.5: expected a number from 0.0009765625 to 1"},
        {{"--grad-compression", "int8", "--grad-topk", "0.5"}, "--grad-topk 0.5 without --grad-compression topk"},
        {{"--grad-compression", "int8", "--grad-rank", "8"}, "--grad-rank 8 without --grad-compression powersgd"},
        {{"--grad-compression", "powersgd", "--grad-rank", "0"}, "--grad-rank 0: expected an integer from 1 to 256"},
        {{"--grad-compression", "powersgd", "--zero", "2"}, "--grad-compression powersgd --zero 2"},
        {{"--grad-compression", "int8", "--grad-compression-start", "5", "--max-steps", "5", "--warmup", "0"},
         "--grad-compression-start 5: expected less than --max-steps = 5"},
        {{"--dp", "2147483647"}, "--dp 2147483647 --cp 1 --tp 1 --pp 1: more than 1048576 ranks"},
        {{"--dp", "65536", "--cp", "64"}, "--dp 65536 --cp 64 --tp 1 --pp 1: more than"},
        {{"--grad-compression-start", "5"}, "--grad-compression-start 5 without --grad-compression"},
        {{"--grad-compression", "topk", "--zero", "3"}, "--grad-compression topk --zero 3"},
        {{"--grad-compression", "int8", "--zero", "2"},
         "--grad-compression int8 --zero 2: what compression leaves out"},
        {{"--grad-compression", "bf16", "--zero", "3"}, "--grad-compression bf16 --zero 3"},
        {{"--grad-compression", "powersgd", "--zero", "1", "--zero-group", "2"},
         "--grad-compression powersgd --zero-group 2: between groups travel shards"},
        {{"--grad-compression", "int8", "--zero-group", "2"}, "--zero-group 2 without --zero or --local-steps"},
        {{"--grad-compression", "int8", "--local-steps", "5", "--zero-group", "1"},
         "--grad-compression int8 --local-steps 5"},
        {{"--grad-compression", "int8", "--staleness", "1"}, "--grad-compression int8 --staleness 1"},
        {{"--grad-compression", "int8", "--ep", "2", "--experts", "4", "--dp", "2"}, "--grad-compression int8 --ep 2"},
        {{"--grad-compression", "int8", "--grad-dtype", "bf16"}, "--grad-compression int8 --grad-dtype bf16"},
        {{"--grad-compression", "int8", "--zero", "1", "--optimizer", "muon"},
         "--grad-compression int8 --optimizer muon"},
        {{"--grad-compression", "int8", "--optimizer", "muon"}, "--grad-compression int8 --optimizer muon"},
        {{"--grad-compression", "int8", "--layout", "auto"}, "--grad-compression int8 --layout auto: the search"},
        {{"plan", "--grad-compression", "int8"}, "plan --grad-compression int8: a plan counts gradients"},
        {{"--staleness", "1", "--layout", "auto"}, "--staleness 1 --layout auto: the search knows only"},
        {{"plan", "--staleness", "1"}, "plan --staleness 1: a plan knows only steps"},
        {{"--attention", "flash"}, "--attention flash: expected one of auto|own|library|own-sm90"},
        {{"--val-max-batches", "0"}, "--val-max-batches 0: expected -1 or at least 1"},
        {{"-d", "5000"}, "--total-batch 5000: expected a multiple of --micro-batch * --seq-len = 4 * 1024 = 4096"},
        {{"-d", "5000"}, "The nearest values that work are 4096 and 8192."},
        {{"-d", "100"}, "The smallest value that works is 4096"},
        {{"--layers", "3"}, "--layers 3 --heads 0 --channels 0: expected all three"},
        {{"-e", "d24", "--layers", "3", "--heads", "3", "--channels", "48"}, "--model d24 together with --layers"},
        {{"--resume"}, "--resume without --output-dir"},
        {{"--spike-rewind", "2", "-sl", "6"}, "--spike-rewind 2 without --output-dir"},
        {{"--spike-rewind", "2", "-o", "x"}, "--spike-rewind 2 without --skip-loss-z or --skip-norm-z"},
        {{"--keep-best"}, "--keep-best without --output-dir"},
        {{"--tensorboard"}, "--tensorboard without --output-dir"},
        {{"--keep-best", "-o", "x", "-v", "0"}, "--keep-best without --val-every"},
        {{"--resume", "--overwrite", "-o", "x"}, "--resume together with --overwrite"},
        {{"--reset-optimizer"}, "--reset-optimizer without --resume or --branch-from"},
        {{"--optimizer", "nadam"}, "--optimizer nadam: expected one of adamw|muon|lamb|lars|sgd"},
        {{"--experts", "4", "--force-balance", "1", "-o", "x"}, "--force-balance 1 together with --output-dir"},
        {{"--experts", "4", "--force-balance", "1", "--resume", "-o", "x"},
         "--force-balance 1 together with --output-dir"},
        {{"--force-balance", "yes"}, "--force-balance yes"},
        {{"--capacity-factor", "-1"}, "--capacity-factor -1: expected"},
        {{"--capacity-factor", "nan"}, "--capacity-factor nan: expected"},
        {{"--tie-embeddings", "0", "--export-llmc", "x"}, "--export-llmc together with --tie-embeddings 0"},
        {{"-n", "5"}, "--checkpoint-every 5 without --output-dir"},
        {{"--tp", "0"}, "--tp 0: expected an integer from 1 to"},
        {{"--sequence-parallel", "2"}, "--sequence-parallel 2: expected one of 0|1"},
        {{"--pp-schedule", "2f2b"}, "--pp-schedule 2f2b: expected one of 1f1b|interleaved|zb|gpipe|naive"},
        {{"--pp", "2", "--pp-chunks", "2"}, "--pp-chunks 2 without --pp-schedule interleaved"},
        {{"--pp", "2", "--pp-schedule", "interleaved"}, "--pp-schedule interleaved with --pp-chunks 1"},
        {{"--pp-schedule", "interleaved", "--pp-chunks", "2"}, "--pp-schedule interleaved with --pp 1"},
        {{"--pp", "2", "--pp-schedule", "interleaved", "--pp-chunks", "2", "--print-schedule", "text"},
         "a step of 1 micro-batches, expected a multiple of --pp 2"},
        {{"--pp", "2", "--pp-schedule", "gpipe", "--pp-warmup", "1"}, "--pp-warmup 1 without --pp-schedule 1f1b or zb"},
        {{"--pp", "2", "--print-schedule", "text", "--schedule-costs", "1,2"}, "--schedule-costs 1,2: expected four"},
        {{"--cp", "3"}, "--seq-len 1024 --cp 3: expected sequences of a multiple of 2 x cp = 6 tokens"},
        {{"--cp", "3"}, "The nearest lengths that work are 1020 and 1026."},
        {{"--cp", "4", "-t", "5"}, "The shortest length that works is 8."},
        {{"--cp", "4", "--cp-mode", "hybrid"}, "groups that divide --cp, larger than 1 and smaller"},
        {{"--cp", "4", "--cp-mode", "hybrid", "--cp-ulysses", "3"}, "--cp-mode hybrid works with 2."},
        {{"--cp", "4", "--cp-mode", "hybrid", "--cp-ulysses", "4"},
         "of all cp ranks --cp-mode ulysses; --cp-mode hybrid works with 2."},
        {{"--cp", "4", "--cp-ulysses", "2"}, "--cp-mode ring --cp-ulysses 2: expected no --cp-ulysses, or 1"},
        {{"--cp", "4", "--cp-mode", "ulysses", "--cp-ulysses", "2"}, "expected no --cp-ulysses, or that of --cp"},
        {{"--cp-ulysses", "2"}, "--cp-mode hybrid works with no value."},
        {{"--cp-mode", "zigzag"}, "--cp-mode zigzag: expected one of ring|ulysses|hybrid"},
        {{"--learning-rat", "1"}, "--learning-rat: unknown option"},
        {{"--warmupp", "1"}, "Did you mean --warmup?"},
        {{"stray"}, "stray: unknown verb, expected one of train, generate, "},
        {{"--lr", "1e-3", "stray"}, "stray: unknown option"},
        {{"generate"}, "train_gpt generate without --model"},
        {{"generate", "--model", "d12", "--lr", "1"}, "--lr: not an option of `train_gpt generate`"},
        {{"--top-k", "1"}, "--top-k: not an option of `train_gpt train`"},
        {{"generate", "--model", "d12", "--promt", "x"}, "Did you mean --prompt?"},
        {{"generate", "--model", "d12", "--top-p", "1.5"}, "--top-p 1.5: expected a number from 0 to 1"},
        {{"generate", "--model", "d12", "--tokens", "0"}, "--tokens 0: expected an integer from 1 to"},
        {{"generate", "--model", "d12", "--prompt", "a", "--prompt-file", "b"}, "--prompt together with --prompt-file"},
        {{"--lr"}, "--lr: 1 required FLOAT missing"},
    };
    for (const Case& c : cases) {
        std::string message = complaint(c.arguments);
        CAPTURE(message);
        CHECK(message.rfind("64 ", 0) == 0);
        CHECK(message.find(c.expected) != std::string::npos);
    }
}

TEST_CASE("options: groups that exchange heads, and heads that they can share") {
    auto parsed = [](const std::vector<std::string>& arguments) { return parse_command_line(arguments).options; };
    CHECK(parsed({"--cp", "4"}).ulysses() == 1);
    CHECK(parsed({"--cp", "4", "--cp-mode", "ulysses"}).ulysses() == 4);
    const Options hybrid = parsed({"--cp", "8", "--cp-mode", "hybrid", "--cp-ulysses", "4"});
    CHECK(hybrid.ulysses() == 4);
    check_model_fits(hybrid, custom_model_config(2, 12, 192, 1024, 100));
    try {
        check_model_fits(hybrid, custom_model_config(2, 6, 96, 1024, 100));
        FAIL("6 heads over groups of 4");
    } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::usage);
        CHECK(std::string(error.what()).find("a model of 6 heads, --cp 8 --cp-mode hybrid") != std::string::npos);
        CHECK(std::string(error.what()).find("Groups that work are of 1, 2 ranks") != std::string::npos);
        CHECK(std::string(error.what()).find("another --cp: 1, 2, 3, 6.") != std::string::npos);
    }
}

TEST_CASE("options: what tensor and context parallelism together ask of heads and sequences") {
    auto complaint_of = [](const std::vector<std::string>& arguments, int heads) -> std::string {
        try {
            check_model_fits(parse_command_line(arguments).options,
                             custom_model_config(4, heads, 16 * heads, 1024, 100));
        } catch (const Error& error) {
            CHECK(error.kind() == ErrorKind::usage);
            return text(error.what(), " ", error.hint());
        }
        return "";
    };
    auto has = [](const std::string& story, const std::string& part) {
        INFO(story);
        CHECK(story.find(part) != std::string::npos);
    };
    CHECK(complaint_of({"--tp", "2", "--cp", "2", "--cp-mode", "ulysses", "--pp", "2"}, 12) == "");
    CHECK(complaint_of({"--tp", "4", "--cp", "2", "--pp", "4"}, 4) == "");
    const std::string heads = complaint_of({"--tp", "4", "--cp", "4", "--cp-mode", "hybrid", "--cp-ulysses", "2"}, 12);
    has(heads, "a model of 12 heads, --tp 4 --cp 4 --cp-mode hybrid: expected heads that 4 x 2 ranks can share");
    has(heads, "Groups that work are of 1 ranks");
    has(heads, "another --cp: 1, 3.");
    // rows of a micro-batch on a cp rank, and of a sequence alone
    CHECK(complaint_of({"--tp", "3", "--cp", "2", "-b", "2", "-t", "24"}, 12) == "");
    const std::string rows = complaint_of({"--tp", "3", "--cp", "2", "-b", "2", "-t", "16"}, 12);
    has(rows, "--micro-batch 2 x --seq-len 16 / --cp 2: the 3 ranks of --tp cannot share its rows evenly");
    has(rows, "The nearest sequence lengths that work are 12 and 24");
    CHECK(complaint_of({"--tp", "3", "--cp", "2", "-b", "2", "-t", "16", "--sequence-parallel", "0"}, 12) == "");
    CHECK(complaint_of({"--tp", "3", "--cp", "2", "-b", "3", "-t", "16"}, 12) == "");
    has(complaint_of({"--tp", "4", "--cp", "2", "-b", "4", "-t", "4"}, 12),
        "The nearest sequence length that works is 8");
}

TEST_CASE("options: a printed configuration reads back to the same, and the command line wins over it") {
    TemporaryFolder folder;
    const std::string path = folder / "run.cfg";
    const std::vector<std::string> given{"--lr",        "0.00123", "--train-data", "a b/*.bin", "-w",         "0",
                                         "--layers",    "2",       "--heads",      "2",         "--channels", "64",
                                         "--attention", "own"};
    std::vector<std::string> printing = given;
    printing.push_back("--print-config");
    const std::string printed = parse_command_line(printing).print_and_exit;
    CHECK(printed.find("lr=0.00123\n") != std::string::npos);
    CHECK(printed.find("warmup=0\n") != std::string::npos);
    write_whole(real_files(), path, printed);

    Options o = parse({"--config", path});
    CHECK(o.lr == 0.00123f);
    CHECK(o.train_data == "a b/*.bin");
    CHECK(o.master_weights == MasterWeights::none);
    CHECK(o.channels == 64);
    CHECK(o.attention == AttentionKind::own);
    CHECK(parse_command_line({"--config", path, "--print-config"}).print_and_exit == printed);
    CHECK(parse({"--config", path, "--lr", "0.5"}).lr == 0.5f);

    write_whole(real_files(), path, "lr=0.1\nlearning-rate=0.1\n");
    std::string unknown = complaint({"--config", path});
    CHECK(unknown.rfind("64 ", 0) == 0);
    CHECK(unknown.find(path) != std::string::npos);
    CHECK(unknown.find("learning-rate") != std::string::npos);
    // unless the command line wins over it
    write_whole(real_files(), path, "# a comment\nlr=1e-3\n\nzero=1\nmicro-batch = none\n");
    const std::string wrong = complaint({"--config", path});
    CAPTURE(wrong);
    CHECK(wrong.find("64 --config " + path + ": line 5: --micro-batch none: expected an integer") == 0);
    CHECK(complaint({"--config=" + path, "-b4"}) == "");
    CHECK(complaint({"--config", path, "-b", "none"}).find("64 --micro-batch none: expected") == 0);
    CHECK(complaint({"--config", path, "-b", "2", "-l", "higher"}).find("64 --lr higher: expected") == 0);
    write_whole(real_files(), path, "\nattention=\"flash\"\n");
    CHECK(complaint({"--config", path}).find(": line 2: --attention flash: expected one of") != std::string::npos);
    CHECK(complaint({"--config", folder / "missing.cfg"}).rfind("74 ", 0) == 0);
}

TEST_CASE("options: every line of --config is a name and a value, or refused") {
    TemporaryFolder folder;
    const std::string path = folder / "run.cfg";
    auto of = [&](const std::string& line) {
        write_whole(real_files(), path, "\n \t\r\n# a comment\n; another\nseed=7\n" + line + "\n");
        return complaint({"--config", path});
    };
    for (const char* line : {"lr=0.1", "lr = \"0.1\" # why", "lr=[0.1]", "lr = [ 0.1 ] # why", "model='d12'\r"}) {
        CAPTURE(line);
        CHECK(of(line) == "");
    }
    const std::string deep = std::string(16000, '['), many = [] {
        std::string parents;
        for (int i = 0; i < 8000; i++) parents += "a.";
        return parents;
    }();
    const std::pair<std::string, const char*> wrong[] = {{"lr=\"0.1", "a quote is not closed"},
                                                         {"model='d12", "a quote is not closed"},
                                                         {"model=\"\"\"", "a quote is not closed"},
                                                         {"lr=[0.1", "a list is not closed"},
                                                         {"lr=[0.1 # ]", "a list is not closed"},
                                                         {"lr=" + deep, "a list is not closed"},
                                                         {"lr", "'lr' is not a name and a value"},
                                                         {"++", "'++' is not a name and a value"},
                                                         {"=1", "'=1' is not a name and a value"},
                                                         {"[training]", "'[training]' is not a name and a value"},
                                                         {"[default]", "'[default]' is not a name and a value"},
                                                         {deep, "is not a name and a value"},
                                                         {many + "lr=1", "is not a name and a value"}};
    for (const auto& [line, told] : wrong) {
        const std::string message = of(line);
        CAPTURE(message);
        CHECK(message.starts_with("64 --config " + path + ": line 6: "));
        CHECK(message.find(told) != std::string::npos);
        CHECK(message.size() < path.size() + 300);
    }
    write_whole(real_files(), path, std::string((1 << 20) + 1, '\n'));
    CHECK(complaint({"--config", path}).find("1048577 bytes, expected at most 1048576") != std::string::npos);
}

TEST_CASE("options: a switch alone is 1, also one that has a third value") {
    CHECK(parse_command_line({"-w", "--tf32"}).options.master_weights == MasterWeights::fp32);
    CHECK(parse_command_line({"--tf32", "--master-weights", "compact"}).options.tf32);
    CHECK(parse_command_line({"--master-weights", "compact"}).options.master_weights == MasterWeights::compact);
}

TEST_CASE("options: help lists every group, with -h alone too") {
    for (const char* flag : {"--help", "-h"}) {
        std::string help = parse_command_line({flag}).print_and_exit;
        for (const char* title : {"Data:", "Model:", "Shape of a step:", "Optimiser and schedule:",
                                  "Validation and sampling:", "Output:", "Numerics and memory:", "Many devices:"}) {
            CHECK(help.find(title) != std::string::npos);
        }
    }
}

TEST_CASE("options: a verb takes its own options and shows no others") {
    TemporaryFolder data;
    const CommandLine train = parse_command_line({"train", "--lr", "0.5"});
    CHECK(train.verb == Verb::train);
    CHECK(train.options.lr == 0.5f);
    const CommandLine written =
        parse_command_line({"generate", "--model", "x", "--prompt", "Once", "--tokens", "7", "--top-k", "3", "--top-p",
                            "0.5", "--temperature", "0", "--seed", "9", "--stop-at-end", "0", "--tokenizer", "bytes"});
    CHECK(written.verb == Verb::generate);
    CHECK(written.options.model == "x");
    CHECK(written.options.generate.prompt == "Once");
    CHECK(written.options.generate.tokens == 7);
    CHECK(written.options.generate.top_k == 3);
    CHECK(written.options.generate.top_p == 0.5f);
    CHECK(written.options.temperature == 0.0f);
    CHECK(written.options.seed == 9);
    CHECK(!written.options.generate.stop_at_end);
    CHECK(written.options.generate.tokenizer == "bytes");

    const std::string folder = data.path();
    write_whole(real_files(), folder + "/a_train_0.bin", "");
    CHECK(complaint({"evaluate", "--model", "x", "--data", folder}).find("there are no validation shards in ") !=
          std::string::npos);
    write_whole(real_files(), folder + "/a_val_0.bin", "");
    CHECK(parse({"evaluate", "--model", "x", "--data", folder}).val_data == folder + "/");
    CHECK(parse({"evaluate", "--model", "x", "--data", folder, "-j", "other"}).val_data == "other");
    CHECK(complaint({"evaluate", "--model", "x"}).find("without --val-data, --data and --hellaswag") !=
          std::string::npos);
    CHECK(complaint({"export", "--model", "x", "--data", folder}).find("--data: not an option of") !=
          std::string::npos);

    const std::string help = parse_command_line({"--help"}).print_and_exit;
    CHECK(help.find("--prompt") == std::string::npos);
    CHECK(help.find("train_gpt generate --help") != std::string::npos);
    const std::string of_generate = parse_command_line({"generate", "--help"}).print_and_exit;
    CHECK(of_generate.find("Usage: train_gpt generate [OPTIONS]") != std::string::npos);
    CHECK(of_generate.find("--prompt ") != std::string::npos);
    CHECK(of_generate.find("--lr") == std::string::npos);
    CHECK(of_generate.find("--config") == std::string::npos);
    CHECK(parse_command_line({"--print-config"}).print_and_exit.find("prompt") == std::string::npos);
}

TEST_CASE("options: so many matmul algorithms are timed as is asked, under every layout") {
    auto tries = [](Options o, int tp) {
        o.recompute = Recompute::none;
        return stage_options(o, model_config("d12"), MeshShape{1, 1, 1, tp}, {}).matmul.tries;
    };
    for (int tp : {1, 2}) {
        CHECK(tries(parse({}), tp) == 0);   // as the device is
        CHECK(tries(parse({"--matmul-tries", "16"}), tp) == 16);
    }
    CHECK(complaint({"--matmul-tries", "-1"}).find("--matmul-tries -1") != std::string::npos);
}

TEST_CASE("options: what is left open is settled, and only that") {
    const std::vector<std::string> model{"--layers",    "2",   "--heads",      "2",  "--channels",    "32",
                                         "--seq-len",   "32",  "--vocab-size", "97", "--total-batch", "384",
                                         "--recompute", "none"};
    auto with = [&](std::vector<std::string> more) {
        more.insert(more.begin(), model.begin(), model.end());
        return parse_command_line(more);
    };
    const CommandLine open = with({"--micro-batch", "auto"});
    CHECK(open.options.micro_batch == 12);   // the whole step fits
    CHECK(open.options.total_batch == 384);
    CHECK(open.chosen == "chosen: --micro-batch 12");
    const auto written = std::ranges::find(open.texts, "micro-batch", &OptionText::name);
    REQUIRE(written != open.texts.end());
    CHECK(written->value == "12");
    CHECK(with({"--micro-batch", "3"}).chosen.empty());
    CHECK(complaint({"--micro-batch", "auto"}).starts_with("64 --micro-batch auto without --total-batch"));

    TemporaryFolder folder;
    const std::string machine = folder / "machine.json";
    write_whole(real_files(), machine,
                R"({"name": "one", "source": "a test", "matmul": [{"flops": 0, "per_second": 1e11}],
        "attention_per_second": 5e10, "copy_bytes_per_second": 1e10, "kernel_seconds": 1e-6, "memory_bytes": 1e10,
        "multiprocessors": 0, "devices_per_node": 8, "intra": {"bytes_per_second": 1e10, "seconds": 1e-6},
        "inter": {"bytes_per_second": 1e9, "seconds": 1e-5}, "peak_flops": 0})");
    const CommandLine four =
        with({"--micro-batch", "1", "--layout", "auto", "--machine", machine, "--processes", "4", "--tp", "2"});
    CHECK(four.options.tp == 2);
    CHECK(four.options.pp * four.options.dp == 2);
    CHECK(four.options.recompute == Recompute::none);   // given
    CHECK(four.chosen.starts_with("chosen: --tp 2 --pp "));
    CHECK(complaint({"--layout", "auto", "--model", "d12"}).starts_with("64 --layout auto: the speeds of this device"));
}

TEST_CASE("a plan takes the vocabulary that the named model was published with; training that of its data") {
    auto vocabulary = [](std::vector<std::string> arguments) {
        return parse_command_line(arguments).options.vocab_size;
    };
    CHECK(vocabulary({"plan", "--model", "llama:8B"}) == 128256);
    CHECK(vocabulary({"plan", "--model", "olmo3:32B"}) == 100278);
    CHECK(vocabulary({"plan", "--model", "llama:8B", "--vocab-size", "1000"}) == 1000);
    CHECK(vocabulary({"plan", "--model", "gpt2:124M"}) == 0);
    CHECK(vocabulary({"plan", "--layers", "2", "--heads", "2", "--channels", "32"}) == 0);
    CHECK(vocabulary({"--model", "llama:8B"}) == 0);
}
