"""Compares `train_gpt generate` with Hugging Face's generate on the same folder.

    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER [--prompt TEXT ...] [--tokens 64]
    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER --speed [--tokens 128] [--threads 2]

Needs torch and transformers. Without them it says so and ends with 69.

TRAIN_GPT should be an fp32 build: the likeliest tokens are compared as text, and near ties may fall otherwise in bf16.
Also checked: where one side stops at the end-of-text token, so does the other, after as many tokens. --speed times
both in turns on as many threads, median of three.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import time

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
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
        output = model.generate(**inputs, max_new_tokens=args.tokens, do_sample=False)[0]
        stopped = output[-1].item() == tokenizer.eos_token_id
        expected = tokenizer.decode(output[:-1] if stopped else output)
        found, said = own_text(args, prompt, args.tokens)
        written = int(re.search(r"(\d+) tokens written", said).group(1))
        new = len(output) - inputs["input_ids"].shape[1] - stopped
        same = found == expected and written == new
        different += not same
        print(f"{'same' if same else 'DIFFERENT'}: {prompt!r}, {new} tokens{', then the end of the text' if stopped else ''}")
        if not same:
            print(f"  transformers: {expected!r}\n  train_gpt:    {found!r} ({written} tokens)")
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
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        sys.exit(1 if (speeds if args.speed else compare_text)(args, tokenizer, model) else 0)


main()
