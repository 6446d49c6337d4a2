#!/usr/bin/env python3
"""Compares the speed of `tokenize` with tiktoken's, and of two threads with one, on English text that does not repeat.

    python3 -m venv venv && venv/bin/pip install tiktoken
    venv/bin/python dev/reference/tokenizer_speed.py --vocab ../shared/data/gpt2_vocab.bpe [--corpus build/english.txt]

The corpus is collected by english_corpus.py where the file does not exist yet (some minutes). Everything is measured in
one run, the programs taking turns; medians of --rounds are printed, with the least and the most.
- One thread: `tokenize --measure --threads 1` (encoding from memory, a cold cache of pieces in every round) against
  tiktoken's encode_ordinary, document by document, in processor time, which other work on the machine disturbs least; and
  both in wall time. All ids of the whole program are compared; a difference ends with exit code 1.
- Two threads: the whole program, reading, writing and hashing included, on the corpus and on --copies of it one after
  the other, where starting up no longer counts. Output goes to memory (/dev/shm) where there is such a place.
"""
import argparse
import array
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import english_corpus
import tiktoken_compare


def median(values):
    return sorted(values)[len(values) // 2]


def spread(values, form="{:.1f}"):
    return f"{form.format(median(values))} ({form.format(min(values))} to {form.format(max(values))})"


def run_program(*command):
    """(standard output, wall seconds, processor seconds) of a program that must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}: failed")
    return output, wall, usage.ru_utime + usage.ru_stime


def shard_ids(folder):
    ids = array.array("H")
    for shard in sorted(folder.glob("train_*.bin")):
        ids.frombytes(shard.read_bytes()[1024:])
    return ids


def same_ids(args, encoding, documents, folder):
    """Compares all ids; as a side effect tiktoken is warm afterwards."""
    run_program(*tokenize(args, folder, threads=2), args.corpus)
    ours = shard_ids(folder)
    separator, at = ours[0], 0
    for number, document in enumerate(documents):
        theirs = array.array("H", encoding.encode_ordinary(document))
        if ours[at] != separator or ours[at + 1:at + 1 + len(theirs)] != theirs:
            print(f"document {number} differs; dev/reference/tiktoken_compare.py shows where")
            return False
        at += 1 + len(theirs)
    if at != len(ours):
        print(f"{len(ours) - at} ids too many")
        return False
    print(f"{len(ours)} ids of {len(documents)} documents: no difference")
    return True


def tokenize(args, output, threads):
    return [args.tokenize, "--tokenizer", args.vocab, "-q", "--overwrite", "--format", "text", "--separator", english_corpus.SEPARATOR,
            "--threads", threads, "--output", output]


def against_tiktoken(args, encoding, documents, size):
    measure = [args.tokenize, "--tokenizer", args.vocab, "--measure", "--threads", "1", "--separator",
               english_corpus.SEPARATOR, args.corpus]
    ours, theirs, ratios, wall_ratios, said = [], [], [], [], ""
    for _ in range(args.rounds):
        wall, processor = time.perf_counter(), time.process_time()
        for document in documents:
            encoding.encode_ordinary(document)
        theirs.append(size / (time.process_time() - processor) / 1e6)
        wall = size / (time.perf_counter() - wall) / 1e6
        said = run_program(*measure)[0].strip()
        words = said.replace(",", "").split()
        ours.append(float(words[0]))
        ratios.append(ours[-1] / theirs[-1])
        wall_ratios.append(float(words[words.index("(wall:") + 1]) / wall)
    print(f"one thread, processor time: tokenize {spread(ours)} MB/s, tiktoken {spread(theirs)} MB/s")
    print(f"  ratio in processor time {spread(ratios)}, in wall time {spread(wall_ratios)}")
    print(f"  {said.split('tokens, ')[1]}")


def two_threads(args, size, copies, folder):
    walls, processors, ratios = {1: [], 2: []}, {1: [], 2: []}, []
    for _ in range(args.rounds):
        for threads in (1, 2):
            _, wall, processor = run_program(*tokenize(args, folder, threads), *[args.corpus] * copies)
            walls[threads].append(wall)
            processors[threads].append(processor)
        ratios.append(walls[1][-1] / walls[2][-1])
    print(f"whole program, {size * copies / 1e6:.0f} MB: 1 thread {spread(walls[1], '{:.2f}')} s, 2 threads "
          f"{spread(walls[2], '{:.2f}')} s: ratio {spread(ratios, '{:.2f}')}")
    print(f"  processor time: 1 thread {median(processors[1]):.2f} s, 2 threads {median(processors[2]):.2f} s "
          f"({median(processors[2]) / median(walls[2]):.2f} cores in use)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenize", default="./tokenize", help="the program")
    parser.add_argument("--vocab", required=True, help="GPT-2's vocab.bpe")
    parser.add_argument("--corpus", default="build/english.txt")
    parser.add_argument("--mb", type=float, default=80, help="how much text to collect")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=8)
    args = parser.parse_args()
    if not os.path.exists(args.corpus):
        english_corpus.write_corpus(args.corpus, english_corpus.default_folders(), args.mb)
    documents = pathlib.Path(args.corpus).read_bytes().decode("utf-8").split(english_corpus.SEPARATOR)
    size = os.path.getsize(args.corpus)
    encoding = tiktoken_compare.load_encoding(args.vocab, "gpt2")
    print(f"{args.corpus}: {size / 1e6:.1f} MB; load average {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as temporary:
        folder = pathlib.Path(temporary)
        if not same_ids(args, encoding, documents, folder):
            sys.exit(1)
        against_tiktoken(args, encoding, documents, size)
        two_threads(args, size, 1, folder)
        two_threads(args, size, args.copies, folder)


if __name__ == "__main__":
    main()
