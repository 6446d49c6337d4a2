// Numbers of papers that a plan must give back: parameters, bubbles, scaling laws, latencies, failures.
#include <doctest/doctest.h>

#include <cctype>

#include "llmc/model/parameters/param_table.h"
#include "llmc/model/precision.h"
#include "llmc/parallel/schedule.h"
#include "llmc/plan/machine/nccl_time.h"
#include "llmc/plan/plan.h"
#include "llmc/plan/training_cost.h"

using doctest::Approx;

TEST_CASE("plan: GPT-3 has 174,604,836,864 parameters with padding, 174,604,259,328 without") {
    const ModelConfig config = model_config("gpt3:175B");
    CHECK(parameter_count(config) == 174'604'836'864);
    std::int64_t exported = 0;
    const ParamTable table(config);
    for (const ParamInfo& param : table.all()) exported += param.exported_elements();
    CHECK(exported == 174'604'259'328);
}

TEST_CASE("plan: the bubble of 4 stages and 16 micro-batches") {
    const PipelineShape shape{.stages = 4, .micro_batches = 16};
    const Simulation found = simulate(pipeline_schedules(shape), 1, {std::vector<ActionCosts>(4), 0});
    CHECK(100 * found.idle_share() == Approx(15.79).epsilon(1e-3));
    CHECK(100 * found.overhead() == Approx(18.75));
}

TEST_CASE("plan: NCCL's latency of 64 ranks on 8 nodes, by a ring and by a tree") {
    CHECK(nccl_time::ring_us(64, 8, nccl_time::Protocol::simple) == Approx(8.4 + 112 * 3.4 + 14 * 14));
    CHECK(nccl_time::tree_us(64, 8, nccl_time::Protocol::simple) == Approx(8.4 + 2 * (7 * 4 + 3 * 14)));
    // small messages go by LL, large ones by what carries most
    CHECK(nccl_time::seconds(64, 8, 1, 2, 300e9) < 1e-6 * nccl_time::ring_us(8, 1, nccl_time::Protocol::simple));
    const double large = nccl_time::seconds(10e9, 8, 1, 2, 300e9);
    CHECK(large == Approx(10e9 / 300e9).epsilon(0.01));
}

TEST_CASE("plan: a collective's protocol is that of its size, on a machine's own links") {
    using nccl_time::Protocol;
    Machine machine = known_machine("H100");
    machine.intra = {300e9, 2 * 3.4e-6}, machine.inter = {40e9, 14e-6};   // hops twice as long as NCCL's, and as long
    auto over = [&](double bytes, int nodes, int passes) {   // microseconds beyond those of the bytes themselves
        const double own = bytes / machine.collective_bytes_per_second(8 * nodes, nodes);
        return 1e6 * (collective_seconds(machine, {8 * nodes, nodes}, bytes, passes) - own);
    };
    for (const int passes : {1, 2}) {
        CHECK(over(0, 1, passes) == Approx(2 * nccl_time::ring_us(8, 1, Protocol::ll, passes)));
        CHECK(over(1e9, 1, passes) == Approx(2 * nccl_time::ring_us(8, 1, Protocol::simple, passes)));
    }
    CHECK(over(0, 8, 1) == Approx(nccl_time::ring_us(64, 8, Protocol::ll, 1)));
    CHECK(over(1e9, 8, 1) == Approx(nccl_time::ring_us(64, 8, Protocol::simple, 1)));
    CHECK(over(1e9, 8, 2) == Approx(nccl_time::tree_us(64, 8, Protocol::simple)));
    // between them, LL128 loses a sixteenth of the bandwidth and less latency than Simple
    const double middle = 2e7;
    CHECK(over(middle, 1, 1) == Approx(2 * nccl_time::ring_us(8, 1, Protocol::ll128, 1) + middle / 300e9 * 1e6 / 15));
    double before = 0;
    for (double bytes = 1; bytes < 1e10; bytes *= 2) {   // more bytes never take less
        const double now = collective_seconds(machine, {8, 1}, bytes, 2);
        CHECK(now >= before);
        before = now;
    }
}

TEST_CASE(
    "plan: a collective over nodes leaves each of them by all of its ranks' links, as far as those inside carry it") {
    Machine machine = known_machine("H100");
    machine.intra.bytes_per_second = 300e9, machine.inter.bytes_per_second = 25e9;
    CHECK(machine.collective_bytes_per_second(8, 1) == Approx(300e9));
    CHECK(machine.collective_bytes_per_second(64, 8) == Approx(8 * 25e9));
    CHECK(machine.collective_bytes_per_second(32, 8) == Approx(4 * 25e9));   // tp 2: the others are of other groups
    CHECK(machine.collective_bytes_per_second(8, 8) == Approx(25e9));
    machine.inter.bytes_per_second = 50e9;
    CHECK(machine.collective_bytes_per_second(64, 8) == Approx(300e9));
    CHECK(collective_seconds(machine, {64, 8}, 30e9, 1) == Approx(0.1).epsilon(0.01));
}

TEST_CASE("plan: of what a rank sends to all others, only those on other nodes get it over the link between nodes") {
    Machine machine = known_machine("H100");
    machine.intra.bytes_per_second = 350e9, machine.inter.bytes_per_second = 50e9;
    CHECK(machine.all_to_all_seconds(7e9, 8, 1) == Approx(7e9 / 350e9));
    CHECK(machine.all_to_all_seconds(15e9, 16, 2) == Approx(8e9 / 50e9));   // 8 of 15 are on the other node
    CHECK(machine.all_to_all_seconds(7e9, 8, 8) == Approx(7e9 / 50e9));
    CHECK(machine.all_to_all_seconds(7e9, 1, 1) == 0);
    machine.inter.bytes_per_second = 3500e9;
    CHECK(machine.all_to_all_seconds(15e9, 16, 2) == Approx(7e9 / 350e9));   // the slower of both
}

TEST_CASE("plan: in a replay, transfers to all of experts' and Ulysses groups use both links, others the slow one") {
    Machine machine = known_machine("H100");
    machine.intra.bytes_per_second = 350e9, machine.inter.bytes_per_second = 50e9;
    const virtual_clock::CostModel costs =
        costs_of(machine, {{"ep", {16, 2}}, {"cp ulysses", {16, 2}}, {"cp ring", {16, 2}}});
    auto seconds = [&](const std::string& group, int sent) {   // of 15 GB in all, joined or not
        virtual_clock::RecordedStep step;
        step.kind = virtual_clock::RecordedStep::Kind::operation, step.name = "transfer of 1 fp32 (" + group + ")";
        for (int i = 0; i < sent; i++) {
            step.work.exchanges.push_back({std::uint64_t(i), 2, 15e9 / sent, 0, true});
        }
        return costs.exchange_seconds(step) + 15e9 * costs.seconds_per_exchanged_byte_between_nodes;
    };
    for (const int sent : {1, 15}) {
        CHECK(seconds("ep", sent) == Approx(machine.all_to_all_seconds(15e9, 16, 2)).epsilon(1e-3));
        CHECK(seconds("cp ulysses", sent) == Approx(machine.all_to_all_seconds(15e9, 16, 2)).epsilon(1e-3));
        CHECK(seconds("cp ring", sent) == Approx(15e9 / 50e9).epsilon(1e-3));
    }
}

TEST_CASE("plan: the table's rates of matmuls and attention, by size, are near those measured on an H200") {
    const Machine machine = known_machine("H200");
    const double scale = machine.best_matmul() / 794.5e12;   // 1 in bf16
    struct Measured {
        double tokens, head_size, forward, backward;   // TFLOP/s of cuDNN, docs/performance.md
    };
    for (const Measured& m :
         {Measured{1024, 64, 297, 201}, {1024, 96, 327, 238}, {1024, 128, 434, 303}, {4096, 128, 538, 399}}) {
        const double both = 3.5 / (1 / m.forward + 2.5 / m.backward);
        CHECK(1e-12 * machine.attention_rate(m.tokens, m.head_size) / scale == Approx(both).epsilon(0.11));
    }
    CHECK(1e-12 * machine.matmul_per_second(scale * 2.0 * 16384 * 768 * 768) / scale == Approx(524).epsilon(0.05));
    CHECK(1e-12 * machine.matmul_per_second(scale * 2.0 * 16384 * 2304 * 768) / scale == Approx(611).epsilon(0.05));
    CHECK(1e-12 * machine.matmul_per_second(scale * 2.0 * 8192 * 8192 * 8192) / scale == Approx(794.5).epsilon(1e-3));
    Machine plain = machine;   // as measured machines are: at one shape
    plain.attention_tokens = plain.attention_channels = 0;
    CHECK(plain.attention_rate(77, 32) == plain.attention_per_second);
    CHECK(machine_from(to_json(machine)).attention_rate(1024, 64) == Approx(machine.attention_rate(1024, 64)));
}

TEST_CASE("plan: the scaling law's optimum for 1e21 FLOPs, and its constants found again from runs") {
    const ScalingLaw law;
    const auto best = law.optimum(1e21);
    CHECK(best.parameters == Approx(2.78e9).epsilon(2e-3));
    CHECK(best.tokens / best.parameters == Approx(21.6).epsilon(2e-3));
    CHECK(best.loss == Approx(2.3055).epsilon(5e-5));
    for (const double factor : {0.9, 1.1}) CHECK(law.loss(factor * best.parameters, best.tokens / factor) > best.loss);
    std::vector<ScalingRun> runs;
    for (const double N : {1e7, 3e7, 1e8, 3e8, 1e9}) {
        for (const double ratio : {5.0, 20.0, 80.0}) runs.push_back({N, ratio * N, law.loss(N, ratio * N)});
    }
    const ScalingLaw found = fit_scaling_law(runs);
    CHECK(found.E == Approx(law.E).epsilon(0.01));
    CHECK(found.a == Approx(law.a).epsilon(0.02));
    CHECK(found.b == Approx(law.b).epsilon(0.02));
    CHECK(found.optimum(1e21).parameters == Approx(best.parameters).epsilon(0.05));
    CHECK_THROWS_AS(fit_scaling_law({runs.begin(), runs.begin() + 4}), Error);
}

TEST_CASE("plan: failures of 16,384 GPUs, and the interval between checkpoints that loses least") {
    const double between = kGpuHoursPerFailure / 16384 * 3600;
    CHECK(between / 3600 == Approx(3.094).epsilon(1e-3));
    const Failures failures{.write_seconds = 30, .restart_seconds = 600, .between_seconds = between};
    const double best = best_checkpoint_interval(failures);
    CHECK(best == Approx(std::sqrt(2 * 30 * between)));
    for (const double other : {0.8, 1.25}) {
        CHECK(wasted_share(failures, other * best) > wasted_share(failures, best));
    }
}

namespace {

// A plan of 4 ranks with these bytes of memory, of 100 that are allowed, and these shares of a step.
Plan made_plan(std::vector<std::pair<std::string, double>> lines, const std::map<std::string, double>& exposed,
               double bubble) {
    Plan plan;
    plan.machine.memory_bytes = 100 / 0.9;
    double bytes = 0;
    for (const auto& [name, part] : lines) bytes += part;
    plan.memory = {{0, bytes / 2, lines}, {1, bytes, lines}};
    plan.run.mesh = {.pp = 2, .dp = 2};
    plan.run.options.recompute = Recompute::none;
    plan.step.seconds = 10;
    plan.step.bubble_share = bubble;
    for (const auto& [name, share] : exposed) plan.step.groups[name].exposed = 10 * share;
    return plan;
}

}   // namespace

TEST_CASE("plan: the nearest limits, of memory, links and bubble, with what relieves each") {
    const std::vector<Limit> limits =
        all_limits(made_plan({{"activations", 40}, {"parameters", 20}}, {{"dp", 0.1}, {"tp", 0.19}, {"pp", 0}}, 0.16));
    REQUIRE(limits.size() == 4);
    CHECK(limits[0].what == "links of group tp, exposed for 19.0% of a step");
    CHECK(limits[0].share == Approx(0.95));
    CHECK(limits[0].relief.find("--tp") != std::string::npos);
    CHECK(limits[1].what == "the bubble, 16.0% of the time");
    CHECK(limits[1].share == Approx(0.8));
    CHECK(limits[1].relief.find("--total-batch") != std::string::npos);
    CHECK(limits[2].what.starts_with("memory, "));   // of the fullest stage
    CHECK(limits[2].share == Approx(0.6));
    CHECK(limits[2].relief.starts_with("--recompute block"));
    CHECK(limits[3].what.starts_with("links of group dp"));
    CHECK(limits[3].share == Approx(0.5));

    auto relief = [](const char* line, int zero, int dp, Recompute level) {
        Plan plan = made_plan({{line, 90}}, {}, 0);
        plan.run.mesh = {.dp = dp}, plan.run.options.zero = zero, plan.run.options.recompute = level;
        return all_limits(plan).front().relief;
    };
    CHECK(relief("optimizer m", 0, 4, Recompute::none) == "--zero 1, or --moments bf16");
    CHECK(relief("optimizer master", 1, 4, Recompute::none) ==
          "more ranks for --dp, --tp or --pp, or --master-weights compact");
    CHECK(relief("gradients", 1, 4, Recompute::none) == "--zero 2");
    CHECK(relief("parameters", 2, 4, Recompute::none) == "--zero 3");
    CHECK(relief("parameters", 3, 4, Recompute::none) == "more ranks for --dp, --tp or --pp");
    CHECK(relief("optimizer", 0, 1, Recompute::none) == "--tp or --pp, or --dp with --zero 1");
    CHECK(relief("activations", 0, 4, Recompute::block) == "a smaller --micro-batch, or --cp");
    CHECK(relief("workspace", 0, 4, Recompute::none) == "a smaller --micro-batch");
}

TEST_CASE("plan: what relieves a limit is an option that the run can take") {
    auto relief = [](const MeshShape& mesh, int zero, const std::string& group) {
        Plan plan = made_plan({{"parameters", 1}}, {{group, 0.1}}, 0);
        plan.machine.devices_per_node = 8;
        plan.run.mesh = mesh, plan.run.options.zero = zero;
        return all_limits(plan).front().relief;
    };
    const std::string batch = "a larger --total-batch";
    CHECK(relief({.dp = 4}, 0, "dp") == batch);   // no --zero-group with --zero 0, and nothing smaller
    CHECK(relief({.dp = 4}, 1, "dp") == batch);
    CHECK(relief({.dp = 4}, 2, "dp") == batch + ", or a smaller --zero");
    CHECK(relief({.dp = 16}, 0, "dp") == batch);
    CHECK(relief({.dp = 16}, 1, "dp") == batch + ", or --zero-group within a node");
    CHECK(relief({.dp = 16}, 3, "dp") == batch + ", a smaller --zero, or --zero-group within a node");
    CHECK(relief({.dp = 16, .ep = 4}, 1, "dp") == batch);   // no --zero-group with --ep
    CHECK(relief({.dp = 17}, 1, "dp") == batch);            // none divides
    CHECK(relief({.dp = 16, .tp = 8}, 1, "dp") == batch);   // nor is inside a node
    CHECK(relief({.dp = 16, .zero_group = 8}, 3, "shard") == batch + ", or a smaller --zero");
    CHECK(relief({.dp = 16, .zero_group = 8}, 3, "replica") == batch);

    CHECK(relief({.cp = 4}, 0, "cp ring") == "a smaller --cp, or longer sequences");
    CHECK(relief({.cp = 4}, 2, "cp") == batch + ", or a smaller --zero");   // ZeRO's
    CHECK(relief({.dp = 2, .cp = 4}, 2, "dp_cp") == batch + ", or a smaller --zero");
    CHECK(relief({.tp = 4}, 0, "tp") == "a smaller --tp, or larger micro-batches");
    CHECK(relief({.dp = 2, .tp = 4}, 3, "dp_tp") == batch);   // of the norm

    CHECK(relief({.dp = 8, .ep = 2}, 2, "ep") == "a smaller --ep");
    CHECK(relief({.dp = 8, .ep = 2}, 2, "holder") == batch + ", or a smaller --zero");
    CHECK(relief({.dp = 8, .ep = 8}, 2, "dp") == batch + ", or a smaller --zero");
    CHECK(relief({.dp = 2, .tp = 4, .ep = 4}, 0, "tp") == "a smaller --tp, or larger micro-batches");

    Plan plan = made_plan({{"activations", 90}}, {}, 0);
    plan.run.options.micro_batch = 1;
    CHECK(all_limits(plan).front().relief == "--recompute block, or a shorter --seq-len");
    plan.run.options.recompute = Recompute::block;
    CHECK(all_limits(plan).front().relief == "a shorter --seq-len, or --cp");
}

TEST_CASE("plan: tokens as people write them; fewer than a step has are asked about") {
    Options o;
    o.micro_batch = 1, o.seq_len = 1024, o.dp = 1;
    const ParameterCounts parameters{.padded = 1000, .exported = 900, .active_padded = 500, .active_exported = 400};
    auto tokens = [&](const char* given) {
        o.plan.tokens = given;
        return planned_tokens(o, parameters);
    };
    CHECK(tokens("300B") == 300e9);
    CHECK(tokens("1.5T") == 1.5e12);
    CHECK(tokens("2048") == 2048);
    CHECK(tokens("20M") == 20e6);
    CHECK(tokens("20x") == 20000);
    CHECK(tokens("20x-active") == 10000);
    CHECK_THROWS_AS(tokens("300b"), Error);
    CHECK_THROWS_WITH_AS(tokens("20"), doctest::Contains("--tokens 20: less than a step, which has 1024 tokens"),
                         Error);
    CHECK_THROWS_AS(tokens("1023"), Error);
}

TEST_CASE("plan: a GPU's name may be in small letters, and TF32 has its own speed in fp32") {
    for (const std::string& name : known_gpus()) {   // each with its data sheet
        std::string lower = name;
        for (char& letter : lower) letter = static_cast<char>(std::tolower(letter));
        CHECK(known_machine(lower).name == name);
    }
    const double ratio = known_machine("H100", true).best_matmul() / known_machine("H100").best_matmul();
    CHECK(ratio == Approx(dtype_of<floatX> == DType::fp32 ? 495.0 / 67 : 1).epsilon(0.01));
    Options o;
    o.tf32 = true;
    CHECK(planned_machine(o).best_matmul() == known_machine("H100", true).best_matmul());
}

TEST_CASE("plan: a group is spread over the nodes of the group that straddles most") {
    CHECK(most_nodes({0, 1, 2, 3}, 8, 8) == 1);
    CHECK(most_nodes({0, 1, 2, 3}, 16, 8) == 1);
    CHECK(most_nodes({0, 1, 2, 3}, 12, 6) == 2);   // ranks 4 to 7
    CHECK(most_nodes({0, 4}, 12, 6) == 2);         // ranks 2 and 6
    CHECK(most_nodes({0, 6}, 12, 6) == 2);
    CHECK(most_nodes({9, 10, 11}, 15, 5) == 2);
    CHECK(most_nodes({4, 5, 6}, 9, 3) == 2);   // not a multiple of its size: what is given stays
    CHECK(most_nodes({}, 9, 3) == 1);
}
