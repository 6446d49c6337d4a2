#!/usr/bin/env python3
"""Makes golden_llama/ and golden_qwen3/: tiny models as transformers writes them, and the logits that it computes.

    python3 make_golden_llama.py FOLDER        # needs torch and transformers; FOLDER gets the two

Each folder has config.json, model.safetensors and logits.safetensors: tokens (B, T) and logits (B, T, V), computed in
float64 but for the norms, the softmax of attention and the angles of rotary positions, which transformers computes in
float32. The Llama has grouped queries, Llama 3.1's scaling of rotary positions and a classifier of its own; the Qwen3
has norms of heads, heads wider than channels / heads and a tied classifier. Parameters are values that bf16 can hold,
so that every precision of the program starts from the same numbers; they are stored as F32.
"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

BATCH, POSITIONS, VOCABULARY, SEED = 2, 17, 97, 20240723
COMMON = dict(vocab_size=VOCABULARY, max_position_embeddings=32, hidden_size=32, num_hidden_layers=2,
              num_attention_heads=4, initializer_range=0.3, pad_token_id=None, bos_token_id=0, eos_token_id=0)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
CONFIGS = {
    "golden_llama": LlamaConfig(**COMMON, num_key_value_heads=2, intermediate_size=48, rms_norm_eps=1e-5, head_dim=16,
                                rope_parameters=LLAMA3, tie_word_embeddings=False),
    "golden_qwen3": Qwen3Config(**COMMON, num_key_value_heads=1, intermediate_size=56, rms_norm_eps=1e-6, head_dim=16,
                                rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
                                tie_word_embeddings=True),
}


def make(folder, config):
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.inference_mode():
        for parameter in model.parameters():   # norms too
            parameter += 0.1 * torch.randn_like(parameter)
            parameter.copy_(parameter.bfloat16().float())
        model.save_pretrained(folder)
        tokens = torch.randint(VOCABULARY, (BATCH, POSITIONS))
        logits = model.double()(tokens).logits
    save_file({"logits": logits.contiguous(), "tokens": tokens}, f"{folder}/logits.safetensors")
    os.remove(f"{folder}/generation_config.json")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, config in CONFIGS.items():
        make(os.path.join(sys.argv[1], name), config)


main()
