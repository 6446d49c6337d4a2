"""Compares train_gpt with Hugging Face's transformers on the same folder.

    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER [--prompt TEXT ...] [--tokens 64]
    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER --losses [--make]
    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER --families
    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER --fp8
    python3 dev/reference/transformers_compare.py TRAIN_GPT FOLDER --speed [--tokens 128] [--threads 2]

Needs torch and transformers. Without them it says so and ends with 69.

TRAIN_GPT should be an fp32 build: the likeliest tokens are compared as text, and near ties may fall otherwise in bf16.
Also checked: where one side stops at the end-of-text token, so does the other, after as many tokens. --losses compares
`train_gpt evaluate` with transformers' mean cross-entropy over random tokens, one sequence of each of some lengths; with
--make transformers first writes a random model to FOLDER, in fp32, bf16 and fp16. --families: for random models of every
other family that the program knows, losses as above, every gradient of a first step, the losses of 20 steps of AdamW (with a z-loss), and
that what is imported and exported again has the same tensors to the bit and the same config.json; for mixtures also the losses of
a folder that has all experts of a layer in one tensor. --fp8: loss and gradients of a step of models of one layer, with the operands of its products rounded to torch's
e4m3, beside `--matmul-dtype fp8-emulated`; most of six must agree, because a last bit may decide a rounding. --speed times both in turns on as many threads, median of three.
"""

import argparse
import json
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
    from safetensors.torch import load_file
    from transformers import (AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig,
                              MistralConfig, MixtralConfig, Olmo2Config, Olmo3Config, OlmoeConfig, Qwen2Config, Qwen3Config,
                              Qwen3MoeConfig, SmolLM3Config)
except ImportError as problem:
    print(f"SKIPPED: {problem}")
    sys.exit(69)


def as_fp8(x, tall):
    """x (rows, cols) rounded to e4m3, with a power of two as the scale of each tall x 128 elements."""
    rows, cols = x.shape
    padded = torch.nn.functional.pad(x, (0, -cols % 128, 0, -rows % tall))
    blocks = padded.unflatten(0, (-1, tall)).unflatten(2, (-1, 128))
    mantissa, exponent = torch.frexp(blocks.abs().amax(dim=(1, 3), keepdim=True))   # 448 is 0.875 * 2^9
    scale = torch.ldexp(torch.ones_like(mantissa), torch.where(mantissa <= 0.875, exponent - 9, exponent - 8).clamp(-100, 100))
    rounded = (blocks / scale).to(torch.float8_e4m3fn).float() * scale
    return rounded.flatten(2, 3).flatten(0, 1)[:rows, :cols]


class Fp8Product(torch.autograd.Function):
    """x W^T in fp8, with gradients of x in fp8 and of W as they are."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return as_fp8(x, 1) @ as_fp8(weight, 128).T

    @staticmethod
    def backward(context, dout):
        x, weight = context.saved_tensors
        return as_fp8(dout, 1) @ as_fp8(weight, 128), dout.T @ x


def multiply_in_fp8(model):
    """The layers' products; the classifier's stay."""
    for layer in model.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                def forward(x, module=module):
                    out = Fp8Product.apply(x.flatten(0, -2), module.weight).unflatten(0, x.shape[:-1])
                    return out if module.bias is None else out + module.bias
                module.forward = forward


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
        tokens = min(args.tokens, model.config.max_position_embeddings - inputs["input_ids"].shape[1])
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


def write_shard(folder, tokens):
    """A token file of llm.c's format."""
    shard = os.path.join(folder, "val.bin")
    with open(shard, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
    return shard


def own_loss(args, tokens):
    """Of `train_gpt evaluate` on one sequence."""
    with tempfile.TemporaryDirectory() as folder:
        shard = write_shard(folder, tokens)
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
    for length in sorted({1, 2, 7, 33, model.config.max_position_embeddings}):
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


def random_families():
    """Small models of every family, by name: groups of one head and of several, both kinds of classifier."""
    common = dict(vocab_size=311, max_position_embeddings=64, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
                  initializer_range=0.1, pad_token_id=None, bos_token_id=0, eos_token_id=0)
    llama3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192)
    plain = dict(rope_type="default", rope_theta=10000.0)
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
    return {
        "llama-2": LlamaConfig(**common, num_key_value_heads=4, intermediate_size=176, rms_norm_eps=1e-5,
                               rope_parameters=plain, tie_word_embeddings=False),
        "llama-3": LlamaConfig(**common, num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-6,
                               rope_parameters=llama3, tie_word_embeddings=True, head_dim=32),
        "mistral": MistralConfig(**common, num_key_value_heads=1, intermediate_size=120, sliding_window=None,
                                 rope_parameters=plain, tie_word_embeddings=False),
        "mistral-window": MistralConfig(**common, num_key_value_heads=2, intermediate_size=120, sliding_window=7,
                                        rope_parameters=plain, tie_word_embeddings=False),
        "qwen2": Qwen2Config(**common, num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-6,
                             rope_parameters=dict(plain, rope_theta=1000000.0), tie_word_embeddings=True),
        "qwen2-windows": Qwen2Config(**common, num_key_value_heads=1, intermediate_size=96, rms_norm_eps=1e-6,
                                     rope_parameters=plain, tie_word_embeddings=False, use_sliding_window=True,
                                     sliding_window=7, max_window_layers=1),
        "qwen3-windows": Qwen3Config(**common, num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-6, head_dim=32,
                                     rope_parameters=plain, tie_word_embeddings=False, use_sliding_window=True,
                                     sliding_window=5, max_window_layers=0,
                                     layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
        "qwen3": Qwen3Config(**common, num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-6, head_dim=32,
                             rope_parameters=dict(plain, rope_theta=1000000.0), tie_word_embeddings=True),
        "olmo2": Olmo2Config(**common, num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-6,
                             rope_parameters=dict(plain, rope_theta=500000.0), tie_word_embeddings=False),
        "olmo3": Olmo3Config(**dict(common, num_hidden_layers=4), num_key_value_heads=2, intermediate_size=96,
                             rms_norm_eps=1e-6, sliding_window=7, tie_word_embeddings=False,
                             rope_parameters=dict(full_attention=yarn, sliding_attention=plain)),
        "smollm3": SmolLM3Config(**dict(common, num_hidden_layers=4), num_key_value_heads=2, intermediate_size=96,
                                 rms_norm_eps=1e-6, rope_parameters=dict(plain, rope_theta=50000.0), no_rope_layer_interval=2,
                                 tie_word_embeddings=True),
        "smollm3-windows": SmolLM3Config(**common, num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-6,
                                         rope_parameters={**yarn, "attention_factor": 1.5, "beta_fast": 8.0, "beta_slow": 2.0},
                                         use_sliding_window=True, sliding_window=5, no_rope_layers=[1, 0, 1],
                                         tie_word_embeddings=False),
        "mixtral": MixtralConfig(**common, num_key_value_heads=2, intermediate_size=96, rms_norm_eps=1e-5,
                                 head_dim=16, rope_parameters=plain, num_local_experts=4, num_experts_per_tok=2),
        "qwen3-moe": Qwen3MoeConfig(**common, num_key_value_heads=2, moe_intermediate_size=40, rms_norm_eps=1e-6,
                                    head_dim=32, rope_parameters=plain, num_experts=8, num_experts_per_tok=3,
                                    norm_topk_prob=True),
        "olmoe": OlmoeConfig(**common, num_key_value_heads=4, intermediate_size=48, rms_norm_eps=1e-5,
                             rope_parameters=plain, num_experts=8, num_experts_per_tok=2, norm_topk_prob=False),
    }


def fp8_families():
    """Models of which every matrix begins at a block: ours has queries, keys and values, and gates and ups, in one."""
    common = dict(vocab_size=311, max_position_embeddings=64, hidden_size=256, num_hidden_layers=1, num_attention_heads=4,
                  num_key_value_heads=2, intermediate_size=384, initializer_range=0.1, rms_norm_eps=1e-6, pad_token_id=None,
                  bos_token_id=0, eos_token_id=0, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    return {"llama": LlamaConfig(**common, tie_word_embeddings=False),
            "qwen2": Qwen2Config(**common, tie_word_embeddings=True),
            "olmo2": Olmo2Config(**common, tie_word_embeddings=False)}


def own_names(name, tensors):
    """What our checkpoint calls a tensor of a layer's, and the parts of it in order."""
    parts = {"attn.c_attn": [f"self_attn.{x}_proj" for x in "qkv"], "attn.c_proj": ["self_attn.o_proj"],
             "mlp.c_fc": ["mlp.gate_proj", "mlp.up_proj"], "mlp.c_proj": ["mlp.down_proj"],
             "ln_1": ["input_layernorm"], "ln_2": ["post_attention_layernorm"], "attn.q_norm": ["self_attn.q_norm"],
             "attn.k_norm": ["self_attn.k_norm"], "mlp.router": ["mlp.gate"]}
    outside = {"wte.weight": "model.embed_tokens.weight", "ln_f.weight": "model.norm.weight",
               "lm_head.weight": "lm_head.weight"}
    if name in outside:
        return tensors[outside[name]]
    name, ending = name.rsplit(".", 1)   # weight or bias
    _, layer, kind = name.split(".", 2)
    fused = {"mlp.experts.c_fc": "gate_up_proj", "mlp.experts.c_proj": "down_proj"}   # of transformers 5, (experts, ...)
    if kind in fused:
        return tensors[f"model.layers.{layer}.mlp.experts.{fused[kind]}"].flatten(0, 1)
    if f"model.layers.{layer}.post_feedforward_layernorm.weight" in tensors:   # OLMo2: norms come after
        parts.update(ln_1=["post_attention_layernorm"], ln_2=["post_feedforward_layernorm"])
    return torch.cat([tensors[f"model.layers.{layer}.{part}.{ending}"] for part in parts[kind]])


def training_differences(args, model, steps=20, seed=3, B=2, T=33, rate=1e-3, z_loss=1e-3):
    """Of gradients and losses. The same batch in every step, with transformers' gradients and torch's AdamW."""
    torch.manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (B * T + 1,))
    inputs, targets = tokens[:-1].view(B, T), tokens[1:].view(B, T)
    with tempfile.TemporaryDirectory() as folder:
        shard = write_shard(folder, tokens.tolist())
        command = [args.train_gpt, "--model", args.folder, "--val-data", shard, "--overfit-single-batch", "1",
                   "--seq-len", str(T), "--micro-batch", str(B), "--max-steps", str(steps), "--lr", str(rate),
                   "--schedule", "constant", "--warmup", "0", "--weight-decay", "0.1", "--grad-clip", "0", "--val-every", "0",
                   "--checkpoint-every", "1", "--output-dir", f"{folder}/run", "--z-loss", str(z_loss), *args.numerics]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        with open(f"{folder}/run/metrics.jsonl") as file:
            found = [json.loads(line)["loss"] for line in file if '"loss"' in line]
        first = f"{folder}/run/step_00000001"
        moments = {}
        for name in os.listdir(first):
            if name.startswith("optimizer-"):
                moments.update(load_file(f"{first}/{name}"))
    optimizer = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
                                  lr=rate, betas=(0.9, 0.95), eps=1e-8)
    expected, worst = [], 0.0
    for step in range(steps):
        optimizer.zero_grad()
        logits = model(inputs).logits.flatten(0, 1)
        loss = (torch.nn.functional.cross_entropy(logits, targets.flatten())
                + z_loss * logits.logsumexp(-1).square().mean())
        loss.backward()
        expected.append(loss.item())
        if step == 0:
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
            for name, moment in moments.items():
                if not name.startswith("m."):
                    continue
                theirs = own_names(name.removeprefix("m."), gradients).double()
                error = (moment.double() / (1 - 0.9) - theirs).norm() / theirs.norm()
                worst = max(worst, error.item())
        optimizer.step()
    assert len(found) == steps
    return worst, max(abs(a - b) / b for a, b in zip(found, expected))


def compare_training(args, model):
    gradients, losses = training_differences(args, model)
    print(f"gradients of the first step within {gradients:.1e} of their norm, allowed 5e-06; "
          f"losses of 20 steps within {losses:.1e}, allowed 1e-05")
    return gradients > 5e-6 or losses > 1e-5


def compare_round_trip(args):
    """Import and export: every tensor to the bit, every field that both files have."""
    output = args.folder + "-exported"
    command = [args.train_gpt, "export", "--model", args.folder, "--output", output]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (args.folder, output))
    same = before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    configs = [AutoModelForCausalLM.from_pretrained(folder).config.to_dict() for folder in (args.folder, output)]
    ignored = {"_name_or_path", "transformers_version", "dtype", "bos_token_id", "eos_token_id", "initializer_range",
               "no_rope_layer_interval"}   # not read beside a list of layers
    other = [key for key in configs[0] if key not in ignored and configs[0][key] != configs[1].get(key)]
    print(f"exported again: {len(before)} tensors {'equal' if same else 'DIFFERENT'}, "
          f"fields of config.json {'equal' if not other else 'DIFFERENT: ' + ', '.join(other)}")
    return not same or bool(other)


def families(args):
    different, root = 0, args.folder
    for name, config in random_families().items():
        torch.manual_seed(2)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():   # norms too
                parameter += 0.02 * torch.randn_like(parameter)
        args.folder = os.path.join(root, name)
        model.save_pretrained(args.folder)
        print(name)
        model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
        with torch.inference_mode():
            different += compare_losses(args, model.eval())
        different += compare_training(args, model.train()) + compare_round_trip(args)
        if any(name.endswith("experts.gate_up_proj") for name, _ in model.named_parameters()):   # transformers 5
            args.folder = os.path.join(root, name + "-stacked")
            model.save_pretrained(args.folder, save_original_format=False)
            print(f"{name}, all experts of a layer in one tensor")
            with torch.inference_mode():
                different += compare_losses(args, AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval())
    return different


def fp8(args):
    different, root, seeds = 0, args.folder, range(6)
    for name, config in fp8_families().items():
        args.folder = os.path.join(root, name)
        AutoModelForCausalLM.from_config(config).save_pretrained(args.folder)
        agree = 0
        for seed in seeds:
            model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
            multiply_in_fp8(model)
            gradients, losses = training_differences(args, model, steps=1, seed=seed, B=1, T=7)
            print(f"{name}: gradients within {gradients:.1e}, loss within {losses:.1e}")
            agree += gradients < 5e-6 and losses < 1e-6
        different += 2 * agree <= len(seeds)
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
    parser.add_argument("--families", action="store_true", help="random models of every family are written to FOLDER")
    parser.add_argument("--fp8", action="store_true", help="random models are written to FOLDER")
    parser.add_argument("--make", action="store_true", help="with --losses: FOLDER gets random models of transformers first")
    parser.add_argument("--within", type=float, default=1e-5, help="with --losses: fail above this difference")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.numerics = ["--matmul-dtype", "fp8-emulated"] if args.fp8 else []
    if args.fp8:
        sys.exit(1 if fp8(args) else 0)
    if args.families:
        sys.exit(1 if families(args) else 0)
    if args.losses:
        with torch.inference_mode():
            sys.exit(1 if losses(args) else 0)
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        sys.exit(1 if (speeds if args.speed else compare_text)(args, tokenizer, model) else 0)


if __name__ == "__main__":
    main()
