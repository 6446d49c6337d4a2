#!/usr/bin/env python3
"""Compares the ids of `tokenize` with those of tiktoken; exits 1 at the first difference.

    python3 -m venv venv && venv/bin/pip install tiktoken
    venv/bin/python dev/reference/tiktoken_compare.py --vocab ../shared/data/gpt2_vocab.bpe [--mb 50] [--seed 1]

The vocabulary is GPT-2's vocab.bpe, or a tiktoken rank file with --pattern gpt2|cl100k|llama3; tiktoken's Encoding is
made from that same file, so nothing is downloaded. Text that is valid UTF-8 goes through encode_ordinary, bytes that
are not through _encode_bytes. tokenizer_speed.py compares the speed.
"""
import argparse
import array
import base64
import itertools
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import tiktoken

PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"""
              r"""|\s*[\r\n]|\s+(?!\S)|\s""",
    "llama3": r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
              r"""|\s*[\r\n]+|\s+(?!\S)|\s+""",
}


def gpt2_ranks(path):
    """Ranks of vocab.bpe, as tiktoken's data_gym_to_mergeable_bpe_ranks makes them."""
    itself = [b for b in range(256) if chr(b).isprintable() and chr(b) != " "]
    byte_of = {chr(b): b for b in itself}
    rest = [b for b in range(256) if b not in itself]
    byte_of.update({chr(256 + i): b for i, b in enumerate(rest)})
    ranks = {bytes([b]): i for i, b in enumerate(itself + rest)}
    for line in pathlib.Path(path).read_text(encoding="utf-8").split("\n")[1:]:
        if line:
            left, right = line.split()
            ranks[bytes(byte_of[c] for c in left + right)] = len(ranks)
    return ranks


def load_encoding(path, pattern):
    if path.endswith(".bpe"):
        ranks = gpt2_ranks(path)
    else:
        lines = pathlib.Path(path).read_bytes().split(b"\n")
        ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in lines if line)}
    return tiktoken.Encoding("reference", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})


# --- documents -------------------------------------------------------------------------------------------------------

TRICKY = ["'s", "'S", "'t", "'re", "'RE", "'ve", "'ll", "'lL", "'d", "'m", "'", "''", "'\u017f", "\u2019s", " ", "  ",
          "   ", " " * 17, " " * 70, "\n", "\n\n", "\n" * 9, "\r", "\r\n", "\t", "\t\t", "\v", "\f", "\x1c", "\x1f", "\x00",
          "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b", "\ufeff", "\u180e", "0", "12", "123", "1234",
          "3.14159", "1" * 40, "\u0663", "\u00bd", "\u2167", "\U0001d7d9", "a", "B", "word", " word", "WORD", "x" * 30,
          "caf\u00e9", "e\u0301", "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\ud55c\uad6d\uc5b4", "\u0440\u0443\u0441",
          "\u0627\u0644", "\u0939\u093f\u0928\u094d\u0926\u0940", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467",
          "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "#include", "->", "==", "/*", "*/", "//",
          "-" * 60, "=" * 25, "_", "__", "...", "!?", "<|endoftext|>", "\U00010380", "\U000e0001", "\U0010ffff"]


def random_char(rng):
    """A character of any plane, the lower ones more often."""
    while True:
        top = rng.choice([0x80, 0x250, 0x3000, 0x10000, 0x20000, 0x110000])
        code = rng.randrange(top)
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def every_code_point():
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    yield "".join(map(chr, codes)).encode()
    for step in range(0, len(codes), 20000):
        part = codes[step:step + 20000]
        yield "".join(f"a{chr(c)}b {chr(c)} 1{chr(c)}2.{chr(c)}!\n{chr(c)}\n {chr(c)}'s" for c in part).encode()


def tricky(rng):
    while True:
        yield "".join(rng.choice(TRICKY) for _ in range(rng.randrange(1, 4000))).encode()


def any_unicode(rng):
    while True:
        yield "".join(random_char(rng) if rng.random() < 0.5 else rng.choice(TRICKY)
                      for _ in range(rng.randrange(1, 3000))).encode()


def not_utf8(rng):
    while True:
        kind = rng.randrange(4)
        if kind == 0:
            yield rng.randbytes(rng.randrange(1, 3000))
            continue
        document = bytearray(next(tricky(rng))[:rng.randrange(1, 20000)])
        if kind == 1:   # cut anywhere, perhaps within a character
            yield bytes(document[:rng.randrange(len(document) + 1)])
            continue
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(document) + 1)
            bad = rng.choice([b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f"])
            document[at:at] = bad
        yield bytes(document)


def long_runs():
    for unit in [" ", "\n", "\t", " \n", "\r\n", "a", "1", "'", "'s", "-", "\U0001f600", "\u3000", "\u4e2d", "ab"]:
        for count in [1, 2, 3, 63, 64, 65, 127, 1000, 20001]:
            yield (unit * count).encode()
            yield ("x" + unit * count + "y").encode()


def files_below(folders, suffixes, rng):
    paths = [str(p) for folder in folders for p in pathlib.Path(folder).rglob("*")
             if p.suffix in suffixes and p.is_file() and 0 < p.stat().st_size < 1 << 20]
    paths.sort()
    rng.shuffle(paths)
    return (pathlib.Path(p).read_bytes() for p in paths)


def collect(rng, megabytes, shakespeare):
    """Documents of about so many MB: (kind, bytes)."""
    budget = megabytes * 1000 * 1000
    kinds = [
        ("code points", every_code_point(), 1.0),
        ("runs", long_runs(), 1.0),
        ("tricky", tricky(rng), 0.15),
        ("any unicode", any_unicode(rng), 0.15),
        ("not UTF-8", not_utf8(rng), 0.1),
        ("C and C++", files_below(["/usr/include"], {".h", ".hpp", ".c"}, rng), 0.3),
        ("prose", files_below(["/usr/share", sys.prefix, "/usr/lib/python3"], {".txt", ".md", ".rst", ".html", ".po", ".py"},
                              rng), 0.3),
    ]
    if shakespeare:
        yield "Shakespeare", pathlib.Path(shakespeare).read_bytes()
    for kind, documents, share in kinds:
        size = 0
        for document in documents:
            yield kind, document
            size += len(document)
            if size >= share * budget:
                break


# --- comparison ------------------------------------------------------------------------------------------------------

def run_tokenize(program, vocab, files, folder, *options):
    """The documents' ids, in order."""
    names = folder / "names"
    names.write_text("".join(f"{f}\n" for f in files))
    output = folder / "out"
    command = [program, "--tokenizer", vocab, "--files-from", names, "--output", output, "--quiet",
               "--format", "text", *options]   # documents of any bytes are meant
    subprocess.run([str(c) for c in command], check=True, stdout=subprocess.DEVNULL)
    ids = array.array("I")
    for shard in sorted(output.glob("train_*.bin")):
        raw = shard.read_bytes()
        magic = int.from_bytes(raw[:4], "little")
        tokens = array.array("H" if magic == 20240520 else "I")
        tokens.frombytes(raw[1024:])
        ids.extend(tokens.tolist())
    return ids


def reference_ids(encoding, document):
    try:
        return encoding.encode_ordinary(document.decode("utf-8"))
    except UnicodeDecodeError:
        return encoding._encode_bytes(document)


def report_difference(encoding, index, kind, document, ours, theirs):
    at = next(i for i, (a, b) in enumerate(itertools.zip_longest(ours, theirs)) if a != b)
    print(f"document {index} ({kind}, {len(document)} bytes) differs from token {at} on")
    print("  tokenize:", list(ours[at:at + 8]))
    print("  tiktoken:", theirs[at:at + 8])
    before = sum(len(encoding.decode_single_token_bytes(t)) for t in theirs[:at])
    print("  text there:", document[max(0, before - 20):before], "|", document[before:before + 60])


def compare(args, encoding):
    rng = random.Random(args.seed)
    totals = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        documents, files = [], []
        for kind, document in collect(rng, args.mb, args.shakespeare):
            files.append(folder / f"{len(files):06d}")
            files[-1].write_bytes(document)
            documents.append((kind, document))
        ids = run_tokenize(args.tokenize, args.vocab, files, folder, *args.option)
        separator = ids[0]
        at = 0
        for index, (kind, document) in enumerate(documents):
            theirs = reference_ids(encoding, document)
            ours = ids[at + 1:at + 1 + len(theirs)]
            after = at + 1 + len(theirs)
            if ids[at] != separator or ours.tolist() != theirs or (after < len(ids) and ids[after] != separator):
                end = ids.index(separator, at + 1) if separator in ids[at + 1:] else len(ids)
                report_difference(encoding, index, kind, document, ids[at + 1:end], theirs)
                return 1
            at = after
            count, size, tokens = totals.get(kind, (0, 0, 0))
            totals[kind] = (count + 1, size + len(document), tokens + len(theirs))
        if at != len(ids):
            print(f"{len(ids) - at} tokens too many at the end")
            return 1
    for kind, (count, size, tokens) in totals.items():
        print(f"{kind:12} {count:6} documents {size / 1e6:8.2f} MB {tokens:10} tokens: no difference")
    print(f"{'all':12} {len(documents):6} documents {sum(len(d) for _, d in documents) / 1e6:8.2f} MB: no difference")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", default="./tokenize", help="the program")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--pattern", choices=PATTERNS, default="gpt2")
    parser.add_argument("--shakespeare", help="tinyshakespeare.txt")
    parser.add_argument("--mb", type=float, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--option", action="append", default=[], help="passed on to tokenize")
    args = parser.parse_args()
    encoding = load_encoding(args.vocab, args.pattern)
    sys.exit(compare(args, encoding))


if __name__ == "__main__":
    main()
