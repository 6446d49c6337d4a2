#include "llmc/run/choices/attention_of_run.h"

#include <doctest/doctest.h>

#include "llmc/base/stand_in.h"
#include "llmc/process/on_ranks_testing.h"

namespace {

struct TestModel {
    Arena arena;
    Stage model;
    TestModel(AttentionKind asked, cudaStream_t stream, bool documents = false)
        : model(custom_model_config(1, 2, 32, 32, 97), options(asked, documents), arena, stream) {}

    static StageOptions options(AttentionKind asked, bool documents) {
        StageOptions result;
        result.document_mask = documents;
        result.B = 2, result.T = 32, result.attention = asked;
        return result;
    }
};

bool library_serves() {
    return attention_refusal<floatX, floatX>(AttentionKind::library, self_attention_shape(2, 32, 2, 16)).empty();
}

}   // namespace

TEST_CASE("attention of a run: what is asked for by name comes before what an earlier part of the run used") {
    on_ranks(1, [](TestRank& rank) {
        TestModel own(AttentionKind::own, rank.stream);
        const std::string why_not = settle_attention(own.model, AttentionKind::own, AttentionKind::library, rank.world);
        rank.require(why_not.empty() && own.model.attention().kind() == AttentionKind::own, "own was asked for");
    });
}

TEST_CASE("attention of a run: auto goes on with what the run used before") {
    on_ranks(1, [](TestRank& rank) {
        TestModel test(AttentionKind::auto_, rank.stream);
        settle_attention(test.model, AttentionKind::auto_, AttentionKind::own, rank.world);
        rank.require(test.model.attention().kind() == AttentionKind::own, "the run used own");
        rank.require(!test.model.attention().is_open(), "what was taken is settled");
        if (!library_serves()) return;
        settle_attention(test.model, AttentionKind::auto_, AttentionKind::library, rank.world);
        rank.require(test.model.attention().kind() == AttentionKind::library, "the run used the library's");
    });
}

TEST_CASE("attention of a run: a library that this machine lacks is said, and own attention is used") {
    if (library_serves()) return;
    on_ranks(1, [](TestRank& rank) {
        TestModel test(AttentionKind::auto_, rank.stream);
        const std::string why_not =
            settle_attention(test.model, AttentionKind::auto_, AttentionKind::library, rank.world);
        rank.require(!why_not.empty() && test.model.attention().kind() == AttentionKind::own, "no library: ", why_not);
        TestModel fresh(AttentionKind::auto_, rank.stream);   // a new run
        const std::string why = settle_attention(fresh.model, AttentionKind::auto_, AttentionKind::auto_, rank.world);
        rank.require(why.find(fresh.model.attention().refusal(AttentionKind::library)) != std::string::npos, "auto says why: ", why);
    });
}

TEST_CASE("attention of a run: what has no mask of documents is not taken") {
    on_ranks(1, [](TestRank& rank) {
        TestModel test(AttentionKind::own, rank.stream, true);
        bool refused = false;
        try {
            test.model.attention().use(AttentionKind::own_sm90);
        } catch (const Error& error) {
            refused = error.message().find("no mask of documents") != std::string::npos;
        }
        rank.require(refused, "kernels for sm_90a were taken");
    });
}

// All ranks take rank 0's result, whatever they had: here rank 1 starts with the other one.
TEST_CASE("attention of a run: the faster one is measured on rank 0 and taken by all") {
    on_ranks(2, [](TestRank& rank) {
        TestModel test(AttentionKind::auto_, rank.stream);
        if (rank.rank() == 1) test.model.attention().use(AttentionKind::own);
        take_faster_attention(test.model, rank.world);
        const auto taken =
            rank.on_device(std::vector<std::int32_t>{static_cast<std::int32_t>(test.model.attention().kind())});
        const auto first = rank.on_device(std::vector<std::int32_t>{0});
        if (rank.rank() == 0) first.upload(taken.download(rank.stream), rank.stream);
        rank.all.broadcast(first.data(), 1, 0, rank.stream);
        rank.require(taken.download(rank.stream) == first.download(rank.stream), "took another one than rank 0");
        rank.require(
            !library_serves() || stand_in() == nullptr || test.model.attention().kind() == AttentionKind::library,
            "the library is faster where own attention runs models of instructions");
    });
}
