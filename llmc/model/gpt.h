// The GPT: forward and backward of one micro-batch on one device.
//
//   residual(0) = wte[tokens] + wpe
//   block l:  residual2 = residual(l) + attproj(attention(qkv(ln1(residual(l)))))
//             residual(l+1) = residual2 + fcproj(gelu(fc(ln2(residual2))))
//   loss = cross entropy of (lnf(residual(L)) classifier^T)      classifier: wte, or lm_head where it is not tied
// Radford et al., "Language models are unsupervised multitask learners" (GPT-2, 2019), section 2.3.
//
// The pieces are separate calls, embedding, one block, head, each forward and backward, because a pipeline schedules
// them one by one and ZeRO fetches parameters and reduces gradients around them. `forward_backward` strings them
// together for one device. The head computes loss and gradients chunk by chunk over the rows, so the logits of all
// tokens never exist at once.
//
// Gradients (G: float, or bf16 to save memory) are overwritten by the first micro-batch of a step and added to by later
// ones (`accumulate`). Losses and gradients are normalised by the global number of tokens of the step, given as
// `dloss`. Everything is asynchronous on the model's stream, and deterministic.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "llmc/base/arena.h"
#include "llmc/base/pinned.h"
#include "llmc/base/stream.h"
#include "llmc/kernels/attention.h"
#include "llmc/kernels/matmul.h"
#include "llmc/kernels/token_groups.h"
#include "llmc/model/activations.h"
#include "llmc/model/attention_choice.h"
#include "llmc/model/config.h"
#include "llmc/model/param_storage.h"
#include "llmc/model/precision.h"
#include "llmc/model/unit_hooks.h"
#include "llmc/model/weight_source.h"

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

// One micro-batch on the device. Tokens and targets are (B, T).
struct Batch {
    const int* tokens = nullptr;
    const int* targets = nullptr;   // negative: this position has no loss
    TokenGroupsView groups;         // of the tokens; only backward reads them
};

// Device memory for one micro-batch, refilled from the host. The host does not wait for the device unless it is two
// micro-batches ahead: what is uploaded is kept in pinned memory, of which there are two pieces in turns.
class BatchBuffer {
public:
    BatchBuffer(Arena& arena, int B, int T, std::int64_t vocab_size);
    // Both (B x T); `targets` may be empty (sampling). Ids must be checked already: token < V, and target < V.
    void upload(std::span<const int> tokens, std::span<const int> targets, cudaStream_t stream);
    const Batch& batch() const { return batch_; }

private:
    struct Staging {
        PinnedBuffer<int> values;   // tokens, targets, groups
        OwnedEvent copied;
    };
    int vocab_size_;
    DeviceBuffer<int> tokens_, targets_, groups_;
    std::array<Staging, 2> staging_;
    std::size_t next_staging_ = 0;
    Batch batch_;
};

// Draws the initial weights of whatever part of the model a state holds: a function of (seed, tensor, global element),
// so bit-equal under every layout. Padding becomes zero.
template <class T>
void initialize_parameters(const ModelState<T>& state, std::uint64_t seed, cudaStream_t stream);

// A tensor of any state from the host and to it, as float in its global shape; `param` is an index of the table. Upload
// keeps what this rank owns of it (which may be nothing) and zeroes the padding. Download waits for the stream, and is
// for states that are not cut over ranks.
template <class T>
void upload_tensor(const ModelState<T>& state, int param, std::span<const float> values, cudaStream_t stream);
template <class T>
std::vector<float> download_tensor(const ModelState<T>& state, int param, cudaStream_t stream);

// Reads whatever part of the model a state holds from a file (weight_source.h), rounded to nearest.
template <class T>
void load_parameters(const ModelState<T>& state, const WeightSource& source, cudaStream_t stream);

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
    Activations& activations() { return *activations_; }   // the set of a run with one micro-batch in flight

    void initialize(std::uint64_t seed);   // initialize_parameters of its own

    // ---- one device, one micro-batch ----

    // Loss of every position into activations().losses, and all gradients.
    template <class G>
    void forward_backward(const ModelState<G>& gradients, const Batch& batch, float dloss, bool accumulate);

    // Loss of every position into activations().losses (validation).
    void forward_loss(const Batch& batch);

    // Logits of rows [first_row, first_row + rows) of the batch last given to forward_layers, into `logits`, a device
    // buffer of (rows, Vp).
    void forward_layers(const Batch& batch);
    void logits_of_rows(floatX* logits, int first_row, int rows);

    // ---- the pieces ----

    void embedding_forward(const Batch& batch, Activations& activations);
    void block_forward(int layer, Activations& activations);
    // Losses; and with backward also dresidual and the gradients of lnf and of the classifier, chunk by chunk.
    void head_forward(const Batch& batch, Activations& activations);
    template <class G>
    void head_forward_backward(const ModelState<G>& gradients, const Batch& batch, float dloss, bool accumulate,
                               Activations& activations);
    // dresidual: in, the gradient of the block's output; out, that of its input.
    template <class G>
    void block_backward(int layer, const ModelState<G>& gradients, bool accumulate, Activations& activations);
    // Adds to what the classifier has written to dwte, where that is tied to it and on this rank; else the first
    // micro-batch's dwte begins at zero.
    template <class G>
    void embedding_backward(const ModelState<G>& gradients, const Batch& batch, bool accumulate,
                            Activations& activations);

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

    void final_layernorm(Activations& activations);
    void logits_forward(floatX* logits, const Activations& activations, int first_row, int rows);
    void block_activations(int layer, Activations& activations);
    void recompute_block(int layer, Activations& activations);
    template <class G>
    void mlp_backward(const BlockTensors<floatX>& w, const BlockTensors<G>& dw, const BlockActivations& a,
                      bool accumulate, floatX* dresidual);
    template <class G>
    void attention_backward(const BlockTensors<floatX>& w, const BlockTensors<G>& dw, const BlockActivations& a,
                            const floatX* input, bool accumulate, floatX* dresidual);

    int rows() const { return options_.B * options_.T; }
    // All rows through a linear layer.
    MatmulShape linear(int out_channels, int in_channels) const { return {rows(), out_channels, in_channels}; }
    // Rows of logits [first, first + result) that the classifier handles at once.
    int chunk_rows(int first) const { return std::min(classifier_rows_, rows() - first); }
    AttentionShape attention_shape() const;
    AttentionForward<floatX> attention_forward_of(const BlockActivations& a) const;
    // From the gradient of its output in rows_c of the workspace to that of q, k and v in rows_3c.
    AttentionBackward<floatX> attention_backward_of(const BlockActivations& a) const;
    // q, k or v (part 0, 1, 2) in the output of the qkv matmul; and a tensor (R, C) of its own, seen as heads.
    template <class T>
    HeadsView<T> heads(T* packed, int part) const {
        return packed_heads(packed, part, options_.T, NH_, HS_);
    }
    template <class T>
    HeadsView<T> heads(T* separate) const {
        return contiguous_heads(separate, options_.T, NH_, HS_);
    }

    ModelConfig config_;
    GptOptions options_;
    cudaStream_t stream_;
    int C_, NH_, HS_, V_, Vp_;
    int classifier_rows_;
    int max_rows_;   // B x T that the activations have room for
    Matmul matmul_;
    std::unique_ptr<ParamStorage> storage_;
    ModelState<floatX> parameters_, unsharded_;
    UnitHooks* hooks_ = nullptr;
    std::vector<std::vector<int>> forward_uses_, training_uses_;
    std::unique_ptr<Activations> activations_;
    std::unique_ptr<AttentionChoice<floatX>> attention_;
    std::unique_ptr<Workspace> workspace_;
};
