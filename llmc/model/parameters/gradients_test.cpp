// Whether gradients overwrite or add.
#include "llmc/model/parameters/gradients.h"

#include <doctest/doctest.h>

#include <string>
#include <utility>

#include "llmc/base/stream.h"

namespace {

// Records for each part of gradients whether it is added to those before it: + or =.
class Parts {
public:
    explicit Parts(int zero_stage)
        : storage_(ParamTable(custom_model_config(2, 2, 32, 16, 100)),
                   RankLayout{MeshShape{1, 2, 1, 1}, {}, zero_stage}, {{{0, 2}}, true, true}),
          gradients_(arena_, DType::fp32, storage_, stream_.get()) {
        gradients_.begin_step();
    }
    ~Parts() { CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }   // before its memory is freed
    Parts& operator()(const char* name, int layer = -1) {
        const int param = storage_.table().index(name, layer);
        const auto target = gradients_.next(param);
        CHECK(target.data.as<float>() == gradients_.unsharded().as<float>().tensor(param));
        story_ += target.accumulate ? "+" : "=";
        return *this;
    }
    Parts& ready(int slot) {
        gradients_.unit_ready(slot);
        return *this;
    }
    std::string next_step() {
        gradients_.begin_step();
        return std::exchange(story_, "");
    }

private:
    OwnedStream stream_;
    Arena arena_;
    ParamStorage storage_;
    Gradients gradients_;
    std::string story_;
};

}   // namespace

TEST_CASE("gradients: every tensor's first part of a step overwrites, whenever it comes") {
    for (int zero_stage : {0, 1}) {
        Parts part(zero_stage);
        // the upper layer has done two micro-batches before the lower one begins
        part("attn.c_attn.weight", 1)
            .ready(2)("attn.c_attn.weight", 1)
            .ready(2)("attn.c_attn.weight", 0)("attn.c_attn.bias", 0)
            .ready(1)("attn.c_attn.weight", 0);
        CHECK(part.next_step() == "=+==+");
        CHECK(part("attn.c_attn.weight", 1).next_step() == "=");
    }
}

TEST_CASE("gradients: where each micro-batch is reduced to shards, its first part overwrites") {
    for (int zero_stage : {2, 3}) {
        Parts part(zero_stage);
        part("attn.c_attn.weight", 1)("attn.c_attn.weight", 1).ready(2)("attn.c_attn.weight", 1);
        CHECK(part.next_step() == "=+=");
        // a tied classifier is two micro-batches ahead of the embedding, which adds to what it has written
        part("wte.weight")("wte.weight")("wte.weight")("wpe.weight").ready(0)("wte.weight")("wpe.weight");
        CHECK(part.next_step() == "=++===");
    }
}
