"""Compares what train_gpt reads from a config.json with transformers' configuration classes.

    python3 dev/reference/config_defaults.py TRAIN_GPT

Needs transformers (torch is not needed). Without it it says so and ends with 69. Last run with transformers 5.24.0.

For each family of Llama's kind: config.json with fields left out, null, or rotary positions said in another place. The
class says what they mean; train_gpt trains the model for a step, and the config.json of its checkpoint says what it
took them for. Where the class refuses a file nothing is compared, but that train_gpt refuses it too is said.
"""

import array
import copy
import json
import os
import subprocess
import sys
import tempfile

try:
    import transformers
    from transformers import CONFIG_MAPPING
except ImportError as problem:
    print(f"SKIPPED: {problem}")
    sys.exit(69)

BASE = {"num_hidden_layers": 1, "num_attention_heads": 32, "hidden_size": 512, "max_position_embeddings": 8192,
        "vocab_size": 300, "intermediate_size": 64, "hidden_act": "silu"}
FAMILIES = {"llama": {}, "mistral": {"sliding_window": None}, "qwen2": {}, "qwen3": {}, "olmo2": {}, "smollm3": {},
            "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 2},
            "qwen3_moe": {"num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
            "olmoe": {"num_experts": 2, "num_experts_per_tok": 2}}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 8.0}
CASES = [   # fields over those above; the value "left out" removes one
    {},
    {"intermediate_size": "left out"},
    {"tie_word_embeddings": None},
    {"tie_word_embeddings": True},
    {"head_dim": None},
    {"num_key_value_heads": None},
    {"rms_norm_eps": None},
    {"rope_theta": 5e5},
    {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 2e5, "rope_type": "default"}},
    {"rope_theta": 5e5, "rope_scaling": {"rope_theta": 2e5, "rope_type": "default"}},
    {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}},
    {"rope_scaling": {"rope_theta": 2e5}, "rope_parameters": {"rope_theta": 3e5, "rope_type": "default"}},
    {"rope_scaling": {}, "rope_parameters": {"rope_theta": 3e5, "rope_type": "default"}},
    {"rope_scaling": {"factor": 8.0}},
    {"rope_scaling": {"factor": 8.0, "type": "default"}},
    {"rope_scaling": {"factor": 8.0, "type": "llama3", "rope_type": "default"}},
    {"rope_scaling": LLAMA3},
    {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 8192}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 2048}},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 1024},
    {"rope_parameters": {**LLAMA3, "low_freq_factor": 2.5, "high_freq_factor": 6.0, "rope_theta": 5e5}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 5e5},
    {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
    {"rope_scaling": {"rope_type": "linear"}},
    {"rope_scaling": YARN},
    {"rope_scaling": {**YARN, "original_max_position_embeddings": 1024, "attention_factor": 1.25}},
    {"rope_parameters": {**YARN, "beta_fast": None, "beta_slow": 2.0, "rope_theta": 5e5}},
    {"rope_scaling": {"rope_type": "yarn"}},
]
SCALING = ("rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast",
           "beta_slow", "attention_factor")


def of_class(kind, fields):
    """What the class takes the file for, or None where it refuses it."""
    try:
        config = CONFIG_MAPPING[kind].from_dict(copy.deepcopy({**fields, "model_type": kind}))
    except Exception:   # of huggingface_hub's checks, or a KeyError
        return None
    config.standardize_rope_params()   # as the functions of the frequencies do before they read them
    rotary = config.rope_parameters
    scaling = {key: rotary[key] for key in SCALING if key in rotary} if rotary["rope_type"] != "default" else {}
    if rotary["rope_type"] == "yarn":   # as its function reads them
        scaling.update(beta_fast=rotary.get("beta_fast") or 32, beta_slow=rotary.get("beta_slow") or 1)
    return {"tie_word_embeddings": config.tie_word_embeddings, "rms_norm_eps": config.rms_norm_eps,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            "intermediate_size": config.intermediate_size, "rope_theta": rotary["rope_theta"],
            "scaling": scaling}


def of_program(program, folder, kind, fields):
    """What train_gpt takes it for, or its message where it refuses it."""
    with open(f"{folder}/arch.json", "w") as file:
        json.dump({**fields, "model_type": kind}, file)
    run = subprocess.run([program, "--arch", "arch.json", "--train-data", "t.bin", "--val-every", "0",
                          "--sample-every", "0", "--seq-len", "16", "--micro-batch", "1", "--max-steps", "1",
                          "--overwrite", "1", "--output-dir", "run"], cwd=folder, capture_output=True, text=True)
    if run.returncode != 0:
        return run.stderr.strip()
    with open(f"{folder}/run/step_00000001/config.json") as file:
        config = json.load(file)
    found = {key: config[key] for key in ("tie_word_embeddings", "rms_norm_eps", "num_key_value_heads", "head_dim",
                                          "intermediate_size", "rope_theta") if key in config}
    return {**found, "scaling": config.get("rope_scaling") or {}}


def main():
    transformers.logging.set_verbosity_error()
    program = os.path.abspath(sys.argv[1])
    different = compared = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/t.bin", "wb") as file:
            header = array.array("i", [20240520, 1, 400] + [0] * 253)
            file.write(header.tobytes() + array.array("H", [i % 300 for i in range(400)]).tobytes())
        for kind, own in FAMILIES.items():
            for case in CASES:
                if "intermediate_size" in case and "num_experts_per_tok" in own:
                    continue   # of a mixture it must be said
                fields = {key: value for key, value in {**BASE, **own, **case}.items() if value != "left out"}
                expected = of_class(kind, fields)
                found = of_program(program, folder, kind, fields)
                if expected is None:
                    refused += 1
                    print(f"{kind} {case}: refused by its class;", "refused here" if isinstance(found, str) else
                          "read here")
                    continue
                compared += 1
                wrong = found if isinstance(found, str) else {
                    key: (found[key], expected[key]) for key in found if found[key] != expected[key]}
                if wrong:
                    different += 1
                    print(f"{kind} {case}: found and expected {wrong}")
    print(f"transformers {transformers.__version__}: {compared} files compared, {different} differ; "
          f"{refused} refused by the classes")
    sys.exit(1 if different else 0)


main()
