"""Compares train_gpt with Hugging Face's transformers on the same folder.

    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER [--prompt TEXT ...] [--tokens 64]
    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER --losses [--make]
    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER --speed [--tokens 128] [--threads 2]

Needs torch and transformers. Without them it says so and ends with 69.

TRAIN_GPT should be an fp32 build: the likeliest tokens are compared as text, and near ties may fall otherwise in bf16.
Also checked: where one side stops at the end-of-text token, so does the other, after as many tokens. --losses compares
`train_gpt evaluate` with transformers' mean cross-entropy over random tokens, one sequence of each of some lengths; with
--make transformers first writes a random model to FOLDER, in fp32, bf16 and fp16. --speed times both in turns on as many
threads, median of three.
"""

import argparse
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel
except ImportError as problem:
    print(f"SKIPPED: {problem}")
    sys.exit(69)


def own_text(args, prompt, tokens, *more):
    command = [args.train_gpt, "generate", "--model", args.folder, "--prompt", prompt, "--tokens", str(tokens),
               "--temperature", "0", *more]
    environment = dict(os.environ, TRAIN_GPT_THREADS=str(args.threads))
    done = subprocess.run(command, capture_output=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.decode()}")
    return done.stdout.decode()[:-1], done.stderr.decode()   # without the line end


def compare_text(args, tokenizer, model):
    different = 0
    for prompt in args.prompt:
        inputs = tokenizer(prompt, return_tensors="pt")
        tokens = min(args.tokens, model.config.n_positions - inputs["input_ids"].shape[1])
        output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0]
        stopped = output[-1].item() == tokenizer.eos_token_id
        expected = tokenizer.decode(output[:-1] if stopped else output)
        found, said = own_text(args, prompt, tokens)
        written = int(re.search(r"(\d+) tokens written", said).group(1))
        new = len(output) - inputs["input_ids"].shape[1] - stopped
        same = found == expected and written == new
        different += not same
        print(f"{'same' if same else 'DIFFERENT'}: {prompt!r}, {new} tokens{', then the end of the text' if stopped else ''}")
        if not same:
            print(f"  transformers: {expected!r}\n  train_gpt:    {found!r} ({written} tokens)")
    return different


def own_loss(args, tokens):
    """Of `train_gpt evaluate` on one sequence, which is written as a token file of llm.c's format."""
    with tempfile.TemporaryDirectory() as folder:
        shard = os.path.join(folder, "val.bin")
        with open(shard, "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        command = [args.train_gpt, "evaluate", "--model", args.folder, "--val-data", shard,
                   "--seq-len", str(len(tokens) - 1), "--micro-batch", "1"]
        done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"val loss ([0-9.]+)", done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return float(found.group(1))


def compare_losses(args, model):
    torch.manual_seed(1)
    worst = 0.0
    for length in sorted({1, 2, 7, 33, model.config.n_positions}):
        tokens = torch.randint(model.config.vocab_size, (1, length + 1))
        logits = model(tokens[:, :-1]).logits[0].double()
        expected = torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).item()
        found = own_loss(args, tokens[0].tolist())
        worst = max(worst, abs(found - expected))
        print(f"{length:5d} tokens: transformers {expected:.6f}, train_gpt {found:.6f}")
    print(f"largest difference {worst:.1e}, allowed {args.within:.0e}")
    return worst > args.within


def make_models(args):
    """Random weights large enough that every part of the model counts; each type in a folder of its own."""
    torch.manual_seed(2)
    made = GPT2LMHeadModel(GPT2Config(vocab_size=311, n_positions=64, n_embd=48, n_layer=3, n_head=3, initializer_range=0.2))
    for parameter in made.parameters():   # layernorms and biases too
        parameter.data += 0.1 * torch.randn_like(parameter)
    folders = []
    for dtype in (torch.float32, torch.float16, torch.bfloat16):   # rounded once more each time
        folders.append(os.path.join(args.folder, str(dtype).removeprefix("torch.")))
        made.to(dtype).save_pretrained(folders[-1])
    return folders


def losses(args):
    different = 0
    for folder in make_models(args) if args.make else [args.folder]:
        args.folder = folder
        print(folder)
        different += compare_losses(args, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())
    return different


def speeds(args, tokenizer, model):
    prompt = args.prompt[0]
    inputs = tokenizer(prompt, return_tensors="pt")
    own, others = [], []
    for _ in range(3):
        said = own_text(args, prompt, args.tokens, "--stop-at-end", "0")[1]
        own.append(float(re.search(r"([0-9.]+) tokens/s", said).group(1)))
        start = time.perf_counter()
        model.generate(**inputs, max_new_tokens=1, do_sample=False)
        first = time.perf_counter()
        model.generate(**inputs, max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False)
        others.append((args.tokens - 1) / (time.perf_counter() - first - (first - start)))
    ratio = statistics.median(own) / statistics.median(others)
    print(f"train_gpt {statistics.median(own):.1f} tokens/s, transformers {statistics.median(others):.1f} tokens/s, "
          f"{args.threads} threads: {ratio:.2f}x")
    return ratio < args.at_least


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train_gpt")
    parser.add_argument("folder")
    parser.add_argument("--prompt", nargs="*", default=["Hello, my name is", "The", "1, 2, 3,"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--at-least", type=float, default=1.5, help="with --speed: fail below this ratio")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("--make", action="store_true", help="with --losses: FOLDER gets random models of transformers first")
    parser.add_argument("--within", type=float, default=1e-5, help="with --losses: fail above this difference")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.losses:
        with torch.inference_mode():
            sys.exit(1 if losses(args) else 0)
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        sys.exit(1 if (speeds if args.speed else compare_text)(args, tokenizer, model) else 0)


main()
