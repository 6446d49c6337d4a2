#!/usr/bin/env python3
"""Compares the speed of `tokenize` with gigatoken's, tiktoken's and tokenizers' on one thread, with gigatoken's on all, and
their ids.

    python3 -m venv venv && venv/bin/pip install gigatoken tiktoken tokenizers
    venv/bin/python dev/reference/tokenizer_rivals.py --vocab ../shared/data/gpt2_vocab.bpe [--corpus FILE ...]

English text, source code and text of many languages are collected by english_corpus.py and mixed_corpus.py where no
corpus is given. Each is encoded from memory with GPT-2's vocabulary and the splits of GPT-2, Llama 3 and Qwen. Figures are
MB per second of processor time on one thread, as time passes on all, medians of --rounds in which the programs take turns;
ratios are ours to theirs in the same round, `best` of the fastest of each. `cold`: the first encoding of a new tokenizer;
`warm`: the second, beside our second. tiktoken has GPT-2's split alone; tokenizers, which is slow, encodes the first
--slow-mb. What is not installed is left out. Ids that differ end with exit code 1.
"""
import argparse
import array
import collections
import importlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import english_corpus
import mixed_corpus

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {"gpt2": None, "llama3": CONTRACTIONS + r"\p{N}{1,3}" + REST, "qwen": CONTRACTIONS + r"\p{N}" + REST}


def installed(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed")
        return None


def run(*command):
    process = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: failed")
    return process.stdout


def tokenizer_files(args, folder):
    """Writes a tokenizer.json for each split; returns their paths."""
    text = folder / "text"
    text.write_text("a")
    run(args.tokenize, "--tokenizer", args.vocab, "-q", "--output", folder / "gpt2", text)
    paths = {}
    for name in args.splits:
        content = json.loads((folder / "gpt2" / "tokenizer.json").read_text())
        if SPLITS[name]:
            content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": SPLITS[name]}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
        paths[name] = folder / f"{name}.json"
        paths[name].write_text(json.dumps(content))
    return paths


def our_ids(args, tokenizer, corpus, folder):
    run(args.tokenize, "--tokenizer", tokenizer, "-q", "--overwrite", "--format", "text", "--separator",
        english_corpus.SEPARATOR, "--output", folder / "ids", corpus)
    ids = array.array("H")
    for shard in sorted((folder / "ids").glob("train_*.bin")):
        ids.frombytes(shard.read_bytes()[1024:])
    return ids


def our_rates(args, tokenizer, corpus, threads):
    """MB per second, first and again: of processor time for one thread, of wall time for several."""
    said = run(args.tokenize, "--tokenizer", tokenizer, "--measure", "--threads", threads, "--format", "text", "--separator",
               english_corpus.SEPARATOR, corpus)
    return [float(both[threads > 1]) for both in re.findall(r"(\S+) MB/s \(wall: (\S+) MB/s\)", said)]


def rate(size, function, clock=time.process_time):
    start = clock()
    result = function()
    return size / (clock() - start) / 1e6, result


def show(rates):
    print(f"ours cold {statistics.median(rates['cold']):.0f}, warm {statistics.median(rates['warm']):.0f} MB/s", end="")
    for name, values in rates.items():
        if name in ("cold", "warm"):
            continue
        ours = rates["warm" if name.endswith("warm") else "cold"]
        ratios = sorted(a / b for a, b in zip(ours, values))
        print(f"; {name} {statistics.median(values):.0f}: {statistics.median(ratios):.2f}x "
              f"({ratios[0]:.2f} to {ratios[-1]:.2f}), best {max(ours) / max(values):.2f}x", end="")
    print(flush=True)


def compare(args, split, tokenizer, corpus, folder):
    # none empty, and none that spells a special token, which rivals take for the token
    separator = english_corpus.SEPARATOR.encode()
    documents = [d for d in corpus.read_bytes().split(separator) if d and b"<|endoftext|>" not in d]
    corpus = folder / corpus.name
    corpus.write_bytes(separator.join(documents))
    size = sum(map(len, documents))
    texts = [d.decode() for d in documents]
    few, few_size = 0, 0
    while few < len(texts) and few_size < args.slow_mb * 1e6:
        few_size += len(documents[few])
        few += 1
    giga, tiktoken, tokenizers = args.rivals
    slow = tokenizers.Tokenizer.from_file(str(tokenizer)) if tokenizers else None
    encoding = args.tiktoken_encoding if split == "gpt2" else None
    threads = os.cpu_count()
    rates, parallel_rates, ids = collections.defaultdict(list), collections.defaultdict(list), {}
    for _ in range(args.rounds):
        for table, count in ((rates, 1), (parallel_rates, threads)):
            for state, speed in zip(("cold", "warm"), our_rates(args, tokenizer, corpus, count)):
                table[state].append(speed)
            if not giga:
                continue
            new = giga.Tokenizer(str(tokenizer))
            for state in ("cold", "warm"):
                speed, ids["gigatoken"] = rate(size, lambda: new.encode_batch(documents, parallel=count > 1),
                                               time.perf_counter if count > 1 else time.process_time)
                table[f"gigatoken {state}"].append(speed)
        if encoding:
            speed, ids["tiktoken"] = rate(size, lambda: [encoding.encode_ordinary(t) for t in texts])
            rates["tiktoken"].append(speed)
        if slow:
            speed, ids["tokenizers"] = rate(
                few_size, lambda: [slow.encode(t, add_special_tokens=False).ids for t in texts[:few]])
            rates["tokenizers"].append(speed)
    print(f"{corpus.name}, {size / 1e6:.0f} MB, {split}, one thread: ", end="")
    show(rates)
    print(f"  {threads} threads: ", end="")
    show(parallel_rates)
    ours = our_ids(args, tokenizer, corpus, folder)
    same = True
    for name, result in ids.items():
        at = 0
        for number, theirs in enumerate(result):
            theirs = array.array("H", [int(i) for i in theirs])
            if ours[at + 1:at + 1 + len(theirs)] != theirs:
                print(f"  document {number} differs from {name}'s")
                same = False
                break
            at += 1 + len(theirs)
        else:
            print(f"  {name}: {at} ids, no difference")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", default="./tokenize", help="the program")
    parser.add_argument("--vocab", required=True, help="GPT-2's vocab.bpe")
    parser.add_argument("--corpus", action="append", type=pathlib.Path, help="a text with 0x1e between documents")
    parser.add_argument("--mb", type=float, default=60, help="how much of each text to collect")
    parser.add_argument("--slow-mb", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--splits", type=lambda names: names.split(","), default=list(SPLITS))
    args = parser.parse_args()
    args.rivals = [installed(name) for name in ("gigatoken", "tiktoken", "tokenizers")]
    if args.rivals[1]:
        import tiktoken_compare
        args.tiktoken_encoding = tiktoken_compare.load_encoding(args.vocab, "gpt2")
    else:
        args.tiktoken_encoding = None
    if not args.corpus:
        args.corpus = [pathlib.Path("build") / f"{kind}.txt" for kind in ("english", "code", "languages")]
        for path in args.corpus:
            if path.exists():
                continue
            folders = english_corpus.default_folders()
            if path.stem == "english":
                english_corpus.write_corpus(path, folders, args.mb)
            else:
                mixed_corpus.write_corpus(path, path.stem, folders, args.mb)
    print(f"load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    same = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for split, tokenizer in tokenizer_files(args, folder).items():
            for corpus in args.corpus:
                same &= compare(args, split, tokenizer, corpus, folder)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
