#!/usr/bin/env python3
"""Compares `train_gpt plan` with published step times of other programs.

    make DEVICE=cpu PRECISION=bf16 train_gpt
    dev/reference/published_steps.py ROWS.json [--train-gpt build/cpu-bf16/train_gpt]

ROWS.json, or the file that PUBLISHED_STEPS names, is a list of rows with members as in NEEDED: a model, a layout, a GPU,
what was measured. Each row that the options of `plan` can express, whose machine has measured speeds and whose time is
known is planned. Of each source and GPU with LEAST_TO_FIT such rows or more, every third row fits one constant, the
share of the device's speeds (matmuls, attention, memory) that is reached; the others are judged. Smaller groups are
judged without a constant. Prints why rows are not judged, errors by source, GPU, size and kind of layout, whether the
faster of two layouts is found, and rows beyond WORST with what the plan does not know of them.

    dev/reference/published_steps.py ROWS.json --share 1 --write PLANNED.json
    dev/reference/published_steps.py ROWS.json --factors PLANNED.json

The second derives the ranges of llmc/plan/time_range.cpp: published seconds divided by planned ones at the full speeds, by
kind of model and generation of the GPU. It judges these, and other ways to group, on each source with factors of the
others alone, and names the ten rows that are missed most.
"""
import argparse
import collections
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

NEEDED = ("id", "source_key", "model", "layout", "measured", "gpu", "gpus", "precision", "seq_len", "micro_batch", "global_batch",
          "flops_convention")
LEAST_TO_FIT = 6
MEAN_GOAL, WORST, PAIR_GOAL, DIFFERENT = 0.08, 0.15, 0.9, 0.05

# ---- machines: names of plan's table by the rows' words; others with the source of their speeds

KNOWN = {"H100": "H100", "H200": "H200", "A100": "A100", "B200": "B200"}
# Matmuls: the fastest shape found with torch.matmul (stas00/ml-engineering), as in plan's table. Without a figure of its
# own (V100), the data sheet's: the constant of the fit tells what is reached. Memory: H100's share of the data sheet
# (0.77). Links in a node: H100's share of NVLink's data sheet (0.82).
MADE = {
    "V100": {"matmul": 125e12, "copy": 0.77 * 900e9, "memory": 32, "multiprocessors": 80, "intra": 0.82 * 150e9,
             "inter": 12.5e9, "peak": 125e12},
}
# GB/s between nodes for each GPU, where the source's network is slower than plan's table says: 4 cards of 100 Gbit/s for
# 8 GPUs, and for 4
BETWEEN_NODES = {"bigscience_176b": 5.4, "bigscience_v100": 10.8}
PER_NODE = {"bigscience_v100": 4}
# These wrote the matrix of scores to memory: no fused attention yet.
UNFUSED = ("narayanan_2021", "korthikanti_2022", "bigscience_176b", "bigscience_v100")


def gpu_of(row):
    for name in (*KNOWN, *MADE):
        if (row["gpu"] or "").startswith(name):
            return name
    return None


def group_of(row):
    return row["source_key"], gpu_of(row)


def machine_of(row, tables, share):
    """Returns a machine for --machine: that of the row's GPU with `share` of its speeds."""
    gpu = gpu_of(row)
    machine = json.loads(json.dumps(tables["H100" if gpu in MADE else KNOWN[gpu]]))
    if gpu in MADE:
        made, faster = MADE[gpu], MADE[gpu]["matmul"] / machine["matmul"][-1]["per_second"]
        for rate in machine["matmul"]:   # the same share of the fastest one with as much more work
            rate["flops"] *= faster
            rate["per_second"] *= faster
        machine["attention_per_second"] *= faster
        machine.update(name=gpu, source="dev/reference/published_steps.py", copy_bytes_per_second=made["copy"],
                       memory_bytes=made["memory"] * 2**30, multiprocessors=made["multiprocessors"], peak_flops=made["peak"])
        machine["intra"]["bytes_per_second"] = made["intra"]
        machine["inter"]["bytes_per_second"] = made["inter"]
    if row["source_key"] in BETWEEN_NODES:
        machine["inter"]["bytes_per_second"] = 1e9 * BETWEEN_NODES[row["source_key"]]
    machine["devices_per_node"] = PER_NODE.get(row["source_key"], 8)
    if row["source_key"] in UNFUSED:
        machine["attention_per_second"] = unfused_rate(row, machine)
        machine["attention_tokens"] = machine["attention_channels"] = 0
    for rate in machine["matmul"]:
        rate["per_second"] *= share
    machine["attention_per_second"] *= share
    machine["copy_bytes_per_second"] *= share
    return machine


def unfused_rate(row, machine):
    """Returns attention's rate where kernels pass the scores through memory; counted as plan does, what a mask leaves.

    Bytes of a score: written; read and written by a softmax that scales and masks; read and written by dropout, with its
    mask; read. The matmuls leave nothing of the mask out and have the rate of the rest.
    """
    head = row["model"].get("head_dim") or row["model"]["hidden"] / row["model"]["heads"]
    seconds = 13 / machine["copy_bytes_per_second"] + 4 * head / machine["matmul"][-1]["per_second"]
    # plan counts backward as 2.5 forwards; here it has twice the matmuls and bytes, and what is made again is one more
    passes = {"none": 3 / 3.5, "selective": 4 / 3.5, "full": 4 / 4.5}[row["layout"]["recompute"]]
    return 2 * head / seconds / passes


# ---- a row as options


class NotExpressed(Exception):
    pass


def refuse(condition, why):
    if condition:
        raise NotExpressed(why)


def recompute_levels(row):
    """Returns the levels whose mean stands for the row's, with a word for each source's own meaning."""
    level, source, notes = row["layout"].get("recompute"), row["source_key"], row.get("notes") or ""
    refuse(level is None, "what is made again is not stated")
    if level == "none":
        return ["none"]
    if level == "full":
        return ["block"]
    refuse(level == "partial", "a part of the layers is made again")
    if source == "korthikanti_2022":
        return ["none"]   # attention alone, which its rate includes (unfused_rate)
    if source in ("torchtitan", "torchao"):
        return ["none", "block"]   # every other matmul is made again
    refuse("norm" not in notes or "act" not in notes, "selective recompute, and of what is not an option here")
    return ["gelu+norm"]


def options_of(row):
    """Returns plan's options but for --recompute; raises NotExpressed with the reason."""
    model, layout = row["model"], row["layout"]
    refuse(row.get("kind") == "per_layer", "the time of one layer")
    refuse(row.get("kind") == "run_average", "the average of a whole run")
    refuse(row["precision"] is None, "the precision is not stated")
    refuse(row["precision"] not in ("bf16", "fp16"), "matmuls in 8 bits")
    refuse(model.get("attention") == "mla", "latent attention (MLA)")
    refuse(model.get("sliding_window"), "attention in windows")
    refuse(layout.get("offload"), "states or activations are kept on the host")
    refuse(gpu_of(row) is None, "the GPU has no measured speeds here")
    refuse(not row["micro_batch"], "the micro-batch is not stated")
    refuse(not model.get("vocab"), "the vocabulary is not stated")
    tp, pp, cp, ep = (layout.get(axis) or 1 for axis in ("tp", "pp", "cp", "ep"))
    if (layout.get("model_parallel_size") or 1) > 1:
        tp, pp = 8, layout["model_parallel_size"] // 8   # as the row's notes say
    dp = layout.get("dp") or row["gpus"] // (tp * pp * cp)
    micro_batch = row["micro_batch"]
    if row["source_key"].startswith("torchtitan") and pp > 1:
        refuse(True, "the micro-batch is not stated")   # the local batch is
    sharded = (layout.get("fsdp") or 1) > 1
    zero = layout["zero_stage"] if layout.get("zero_stage") is not None else 3 if sharded else 1
    gpt = not model.get("gated_mlp")
    modded = row["source_key"] == "modded_nanogpt"
    options = {
        "layers": model["layers"], "heads": model["heads"], "channels": model["hidden"], "vocab-size": model["vocab"],
        "mlp-width": model["ffn"], "kv-heads": model.get("kv_heads") or 0, "head-size": model.get("head_dim") or 0,
        "norm": "layer" if gpt and not modded else "rms", "mlp": "gelu" if gpt else "swiglu", "bias": int(gpt and not modded),
        "positions": "learned" if gpt and not modded else "rotary", "tie-embeddings": int(bool(model.get("tied") or gpt)),
        "seq-len": row["seq_len"], "micro-batch": micro_batch, "total-batch": row["global_batch"] * row["seq_len"],
        "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "zero": zero if dp * cp > 1 else 0,
    }
    if model.get("activation") == "squared_relu" or "ReLU^2" in (row.get("notes") or ""):
        options["mlp"] = "relu2"
    if model.get("experts"):
        options.update({"experts": model["experts"], "experts-per-token": model["topk"], "expert-width": model["ffn"]})
        options["ep-chunks"] = 4 if "overlap" in (row.get("notes") or "").lower() else 1
    if tp > 1:
        options["sequence-parallel"] = int(bool(layout.get("sequence_parallel")))
        options["tp-chunks"] = 4 if "async tp" in (row.get("notes") or "").lower() else 1
    if pp > 1 and (layout.get("vpp") or 1) > 1:
        options.update({"pp-schedule": "interleaved", "pp-chunks": layout["vpp"]})
    if layout.get("sharding") == "HSDP":
        options["zero-group"] = 8
    if row["source_key"] == "llmq":
        options.update({"grad-dtype": "bf16", "master-weights": 0})
    if modded:
        options["optimizer"] = "muon"
    return options


def seconds_of(row):
    """Returns the published seconds of a step, from what the source prints; None if that does not tell."""
    measured, model = row["measured"], row["model"]
    tokens = (row["global_batch"] or 0) * row["seq_len"]
    if measured.get("step_s"):
        return measured["step_s"]
    if measured.get("tokens_per_s_per_gpu"):
        return tokens / (measured["tokens_per_s_per_gpu"] * row["gpus"])
    if measured.get("tflops_per_gpu") and row["flops_convention"] == "narayanan_eq3":
        s, h, layers, vocab = row["seq_len"], model["hidden"], model["layers"], model["vocab"]
        flops = 96 * tokens * layers * h * h * (1 + s / (6 * h) + vocab / (16 * layers * h))
        return flops / (1e12 * measured["tflops_per_gpu"] * row["gpus"])
    return None


# ---- planning


class Planner:
    def __init__(self, program, folder):
        self.program, self.folder, self.found = program, pathlib.Path(folder), {}
        self.tables = {name: self.run({"gpu": name, "model": "d12", "micro-batch": 1})["machine"] for name in ("H100", "H200", "A100")}

    def run(self, options):
        return json.loads(self.command("plan", "--json", "1", options=options))

    def command(self, *words, options):
        command = [self.program, *words]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if process.returncode != 0:
            raise NotExpressed("plan refuses it: " + process.stderr.strip().split("\n")[0])
        return process.stdout

    def check(self, row):
        """Raises NotExpressed if the program refuses the row's options."""
        for level in recompute_levels(row):
            self.command("--print-memory", "1", options={**options_of(row), "recompute": level})

    def plan(self, row, share):
        """Returns plan's figures of a row on a machine with `share` of its speeds."""
        plans = []
        for level in recompute_levels(row):
            machine, options = machine_of(row, self.tables, share), {**options_of(row), "recompute": level}
            key = json.dumps([machine, options])
            if key not in self.found:
                path = self.folder / f"{row['id']}-{level}-{share:.6f}"
                path.write_text(json.dumps(machine))
                self.found[key] = self.run({**options, "machine": path})
            plans.append(self.found[key])
        return {**plans[0], "options": options_of(row), "step_seconds": statistics.fmean(plan["step_seconds"] for plan in plans)}


def seconds_at(share, of_row):
    """Returns a row's seconds, linear in 1 / share between those of two plans."""
    (low, slow), (high, fast) = sorted(of_row.items())
    return fast + (1 / share - 1 / high) / (1 / low - 1 / high) * (slow - fast)


def best_share(rows, times):
    """Returns the share with the least mean error."""
    return min((i / 1000 for i in range(200, 1301, 5)),
               key=lambda share: sum(abs(seconds_at(share, times[row["id"]]) / seconds_of(row) - 1) for row in rows))


# ---- what is printed


def size_of(parameters):
    for limit, name in ((2e9, "below 2B"), (2e10, "2B to 20B"), (1e11, "20B to 100B")):
        if parameters < limit:
            return name
    return "100B and more"


def kind_of(row):
    options = options_of(row)
    axes = [axis for axis in ("tp", "pp", "cp", "ep") if options[axis] > 1]
    if axes:
        return " x ".join(axes)
    return "one GPU" if row["gpus"] == 1 else f"dp, ZeRO-{options['zero']}"


def cause_of(row, plan):
    """Returns why a row may be missed: what the plan does not know of it."""
    notes = row.get("notes") or ""
    if row["source_key"] == "bigscience_v100":
        return "the source says +-40%: its network is shared"
    if "natural routing" in notes:
        return "natural routing: experts' loads are uneven, the plan has even ones"
    if row["model"].get("experts"):
        return "experts: a token travels once for each expert; the source's dispatch differs"
    if gpu_of(row) == "A100" and plan["options"]["zero"] == 3 and row["gpus"] > 1000:
        return "ZeRO-3 over more than a thousand ranks, by software of 2021"
    if "approximate" in notes:
        return "the published time is rounded"
    if row["seq_len"] >= 16384:
        return "long sequences: attention's ceiling is cuDNN's on an H200; the source's has another"
    if "power limited" in row["gpu"]:
        return "the device's power is limited"
    if plan["exposed_seconds"] > 0.1 * plan["step_seconds"]:
        return "exposed communication: the source's network and overlap are not known"
    if row["source_key"] in UNFUSED:
        return "unfused attention and many small kernels of the source"
    if plan["exported_parameters"] < 2e9:
        return "a small model: small matmuls and other kernels are slower than the ceilings"
    return "the source's kernels reach another share than the constant"


def describe(errors):
    worst = sorted(map(abs, errors))[len(errors) * 3 // 4:]
    return (f"{len(errors):4d} rows  mean |error| {100 * statistics.fmean(map(abs, errors)):5.1f}%  "
            f"worst quarter {100 * statistics.fmean(worst):5.1f}%  mean error {100 * statistics.fmean(errors):+6.1f}%")


def table_of(title, groups):
    print(f"\nby {title}:")
    for name, errors in sorted(groups.items()):
        print(f"  {name:34} {describe(errors)}")


def is_pair(a, b):
    """Returns true if two rows are layouts of one model and batch on one machine, in software of one kind."""
    def key(row):
        return (row["source_key"], row["gpu"], row["gpus"], row["precision"], row["seq_len"], row["model"]["layers"], row["model"]["hidden"],
                row["model"]["heads"])
    close = abs(a["global_batch"] / b["global_batch"] - 1) < 0.05
    layouts = [{**options_of(row), "recompute": row["layout"]["recompute"]} for row in (a, b)]
    return key(a) == key(b) and close and layouts[0] != layouts[1]


def pairs_of(rows, planned):
    right, all_pairs, wrong = 0, 0, []
    per_token = lambda row, seconds: seconds / row["global_batch"]
    for i, a in enumerate(rows):
        for b in rows[i + 1:]:
            if not is_pair(a, b):
                continue
            theirs = per_token(a, seconds_of(a)) / per_token(b, seconds_of(b))
            if abs(theirs - 1) <= DIFFERENT:
                continue
            ours = per_token(a, planned[a["id"]]["step_seconds"]) / per_token(b, planned[b["id"]]["step_seconds"])
            all_pairs += 1
            if (ours < 1) == (theirs < 1):
                right += 1
            else:
                wrong.append(f"{a['id']} and {b['id']} ({a['source_key']}): published {theirs:.2f}, planned {ours:.2f}")
    return right, all_pairs, wrong


# ---- ranges


NEWER = ("H100", "H200", "B200")   # generations: Hopper and later
RECENT = 2024                      # year from which on software counts as of today
RANGE_MEAN_GOAL, RECENT_MEAN_GOAL, INSIDE_GOAL, WIDEST = 0.15, 0.08, 0.9, 1.5


def year_of(row):
    """Returns the year of the source's stack; 2023 for the one that states none."""
    year = ((row.get("source") or {}).get("date") or "")[:4]
    return int(year) if year.isdigit() else 2023


def model_and_generation(row):
    return ("experts" if row["model"].get("experts") else "dense, newer" if gpu_of(row) in NEWER else "dense, older",)


def software_of(row):
    return "before 2023" if year_of(row) < 2023 else "later"


def gpus_of(row):
    return "8 or fewer" if row["gpus"] <= 8 else "to 128" if row["gpus"] <= 128 else "more"


# The first is the program's. A row takes the first part of its key that other sources have, from the longest one on.
GROUPINGS = {
    "model and generation": model_and_generation,
    "one for all": lambda row: (),
    "GPU": lambda row: (gpu_of(row),),
    "generation": lambda row: (gpu_of(row) in NEWER,),
    "and kind of layout": lambda row: (*model_and_generation(row), kind_of(row)),
    "and ZeRO-3": lambda row: (*model_and_generation(row), options_of(row)["zero"] == 3),
    "and number of GPUs": lambda row: (*model_and_generation(row), gpus_of(row)),
    "and year": lambda row: (*model_and_generation(row), software_of(row)),
    "and long sequences": lambda row: (*model_and_generation(row), row["seq_len"] >= 8192),
}


def range_of(factors):
    """Returns the median, the factor that nine tenths are below, and the least."""
    factors = sorted(factors)
    return statistics.median(factors), factors[min(len(factors) - 1, len(factors) * 9 // 10)], factors[0]


def left_out(rows, factors, key_of):
    """Returns for each row the range that rows of all other sources give it."""
    found = {}
    for row in rows:
        others = [other for other in rows if other["source_key"] != row["source_key"]]
        key = key_of(row)
        while not (alike := [factors[other["id"]] for other in others if key_of(other)[:len(key)] == key]):
            key = key[:-1]
        found[row["id"]] = range_of(alike)
    return found


def judge_ranges(rows, factors):
    """Prints factors and how well each grouping foretells a source that is left out."""
    if len({row["source_key"] for row in rows}) < 2:
        sys.exit("published_steps.py: rows of one source alone: expected two or more, to leave one out; plan more with --share 1 --write")
    print(f"{len(rows)} rows of {len({row['source_key'] for row in rows})} sources; published seconds / planned seconds:")
    by = collections.defaultdict(list)
    for row in rows:
        by[model_and_generation(row)[0]].append(row)
    for name, members in sorted(by.items()):
        usual, most, least = range_of([factors[row["id"]] for row in members])
        print(f"  {name:14} least {least:.2f}  usual {usual:.2f}  most {most:.2f}  ({len(members)} rows of "
              f"{len({row['source_key'] for row in members})} sources)")
    print("\neach source with the factors of the others: mean error of the usual time; rows inside planned x 1 (experts: the"
          " least) to most, and its mean width; rows inside a range 1.5 times wide about the usual time:")
    for name, key_of in GROUPINGS.items():
        found = left_out(rows, factors, key_of)
        for years, members in (("all", rows), (f"{RECENT} on", [row for row in rows if year_of(row) >= RECENT])):
            if not members:
                continue
            error = statistics.fmean(abs(found[row["id"]][0] / factors[row["id"]] - 1) for row in members)
            low = {row["id"]: min(1, found[row["id"]][2]) for row in members}
            inside = statistics.fmean(0.995 * low[row["id"]] <= factors[row["id"]] <= 1.005 * found[row["id"]][1] for row in members)
            width = statistics.fmean(found[row["id"]][1] / low[row["id"]] for row in members)
            near = statistics.fmean(WIDEST**-0.5 <= factors[row["id"]] / found[row["id"]][0] <= WIDEST**0.5 for row in members)
            goals = ""
            if key_of is model_and_generation:
                goal = RANGE_MEAN_GOAL if members is rows else RECENT_MEAN_GOAL
                reached = lambda good: "reached" if good else "not reached"
                goals = (f"  goals: mean {100 * goal:.0f}% {reached(error <= goal)}, {100 * INSIDE_GOAL:.0f}% inside "
                         f"{reached(max(inside if width <= WIDEST else 0, near) >= INSIDE_GOAL)}")
            print(f"  {name:22} {years:8} {len(members):3d} rows  error {100 * error:5.1f}%  inside {100 * inside:3.0f}% of width "
                  f"{width:.2f}  inside 1.5 {100 * near:3.0f}%{goals}")
    found = left_out(rows, factors, model_and_generation)
    print("\nby source, left out:")
    sources = collections.defaultdict(list)
    for row in rows:
        sources[f"{row['source_key']}, {gpu_of(row)}"].append(row)
    for name, members in sorted(sources.items()):
        error = statistics.fmean(found[row["id"]][0] / factors[row["id"]] - 1 for row in members)
        inside = sum(0.995 * min(1, found[row["id"]][2]) <= factors[row["id"]] <= 1.005 * found[row["id"]][1] for row in members)
        print(f"  {name:30} {len(members):3d} rows  factor {statistics.fmean(factors[row['id']] for row in members):.2f}  "
              f"mean error {100 * error:+6.1f}%  inside {inside}")
    print("\nthe ten rows that are missed most:")
    for row in sorted(rows, key=lambda row: -abs(math.log(found[row["id"]][0] / factors[row["id"]])))[:10]:
        print(f"  {row['id']} {row['source_key']}, {row['model']['name']}, {row['gpus']} x {row['gpu']}, {kind_of(row)}: factor "
              f"{factors[row['id']]:.2f}, of the others {found[row['id']][0]:.2f}: {cause_of_factor(row)}")


def cause_of_factor(row):
    notes, gpu = row.get("notes") or "", row["gpu"]
    if "power limited" in gpu.lower() or "power limited" in notes.lower() or "500W" in gpu:
        return "the device's power is limited"
    if row["model"].get("experts"):
        return "experts: loads and dispatch are the source's; few sources tell"
    if row["seq_len"] >= 16384:
        return "long sequences: another attention than cuDNN's"
    if options_of(row)["zero"] == 3 and row["gpus"] > 300 and year_of(row) < RECENT:
        return "ZeRO-3 over hundreds of ranks, by software of 2021"
    if row["source_key"] == "bigscience_v100":
        return "its network is shared: +-40% by the source's word"
    if row["source_key"] in ("llmq", "llm_c"):
        return "C++ and CUDA by hand: faster than stacks in Python"
    if row["source_key"] == "modded_nanogpt":
        return "a small model, whose norms, Muon and small kernels weigh more"
    if options_of(row)["tp"] > 1:
        return "exchanges of tp that the source does not hide"
    return "kernels that are not matmuls, slower than the ceilings"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", default=os.environ.get("PUBLISHED_STEPS"))
    parser.add_argument("--train-gpt", default="build/cpu-bf16/train_gpt")
    parser.add_argument("--only", default="", help="sources, with commas between")
    parser.add_argument("--ids", default="", help="rows, with commas between")
    parser.add_argument("--share", type=float, help="plan all rows with this share of the device's speeds, and fit none")
    parser.add_argument("--write", help="a file for the planned seconds of all rows, by id, as JSON")
    parser.add_argument("--factors", help="a file of --share 1 --write: derive and judge ranges from it, and plan nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--most-stages", type=int, default=10**6, help="leave out rows with more pipeline stages, whose plans take long")
    args = parser.parse_args()
    if not args.rows or not os.path.exists(args.rows):
        print(f"SKIPPED dev/reference/published_steps.py: no file of published steps ({args.rows or 'no argument, no PUBLISHED_STEPS'})")
        return 0
    rows = json.loads(pathlib.Path(args.rows).read_text())
    for row in rows:
        missing = [name for name in NEEDED if name not in row]
        if missing:
            sys.exit(f"{args.rows}: row {row.get('id')}: expected {', '.join(missing)}; take a file of the form that this script's help names")
    rows = [row for row in rows if not args.only or row["source_key"] in args.only.split(",")]
    rows = [row for row in rows if not args.ids or row["id"] in args.ids.split(",")]
    if args.factors:
        planned = json.loads(pathlib.Path(args.factors).read_text())
        judge_ranges([row for row in rows if row["id"] in planned],
                     {row["id"]: seconds_of(row) / planned[row["id"]] for row in rows if row["id"] in planned})
        return 0
    reasons, taken, times = collections.Counter(), [], collections.defaultdict(dict)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        planner = Planner(args.train_gpt, folder)

        def reason_or_none(row):
            try:
                options = options_of(row)
                recompute_levels(row)
                refuse(seconds_of(row) is None, "the time of a step is not stated")
                refuse(options["pp"] > args.most_stages, f"more than {args.most_stages} pipeline stages, which --most-stages leaves out")
                planner.check(row)
            except NotExpressed as reason:
                return str(reason)
            return None

        groups = collections.defaultdict(list)
        for row, reason in zip(rows, pool.map(reason_or_none, rows)):
            if reason:
                reasons[reason] += 1
            else:
                taken.append(row)
                groups[group_of(row)].append(row)
        fit = [row for members in groups.values() if len(members) >= LEAST_TO_FIT and not args.share for row in members[::3]]
        judged = [row for row in taken if row not in fit]
        tries = [(row, share) for row in fit for share in (1.0, 0.5)]
        for (row, share), plan in zip(tries, pool.map(lambda task: planner.plan(*task), tries)):
            times[row["id"]][share] = plan["step_seconds"]
        shares = {} if args.share else {key: best_share([row for row in members if row in fit], times)
                                        for key, members in groups.items() if len(members) >= LEAST_TO_FIT}
        plans = pool.map(lambda row: planner.plan(row, shares.get(group_of(row), args.share or 1.0)), judged)
        planned = {row["id"]: plan for row, plan in zip(judged, plans)}
        for row in fit:
            planned[row["id"]] = {"step_seconds": seconds_at(shares[group_of(row)], times[row["id"]])}
    if args.write:
        pathlib.Path(args.write).write_text(json.dumps({name: plan["step_seconds"] for name, plan in planned.items()}, indent=1))
    print(f"{len(rows)} rows, {len(taken)} planned, {len(taken) - len(judged)} of them to fit, {len(judged)} judged")
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        print(f"  {count:4d} not judged: {reason}")
    if not judged:
        return 0
    print("\nconstants, shares of the device's speeds:")
    for (source, gpu), share in shares.items():
        print(f"  {source}, {gpu}: {share:.3f}")
    errors = {row["id"]: planned[row["id"]]["step_seconds"] / seconds_of(row) - 1 for row in taken}
    by = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in judged:
        fitted = "" if group_of(row) in shares else ", no constant"
        for title, name in (("source and GPU", f"{row['source_key']}, {gpu_of(row)}{fitted}"), ("GPU", gpu_of(row)),
                            ("parameters", size_of(planned[row["id"]]["exported_parameters"])), ("kind of layout", kind_of(row)),
                            ("constant", "none" if fitted else "fitted")):
            by[title][name].append(errors[row["id"]])
    for title, found in by.items():
        table_of(title, found)
    print(f"\nall: {describe([errors[row['id']] for row in judged])}")
    print(f"  goals: mean {100 * MEAN_GOAL:.0f}%, worst quarter {100 * WORST:.0f}%, the better of two layouts in {100 * PAIR_GOAL:.0f}%")
    right, pairs, wrong = pairs_of(taken, planned)
    if pairs:
        print(f"\nof two layouts that differ by more than {100 * DIFFERENT:.0f}%, the better one is found in {right} of {pairs} pairs, {100 * right / pairs:.0f}%")
        for line in wrong:
            print("  not: " + line)
    print(f"\nrows judged that are off by more than {100 * WORST:.0f}%:")
    for row in sorted(judged, key=lambda row: -abs(errors[row["id"]])):
        if abs(errors[row["id"]]) > WORST:
            print(f"  {row['id']} {row['source_key']}, {row['model']['name']}, {row['gpu']}, {kind_of(row)}: "
                  f"published {seconds_of(row):.4g} s, planned {planned[row['id']]['step_seconds']:.4g} s, "
                  f"{100 * errors[row['id']]:+.1f}%: {cause_of(row, planned[row['id']])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
