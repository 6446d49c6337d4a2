// Checkpoints whose writing or reading the ranks of a mesh share: faults of one rank's disk or memory, and time.
#include <atomic>
#include <chrono>
#include <cstring>

#include "dev/test/layouts/reshard_testing.h"
#include "llmc/base/log.h"
#include "llmc/io/faulty_files_testing.h"
#include "llmc/io/throttled_files_testing.h"
#include "llmc/run/flip_bit_testing.h"
#include "llmc/run/stopping/health.h"

using namespace reshard_testing;

TEST_CASE("reshard: where one rank cannot write, no folder is left, that rank says why and the others can be resumed") {
    const SharedFolder folder;
    if (!ranks_are_threads()) return;   // they end alike here
    const Case c{{1, 3, 1, 1}, 1};
    const std::string path = folder / "full";
    for (int victim : {0, 1, 2}) {
        std::uint64_t at = 2;   // the folder was made
        for (int well = 0; well == 0; at += 9) {
            INFO("rank ", victim, ", operation ", at);
            std::atomic<int> codes[3] = {0, 0, 0};
            on_ranks(c.mesh, [&](TestRank& me) {
                ReshardRank rank(c, me);
                rank.state.fill();
                FaultyFiles full(real_files(), me.rank() == victim ? at : UINT64_MAX);
                try {
                    save_training_state(full, path, run_state(), rank.state.tensors(), extras, rank.gatherer,
                                        rank.ranks());
                } catch (const Error& error) {
                    codes[me.rank()] = error.exit_code();
                }
            });
            well = static_cast<int>(std::count(std::begin(codes), std::end(codes), 0));
            for (int rank = 0; rank < 3 && well == 0; rank++) CHECK(codes[rank] == (rank == victim ? 74 : 75));
            // else it was the manifest or what follows it, which rank 0 alone writes, or nothing failed
            if (well > 0) CHECK((well == 3 || (victim == 0 && codes[0] == 74)));
            for (const std::string& name : real_files().list(path)) CHECK(!name.ends_with(".tmp"));
            real_files().remove_all(path);
        }
        CHECK(at > 50);
    }
}

TEST_CASE("reshard: four ranks share the writing: at least three times as fast as one, on a disk that is slow") {
    const SharedFolder folder;
    if (!ranks_are_threads()) return;   // one disk for all is another matter
    const std::int64_t channels = 48;   // layers outweigh the embedding
    // the best of some, since a busy machine may delay any rank
    double seconds[2] = {1e9, 1e9};
    for (int attempt = 0; attempt < 8 && (attempt == 0 || seconds[0] < 3 * seconds[1]); attempt++) {
        for (int i : {0, 1}) {
            const Case c{{1, i == 0 ? 1 : 4, 1, 1}, 0};
            on_ranks(c.mesh, [&](TestRank& me) {
                ReshardRank rank(c, me, channels);
                rank.state.fill();
                ThrottledFiles slow(real_files(), 2e6);
                HostTensors memory(rank.state.tensors(), rank.gatherer);
                CheckpointWriter save(slow, folder / (c.name() + "-" + std::to_string(attempt)), run_state().step,
                                      rank.ranks());
                start_save(save, run_state(), rank.state.tensors(), memory, extras, rank.gatherer);
                me.world.gather_text("");
                const auto start = std::chrono::steady_clock::now();
                save.finish();
                const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
                if (me.rank() == 0) seconds[i] = std::min(seconds[i], taken.count());
            });
        }
    }
    MESSAGE(seconds[0] << " s and " << seconds[1] << " s");
    CHECK(seconds[0] >= 3 * seconds[1]);
}

TEST_CASE("reshard: a bit that flips in a copy is found, with its tensor and the rank, whatever is copied") {
    if (!ranks_are_threads()) return;
    struct Flip {
        Case c;
        int rank;
        std::string expected;   // message about this tensor; empty: there is no copy
    };
    const std::string name = "h.1.ln_1.weight", vocabulary = "wte.weight";
    const Flip flips[] = {{{{1, 3, 1, 1}, 0}, 1, "rank 1 has another parameter " + name + " than ranks 0, 2"},
                          {{{1, 1, 1, 2}, 1}, 1, "ranks 0, 1 should have the same parameter " + name},
                          {{{1, 2, 2, 1}, 2}, 3, "rank 3 has another parameter " + name + " than ranks 0, 1, 2"},
                          {{{1, 3, 1, 1}, 3}, 1, ""},
                          {{{2, 1, 1, 1}, 0}, 1, "ranks 0, 1 should have the same parameter " + vocabulary}};
    for (const Flip& flip : flips) {
        INFO(flip.c.name());
        on_ranks(flip.c.mesh, [&](TestRank& me) {
            ReshardRank rank(flip.c, me);
            rank.state.fill();
            auto differs = [&] {
                const ReplicaHashes own = replica_hashes(rank.state.tensors(), me.stream);
                const std::string of_groups = differing_replicas(me.world.gather_text(own.groups)),
                                  of_tensors = differing_replicas(me.world.gather_text(own.tensors));
                me.require(of_groups.empty() == of_tensors.empty(), "groups: ", of_groups, "; tensors: ", of_tensors);
                const auto states = static_cast<int>(1 + rank.state.tensors().states.size());
                me.require(std::ranges::count(own.groups, '\n') <= 4 * states, "more lines than groups: ", own.groups);
                return of_tensors;
            };
            me.require(differs() == "", "equal copies: ", differs());
            if (me.rank() == flip.rank) {
                const ModelState<floatX>& state = rank.state.tensors().parameters;
                const ParamTable& table = state.storage().table();
                const bool first_stage_only = flip.c.mesh.pp > 1;
                floatX* const at = first_stage_only ? state.tensor("wte.weight") : state.tensor("ln_1.weight", 1);
                me.require(at != nullptr && table.size() > 0, "it holds no such tensor");
                flip_bit(at, me.stream);
            }
            const std::string found = differs();
            me.require(flip.expected.empty() ? found.empty() : found.starts_with(flip.expected), "found: ", found);
        });
    }
}

namespace {

// Bytes of a safetensors file before its data.
std::uint64_t header_bytes(const std::string& content) {
    std::uint64_t length = 0;
    std::memcpy(&length, content.data(), sizeof length);
    return sizeof length + length;
}

}   // namespace

TEST_CASE("reshard: a folder is verified once, by all ranks together, and one damaged file is everyone's") {
    const SharedFolder folder;
    const std::string good = reference(folder, {}), parent = good.substr(0, good.rfind('/'));
    std::uint64_t bytes = 0;
    for (const auto& [name, content] : files_in(good)) {
        bytes += name == "manifest.json" ? 0 : content.size();
        if (name.ends_with(".safetensors")) bytes += header_bytes(content);   // compared with the manifest's tensors
    }
    for (int ranks : {1, 3, 8}) {
        for (const char* damaged : {"", "optimizer-00002-of-00010.safetensors", "run.json"}) {
            if (!ranks_are_threads()) continue;   // the bytes they read are added up here
            const std::string file = good + "/" + damaged;
            const std::string content = damaged[0] ? read_whole(real_files(), file) : "";
            if (damaged[0]) write_whole(real_files(), file, content + " ");
            std::atomic<std::uint64_t> read = 0;
            on_ranks(ranks, [&](TestRank& me) {
                WatchedFiles files;
                std::vector<PassedOver> passed_over;
                const auto found = newest_checkpoint(
                    files, parent, passed_over,
                    {me.rank(), ranks, [&](const std::string& own) { return me.world.gather_text(own); }});
                me.require(found.has_value() == (damaged[0] == '\0'), "found another checkpoint");
                me.require(passed_over.size() == (damaged[0] ? 1 : 0), passed_over.size(), " passed over");
                if (damaged[0]) {
                    const std::string& why = passed_over[0].damage;
                    me.require(why.find(damaged) != std::string::npos, why);
                }
                read += files.all_bytes;
            });
            if (damaged[0]) write_whole(real_files(), file, content);
            if (!damaged[0]) {
                const std::uint64_t manifests =
                    static_cast<std::uint64_t>(ranks) * read_whole(real_files(), good + "/manifest.json").size();
                CHECK(read == bytes + manifests);
            }
        }
    }
}
