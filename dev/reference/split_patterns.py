#!/usr/bin/env python3
"""Compares split patterns as `tokenize` and as Hugging Face's tokenizers package run them; exits 1 where ids differ.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python dev/reference/split_patterns.py [--tokenize ./tokenize] [--patterns 1000] [--every 1] [--seed 1]

Patterns of published families on random text, every pair of kinds of characters and every --every-th code point, then
patterns drawn of constructs at random on random text. The vocabulary has all pairs of bytes that occur, so that ids show
where pieces end. A pattern that `tokenize` refuses is counted, and one that the package refuses is not compared.
"""
import argparse
import collections
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import tokenizers
from tokenizers import Regex, Tokenizer, pre_tokenizers

CASES = r"'s|'t|'re|'ve|'m|'ll|'d"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:" + CASES + r")?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:" + CASES + r")?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
FAMILIES = {
    "cl100k": r"(?i:" + CASES + r")|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cl100k as tiktoken spells it": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
                                    r"\s*[\r\n]|\s+(?!\S)|\s",
    "GPT-2, possessive": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "o200k": O200K,
    "tekken": O200K.replace(f"(?i:{CASES})?", "").replace("{1,3}", ""),
    "Qwen 3.5": r"(?i:" + CASES + r")|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "DeepSeek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
                r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "Kimi": r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace(r"[\r\n/]", r"[\r\n]"),
    "BLOOM": " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
}
SPACES = [*map(chr, (9, 10, 11, 12, 13, 0x1C, 0x1F, 32, 32, 0x85, 0xA0, 0x180E, 0x2003, 0x200B, 0x2028, 0x3000, 0xFEFF))]
OTHERS = [*"abkstflAZKFS'5678/.-+_&[^$", *map(chr, (
    0x17F, 0x2019, 0x1C5, 0x2B0, 0x6F22, 0x301, 0x488, 0x903, 0x663, 0x2167, 0xBD, 0xB2, 0x212A, 0xDF, 0x130, 0x149, 0x24B6, 0x1F600,
    0x200D, 0xAD, 0x345, 0x1D7CE, 0x203F, 0x3042, 0x30AB, 0xE9, 0x416, 0x378, 0xE000))]
PROPERTIES = ("L Lu Ll N Nd M P S Z C Cn Han Latin Cyrillic hiragana ^L Alpha Punct Upper Lower Alnum Space Any Sm Pc "
              "Uppercase_Letter").split()
BRACKETS = "alnum alpha ascii blank cntrl digit graph lower print punct space upper xdigit word ^space ^alpha".split()


class Drawer:
    def __init__(self, rng):
        self.rng = rng

    def text(self):
        rng = self.rng
        return "".join(rng.choice(SPACES if rng.random() < 0.35 else OTHERS) for _ in range(rng.randint(1, 12)))

    def literal(self):
        return self.rng.choice([*"abksZ5 '-_/&\u00e9\u6f22tf", r"\n", r"\.", r"\x61", r"\u6F22", r"\x{e9}", r"\t", r"\-"])

    def escape(self):
        rng = self.rng
        return rng.choice([r"\s", r"\S", r"\d", r"\D", r"\w", r"\W", r"\h", r"\H", *(
            rf"\{p}{{{rng.choice(PROPERTIES)}}}" for p in "pP")])

    def bracket(self, depth=0):
        rng, items = self.rng, []
        for _ in range(rng.randint(1, 4)):
            kind = rng.random()
            if kind < 0.35 or (kind > 0.85 and depth == 2):
                items.append(self.literal())
            elif kind < 0.5:
                items.append(rng.choice(["a-z", "A-Z", "0-9", "!-/", r"\x{4e00}-\x{9fff}", "a-b-z"]))
            elif kind < 0.75:
                items.append(self.escape())
            elif kind < 0.85:
                items.append(f"[:{rng.choice(BRACKETS)}:]")
            else:
                items.append(self.bracket(depth + 1))
        if rng.random() < 0.2:
            items.insert(rng.randint(1, len(items)), "&&")
        return "[" + rng.choice(["", "", "^"]) + "".join(items) + rng.choice(["", "", "", "-"]) + "]"

    def repeat(self):
        return self.rng.choice([""] * 6 + "* + ? + {1,3} {2} {,2} {1,} *? +? ?? ++ *+ ?+ {1,3}+ {1,3}? {2}? {2}+ ** +* {,} {1,2}{2}".split())

    def atom(self, depth):
        kind = self.rng.random()
        if kind < 0.3 or (kind > 0.8 and depth > 2):
            return self.literal() + self.repeat()
        if kind < 0.5:
            return self.escape() + self.repeat()
        if kind < 0.72:
            return self.bracket() + self.repeat()
        if kind < 0.76:
            return "." + self.repeat()
        if kind < 0.8:
            return self.rng.choice(["^", "$", r"\b", r"\B", r"\A", r"\z", r"\Z"])
        opening = self.rng.choice(["(?:", "(", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?m:", "(?<n>", "(?:a(?i)"])
        return opening + self.pattern(depth + 1) + ")" + ("" if opening in ("(?=", "(?!", "(?<=", "(?<!") else self.repeat())

    def pattern(self, depth=0):
        return "|".join("".join(self.atom(depth) for _ in range(self.rng.randint(1, 3))) for _ in range(self.rng.randint(1, 3)))


def tokenizer_json(pattern, texts):
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {b: chr(b) for b in itself}
    spelled.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in itself)})
    pairs = sorted({pair for text in texts for pair in zip(text.encode(), text.encode()[1:])})
    vocab = {spelled[b]: b for b in range(256)}
    vocab.update({spelled[a] + spelled[b]: 256 + i for i, (a, b) in enumerate(pairs)})
    end = {"id": len(vocab), "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return end["id"], json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": [[spelled[a], spelled[b]] for a, b in pairs]}})


def compare(program, pattern, texts, folder):
    """Returns "same", "refused: ..." or what differs."""
    end, content = tokenizer_json(pattern, texts)
    (folder / "tokenizer.json").write_text(content)
    (folder / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    done = subprocess.run([program, "-q", "--overwrite", "--uint32", "--tokenizer", folder / "tokenizer.json", "--output", folder / "out",
                           folder / "t.jsonl"], capture_output=True, text=True)
    if done.returncode:
        return "refused: " + done.stderr.strip()
    (shard, ) = (folder / "out").glob("*train*.bin")
    content_of_shard, documents = shard.read_bytes(), []
    for token in struct.unpack(f"<{(len(content_of_shard) - 1024) // 4}I", content_of_shard[1024:]):
        if token == end:
            documents.append([])
        else:
            documents[-1].append(token)
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(documents) == len(texts)
    for text, ours, theirs in zip(texts, documents, reference.encode_batch(texts, add_special_tokens=False)):
        if ours != theirs.ids:
            pieces = [piece for piece, _ in pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)]
            return f"{pattern!r} on {ascii(text)}: {ours}, the package has {theirs.ids}: {ascii(pieces)}"
    return "same"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", default="./tokenize", help="the program")
    parser.add_argument("--patterns", type=int, default=1000, help="drawn at random")
    parser.add_argument("--every", type=int, default=1, help="every so many code points")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    drawer = Drawer(random.Random(args.seed))
    codes = [chr(c) for c in range(1, 0x110000, args.every) if not 0xD800 <= c < 0xE000]
    known = [drawer.text() + drawer.rng.choice(["", "'S", "'\u017f", "a's", "1234567"]) for _ in range(2000)]
    known += [f"x{a}{b}{a} {b}" for a in SPACES + OTHERS for b in SPACES + OTHERS]
    known += [f"x{c}1{c} {c}\nB{c}'s" for c in codes]
    results = collections.Counter()
    with tempfile.TemporaryDirectory() as temporary:
        for name, pattern in FAMILIES.items():
            result = compare(args.tokenize, pattern, known, pathlib.Path(temporary))
            print(f"{name}: {result if result != 'same' else f'{len(known)} texts: no difference'}", flush=True)
            results["same" if result == "same" else "differ"] += 1
        for _ in range(args.patterns):
            pattern = drawer.pattern()
            try:
                Regex(pattern)
            except Exception:   # the package's own type
                results["the package refuses"] += 1
                continue
            result = compare(args.tokenize, pattern, [drawer.text() for _ in range(30)], pathlib.Path(temporary))
            if result.startswith("refused"):
                results["refused"] += 1
                if "pattern" not in result:
                    result = "differ: " + result
            if result != "same" and not result.startswith("refused"):
                results["differ"] += 1
                print(result, flush=True)
            results["same"] += result == "same"
    print(f"{results['differ']} differ, {results['same']} are the same, {results['refused']} are refused, "
          f"{results['the package refuses']} the package refuses, too (tokenizers {tokenizers.__version__})")
    return int(results["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
