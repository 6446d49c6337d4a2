#!/usr/bin/env python3
"""Times a training step of a GPT-2 or a Llama in PyTorch, to measure train_gpt beside it: same sizes, same kind of step.

    python3 dev/bench/pytorch_step.py --batch 4 --seq-len 64 --precision bf16 --steps 8 [--compile] [--device cuda]
    python3 dev/bench/pytorch_step.py --model llama:125M [--transformers]

A plain GPT-2: tied embedding, pre-norm blocks, tanh GELU, scaled_dot_product_attention, mean cross-entropy, gradient norm
clipped to 1, fused AdamW. A Llama has RMSNorm, rotary positions, grouped queries and SwiGLU instead, written with torch's
own modules, or with --transformers it is Hugging Face's LlamaForCausalLM. bf16 is PyTorch's usual way, autocast over fp32 weights. Prints one line per step and, last,
the median of the steps after the first as tokens per second. Random tokens: time does not depend on them.
"""
import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {"124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280), "1558M": (48, 25, 1600)}
# layers, heads, channels, kv heads, width of the MLP: as train_gpt's of the same name
LLAMAS = {"llama:125M": (30, 9, 576, 3, 1536)}
VOCABULARY, POSITIONS = 50304, 1024


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.attproj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.fc, self.fcproj = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        batch, tokens, channels = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attproj(y.transpose(1, 2).reshape(batch, tokens, channels))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, channels):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, channels), nn.Embedding(POSITIONS, channels)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(layers))
        self.lnf = nn.LayerNorm(channels)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class LlamaBlock(nn.Module):
    def __init__(self, channels, heads, kv_heads, width):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, channels // heads
        self.ln1, self.ln2 = nn.RMSNorm(channels, eps=1e-5), nn.RMSNorm(channels, eps=1e-5)
        self.qkv = nn.Linear(channels, (heads + 2 * kv_heads) * self.size, bias=False)
        self.attproj = nn.Linear(channels, channels, bias=False)
        self.fc, self.fcproj = nn.Linear(channels, 2 * width, bias=False), nn.Linear(width, channels, bias=False)

    def forward(self, x, cos, sin):
        batch, tokens, channels = x.shape
        qkv = self.qkv(self.ln1(x)).view(batch, tokens, -1, self.size).transpose(1, 2)
        turned, v = qkv[:, :self.heads + self.kv_heads], qkv[:, self.heads + self.kv_heads:]
        left, right = turned.chunk(2, dim=-1)
        turned = torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
        q, k = turned[:, :self.heads], turned[:, self.heads:]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.attproj(y.transpose(1, 2).reshape(batch, tokens, channels))
        gate, up = self.fc(self.ln2(x)).chunk(2, dim=-1)
        return x + self.fcproj(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, layers, heads, channels, kv_heads, width):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, channels)
        self.blocks = nn.ModuleList(LlamaBlock(channels, heads, kv_heads, width) for _ in range(layers))
        self.lnf = nn.RMSNorm(channels, eps=1e-5)
        half = channels // heads // 2
        angles = torch.outer(torch.arange(POSITIONS), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos()), self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        type_of = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else x.dtype
        cos, sin = (table[:tokens.shape[1]].to(type_of) for table in (self.cos, self.sin))
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = F.linear(self.lnf(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class TransformersLlama(nn.Module):
    def __init__(self, layers, heads, channels, kv_heads, width):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM
        self.model = LlamaForCausalLM(LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=channels, intermediate_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=POSITIONS,
            tie_word_embeddings=True, rms_norm_eps=1e-5, use_cache=False, attn_implementation="sdpa"))

    def forward(self, tokens, targets):
        logits = self.model(tokens).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=[*SIZES, *LLAMAS], default="124M")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(1)
    if args.model in LLAMAS:
        model = (TransformersLlama if args.transformers else Llama)(*LLAMAS[args.model]).to(args.device)
    else:
        model = Gpt(*SIZES[args.model]).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    run = torch.compile(model) if args.compile else model
    tokens = torch.randint(50257, (args.batch, args.seq_len), device=args.device)
    targets = torch.randint(50257, (args.batch, args.seq_len), device=args.device)
    seconds = []
    for step in range(args.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = run(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()   # waits for a GPU
        seconds.append(time.perf_counter() - start)
        print(f"step {step + 1}: loss {value:.4f}, {1e3 * seconds[-1]:.1f} ms", flush=True)
    median = statistics.median(seconds[1:] or seconds)
    print(f"{args.batch * args.seq_len / median:.1f} tokens/s ({torch.__version__}, {torch.get_num_threads()} threads)")


if __name__ == "__main__":
    main()
