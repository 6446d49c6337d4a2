#!/usr/bin/env python3
"""Compares ids and decoded texts of tokenizers of SentencePiece's kind (characters, byte_fallback) with those of Hugging Face's
tokenizers package.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python dev/reference/sentencepiece_tokenizers.py [--tokenize ./tokenize] [--tokenizers 100] [--texts 300] [--seed 1]
    venv/bin/python dev/reference/sentencepiece_tokenizers.py --write dev/reference/golden_sentencepiece.json

The tokenizers have the normalizers, pre-tokenizers and decoders of Llama 2, Mistral, Gemma, TinyLlama and Phi-3, then such
parts drawn at random; vocabularies, merges and added tokens are drawn, too. The tokenizer.json that `tokenize` writes back must
give the same ids in the package. --write records some for the unit tests instead. Exits 1 at the first difference.
"""
import argparse
import json
import pathlib
import random
import sys

import added_tokens
import tokenizers

MARK = "\u2581"
CHARACTERS = [MARK, *"abcdefgHT.,'01\n", "\u00e9", "\u4f60", "\u0301", "\U0001F600"]
UNKNOWN = [*"xyz\t", "\u00df", "\u597d", "\U0001F680", "\u2003", "\u0000"]   # without a token of their own
PREPEND = {"type": "Prepend", "prepend": MARK}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
GEMMA_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
DECODERS = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def sequence(steps, key):
    return None if not steps else steps[0] if len(steps) == 1 else {"type": "Sequence", key: steps}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def vocabulary(rng, over_words, bytes_left_out=()):
    """Ids of the first tokens, bytes, characters, and of what merges make; and the merges."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256) if b not in bytes_left_out), *CHARACTERS]
    vocab = {name: i for i, name in enumerate(names)}
    pieces, merges = list(CHARACTERS), [[MARK, MARK], [MARK * 2, MARK * 2]]
    for pair in merges:
        vocab.setdefault("".join(pair), len(vocab))
    while len(merges) < 60:
        left, right = rng.choice(pieces), rng.choice(pieces)
        if len(left + right) > 6 or [left, right] in merges or (MARK in right and not over_words):
            continue
        merges.append([left, right])
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
            pieces.append(left + right)
    return vocab, merges


def tokenizer_json(rng, normalizers, pre_tokenizer, strip, added=(), over_words=False, bytes_left_out=(), fuse=True, whole=False):
    vocab, merges = vocabulary(rng, over_words, bytes_left_out)
    ids = dict(vocab)
    added = [(name, ["special"]) for name in ("<unk>", "<s>", "</s>")] + list(added)
    for content, _ in added:
        ids.setdefault(content, len(ids))
    entries = [{"id": ids[content], "content": content, **{flag: flag in flags for flag in added_tokens.FLAGS}}
               for content, flags in added]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": entries,
            "normalizer": sequence(normalizers, "normalizers"), "pre_tokenizer": pre_tokenizer, "post_processor": None,
            "decoder": sequence(DECODERS + ([STRIP] if strip else []), "decoders"),
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": fuse, "byte_fallback": True, "ignore_merges": whole, "vocab": vocab,
                      "merges": merges}}


def families(seed):
    rng = random.Random(seed)
    gemma = [("<start_of_turn>", ["special"]), ("\n\n", []), (MARK * 2, []), ("  ", []), ("<h1>", [])]
    phi = [("<|user|>", ["rstrip", "special"]), ("<|end|>", ["rstrip", "special"]), ("</x>", ["rstrip"])]
    code_llama = [(MARK + "<PRE>", ["special"]), ("<n>", ["normalized"]), ("<m>", ["normalized", "lstrip", "rstrip"])]
    return {"Llama 2": tokenizer_json(rng, [PREPEND, REPLACE], None, True, code_llama),
            "TinyLlama, some bytes without a token": tokenizer_json(rng, [PREPEND, REPLACE], None, True, bytes_left_out={0x9F, 0x78}),
            "Mistral": tokenizer_json(rng, [], metaspace("first", False), True, [("[INST]", ["special"])]),
            "Gemma": tokenizer_json(rng, [REPLACE], GEMMA_SPLIT, False, gemma),
            "Phi-3": tokenizer_json(rng, [PREPEND, REPLACE], None, True, phi),
            "always, split": tokenizer_json(rng, [], metaspace("always", True), True, [("<n>", ["normalized"])]),
            "never": tokenizer_json(rng, [], metaspace("never", False), False),
            "merges over words": tokenizer_json(rng, [PREPEND, REPLACE], None, True, over_words=True)}


def drawn(rng):
    some = lambda *choices: rng.choice(choices)
    added = []
    for i in range(rng.randint(0, 5)):
        content = rng.choice(["<t%d>", " <t%d>", MARK + "t%d", "a%d", "\u00e9%d", "  ", "\n", "<t%d> ", MARK]).replace("%d", str(i))
        if content not in (name for name, _ in added):
            strips = content.strip() != ""   # white space that takes white space along makes the package panic
            added.append((content, [flag for flag in added_tokens.FLAGS[0 if strips else 2:] if rng.random() < 0.4]))
    normalizers = some([], [PREPEND, REPLACE], [REPLACE], [REPLACE, PREPEND], [PREPEND],
                       [{"type": "Replace", "pattern": {"String": "aa"}, "content": "a "}, PREPEND, REPLACE])
    split = some(True, False)
    pre = some(None, metaspace(some("first", "always", "never"), split), GEMMA_SPLIT,
               {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, metaspace(some("always", "never"), split)]})
    return tokenizer_json(rng, normalizers, pre, some(True, False), added, some(True, False, False),
                          some((), (), {0x9F}, {0xF0, 0x78}), some(True, False), some(True, False, False))


def texts_of(case, count, rng):
    tokens = [t["content"] for t in case["added_tokens"]]
    others = [" ", " ", " ", "  ", "     ", "\n", "\n\n", " \n ", "<0x0A>", "aa", "ab", *CHARACTERS, *UNKNOWN]
    yield from tokens
    yield from ["", " ", MARK, " a", "a ", "</s>a", "a</s> a"]
    for _ in range(count):
        yield "".join(rng.choice(tokens if rng.random() < 0.15 else others) for _ in range(rng.randint(1, 25)))


def write(path, seed):
    recorded = []
    for name, case in families(seed).items():
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(case))
        texts = list(dict.fromkeys(texts_of(case, 25, random.Random(seed))))
        ids = {text: added_tokens.ids_of(tokenizer, text, True) for text in texts}
        recorded.append({"name": name, "tokenizer": case, "texts": [
            [text, ids[text], added_tokens.decoded_documents(tokenizer, ids[text], "</s>")] for text in texts]})
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in recorded)
    pathlib.Path(path).write_text("[\n" + lines + "\n]\n")


def compare(args):
    rng = random.Random(args.seed)
    cases = families(args.seed) | {f"drawn {i}": drawn(rng) for i in range(args.tokenizers)}
    for name, case in cases.items():
        texts = [text for text in texts_of(case, args.texts, rng) if text]   # no document is empty
        for special in (True, False):
            differs = added_tokens.compare_texts(args.tokenize, case, texts, special, "</s>")
            if differs:
                print(f"{name}, special tokens {'found' if special else 'as text'}: {differs}")
                print(json.dumps({key: case[key] for key in ("normalizer", "pre_tokenizer", "added_tokens", "decoder")}))
                return 1
    print(f"{len(cases)} tokenizers, {args.texts} texts of each: no difference (tokenizers {tokenizers.__version__})")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", default="./tokenize", help="the program")
    parser.add_argument("--tokenizers", type=int, default=100, help="drawn at random, besides those of families")
    parser.add_argument("--texts", type=int, default=300, help="random texts of each tokenizer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", metavar="FILE", help="records texts, ids and decoded texts there")
    args = parser.parse_args()
    if args.write:
        return write(args.write, args.seed)
    return compare(args)


if __name__ == "__main__":
    sys.exit(main())
