#!/usr/bin/env python3
"""Compares the ids of `tokenize` with those of Hugging Face's tokenizers package where texts hold added tokens.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python dev/reference/added_tokens.py [--tokenize ./tokenize] [--texts 20000] [--seed 1]
    venv/bin/python dev/reference/added_tokens.py --write dev/reference/golden_added_tokens.json

The tokenizers have the added tokens of GPT-NeoX (runs of spaces), Qwen3 and Llama 3, and tokens with every combination
of lstrip, rstrip, single_word, normalized and special; texts have them in all positions. The tokenizer.json that
`tokenize` writes back must give the same ids in the package. --write records some texts for the unit tests instead.
Exits 1 at the first difference.
"""
import argparse
import array
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import tokenizers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
MERGES = (("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("Ġ", "a"), ("Ċ", "Ċ"), ("a", "b"), ("Ã", "©"))
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def byte_characters():
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def tokenizer_json(added, pattern=None, nfc=False, merges=MERGES):
    """Bytes, some merges, then the added tokens; `added`: contents and the flags that are set."""
    spelled = byte_characters()
    vocab = {spelled[b]: b for b in range(256)}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    ids = dict(vocab)   # a token that merges make, too, keeps its id
    for content, _ in added:
        ids.setdefault(content, len(ids))
    entries = [{"id": ids[content], "content": content, **{flag: flag in flags for flag in FLAGS}}
               for content, flags in added]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": entries,
            "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]} if pattern else byte_level,
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": [list(pair) for pair in merges]}}


def cases():
    neox = [("<|endoftext|>", ["special"]), ("<|padding|>", ["special"])]
    neox += [(" " * n, ["normalized"]) for n in range(24, 1, -1)]
    qwen = [(t, ["special"]) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    qwen += [(t, []) for t in ("<tool_call>", "</tool_call>", "<think>", "</think>")]
    llama = [(t, ["special"]) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")]
    every = [("<|endoftext|>", ["special"])]
    for i, flags in enumerate(itertools.product((False, True), repeat=len(FLAGS))):
        content = ("<t%d>", "w%d", "é%d", "e\u0301%d")[i % 4] % i
        every.append((content, [flag for flag, is_set in zip(FLAGS, flags) if is_set]))
    few = [("<|endoftext|>", ["special"]), ("<mask>", ["lstrip", "special"]), ("<right>", ["rstrip"]),
           ("<both>", ["lstrip", "rstrip", "normalized"]), ("word", ["single_word"]), ("ab", ["single_word", "normalized"]),
           ("   ", []), (" x", ["single_word"]), ("<mask>ab", [])]
    return {"neox": tokenizer_json(neox), "qwen3": tokenizer_json(qwen, QWEN, True), "llama3": tokenizer_json(llama, LLAMA3),
            "every": tokenizer_json(every), "every_nfc": tokenizer_json(every, QWEN, True), "few": tokenizer_json(few)}


def texts_of(case, count, rng):
    tokens = [t["content"] for t in case["added_tokens"]]
    others = [" ", "  ", "     ", " " * 30, "\n", "\n\n", "\t", "\u00a0", "\u2003", "a", "ab", "word", "x", "_", "1", "é",
              "e", "\u0301", "中", ".", ",", "<", "<|", "|>", "'s", "\u200d"]
    for token in tokens:   # alone, and with each thing on either side
        yield token
    for _ in range(count):
        yield "".join(rng.choice(tokens if rng.random() < 0.4 else others) for _ in range(rng.randint(1, 12)))


def ids_of(tokenizer, text, special):
    tokenizer.encode_special_tokens = not special   # True: they are text like any other
    return tokenizer.encode(text, add_special_tokens=False).ids


def write(path, seed):
    recorded = []
    for name, case in cases().items():
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(case))
        texts = list(dict.fromkeys(texts_of(case, 60, random.Random(seed))))
        recorded.append({"name": name, "tokenizer": case,
                         "texts": [[t, ids_of(tokenizer, t, True), ids_of(tokenizer, t, False)] for t in texts]})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in recorded)
    pathlib.Path(path).write_text("[\n" + lines + "\n]\n")


def decoded_documents(tokenizer, ids, end):
    """Decodes what lies between the tokens `end` each by itself."""
    documents, end_id = [[]], tokenizer.token_to_id(end)
    for token in ids:
        documents.append([]) if token == end_id else documents[-1].append(token)
    return end.join(tokenizer.decode(document, skip_special_tokens=False) for document in documents)


def compare_texts(program, case, texts, special, end=None):
    """Returns what differs between `tokenize`'s ids and the package's; if `end`, which separates documents, is given, also
    between the texts into which both decode them."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(case))
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / "tokenizer.json").write_text(json.dumps(case))
        (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
        subprocess.run([program, "--tokenizer", folder / "tokenizer.json", "--output", folder / "out", "--quiet",
                        "--special", "encode" if special else "ordinary", folder / "texts.jsonl"],
                       check=True, stdout=subprocess.DEVNULL)
        shard = (folder / "out" / "train_000000.bin").read_bytes()
        again = tokenizers.Tokenizer.from_file(str(folder / "out" / "tokenizer.json"))
        decoded = subprocess.run([program, "--decode", folder / "out"], check=True, stdout=subprocess.PIPE).stdout
    ids, at, expected = array.array("H", shard[1024:]), 0, []
    for number, text in enumerate(texts):
        theirs = ids_of(tokenizer, text, special)
        ours = list(ids[at + 1:at + 1 + len(theirs)])
        written = ids_of(again, text, special)
        if ours != theirs or written != theirs:
            return f"text {number} {text!r}\n  tokenizers {theirs}\n  tokenize   {ours}\n  written    {written}"
        expected.append(decoded_documents(tokenizer, theirs, end) if end else "")
        at += 1 + len(theirs)
    if at != len(ids):
        return f"{len(ids) - at} ids too many"
    if end and decoded.decode() != "".join(end + text for text in expected):
        return f"decoded: {decoded.decode()!r}\n  tokenizers {''.join(end + text for text in expected)!r}"
    return None


def compare(args):
    for (name, case), special in itertools.product(cases().items(), (True, False)):
        texts = list(texts_of(case, args.texts, random.Random(args.seed)))
        differs = compare_texts(args.tokenize, case, texts, special)
        print(f"{name}, special tokens {'found' if special else 'as text'}: {len(texts)} texts: {differs or 'no difference'}")
        if differs:
            return 1
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", default="./tokenize", help="the program")
    parser.add_argument("--texts", type=int, default=20000, help="random texts of each tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", metavar="FILE", help="records texts and ids there")
    args = parser.parse_args()
    if args.write:
        return write(args.write, args.seed)
    return compare(args)


if __name__ == "__main__":
    sys.exit(main())
