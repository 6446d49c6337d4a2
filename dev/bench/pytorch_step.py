#!/usr/bin/env python3
"""Times a GPT-2 training step in PyTorch, to measure train_gpt beside it: same sizes, same kind of step.

    python3 dev/bench/pytorch_step.py --batch 4 --seq-len 64 --precision bf16 --steps 8 [--compile] [--device cuda]

A plain GPT-2: tied embedding, pre-norm blocks, tanh GELU, scaled_dot_product_attention, mean cross-entropy, gradient norm
clipped to 1, fused AdamW. bf16 is PyTorch's usual way, autocast over fp32 weights. Prints one line per step and, last,
the median of the steps after the first as tokens per second. Random tokens: time does not depend on them.
"""
import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

SIZES = {"124M": (12, 12, 768), "350M": (24, 16, 1024), "774M": (36, 20, 1280), "1558M": (48, 25, 1600)}
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=SIZES, default="124M")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(1)
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
