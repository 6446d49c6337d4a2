// The GPT: forward and backward of one micro-batch on one device.
//
//   residual(0)   = embedding(tokens)
//   residual(l+1) = block l (residual(l))
//   loss          = head(residual(L), targets)
// The pieces (embedding.h, block.h, head.h) are separate, because a pipeline schedules them one by one and ZeRO fetches
// parameters and reduces gradients around them. `forward_backward` strings them together for one device.
//
// Losses and gradients are normalised by the global number of tokens of the step, given as `dloss`. Everything is
// asynchronous on the model's stream, and deterministic.
#pragma once

#include <memory>
#include <vector>

#include "llmc/model/attention_choice.h"
#include "llmc/model/batch.h"
#include "llmc/model/block.h"
#include "llmc/model/embedding.h"
#include "llmc/model/head.h"
#include "llmc/model/unit_hooks.h"
#include "llmc/model/weights.h"

struct GptOptions {
    int B = 4;      // sequences of a micro-batch
    int T = 1024;   // tokens of a sequence, at most max_seq_len
    AttentionKind attention = AttentionKind::auto_;
    Recompute recompute = Recompute::none;
    int gelu_fusion = 2;       // 0: GELU is a kernel of its own; 1: part of the matmul before it; 2: in backward too
    int classifier_rows = 0;   // rows of logits that exist at once; 0: chosen so that they take at most half a GiB
    MatmulOptions matmul = {};
    ShardPlace place = {};   // which part of the model this rank keeps; by default all of it
};

class Gpt {
public:
    Gpt(const ModelConfig& config, const GptOptions& options, Arena& arena, cudaStream_t stream);
    ~Gpt();
    Gpt(const Gpt&) = delete;
    Gpt& operator=(const Gpt&) = delete;

    const ModelConfig& config() const { return config_; }
    const GptOptions& options() const { return options_; }
    const ParamStorage& storage() const { return *storage_; }
    const ParamTable& table() const { return storage_->table(); }
    cudaStream_t stream() const { return stream_; }
    Matmul& matmul() { return matmul_; }

    AttentionKind attention() const { return attention_->chosen(); }   // own or library
    bool attention_is_open() const { return attention_->open(); }      // both can serve, the faster one is not known
    // From now on this one, with all the memory it will need for micro-batches of the present shape. Waits for the
    // stream. Error(no_device) where there is none or no room; then it is our own.
    void use_attention(AttentionKind kind);
    // The faster of both for a micro-batch of this model, measured. Takes neither; overwrites activations. Own where
    // the library fails, for lack of memory, say; `library_failed` says then why.
    struct FasterAttention {
        AttentionKind kind;
        std::string library_failed;
    };
    FasterAttention faster_attention();

    // Runs micro-batches of another shape in the same memory, until changed again (sampling): at most as many tokens as
    // the model was made for.
    void set_batch_shape(int B, int T);

    const ModelState<floatX>& parameters() const { return parameters_; }   // what this rank keeps
    // What it computes with: the same, or under ZeRO-3 whole units, there only while hooks have fetched them.
    const ModelState<floatX>& unsharded_parameters() const { return unsharded_; }
    // Who is told about every pass from now on; null: nobody. The caller keeps it alive.
    UnitHooks* hooks() const { return hooks_; }
    void set_hooks(UnitHooks* hooks) { hooks_ = hooks; }
    const float* losses() const { return workspace_->losses.data(); }   // (B, T), of the latest loss

    void initialize(std::uint64_t seed);   // initialize_parameters of its own

    // ---- one device, one micro-batch ----

    // Loss of every position, and all gradients.
    template <class G>
    void forward_backward(Gradients<G>& gradients, const Batch& batch, float dloss);

    // Loss of every position (validation).
    void forward_loss(const Batch& batch);

    // Logits of rows [first_row, first_row + rows) of the batch last given to forward_layers, into `logits`, a device
    // buffer of (rows, Vp).
    void forward_layers(const Batch& batch);
    void logits_of_rows(floatX* logits, int first_row, int rows);

private:
    void list_uses();
    void layers_forward(const Batch& batch);   // the uses of a pass up to its layers' last
    void begin_pass(const std::vector<std::vector<int>>& uses) {
        ENSURE(hooks_ || unsharded_.state() != StateKind::unsharded,
               "parameters are shared out, and nobody fetches them");
        if (hooks_) hooks_->pass_begins(uses);
    }
    // Work that reads the parameters of the next entry of the pass, and work that writes gradients of units.
    template <class Work>
    void use(Work&& work) {
        if (hooks_) hooks_->use_begins();
        work();
        if (hooks_) hooks_->use_ends();
    }
    void gradients_begin(int slot) {
        if (hooks_) hooks_->gradients_begin(slot);
    }
    void gradients_ready(int slot) {
        if (hooks_) hooks_->gradients_ready(slot);
    }

    ModelConfig config_;
    GptOptions options_;
    cudaStream_t stream_;
    Matmul matmul_;
    CutPoints cut_points_;
    std::unique_ptr<ParamStorage> storage_;
    ModelState<floatX> parameters_, unsharded_;
    UnitHooks* hooks_ = nullptr;
    std::vector<std::vector<int>> forward_uses_, training_uses_;
    RankSizes sizes_;
    int max_rows_;   // B x T that there is room for
    std::unique_ptr<ActivationPool> pool_;
    std::unique_ptr<AttentionChoice<floatX>> attention_;
    std::unique_ptr<Workspace> workspace_;
    std::unique_ptr<StageTools> tools_;
    std::unique_ptr<Embedding> embedding_;
    std::vector<Block> blocks_;
    std::unique_ptr<Head> head_;
    Activations* activations_;   // of the micro-batch at hand
};
