#include "dev/test/certificate/certificate_layout_testing.h"

#include "llmc/run/options/option_names.h"

namespace certificate {

std::string Layout::name() const {
    return text("dp ", dp, ", zero ", zero, zero_group > 0 ? text(" in groups of ", zero_group) : "", ", ",
                micro_batches, " micro-batches", grad_dtype == DType::bf16 ? ", bf16 gradients" : "",
                master_weights == MasterWeights::fp32 ? "" : text(", masters ", name_of(master_weights)),
                moments == DType::fp32 ? "" : ", bf16 moments", tied ? "" : ", untied",
                kind == ModelKind::rms ? ", RMSNorm"
                : like_llama() ? text(kind == ModelKind::llama ? ", Llama of " : ", OLMo2 with qkv biases of ", heads,
                                      "/", kv_heads, " heads")
                               : "",
                window > 0 ? text(", window ", window) : "",
                matmul_dtype == MatmulDType::stored ? "" : text(", ", name_of(matmul_dtype)),
                experts > 0 ? text(", ", experts_per_token, " of ", experts, " experts") : "",
                router == RouterScore::sigmoid ? ", sigmoid router" : "", ep > 1 ? text(", ep ", ep) : "",
                two_chunks ? ", two chunks" : "",
                tp > 1 ? text(", tp ", tp, sequence_parallel ? "" : " not sequence-parallel") : "",
                pipe.stages > 1 ? text(", pp ", pipe.stages, " x ", pipe.chunks, " chunks, ", name_of(pipe.kind),
                                       ", warm-up ", pipe.warmup, ", ", layers, " layers")
                                : "",
                cp > 1 ? text(", cp ", cp, ", ulysses ", ulysses, ", T ", seq_len) : "",
                targets == Targets::all      ? ""
                : targets == Targets::ragged ? ", ragged targets"
                : targets == Targets::few    ? ", few targets"
                                             : ", documents");
}

ModelConfig model(const Layout& layout) {
    // More heads are smaller: the wider model learns so fast that rounding alone parts two runs. With 24 heads, 384
    // channels and bf16, two ranks are 3e-4 from one after 20 steps; with 192 they are 5e-5.
    const int heads = layout.heads, channels = (heads >= 12 ? 8 : 16) * heads;
    ModelConfig config = custom_model_config(layout.layers, heads, channels, layout.seq_len + 8, 97);
    config.tied = layout.tied;
    if (layout.kind != ModelKind::gpt2) config.norm = NormKind::rms;
    if (layout.like_llama()) {
        config.positions = PositionKind::rotary, config.rope_theta = 100;
        config.mlp = MlpKind::swiglu, config.own_mlp_width = 24 * heads;
        config.bias = Bias::none, config.qk_norm = QkNorm::head;
        config.own_kv_heads = layout.kv_heads, config.own_head_size = 16;
    }
    if (layout.kind == ModelKind::olmo2) {
        config.norm_position = NormPosition::after, config.qk_norm = QkNorm::row, config.bias = Bias::qkv;
    }
    config.window = layout.window;
    if (layout.window > 0) config.layer_pattern = "SL";
    if (layout.window > 0 && layout.like_llama()) config.rope_layers = "RRN", config.rope_window_theta = 50;
    if (layout.experts > 0) {
        config.experts = layout.experts, config.own_experts_per_token = layout.experts_per_token;
        config.own_expert_width = 24, config.shared_experts = 1;
        config.aux_loss = 0.1, config.router_z_loss = 0.01;
        config.router = layout.router;
        if (layout.router == RouterScore::sigmoid) config.router_scale = 2.5;   // as in DeepSeek-V3
    }
    return config;
}

std::vector<int> sample(int index, int seq_len) {
    std::vector<int> tokens;
    for (int t = 0; t <= seq_len; t++) {
        const std::uint64_t bits =
            mix64(static_cast<std::uint64_t>(index % 301) * 1000 + static_cast<std::uint64_t>(t / 2));
        tokens.push_back(static_cast<int>((bits % 97) * (bits >> 40) % 97));
    }
    return tokens;
}

}   // namespace certificate
