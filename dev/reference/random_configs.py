#!/usr/bin/env python3
"""Compares train_gpt with transformers, and tokenize with tokenizers, on random tiny models whose config.json leaves
fields out.

    python3 dev/reference/random_configs.py TRAIN_GPT TOKENIZE [--models 200] [--seed 1] [--first 0] [--keep FOLDER]

Needs torch, transformers and tokenizers. Without them it says so and ends with 69. TRAIN_GPT should be an fp32 build.

Each model is a GPT-2, Llama, Mistral, Qwen2, Qwen3, SmolLM3 or OLMo 3 in fp32 or bf16, in one file or several.
transformers makes it from a config.json with random fields left out, null or said in another place, and reads it again; so does train_gpt. Compared
are the mean cross-entropies of random tokens, of sequences of some lengths: of one token it is -log of one probability,
and of two lengths that follow each other the difference is. The ids are of random texts by a random byte-level BPE with
random added tokens, which lies beside the model.

A config.json with a field that train_gpt does not have must be refused by the name of that field; such models are
counted. Each model depends on the seed and its number alone: --first N --models 1 makes one again. Exits 1 where
anything differs, or where a quarter of the models or more are refused.
"""
import argparse
import array
import copy
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

os.environ.setdefault("RUST_BACKTRACE", "0")   # of texts at which tokenizers stops
try:
    import tokenizers
    import torch
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM
except ImportError as problem:
    print(f"SKIPPED: {problem}")
    sys.exit(69)

from added_tokens import FLAGS, LLAMA3, QWEN, ids_of, texts_of, tokenizer_json

LEFT_OUT = object()
SAME = 3e-6   # of losses above 1: relative; the program writes six digits behind the point


class Fields:
    """Holds a config.json as it is made: its fields, and which of them train_gpt must refuse."""

    def __init__(self, rng):
        self.rng, self.json, self.beyond = rng, {}, []

    def add(self, key, *values):
        """Says one of the values; a pair (value, True) is one that the program does not have."""
        value = self.rng.choice(values)
        value, beyond = value if isinstance(value, tuple) else (value, False)
        if value is not LEFT_OUT:
            self.json[key] = value
        if beyond:
            self.beyond.append(key)

    def rarely(self, key, usual, *rare, share=0.04):
        """Says one of the usual values, now and then a rare one that the program does not have."""
        if rare and self.rng.random() < share:
            self.add(key, *[(value, True) for value in rare])
        else:
            self.add(key, *usual)


def gpt2(rng):
    fields = Fields(rng)
    heads = rng.choice((1, 2, 4))
    fields.rarely("n_embd", [8 * heads * rng.choice([n for n in (1, 2, 3, 4, 8) if 16 <= 8 * heads * n <= 64])],
                  12 * heads, LEFT_OUT, share=0.02)
    fields.rarely("n_head", [heads], LEFT_OUT, share=0.01)
    fields.rarely("n_layer", [2, 3], LEFT_OUT, share=0.01)
    fields.rarely("n_positions", [16, 33, 64], LEFT_OUT, share=0.01)
    if rng.random() < 0.3 and "n_positions" in fields.json:
        fields.json["n_ctx"] = fields.json["n_positions"]
    fields.rarely("n_inner", [LEFT_OUT, None, 24, 40, 128], 20, share=0.02)
    fields.add("layer_norm_epsilon", LEFT_OUT, LEFT_OUT, 1e-5, 1e-3, 0.1)
    fields.add("tie_word_embeddings", LEFT_OUT, True, False, None)
    fields.rarely("activation_function", [LEFT_OUT, "gelu_new"], "gelu", "relu")
    fields.rarely("scale_attn_weights", [LEFT_OUT, True], False)
    fields.rarely("scale_attn_by_inverse_layer_idx", [LEFT_OUT, False], True)
    fields.add("reorder_and_upcast_attn", LEFT_OUT, False, True)
    fields.add("resid_pdrop", LEFT_OUT, 0.0, 0.3)
    return fields


def rotary(rng, fields):
    """Says the frequencies of rotary positions outside, inside, in both places or nowhere."""
    fields.add("rope_theta", LEFT_OUT, LEFT_OUT, 1e4, 500000, 31.5)
    for name in rng.choice(((), ("rope_parameters",), ("rope_scaling",), ("rope_parameters", "rope_scaling"))):
        inner = {}
        kind = rng.choice((None, None, "default", "default", "linear", "linear", "llama3", "llama3", "yarn", "yarn", "empty",
                           "null"))
        if kind in ("empty", "null"):
            fields.json[name] = {} if kind == "empty" else None
            continue
        if kind is not None:
            inner[rng.choice(("rope_type", "rope_type", "type"))] = kind
        if rng.random() < 0.6:
            inner["rope_theta"] = rng.choice((1e4, 2e5, 500000, 77))
        if kind == "yarn":
            inner.update(rng.choice(({}, {"beta_fast": 8.0, "beta_slow": 2}, {"beta_fast": None, "attention_factor": 1.5},
                                     {"mscale": 1.5, "mscale_all_dim": 0.5}, {"original_max_position_embeddings": 32})))
        if kind == "llama3" or rng.random() < 0.2:
            inner.update(low_freq_factor=rng.choice((1.0, 1.0, 2.5)), high_freq_factor=rng.choice((4.0, 4.0, 7)))
            inner["original_max_position_embeddings"] = rng.choice((8192, 8192, 1024, 32))
        if kind in ("linear", "llama3", "yarn") or rng.random() < 0.2:
            inner["factor"] = rng.choice((2.0, 8, 32.0))
        fields.json[name] = inner
    if rng.random() < 0.04:   # a kind of scaling that the program does not have
        fields.json["rope_scaling"] = rng.choice((
            {"rope_type": "yarn", "factor": 2.0, "truncate": False},
            {"rope_type": "dynamic", "factor": 2.0}))
        fields.beyond.append("rope_scaling")


def rotary_by_layer(rng, fields):
    """Says an OLMo 3's frequencies: of layers that slide, and of the others."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    fields.add("rope_theta", LEFT_OUT, 1e4, 500000)
    fields.add("rope_scaling", LEFT_OUT, LEFT_OUT, yarn, {"rope_type": "linear", "factor": 2.0})
    sliding = rng.choice(({}, {"rope_type": "default"}, {"rope_type": "default", "rope_theta": 1e4}))
    full = rng.choice(({}, {"rope_type": "default", "rope_theta": 77}, yarn))
    fields.add("rope_parameters", LEFT_OUT, {"full_attention": full, "sliding_attention": sliding})


def like_llama(rng, kind):
    fields = Fields(rng)
    heads = rng.choice((1, 2, 4, 6))
    kv_heads = rng.choice([n for n in (1, 2, 3, 4, 6) if heads % n == 0])
    if kind == "mistral" and rng.random() < 0.2:
        heads, kv_heads = 8, LEFT_OUT   # 8 of them
    if kind in ("qwen2", "qwen3") and rng.random() < 0.1:
        heads, kv_heads = 32, LEFT_OUT   # 32 of them
    fields.rarely("num_attention_heads", [heads], LEFT_OUT, share=0.01)
    as_heads = {"llama": (LEFT_OUT, None), "mistral": (), "qwen2": (None,), "qwen3": (None,), "smollm3": (None,),
                "olmo3": (LEFT_OUT, None)}[kind]
    fields.add("num_key_value_heads", kv_heads, kv_heads, *as_heads)
    channels = [n for n in range(16, 65, 8) if n % heads == 0 or (kind != "llama" and heads < 32)] or [32, 64]
    by_width = [n for n in channels if n % heads == 0 and n // heads % 16 == 0]
    if by_width and rng.random() < 0.5:   # a head is channels / heads
        fields.add("hidden_size", *by_width)
        head = fields.json["hidden_size"] // heads
        fields.add("head_dim", head, *{"qwen3": (), "llama": (LEFT_OUT, None), "mistral": (LEFT_OUT, None)}.get(kind, (LEFT_OUT,)))
    else:
        fields.add("hidden_size", *channels)
        fields.rarely("head_dim", [16, 32, 48] + ([LEFT_OUT] if kind == "qwen3" else []), 8, 24, share=0.03)
    fields.rarely("num_hidden_layers", [2, 3], LEFT_OUT, share=0.01)
    fields.rarely("max_position_embeddings", [16, 33, 64, 512], LEFT_OUT, share=0.02)
    fields.rarely("intermediate_size", [24, 40, 64, 136] + [LEFT_OUT] * (rng.random() < 0.15), 20, share=0.02)
    fields.add("rms_norm_eps", LEFT_OUT, LEFT_OUT, 1e-5, 1e-3, 0.1)
    fields.add("tie_word_embeddings", LEFT_OUT, True, False, None)
    fields.add("hidden_act", LEFT_OUT, "silu")
    if kind not in ("mistral", "qwen2", "smollm3"):   # these have no such field, or another meaning of it
        fields.rarely("attention_bias", [LEFT_OUT, False], True)
    if kind == "llama":
        fields.rarely("mlp_bias", [LEFT_OUT, False], True)
        fields.add("pretraining_tp", LEFT_OUT, 1)
    if kind == "mistral":
        fields.add("sliding_window", None, None, LEFT_OUT, 4096, 512, 8)
    if kind in ("qwen2", "qwen3"):
        fields.add("use_sliding_window", LEFT_OUT, False, True, True)
        fields.add("sliding_window", LEFT_OUT, None, 8, 3, 40)
        fields.add("max_window_layers", LEFT_OUT, 0, 1, 2)
        slides = fields.json.get("use_sliding_window") and fields.json.get("sliding_window", 4096) is not None
        if "num_hidden_layers" in fields.json and rng.random() < 0.4:
            types = ("full_attention", "sliding_attention") if slides else ("full_attention",)
            fields.json["layer_types"] = [rng.choice(types) for _ in range(fields.json["num_hidden_layers"])]
    layers = fields.json.get("num_hidden_layers", 0)
    if kind == "smollm3":
        fields.add("no_rope_layer_interval", LEFT_OUT, 1, 2, 3)
        fields.add("no_rope_layers", LEFT_OUT, LEFT_OUT, None, [rng.randint(0, 1) for _ in range(layers)])
        fields.add("use_sliding_window", LEFT_OUT, False, True)
        fields.add("sliding_window", LEFT_OUT, None, 8, 3, 40)
    if kind == "olmo3":
        fields.add("sliding_window", LEFT_OUT, 8, 3, 40)
        fields.add("layer_types", LEFT_OUT, [rng.choice(("full_attention", "sliding_attention")) for _ in range(layers)])
        rotary_by_layer(rng, fields)
    else:
        rotary(rng, fields)
    return fields


def random_tokenizer(rng):
    """Makes the tokenizer.json of a byte-level BPE with random merges and added tokens."""
    bytes_of_text = "abcdefghijklmnoprstuvwxyz .,0123456789"
    spelled = [c.replace(" ", "Ġ") for c in bytes_of_text]
    merges = []
    for _ in range(rng.randint(5, 60)):
        pair = [rng.choice(spelled), rng.choice(spelled)]
        if len("".join(pair)) < 9 and "".join(pair) not in spelled:
            merges.append(pair)
            spelled.append("".join(pair))
    contents = ["<a>", "<|end|>", "word", "ab", "  ", "    ", "né", "x1", "<a>b", "中", "\n\n", " the", "[M]", "it"]
    added = [("<|endoftext|>", ["special"])]
    for content in rng.sample(contents, rng.randint(0, 6)):
        added.append((content, [flag for flag in FLAGS if rng.random() < 0.3]))
    return tokenizer_json(added, rng.choice((None, QWEN, LLAMA3)), rng.random() < 0.3, merges)


class Failed(Exception):
    """A program that ends with an error, by its message."""


def output_of(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(done.stderr.strip())
    return done.stdout


def expected_ids(tokenizer, text):
    """Returns None for a text at which tokenizers stops: white space that two tokens want."""
    try:
        return ids_of(tokenizer, text, True)
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        return None


def compare_ids(tokenize, folder, rng):
    """Returns how many ids are the same; Failed where one differs."""
    case = json.loads((folder / "tokenizer.json").read_text())
    texts = list(texts_of(case, 40, rng))
    texts += ["".join(rng.choice("abcdeit hw.,1 \n") for _ in range(rng.randint(1, 60))) for _ in range(20)]
    theirs = tokenizers.Tokenizer.from_str(json.dumps(case))
    expected_of = {text: ids for text in texts if (ids := expected_ids(theirs, text)) is not None}
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in expected_of))
    output_of([tokenize, "--tokenizer", folder / "tokenizer.json", "--output", folder / "ids", "--quiet", "--special",
               "encode", folder / "texts.jsonl"])
    ids = array.array("H", (folder / "ids" / "train_000000.bin").read_bytes()[1024:]).tolist()
    at = 0
    for text, expected in expected_of.items():
        found = ids[at + 1:at + 1 + len(expected)]   # the end of a text comes before each
        if found != expected:
            raise Failed(f"{text!r}: tokenizers {expected}, tokenize {found}")
        at += 1 + len(expected)
    if at != len(ids):
        raise Failed(f"{len(ids) - at} ids too many")
    return at


def for_transformers(fields):
    """Returns the fields without the null that transformers 5 refuses: it means that the field is left out."""
    kept = copy.deepcopy(fields)
    if kept.get("tie_word_embeddings", False) is None:
        del kept["tie_word_embeddings"]
    return kept


def make_model(folder, fields, rng):
    """Writes weights of a random model of the fields; returns it as transformers reads it again."""
    config = CONFIG_MAPPING[fields["model_type"]].from_dict(for_transformers(fields))
    torch.manual_seed(rng.randrange(1 << 30))
    model = AutoModelForCausalLM.from_config(config)
    small = rng.random() < 0.4   # embeddings beside which the epsilon of norms counts
    with torch.no_grad():
        for name, parameter in model.named_parameters():   # large enough that every part counts
            noise = torch.randn_like(parameter)
            if parameter.dim() == 1:
                parameter += 0.2 * noise
            elif small and ("wte" in name or "wpe" in name or "embed_tokens" in name):
                parameter.copy_(0.003 * noise)
            else:
                parameter.copy_(1.5 / parameter.shape[-1] ** 0.5 * noise)
    size = sum(parameter.numel() for parameter in model.parameters())
    shards = {"max_shard_size": size} if rng.random() < 0.3 else {}   # bytes: four or two files, or more
    model.to(rng.choice((torch.float32, torch.bfloat16))).save_pretrained(folder, **shards)
    (folder / "config.json").write_text(json.dumps(for_transformers(fields)))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    (folder / "config.json").write_text(json.dumps(fields))
    return model


def loss_of(train_gpt, folder, tokens):
    """Returns the loss of one sequence by `train_gpt evaluate`."""
    shard = folder / "sequence.bin"
    shard.write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
                      + struct.pack(f"<{len(tokens)}H", *tokens))
    said = output_of([train_gpt, "evaluate", "--model", folder, "--val-data", shard, "--seq-len", len(tokens) - 1,
                      "--micro-batch", "1"])
    return float(re.search(r"val loss ([0-9.]+)", said).group(1))


def compare_losses(train_gpt, folder, model, rng):
    """Returns the largest difference, relative to losses above 1; Failed where train_gpt ends with an error."""
    positions = min(model.config.max_position_embeddings, 512)
    some = rng.randint(2, positions - 2)
    worst = 0.0
    for length in sorted({1, some, some + 1, positions}):
        tokens = [rng.randrange(min(model.config.vocab_size, 1 << 16)) for _ in range(length + 1)]
        with torch.inference_mode():
            logits = model(torch.tensor([tokens[:-1]])).logits[0].double()
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])).item()
        worst = max(worst, abs(loss_of(train_gpt, folder, tokens) - expected) / max(1.0, expected))
    return worst


def one_model(args, number, folder):
    """Returns what became of it (a key of the counts in main), the difference, and words."""
    rng = random.Random(args.seed * 1000003 + number)
    kind = rng.choice(("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo3"))
    tokenizer = random_tokenizer(rng)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    fields = gpt2(rng) if kind == "gpt2" else like_llama(rng, kind)
    fields.json["model_type"] = kind
    vocab = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]) + rng.randint(0, 9)
    fields.rarely("vocab_size", [vocab], LEFT_OUT, share=0.01)
    if rng.random() < 0.5:
        fields.json[rng.choice(("torch_dtype", "dtype"))] = rng.choice(("float32", "bfloat16"))
    shown = f"{number} {json.dumps(fields.json)}"
    try:
        model = make_model(folder, fields.json, rng)
    except Exception as problem:   # of huggingface_hub's checks, or of the model's code
        why = " ".join(str(problem).split())[-160:]
        return "refused by transformers", 0.0, f"{shown}: {type(problem).__name__}: {why}"
    try:
        compare_ids(args.tokenize, folder, rng)
    except Failed as problem:
        return "DIFFERENT", 0.0, f"{shown}: ids: {problem}"
    try:
        worst = compare_losses(args.train_gpt, folder, model, rng)
    except Failed as problem:
        named = any(f'"{key}"' in str(problem) for key in fields.beyond)
        return "refused" if named else "DIFFERENT", 0.0, f"{shown}: {problem}"
    return "compared" if worst <= SAME else "DIFFERENT", worst, f"{shown}: {worst:.1e} apart"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train_gpt")
    parser.add_argument("tokenize")
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--keep", help="models are written there and stay")
    parser.add_argument("--verbose", action="store_true", help="says what became of each")
    args = parser.parse_args()
    args.train_gpt, args.tokenize = (os.path.abspath(program) for program in (args.train_gpt, args.tokenize))
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    counts, worst = dict.fromkeys(("compared", "refused", "refused by transformers", "DIFFERENT"), 0), 0.0
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(args.first, args.first + args.models):
            folder = pathlib.Path(args.keep or temporary) / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            result, apart, words = one_model(args, number, folder)
            counts[result] += 1
            worst = max(worst, apart)
            if result == "DIFFERENT" or args.verbose:
                print(f"{result}: {words}", flush=True)
    print(f"transformers {transformers.__version__}, seed {args.seed}: {counts['compared']} of {args.models} models "
          f"compared, largest difference {worst:.1e} of a loss, allowed {SAME:.0e}; {counts['refused']} refused by the "
          f"name of a field, {counts['refused by transformers']} by transformers; {counts['DIFFERENT']} differ")
    sys.exit(1 if counts["DIFFERENT"] or 4 * counts["refused"] >= args.models else 0)


if __name__ == "__main__":
    main()
