#!/usr/bin/env python3
"""Damaged files, absurd values of options and strange environments, from a seed: what the programs make of them.

    dev/test/misuse.py [--files N] [--values N] [--lines N] [--environments N] [--seed N]     TRAIN_GPT, TOKENIZE: the programs

Besides, every option that --print-config names gets such values in a file of --config, N each.

Every trial ends in one of these ways:
  refused   exit code 64, 65, 69, 74 or 75, and the message names the damaged file by its own name (where it is missing,
            the pattern that matches it will do), the option or a variable
  harmless  exit code 0, and all results are those of what is not damaged
  told      exit code 0 with other results, and a line that names what was found (a checkpoint passed over, say)
  unseen    exit code 0 with other results, of a file that no hash guards
Anything else is wrong: a crash, exit code 70, a run that hangs, a refusal that names nothing, or what a hash guards
and was taken in silence. It is printed with what repeats it; the exit code is then 1.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

TRAIN_GPT = os.path.realpath(os.environ.get("TRAIN_GPT", "build/cpu-bf16/train_gpt"))
TOKENIZE = os.path.realpath(os.environ.get("TOKENIZE", "build/cpu/tokenize"))
REFUSED = {64, 65, 69, 74, 75}
SECONDS = 600   # until a run counts as hung and is killed: more than any takes on a machine that is merely busy

DATA = ["--train-data", "data/*train*.bin", "--val-data", "data/*val*.bin"]
SHAPE = ["--layers", "1", "--heads", "2", "--channels", "32"]
RUN = ["--seq-len", "32", "--micro-batch", "2", "--max-steps", "2", "--val-every", "2", "--val-max-batches", "2",
       "--sample-every", "0", "--final-lr-frac", "0"]
TRAIN = [TRAIN_GPT, *DATA, *SHAPE, *RUN]


def variables(others=None):
    """The environment of a run: that of a machine without launchers, and `others`."""
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "TRAIN_GPT_THREADS": "1", **(others or {})}


def run(command, folder, environment=None):
    """(exit code, all that was said); the code of a run that hangs is "hung"."""
    try:
        done = subprocess.run(command, cwd=folder, env=environment or variables(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
        return done.returncode, done.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as hung:
        said = (hung.stdout or b"").decode("utf-8", "replace")
        return "hung", f"{said}\nmisuse.py: killed after {SECONDS} s"


def must(command, folder):
    code, said = run(command, folder)
    if code != 0:
        sys.exit(f"{command}: exit code {code}: {said}")


def make_files(folder):
    """What is damaged later: a corpus, a run with two checkpoints, models, questions, texts, options."""
    (folder / "numbers.txt").write_text("".join(f"{i}\n" for i in range(1, 1501)))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"line {i} é"}) + "\n" for i in range(300)))
    must(["gzip", "-nk", "numbers.txt"], folder)
    must([TOKENIZE, "-q", "--train", "270", "--output", "words", "numbers.txt"], folder)
    must([TOKENIZE, "-q", "--tokenizer", "words", "--output", "data", "--val-tokens", "800", "numbers.txt"], folder)
    shutil.copytree(folder / "data", folder / "bare")
    (folder / "bare/manifest.json").unlink()
    (folder / "q.jsonl").write_text('{"ctx": "1", "endings": ["2", "3"], "label": 0}\n' * 3)
    must([TOKENIZE, "--questions", "hellaswag", "--tokenizer", "words", "--output", "q.bin", "q.jsonl"], folder)
    must([*TRAIN, "--output-dir", "run", "--checkpoint-every", "1", "--export-llmc", "model.bin"], folder)
    must([TRAIN_GPT, "export", "--model", "run", "--output", "hf"], folder)
    (folder / "schedule.txt").write_text("1 data:1,bare:0\n2 data:0.5,bare:0.5\n")
    (folder / "run.cfg").write_text(subprocess.run([*TRAIN, "--print-config"], stdout=subprocess.PIPE, text=True).stdout)


def results(said, folder):
    """What a run computed: losses, text, counts, records; without times, memory and names."""
    kept = re.findall(r"loss -?[0-9.na]+|HellaSwag: \S+|^\w+: good: .*(?=, tokenizer)|[0-9]+ (?:training|questions).*", said, re.M)
    metrics = folder / "out/metrics.jsonl"
    if metrics.is_file():
        kept += [re.sub(r'"(tokens_per_s|mfu|step_ms|memory_bytes)":[^,}]*', "", line)
                 for line in metrics.read_text(errors="replace").splitlines()]
    return kept


def targets():
    """(file, whether a hash guards it, the command that reads it)."""
    train = [*TRAIN, "--output-dir", "out"]
    bare = [TRAIN_GPT, *[word.replace("data/", "bare/") for word in DATA], *SHAPE, *RUN]
    evaluate = [TRAIN_GPT, "evaluate", "--val-data", "data/*val*.bin", "--seq-len", "32", "--val-max-batches", "2"]
    generate = [TRAIN_GPT, "generate", "--temperature", "0", "--tokens", "8", "--prompt", "12"]
    resume = [TRAIN_GPT, "--resume", "1", "--output-dir", "run", "--max-steps", "3"]
    ask = ["--hellaswag", "1", "--hellaswag-data", "q.bin"]
    list_ = [("data/train_000000.bin", True, train), ("data/val_000000.bin", True, train),
             ("data/manifest.json", True, train), ("data/tokenizer.bin", True, train),
             ("data/tokenizer.json", True, train), ("bare/train_000000.bin", False, bare),
             ("bare/tokenizer.bin", False, bare), ("q.bin", False, [*train, *ask]),
             ("run.cfg", False, [TRAIN_GPT, "--config", "run.cfg", *DATA, *SHAPE, *RUN]),
             ("model.bin", False, [*evaluate, "--model", "model.bin"]),
             ("schedule.txt", False, [*TRAIN, "--train-data", "data/*train*.bin:1,bare/*train*.bin:1",
                                      "--data-schedule", "schedule.txt"]),
             ("text.jsonl", False, [TOKENIZE, "-q", "--output", "new", "text.jsonl"]),
             ("numbers.txt", False, [TOKENIZE, "-q", "--output", "new", "numbers.txt"]),
             ("numbers.txt.gz", False, [TOKENIZE, "-q", "--output", "new", "numbers.txt.gz"]),
             ("q.jsonl", False, [TOKENIZE, "--questions", "hellaswag", "--output", "new.bin", "q.jsonl"]),
             ("words/tokenizer.tiktoken", False,
              [TOKENIZE, "-q", "--tokenizer", "words/tokenizer.tiktoken", "--output", "new", "numbers.txt"]),
             ("words/tokenizer.json", False, [TOKENIZE, "-q", "--tokenizer", "words", "--output", "new", "numbers.txt"])]
    for name in ("train_000000.bin", "val_000000.bin", "manifest.json", "tokenizer.bin", "tokenizer.json"):
        list_.append((f"data/{name}", True, [TOKENIZE, "--verify", "data"]))
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        list_ += [(f"hf/{name}", False, [*evaluate, "--model", "hf"]), (f"hf/{name}", False, [*generate, "--model", "hf"])]
    step = "run/step_00000002"
    for name in ("config.json", "run.json", "manifest.json", "model.safetensors.index.json", "tokenizer.json",
                 "model-00002-of-00003.safetensors", "optimizer-00001-of-00003.safetensors", "matmul.json"):
        list_.append((f"{step}/{name}", True, resume))
        if not name.startswith(("run", "optimizer", "matmul")):
            list_ += [(f"{step}/{name}", True, [*evaluate, "--model", step]),
                      (f"{step}/{name}", True, [*generate, "--model", "run"])]
    list_ += [("run/options.json", False, resume), ("run/metrics.jsonl", False, resume), ("run/main.log", False, resume),
              ("run/lock", False, resume)]
    return list_


def damage(path, draw):
    """Damages a file; returns the words for it."""
    content = bytearray(path.read_bytes())
    at = draw.randrange(len(content) + 1) if draw.random() < 0.6 else draw.randrange(min(len(content), 1100) + 1)
    count = draw.choice([1, 2, 4, 7, 64, 512])
    kind = draw.choice(["flip", "byte", "cut", "longer", "zeros", "ones", "insert", "delete", "repeat", "empty", "all zero",
                        "noise", "digit", "folder", "link", "pipe", "device", "missing", "unfinished"])
    if kind == "flip" and content:
        content[at % len(content)] ^= 1 << draw.randrange(8)
    elif kind == "byte" and content:
        content[at % len(content)] = draw.randrange(256)
    elif kind == "cut":
        del content[at:]
    elif kind == "longer":
        content += draw.randbytes(count)
    elif kind in ("zeros", "ones"):
        content[at:at + count] = (b"\0" if kind == "zeros" else b"\xff") * len(content[at:at + count])
    elif kind == "insert":
        content[at:at] = draw.randbytes(count)
    elif kind == "delete":
        del content[at:at + count]
    elif kind == "repeat":
        content[at:at] = content[at:at + count]
    elif kind == "empty":
        content.clear()
    elif kind == "all zero":
        content[:] = bytes(len(content))
    elif kind == "noise":
        content[:] = draw.randbytes(len(content))
    elif kind == "digit":
        digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
        if digits:
            content[draw.choice(digits)] = ord(draw.choice("0123456789-.e"))
    elif kind == "unfinished":   # a power cut: the size is there, the end is not
        content[at:] = bytes(len(content) - at)
    else:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(path.name)
        elif kind == "pipe" and path.name != "run.cfg":   # --config waits for who writes to a pipe
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        return kind
    path.write_bytes(content)
    return f"{kind} at {at} of {path.stat().st_size}"


def changed_options(before, after):
    """The options, as --NAME, whose values are other ones in a damaged options.json; none where it is no JSON."""
    try:
        before, after = (dict(json.loads(text)["options"]) for text in (before, after))
        return [f"--{name}" for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def is_named(said, *names):
    return any(name and name in said for name in names)


def verdict(code, said, names, same, guarded):
    if code == 0:
        if same:
            return "harmless"
        if any(re.search("warning|passed over|until now", line) and is_named(line, *names) for line in said.splitlines()):
            return "told"
        return "WRONG: taken in silence" if guarded else "unseen"
    if code not in REFUSED:
        return f"WRONG: exit code {code}"
    return "refused" if is_named(said, *names) else f"WRONG: exit code {code} names nothing"


class Trials:
    """A folder of files, damaged and put back; one for each thread."""

    def __init__(self, original):
        self.original = original

    def fresh(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=self.original.parent))
        shutil.rmtree(self.folder)
        shutil.copytree(self.original, self.folder, symlinks=True)
        return self.folder

    def file(self, draw, expected):
        name, guarded, command = draw.choice(targets())
        folder = self.fresh()
        before = (folder / name).read_bytes()
        words = damage(folder / name, draw)
        after = (folder / name).read_bytes() if (folder / name).is_file() else b""
        code, said = run(command, folder)
        key = json.dumps(command)
        found = results(said, folder)
        shutil.rmtree(folder)
        names = [os.path.basename(name)]
        if words == "missing":
            names += [word for word in command if "*" in word and fnmatch.fnmatch(name, word)]
        if name.endswith("options.json"):   # another value of an option is not told from one that was given
            names += changed_options(before, after)
        # the newest checkpoint is passed over for the one before it, or a line of records is dropped: that is told
        return verdict(code, said, names, found == expected[key], guarded), f"{name}, {words}", command, said

    def value(self, draw, options):
        verb, name, kind, spelled = draw.choice(options)
        return self.one_value(draw, verb, name, kind, spelled, verb == "train" and spelled and draw.random() < 0.4)

    def line(self, draw, option):
        name, kind = option
        return self.one_value(draw, "train", name, kind, True, True)

    def one_value(self, draw, verb, name, kind, spelled, in_file):
        text = absurd(draw, kind)
        if "\0" in text:
            text = text.replace("\0", "0")
        folder = self.fresh()
        base = [TRAIN_GPT] if verb == "train" else [TRAIN_GPT, verb]
        if in_file:
            line = draw.choice(["{}={}\n", "{} = {}\n", '{}="{}"\n', "{}=[{}]\n", "{}={}\r\n", "[{}]\n{}\n"])
            content = line.format(name, text)
            (folder / "options.cfg").write_bytes(os.fsencode(content))
            given = ["--config", "options.cfg"]
        else:
            given = [f"--{name}={text}"] if draw.random() < 0.3 else [f"--{name}", text]
        if verb in ("train", "check", "data"):
            rest = [*DATA, *SHAPE, *RUN]
            paths = ("data", "train-data", "val-data", "model", "arch", "output-dir", "hellaswag-data", "data-schedule",
                     "export-llmc", "trace", "init-address", "init-folder")
            rest += ["--stop-after", "1"] if name in paths and verb == "train" else ["--print-memory", "1"]
            if in_file:   # the command line wins: what is tried must stand alone
                at = rest.index(f"--{name}") if f"--{name}" in rest else None
                rest = rest if at is None else rest[:at] + rest[at + 2:]
        else:
            rest = ["--model", "run"]
            rest += {"generate": ["--tokens", "2"], "evaluate": ["--val-data", "data/*val*.bin", "--val-max-batches", "2"],
                     "export": ["--output", "new"]}[verb]
            if f"--{name}" in rest:
                at = rest.index(f"--{name}")
                rest = rest[:at] + rest[at + 2:]
        command = [*base, *rest, *given]
        code, said = run([os.fsencode(word) for word in command], folder)
        result = verdict(code, said, (name, "--" if text.startswith("-") else "", "open failed", name.replace("-", " "), "options.cfg" if in_file else "", text[:60] if len(text.strip()) > 3 else "", *NEARBY.get(name, ())),
                         True, False)
        if code == 0 and verb == "train" and spelled and "print-memory" in " ".join(rest):
            # what was taken is what was given
            _, printed = run([os.fsencode(w) for w in [*base, *[w for w in rest if w not in ("--print-memory", "1")][:0], *given, "--print-config"]], folder)
            found = re.search(rf"^{re.escape(name)}=(.*)$", printed, re.M)
            if found and not in_file and not equal(found.group(1), text):
                result = f"WRONG: taken as {found.group(1)[:80]}"
        shutil.rmtree(folder)
        return result, f"{verb} {'in a file ' if in_file else ''}{name} {text[:100]!r}", command, said

    def environment(self, draw, expected):
        folder = self.fresh()
        chosen = {}
        for _ in range(draw.choice([1, 1, 2, 3, 5])):
            chosen[draw.choice(VARIABLES)] = draw.choice(SETTINGS)
        code, said = run([*TRAIN, "--output-dir", "out", "--init-timeout", "1"], folder, variables(chosen))
        found = results(said, folder)
        shutil.rmtree(folder)
        result = verdict(code, said, [*chosen, "rank", "MASTER_ADDR", "--process", "--init", "address", "listen"],
                         found == expected[json.dumps([*TRAIN, "--output-dir", "out"])], True)
        return result, json.dumps(chosen), TRAIN, said


# What a refusal may speak of instead of the option: those that it must fit.
NEARBY = {"total-batch": ("micro-batch",), "micro-batch": ("total-batch", "memory", "too large"), "seq-len": ("tokens", "memory", "data"),
          "layers": ("heads", "memory"), "heads": ("channels",), "channels": ("heads", "memory"), "dp": ("ranks",), "tp": ("ranks", "heads"),
          "pp": ("ranks", "layers"), "cp": ("ranks",), "zero": ("ranks",), "processes": ("rank",), "process-rank": ("rank",),
          "val-data": ("data",), "data": ("train",), "vocab-size": ("vocab", "ids", "memory"), "prompt-file": ("prompt", "standard"),
          "init": ("rank", "MPI", "address", "folder"), "hellaswag": ("questions", "hellaswag"), "output": ("output",)}
VARIABLES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
             "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS",
             "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_JOB_ID", "TRAIN_GPT_SECRET", "TRAIN_GPT_THREADS", "TRAIN_GPT_CHECKS", "TERM",
             "HOME", "XDG_CACHE_HOME", "TMPDIR", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME",
             "NCCL_HOSTID", "TRAIN_GPT_NCCL_RENDEZVOUS_SECONDS", "TORCHELASTIC_RUN_ID", "COLUMNS", "PATH", "TZ"]
SETTINGS = ["", " ", "0", "1", "2", "-1", "4", "x", "1x", "nan", "1e9", "99999999999999999999", "0x1", "/", "/dev/null", "/dev/zero",
            "/nonexistent", "localhost", "127.0.0.1", "29500", "all", "none", "a" * 5000, "é", "\x1b[2J", "%s%n", "C", "dumb", "xterm"]


def absurd(draw, kind):
    numbers = ["0", "1", "-1", "2", "-0", "+1", "1.5", "1e3", "1e999", "1e-999", "-1e999", "nan", "inf", "-inf", "0x10", "1_000", "1,5",
               "1 ", " 1", "１", "2147483647", "2147483648", "-2147483649", "4294967296", "9223372036854775808", "1" * 400, "0." + "0" * 300 + "1",
               ".5", "5.", "1e", "--1", "1-", "infinity", "NaN", "0b1", "1k", "64M", "50%", "1/2"]
    texts = ["", " ", "true", "yes", "on", "[]", "[1]", "{}", "'", '"', "\\", "\\x", "\n", "a\nb", "\t", "%s%n%d", "$(id)", "`id`", "..", "/", ".",
             "/dev/null", "/dev/zero", "/proc/self/mem", "/nonexistent/x", "x" * 300, "x" * 70000, "\udcff\udcfe", "😀", "\x1b[2J", ":", ",", "a:b",
             "a:1,b:1", ":1", "a:", "a:nan", "a:-1", "data", "data/", "data/*", "*", "?", "[", "[!", "--lr", "-x", "=", "=1", "#", "none", "auto", "run",
             "run/lock", "model.bin", "hf", "numbers.txt", "q.bin", "data/manifest.json", "d12", "gpt2:124M", "gpt2:", "gpt3:c1", "d0", "d-1", "d99999"]
    if draw.random() < 0.1:
        return "".join(chr(draw.choice([draw.randrange(32, 127), draw.randrange(1, 0x2000)])) for _ in range(draw.randrange(1, 30)))
    if draw.random() < 0.1:
        return str(draw.choice([-1, 1]) * draw.randrange(1 << draw.choice([4, 8, 16, 31, 33, 63, 65])))
    return draw.choice(numbers if (kind != "TEXT") == (draw.random() < 0.75) else texts)


def equal(printed, given):
    printed = printed.strip().strip('"').strip("'")
    if printed == given or printed in {"0": ("none", "false"), "1": ("gelu", "true"), "2": ("block",)}.get(given.strip(), ()):
        return True
    try:
        return abs(float(printed) - float(given)) <= 1e-6 * abs(float(given))
    except ValueError:
        return given == "" or any(c in given for c in "\\\"'\n\t\x1b#[]{},") or not given.isascii()


def all_options():
    """(verb, name without dashes, type, whether --config may have it) of every option of every verb."""
    found = []
    for verb in ("train", "generate", "evaluate", "export", "check", "data"):
        said = subprocess.run([TRAIN_GPT, verb, "--help"], stdout=subprocess.PIPE, text=True).stdout
        printed = subprocess.run([TRAIN_GPT, "--print-config"], stdout=subprocess.PIPE, text=True).stdout
        for line in said.splitlines():
            match = re.match(r"\s+(?:-\w,\s*)?--([\w-]+)\s*(\S*)", line)
            if match and match.group(1) not in ("help", "version", "config", "print-config", "print-schedule", "print-memory"):
                kind = match.group(2).split("=")[0]
                found.append((verb, match.group(1), kind, re.search(rf"^#?{match.group(1)}=", printed, re.M) is not None))
    return found


def options_of_files():
    """(name without dashes, type) of every option that --print-config names."""
    printed = subprocess.run([TRAIN_GPT, "--print-config"], stdout=subprocess.PIPE, text=True).stdout
    kinds = {name: kind for verb, name, kind, _ in all_options() if verb == "train"}
    return [(name, kinds.get(name, "TEXT")) for name in re.findall(r"^#?([a-z][\w-]*)=", printed, re.M)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--values", type=int, default=80)
    parser.add_argument("--lines", type=int, default=1)
    parser.add_argument("--environments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as temporary:
        original = pathlib.Path(temporary) / "original"
        original.mkdir()
        make_files(original)
        trials = Trials(original)
        expected = {}
        for _, _, command in targets():
            folder = Trials(original).fresh()
            code, said = run(command, folder)
            if code != 0:
                sys.exit(f"not damaged, and yet refused: {command}: {said}")
            expected[json.dumps(command)] = results(said, folder)
            shutil.rmtree(folder)
        options, lines = all_options(), options_of_files()
        wrong = total = 0
        for what, count, context in (("file", args.files, expected), ("value", args.values, options),
                                     ("line", args.lines * len(lines), lines), ("environment", args.environments, expected)):
            def trial(number, what=what, context=context):
                one = context[number % len(context)] if what == "line" else context
                return getattr(Trials(original), what)(random.Random(f"{args.seed} {what} {number}"), one)
            total += count
            counts = {}
            with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
                for number, (result, words, command, said) in enumerate(pool.map(trial, range(count))):
                    counts[result.split(":")[0]] = counts.get(result.split(":")[0], 0) + 1
                    if result.startswith("WRONG"):
                        wrong += 1
                        print(f"{what} {number}: {result}: {words}\n  {' '.join(map(repr, command))[:600]}")
                        print("\n".join("  | " + line[:200] for line in said.splitlines()[-4:]), flush=True)
            print(f"{count} of {what}s: " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())), flush=True)
        print(f"{total - wrong} passed, {wrong} failed")
        sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
