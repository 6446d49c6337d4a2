"""Compares with transformers a model that train_gpt continues with longer sequences, under each scaling of its rotary
positions.

    python3 dev/reference/longer_context.py TRAIN_GPT [--keep FOLDER] [--within 1e-5]

Needs torch and transformers. Without them it says so and ends with 69. TRAIN_GPT should be an fp32 build. Last run with
transformers 5.24.0.

A tiny Llama and a tiny Qwen3 are trained at 256 tokens and continued at 1,024: without scaling, with another theta, linear
and llama3. Compared are the losses of sequences of some lengths, by transformers in double precision and by `train_gpt
evaluate`, of four folders: the checkpoint, its export, and what transformers 5 saves of each ("rope_parameters" in place of
"rope_scaling"). Also compared: the frequencies that transformers takes config.json for, with those of its own functions
for the scaling asked for. A loss without the scaling must differ: else the comparison would show nothing.
"""

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM
except ImportError as problem:
    print(f"SKIPPED: {problem}")
    sys.exit(69)

from transformers_compare import own_loss, write_shard

VOCABULARY, BEFORE, AFTER = 61, 256, 1024
MODELS = {"llama": ["--kv-heads", "1"], "qwen3": ["--qk-norm", "head", "--head-size", "32", "--rope-theta", "1000000"]}
SCALINGS = {   # options, and what transformers must read of them; rope_theta is the model's where it is not said
    "none": ([], {"rope_type": "default"}),
    "theta": (["--rope-theta", "80000"], {"rope_type": "default", "rope_theta": 80000.0}),
    "linear": (["--rope-scaling", "linear", "--rope-factor", "4"], {"rope_type": "linear", "factor": 4.0}),
    "llama3": (["--rope-scaling", "llama3", "--rope-factor", "4"],
               {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": BEFORE}),
    "llama3 of other factors": (
        ["--rope-scaling", "llama3", "--rope-factor", "8", "--rope-low-freq-factor", "2", "--rope-high-freq-factor", "6.5",
         "--rope-original-len", "200", "--rope-theta", "500000"],
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 6.5,
         "original_max_position_embeddings": 200, "rope_theta": 500000.0}),
    "yarn": (["--rope-scaling", "yarn", "--rope-factor", "4"],
             {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
              "original_max_position_embeddings": BEFORE}),
}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr}")


def text_of_copies(rng, length):
    """Tokens that repeat from far away, so that attention over long distances lowers the loss."""
    tokens = []
    while len(tokens) < length:
        words = [rng.randrange(VOCABULARY) for _ in range(rng.randrange(20, 90))]
        tokens += words * rng.randrange(2, 5)
    return tokens[:length]


def train(args, data, output, *options):
    run(args.train_gpt, "--train-data", data, "--vocab-size", str(VOCABULARY), "--micro-batch", "1", "--val-every", "0",
        "--sample-every", "0", "--lr", "1e-2", "--warmup", "0", "--schedule", "constant", "--output-dir", output, *options)


def transformers_loss(folder, tokens, rope=None):
    """The mean cross-entropy, in double precision; `rope`: in place of what config.json says."""
    config = AutoConfig.from_pretrained(folder)
    if rope is not None:
        config.rope_parameters = copy.deepcopy(rope)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float64).eval()
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]])).logits[0]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])).item()


def check_config(folder, expected):
    config = AutoConfig.from_pretrained(folder)
    found = {key: config.rope_parameters.get(key) for key in expected}
    if config.max_position_embeddings != AFTER or found != expected:
        sys.exit(f"{folder}: {config.max_position_embeddings} positions, {config.rope_parameters}; expected {expected}")
    return config.rope_parameters


def compare(args, name, work, base, data, options, expected, tokens):
    checkpoint = os.path.join(work, "run", "step_00000003")
    train(args, data, os.path.join(work, "run"), "--model", base, "--seq-len", str(AFTER), "--max-steps", "3", *options)
    exported = os.path.join(work, "exported")
    run(args.train_gpt, "export", "--model", checkpoint, "--output", exported)
    folders = {"checkpoint": checkpoint, "export": exported}
    for kind, folder in list(folders.items()):   # as transformers 5 writes them
        saved = os.path.join(work, kind + "-saved")
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(saved)
        with open(os.path.join(saved, "config.json")) as file:
            assert "rope_parameters" in json.load(file)
        folders[f"{kind} saved by transformers"] = saved
    rope = check_config(checkpoint, expected)
    unscaled = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
    worst = apart = 0.0
    for kind, folder in folders.items():
        check_config(folder, expected)
        args.folder = folder
        for length in (1, 100, BEFORE, BEFORE + 1, 777, AFTER):
            sequence = tokens[:length + 1]
            expected_loss = transformers_loss(folder, sequence)
            found = own_loss(args, sequence)
            worst = max(worst, abs(found - expected_loss))
            if kind == "checkpoint":
                apart = max(apart, abs(transformers_loss(folder, sequence, unscaled) - expected_loss))
    shows = expected["rope_type"] == "default" or apart > 10 * args.within
    print(f"{name}: largest difference of {6 * len(folders)} losses {worst:.1e}" +
          (f"; without the scaling they would differ by {apart:.1e}" if expected["rope_type"] != "default" else ""))
    return worst <= args.within and shows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_gpt")
    parser.add_argument("--keep", help="models are written there and stay")
    parser.add_argument("--within", type=float, default=1e-5)
    args = parser.parse_args()
    args.train_gpt = os.path.abspath(args.train_gpt)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    rng, different = random.Random(1), 0
    with tempfile.TemporaryDirectory() as temporary:
        work = args.keep or temporary
        os.makedirs(work, exist_ok=True)
        data = write_shard(work, text_of_copies(rng, 40000))
        tokens = text_of_copies(rng, AFTER + 1)
        for kind, own in MODELS.items():
            base = os.path.join(work, kind)
            train(args, data, base, "--layers", "2", "--heads", "2", "--channels", "64", "--norm", "rms", "--positions",
                  "rotary", "--mlp", "swiglu", "--bias", "0", "--seq-len", str(BEFORE), "--max-steps", "60", *own)
            for name, (options, expected) in SCALINGS.items():
                folder = os.path.join(work, f"{kind} {name}".replace(" ", "-"))
                different += not compare(args, f"{kind}, {name}", folder, base, data, options, expected, tokens)
    print(f"transformers {transformers.__version__}: allowed {args.within:.0e}, {different} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
