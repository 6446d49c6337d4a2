// Tests the warnings about layouts before a run, for made-up hosts.
#include <doctest/doctest.h>

#include "llmc/run/options/layout_options.h"
#include "llmc/run/options/sync_options.h"

namespace {

std::vector<std::string> round_robin(int ranks, int nodes) {
    std::vector<std::string> hosts;
    for (int rank = 0; rank < ranks; rank++) hosts.push_back("node " + std::to_string(rank % nodes));
    return hosts;
}

bool says(const std::vector<std::string>& warnings, const std::string& words) {
    for (const std::string& warning : warnings) {
        if (warning.find(words) != std::string::npos) return true;
    }
    return false;
}

}   // namespace

TEST_CASE("layout doubts: ranks dealt round-robin over nodes part tensor-parallel groups, blocks do not") {
    Options o;
    o.tp = 4, o.dp = 2, o.micro_batch = 4, o.seq_len = 1024;
    CHECK(layout_warnings(o, hosts_in_blocks(8, 4)).empty());
    const auto dealt = layout_warnings(o, round_robin(8, 2));
    CHECK(says(dealt, "--tp 4 reaches over nodes: ranks 0 and 1"));
    CHECK(says(dealt, "--map-by slot"));
    CHECK(says(layout_warnings(o, hosts_in_blocks(8, 6)), "ranks 4 and 6"));
    CHECK(says(layout_warnings(o, hosts_in_blocks(12, 6)), "divide the ranks of a node"));
    o.tp = 1, o.dp = 8;
    CHECK(layout_warnings(o, round_robin(8, 2)).empty());
}

TEST_CASE("layout doubts: a Ulysses group of neighbours is judged with its tp ranks") {
    Options o;
    o.tp = 2, o.cp = 4, o.cp_mode = ContextMode::hybrid, o.cp_ulysses = 2, o.dp = 1;
    CHECK(layout_warnings(o, hosts_in_blocks(8, 4)).empty());
    CHECK(says(layout_warnings(o, hosts_in_blocks(8, 2)), "a Ulysses group of 2 reaches over nodes: ranks 0 and 2"));
    o.cp_mode = ContextMode::ring, o.cp_ulysses = 0;
    CHECK(layout_warnings(o, hosts_in_blocks(8, 2)).empty());   // rings cross nodes without harm
}

TEST_CASE("layout doubts: experts dealt out over nodes are told of") {
    Options o;
    o.ep = 4, o.dp = 8, o.micro_batch = 4, o.seq_len = 1024;
    CHECK(layout_warnings(o, hosts_in_blocks(8, 4)).empty());
    CHECK(says(layout_warnings(o, hosts_in_blocks(8, 2)), "--ep 4 reaches over nodes: ranks 0 and 2"));
}

TEST_CASE("layout: experts that ranks cannot have are refused by name") {
    ModelConfig config = custom_model_config(2, 4, 64, 32, 97);
    auto refusal = [&](const Options& o) -> std::string {
        try {
            check_model_fits(o, config);
        } catch (const Error& error) {
            return error.message();
        }
        return "";
    };
    Options o;
    o.ep = 4, o.dp = 8, o.micro_batch = 4, o.seq_len = 32;
    CHECK(refusal(o) == "--ep 4: the model has no experts");
    o.force_balance = true;
    CHECK(refusal(o) == "--force-balance 1: the model has no experts");
    o.force_balance = false, o.capacity_factor = 1.25f;
    CHECK(refusal(o) == "--capacity-factor 1.25: the model has no experts");
    o.capacity_factor = 0;
    config.experts = 6;
    CHECK(refusal(o) == "--ep 4 --experts 6: expected a number of ranks that divides the experts");
    config.experts = 8;
    CHECK(refusal(o) == "");
    o.optimizer = OptimizerKind::muon;
    CHECK(refusal(o) == "");
    o.optimizer = OptimizerKind::adamw, o.tp = 2, o.sequence_parallel = false;
    CHECK(refusal(o) == "--ep 4 --tp 2 --sequence-parallel 0");
    o.sequence_parallel = true;
    CHECK(refusal(o) == "");
}

TEST_CASE("layout: moves of local steps are compressed where something travels") {
    Options o;
    o.seq_len = 16, o.micro_batch = 1, o.total_batch = 16 * 24;
    o.local = {.every = 5, .compression = OuterCompression::int8};
    auto refused = [&](int dp, int cp, int zero_group) {
        o.cp = cp, o.zero_group = zero_group;
        try {
            fit_to_ranks(o, dp);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(refused(2, 1, 1).empty());
    CHECK(refused(4, 2, 4).empty());
    CHECK(
        refused(1, 1, 1).starts_with("--outer-compression int8 --zero-group 1: the 1 ranks of dp x cp are one group"));
    CHECK(refused(4, 1, 4).starts_with("--outer-compression int8 --zero-group 4"));
    CHECK(refused(2, 2, 4).starts_with("--outer-compression int8 --zero-group 4"));
    o.local.compression = OuterCompression::int2_;
    CHECK(refused(2, 1, 1).empty());
    CHECK(refused(4, 1, 4).starts_with("--outer-compression int2 --zero-group 4"));
    o.local.compression = OuterCompression::none;
    CHECK(refused(1, 1, 1).empty());
}

TEST_CASE("layout doubts: ranks that keep the same matrices all make Muon's update, unless they share it") {
    auto warned = [](OptimizerKind optimizer, int dp, int cp, int zero) {
        Options o;
        o.optimizer = optimizer, o.dp = dp, o.cp = cp, o.zero = zero;
        return layout_warnings(o, hosts_in_blocks(dp * cp, 8));
    };
    CHECK(says(warned(OptimizerKind::muon, 4, 2, 0), "each of 8 ranks makes the same matrices orthogonal: --zero 1"));
    CHECK(says(warned(OptimizerKind::muon, 2, 1, 0), "each of 2 ranks"));
    CHECK(warned(OptimizerKind::muon, 4, 2, 1).empty());
    CHECK(warned(OptimizerKind::muon, 1, 1, 0).empty());
    CHECK(warned(OptimizerKind::adamw, 4, 2, 0).empty());
    Options local;
    local.optimizer = OptimizerKind::muon, local.dp = 4, local.local.every = 5, local.zero_group = 1;
    CHECK(layout_warnings(local, hosts_in_blocks(4, 4)).empty());
    local.zero_group = 2;
    CHECK(says(layout_warnings(local, hosts_in_blocks(4, 4)), "each of 2 ranks"));
}

TEST_CASE("layout doubts: the largest gradients that are more bytes than all are told of, by --zero and ranks") {
    Options o;
    o.dp = 2, o.cp = 2, o.grad_compression = {GradCompression::topk, 0.24f};
    CHECK(layout_warnings(o, hosts_in_blocks(4, 4)).empty());
    o.grad_compression.topk = 0.25f;
    CHECK(says(layout_warnings(o, hosts_in_blocks(4, 4)), "--grad-topk 0.25 sends 1 times the bytes"));
    o.grad_compression.topk = 0.5f;
    CHECK(says(layout_warnings(o, hosts_in_blocks(4, 4)), "--grad-topk 0.5 sends 2 times the bytes"));
    CHECK(says(layout_warnings(o, hosts_in_blocks(4, 4)), "less than 0.25 sends fewer"));
    o.zero = 1;
    CHECK(says(layout_warnings(o, hosts_in_blocks(4, 4)), "--grad-topk 0.5 sends 1 times the bytes"));
    o.grad_compression.topk = 0.49f;
    CHECK(layout_warnings(o, hosts_in_blocks(4, 4)).empty());
    o.grad_compression = {GradCompression::int8, 0.5f};
    CHECK(layout_warnings(o, hosts_in_blocks(4, 4)).empty());

    Options local;
    local.dp = 8, local.zero_group = 2,
    local.local = {.every = 5, .compression = OuterCompression::topk, .topk = 0.24f};
    CHECK(layout_warnings(local, hosts_in_blocks(8, 8)).empty());
    local.local.topk = 0.5f;
    CHECK(says(layout_warnings(local, hosts_in_blocks(8, 8)), "--outer-topk 0.5 sends 2 times the bytes"));
    CHECK(says(layout_warnings(local, hosts_in_blocks(8, 8)), "less than 0.25 sends fewer"));

    // two of 1,024 elements, not 1.024
    o.zero = 0, o.dp = 400, o.grad_compression = {GradCompression::topk, 0.001f};
    CHECK(says(layout_warnings(o, hosts_in_blocks(800, 8)), "sends 1.56 times the bytes"));
    CHECK(says(layout_warnings(o, hosts_in_blocks(800, 8)), "with so many ranks take --zero 1"));
    o.zero = 1;
    CHECK(topk_share(o) == 2 * 2.0 / 1024);
    o.zero_group = 100;   // eight groups, whose entries all gather
    CHECK(topk_share(o) == 4 * 2 * 2.0 / 1024);
    o.grad_compression.topk = 0.25f;
    CHECK(says(layout_warnings(o, hosts_in_blocks(800, 8)), "less than 0.125 sends fewer"));
}

TEST_CASE("layout options: --grad-compression is refused where one rank sees all tokens of its part of the model") {
    Options o;
    o.grad_compression.how = GradCompression::int8;
    auto refused = [&](int dp, int cp) {
        o.cp = cp, o.total_batch = std::int64_t{dp} * o.micro_batch * o.seq_len;
        try {
            fit_to_ranks(o, dp);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(refused(2, 1).empty());
    CHECK(refused(1, 2).empty());
    CHECK(refused(1, 1).starts_with("--grad-compression int8: one rank sees all tokens of its part of the model"));
    o.zero = 2, o.zero_group = 2;
    CHECK(refused(4, 1).empty());
    CHECK(refused(2, 1).starts_with("--grad-compression int8 --zero-group 2: the 2 ranks of dp x cp are one group"));
    o.grad_compression.how = GradCompression::none;
    CHECK(refused(1, 1).empty());
}

TEST_CASE("layout options: --ep is refused with --zero-group, unless groups are replicas, within which experts stay") {
    Options o;
    o.ep = 2, o.zero = 1, o.zero_group = 2, o.total_batch = 4 * o.micro_batch * o.seq_len;
    auto refused = [&] {
        try {
            fit_to_ranks(o, 4);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(refused().starts_with("--ep 2 with --zero-group 2: experts are cut over all ranks that hold the same ones"));
    o.local.every = 5;
    CHECK(refused().empty());
    CHECK_NOTHROW(check_expert_ranks({1, 4, 1, 1, 2, 2}));
    CHECK_THROWS_WITH_AS(check_expert_ranks({1, 8, 1, 1, 2, 4}),
                         doctest::Contains("= 2 ranks that a group of --zero-group has on a stage"), Error);
}
