// Tests which attention a run takes if the library wants more memory than the device has.
#include "llmc/cuda_on_cpu/blas/attention_workspace.h"
#include "llmc/cuda_on_cpu/queue/device.h"
#include "llmc/process/on_ranks_testing.h"
#include "llmc/run/choices/attention_of_run.h"
#include "llmc/run/run_parts.h"

namespace {

struct LibraryWants {
    explicit LibraryWants(std::size_t bytes, std::size_t of_sequence = 0) {
        host::attention_workspace_bytes = bytes, host::attention_workspace_bytes_of_sequence = of_sequence;
    }
    ~LibraryWants() { host::attention_workspace_bytes = host::attention_workspace_bytes_of_sequence = 0; }
};

constexpr std::size_t mebibyte = 1 << 20, too_much = std::size_t{1} << 50;

std::unique_ptr<Stage> make_model(AttentionKind asked, TestRank& rank) {
    StageOptions options;
    options.B = 2, options.T = 32, options.attention = asked;
    return std::make_unique<Stage>(custom_model_config(1, 2, 32, 32, 97), options, rank.arena, rank.stream);
}

bool names(const Arena& arena, const std::string& name, std::size_t bytes) {
    for (const Allocation& a : arena.allocations()) {
        if (a.name == name && a.bytes == bytes) return true;
    }
    return false;
}

bool contains(const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; }

}   // namespace

TEST_CASE("attention of a run: a library that the device has no room for is passed over, and that is said") {
    const LibraryWants wants(too_much);
    on_ranks(2, [](TestRank& rank) {
        const auto model = make_model(AttentionKind::auto_, rank);
        const std::string said = take_faster_attention(*model, rank.world);
        rank.require(model->attention().kind() == AttentionKind::own, "own attention serves");
        rank.require(rank.rank() != 0 || contains(said, "no room for"), "said: ", said);

        // a resumed run, whose earlier part had room for it
        const auto resumed = make_model(AttentionKind::auto_, rank);
        const std::string why = settle_attention(*resumed, AttentionKind::auto_, AttentionKind::library, rank.world);
        rank.require(
            resumed->attention().kind() == AttentionKind::own && contains(why, "another attention than before"), why);
    });
}

TEST_CASE("attention of a run: all ranks take own attention where one has no room for the library's") {
    const LibraryWants wants(64 * mebibyte);
    on_ranks(2, [](TestRank& rank) {
        const auto model = make_model(AttentionKind::auto_, rank);
        host::Memory& memory = host::device().memory;
        const std::size_t total = memory.bytes_total();
        if (rank.rank() == 1) memory.set_bytes_total(rank.arena.bytes() + 8 * mebibyte);
        const std::string said = take_faster_attention(*model, rank.world);
        memory.set_bytes_total(total);
        rank.require(model->attention().kind() == AttentionKind::own, "own on all ranks");
        rank.require(contains(said, rank.rank() == 1 ? "no room for" : "another rank"), "said: ", said);
    });
}

TEST_CASE("attention of a run: the library's memory is in the table before the first step") {
    const LibraryWants wants(mebibyte);
    on_ranks(1, [](TestRank& rank) {
        const auto by_name = make_model(AttentionKind::library, rank);
        rank.require(names(rank.arena, "workspace/attention", mebibyte), "asked for by name:\n", rank.arena.table());
    });
    on_ranks(1, [](TestRank& rank) {
        const auto measured = make_model(AttentionKind::auto_, rank);
        rank.require(take_faster_attention(*measured, rank.world).empty(), "nothing to say");
        rank.require(names(rank.arena, "workspace/attention", mebibyte), "measured:\n", rank.arena.table());
    });
}

TEST_CASE("attention of a run: the library's memory suffices for every length of --seq-len-schedule") {
    constexpr std::size_t of_sequence = 1 << 10;
    const LibraryWants wants(0, of_sequence);
    for (const AttentionKind asked : {AttentionKind::library, AttentionKind::auto_}) {
        on_ranks(1, [&](TestRank& rank) {
            const ModelConfig config = custom_model_config(1, 2, 32, 32, 97);
            Options options;
            options.micro_batch = 2, options.seq_len = 32, options.seq_len_schedule = "1:8,10:16,20:32";
            options.attention = asked, options.recompute = Recompute::none;
            RunParts parts(options, config, rank.world, rank.arena, rank.stream);
            if (asked == AttentionKind::auto_) take_faster_attention(parts.stage, rank.world);
            // sequences of 8 tokens are the most: 8 of them
            rank.require(names(rank.arena, "workspace/attention", 8 * of_sequence), rank.arena.table());
            const std::size_t before = rank.arena.bytes();
            parts.stage.set_batch_shape(8, 8);
            parts.stage.attention().use(AttentionKind::library);
            rank.require(rank.arena.bytes() == before, "nothing is left to allocate at a later step");
        });
    }
}

TEST_CASE("attention of a run: asked for by name, a library without room is an error") {
    const LibraryWants wants(too_much);
    on_ranks(1, [](TestRank& rank) {
        try {
            make_model(AttentionKind::library, rank);
        } catch (const Error& error) {
            return rank.require(error.kind() == ErrorKind::no_device && contains(error.what(), "workspace/attention"),
                                error.what());
        }
        rank.require(false, "no error");
    });
}
