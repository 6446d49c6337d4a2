#!/usr/bin/env python3
"""Compares the ids of `tokenize` with those of Hugging Face's tokenizers package; exits 1 at the first difference.

    python3 -m venv venv && venv/bin/pip install tiktoken tokenizers
    venv/bin/python dev/reference/tokenizers_compare.py --json tokenizer.json [--mb 10] [--seed 1]
    venv/bin/python dev/reference/tokenizers_compare.py --ranks FILE --split llama3|qwen

The tokenizer is a tokenizer.json, or is made of a tiktoken rank file in the way in which transformers converts Llama-3's
and Qwen's. The file that `tokenize` writes back must give the same ids in the package again. Text is tiktoken_compare.py's,
where it is UTF-8, with special tokens in between.
"""
import argparse
import base64
import itertools
import json
import pathlib
import random
import sys
import tempfile
import unicodedata

import tiktoken_compare
from tokenizers import Tokenizer, normalizers

PATTERNS = {
    "llama3": tiktoken_compare.PATTERNS["llama3"],
    "qwen": tiktoken_compare.PATTERNS["llama3"].replace("{1,3}", ""),
}
SPECIALS = {"llama3": ["<|begin_of_text|>", "<|end_of_text|>"],
            "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"]}


def merges_of(token, rank, ranks):
    """The two tokens that join last to this one, when only those of lower ranks join; none for a token out of reach."""
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, rank), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        best, at = min(pairs)
        if best >= rank:
            return None
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts) if len(parts) == 2 else None


def to_json(path, split):
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in pathlib.Path(path).read_bytes().split(b"\n")
                                                      if line)}
    itself = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    spelled = {b: chr(b) for b in itself}
    spelled.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in itself)})
    spell = lambda token: "".join(spelled[b] for b in token)
    merges = [merges_of(token, rank, ranks) for token, rank in sorted(ranks.items(), key=lambda item: item[1])]
    added = [{"id": len(ranks) + i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": content != "<tool_call>"} for i, content in enumerate(SPECIALS[split])]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": split == "llama3", "use_regex": False}
    pattern = {"type": "Split", "pattern": {"Regex": PATTERNS[split]}, "behavior": "Isolated", "invert": False}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if split == "qwen" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pattern, byte_level]},
        "post_processor": dict(byte_level, trim_offsets=False), "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": split == "llama3",
                  "vocab": {spell(token): rank for token, rank in ranks.items()},
                  "merges": [[spell(left), spell(right)] for left, right in filter(None, merges)]}})


def documents_of(args, specials, newer):
    rng = random.Random(args.seed)
    for kind, document in tiktoken_compare.collect(rng, args.mb, args.shakespeare):
        try:
            document = document.decode()
        except UnicodeDecodeError:
            continue
        document = document.translate(newer)
        if kind == "tricky":
            document = "".join(document[i:i + 200] + rng.choice(specials) for i in range(0, len(document), 200))
        yield kind, document


def newer_marks():
    """What the package's normal form C, or Python's, does not know yet, each mapped to none: marks would not be ordered."""
    nfc = normalizers.NFC()
    probes = lambda c: (f"a{c}\u0334", f"a\u0345{c}")   # a mark of a low and one of a high class
    return {code: None for code in range(0x110000) if not 0xD800 <= code < 0xE000
            if unicodedata.category(chr(code)) == "Cn" or any(
                nfc.normalize_str(p) != unicodedata.normalize("NFC", p) for p in probes(chr(code)))}


def compare(args, path):
    reference = Tokenizer.from_file(str(path))
    specials = [t.content for t in reference.get_added_tokens_decoder().values()]
    newer = newer_marks() if reference.normalizer else {}
    print(f"left out: {len(newer)} characters that normal form C is too old for here")
    totals = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        documents, files = [], []
        for kind, document in documents_of(args, specials, newer):
            files.append(folder / f"{len(files):06d}")
            files[-1].write_bytes(document.encode())
            documents.append((kind, document))
        ids = tiktoken_compare.run_tokenize(args.tokenize, path, files, folder, "--special", "encode")
        again = Tokenizer.from_file(str(folder / "out" / "tokenizer.json"))
        at = 0
        for index, (kind, document) in enumerate(documents):
            theirs = reference.encode(document, add_special_tokens=False).ids
            if again.encode(document, add_special_tokens=False).ids != theirs:
                print(f"document {index} ({kind}): the file written back gives other ids")
                return 1
            ours = list(ids[at + 1:at + 1 + len(theirs)])
            if ours != theirs:
                place = next(i for i, (a, b) in enumerate(itertools.zip_longest(ours, theirs)) if a != b)
                print(f"document {index} ({kind}) differs from token {place} on")
                for name, some in (("tokenize", ours), ("tokenizers", theirs)):
                    part = some[max(0, place - 3):place + 8]
                    print(f"  {name}: {part} {reference.decode(part, False)!r}")
                return 1
            at += 1 + len(theirs)
            count, size, tokens = totals.get(kind, (0, 0, 0))
            totals[kind] = (count + 1, size + len(document.encode()), tokens + len(theirs))
        if at != len(ids):
            print(f"{len(ids) - at} tokens too many at the end")
            return 1
    for kind, (count, size, tokens) in totals.items():
        print(f"{kind:12} {count:6} documents {size / 1e6:8.2f} MB {tokens:10} tokens: no difference")
    print(f"{'all':12} {len(documents):6} documents {sum(size for _, size, _ in totals.values()) / 1e6:8.2f} MB: no difference")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", default="./tokenize", help="the program")
    parser.add_argument("--json", help="a tokenizer.json")
    parser.add_argument("--ranks", help="a tiktoken rank file")
    parser.add_argument("--split", choices=PATTERNS, default="llama3")
    parser.add_argument("--shakespeare", help="tinyshakespeare.txt")
    parser.add_argument("--mb", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = args.json
        if args.ranks:
            path = pathlib.Path(temporary) / "tokenizer.json"
            path.write_text(to_json(args.ranks, args.split))
        sys.exit(compare(args, path))


if __name__ == "__main__":
    main()
