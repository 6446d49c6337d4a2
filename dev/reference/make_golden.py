#!/usr/bin/env python3
"""Makes golden_gpt.safetensors: a small GPT-2, a batch, and what an independent implementation says about them.

    python3 make_golden.py golden_gpt.safetensors        # needs numpy; nothing else in the project does

The model is written as PyTorch's GPT-2 is (Hugging Face names, Conv1D weights [in, out], attention by heads), in float64
over a small reverse-mode automatic differentiation, so it shares neither code nor derivation with the C++ model. Every
tensor's gradient is checked here against complex-step derivatives before the file is written.

Parameters are values that bf16 can hold, so that every precision of the program starts from the same numbers; they are
stored as F32 (exactly), all results as F64, token ids as I64. Tensors: <HF name>, grad.<HF name>, tokens and targets
(B, T), logits (B, T, V), losses (B, T), loss (). Metadata: the sizes.
"""
import json
import struct
import sys

import numpy as np

LAYERS, CHANNELS, HEADS, VOCABULARY, POSITIONS, BATCH, SEED = 2, 48, 3, 97, 17, 2, 20240520
HEAD_SIZE = CHANNELS // HEADS


# ---------------------------------------------------------------------------------------------------------------------
# Automatic differentiation: a value remembers how to send its gradient to what it was made of.


class Value:
    def __init__(self, data, parents=(), send=None):
        self.data, self.parents, self.send, self.grad = np.asarray(data), parents, send, None

    def receive(self, grad):
        """Adds a gradient, summed over the axes along which this value was broadcast."""
        extra = grad.ndim - self.data.ndim
        grad = grad.sum(axis=tuple(range(extra))) if extra else grad
        stretched = tuple(i for i, n in enumerate(self.data.shape) if n == 1 and grad.shape[i] != 1)
        grad = grad.sum(axis=stretched, keepdims=True) if stretched else grad
        self.grad = grad if self.grad is None else self.grad + grad

    def __add__(self, other):
        return Value(self.data + other.data, (self, other), lambda g: (g, g))

    def __mul__(self, other):
        return Value(self.data * other.data, (self, other), lambda g: (g * other.data, g * self.data))

    def __matmul__(self, other):
        def send(g):
            return g @ other.data.swapaxes(-1, -2), self.data.swapaxes(-1, -2) @ g
        return Value(self.data @ other.data, (self, other), send)

    def scale(self, factor):
        return Value(self.data * factor, (self,), lambda g: (g * factor,))

    def reshape(self, *shape):
        return Value(self.data.reshape(shape), (self,), lambda g: (g.reshape(self.data.shape),))

    def transpose(self, *axes):
        return Value(self.data.transpose(axes), (self,), lambda g: (g.transpose(np.argsort(axes)),))

    def part(self, index, parts):
        """One of `parts` equal pieces of the last axis."""
        width = self.data.shape[-1] // parts
        where = (..., slice(index * width, (index + 1) * width))

        def send(g):
            full = np.zeros(self.data.shape, g.dtype)
            full[where] = g
            return (full,)
        return Value(self.data[where], (self,), send)

    def mean(self):
        """Mean over the last axis, which stays with length 1."""
        n = self.data.shape[-1]
        return Value(self.data.mean(-1, keepdims=True), (self,), lambda g: (np.broadcast_to(g / n, self.data.shape),))

    def power(self, p):
        return Value(self.data**p, (self,), lambda g: (g * p * self.data ** (p - 1),))

    def tanh(self):
        t = np.tanh(self.data)
        return Value(t, (self,), lambda g: (g * (1 - t * t),))

    def log_softmax(self):
        shifted = self.data - self.data.real.max(-1, keepdims=True)
        out = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return Value(out, (self,), lambda g: (g - np.exp(out) * g.sum(-1, keepdims=True),))

    def exp(self):
        e = np.exp(self.data)
        return Value(e, (self,), lambda g: (g * e,))

    def rows(self, indices):
        def send(g):
            full = np.zeros(self.data.shape, g.dtype)
            np.add.at(full, indices, g)
            return (full,)
        return Value(self.data[indices], (self,), send)

    def backward(self):
        order, seen = [], set()

        def visit(value):
            if id(value) in seen:
                return
            seen.add(id(value))
            for parent in value.parents:
                visit(parent)
            order.append(value)

        visit(self)
        self.grad = np.ones_like(self.data)
        for value in reversed(order):
            if value.send is not None:
                for parent, grad in zip(value.parents, value.send(value.grad)):
                    parent.receive(grad)


# ---------------------------------------------------------------------------------------------------------------------
# GPT-2


def conv1d(x, p, name):
    return x @ p[name + ".weight"] + p[name + ".bias"]


def layer_norm(x, p, name):
    centred = x + x.mean().scale(-1.0)
    variance = (centred * centred).mean()
    rstd = (variance + Value(np.float64(1e-5))).power(-0.5)
    return centred * rstd * p[name + ".weight"] + p[name + ".bias"]


def gelu_new(x):
    inner = (x + x.power(3).scale(0.044715)).scale(np.sqrt(2.0 / np.pi))
    return x.scale(0.5) * (inner.tanh() + Value(np.float64(1.0)))


def attention(x, p, name):
    B, T, C = x.data.shape
    qkv = conv1d(x, p, name + ".c_attn")
    query, key, value = (qkv.part(i, 3).reshape(B, T, HEADS, HEAD_SIZE) for i in range(3))
    scores = query.transpose(0, 2, 1, 3) @ key.transpose(0, 2, 3, 1)   # (B, heads, T, T)
    mask = np.where(np.tril(np.ones((T, T), bool)), 0.0, -1e30)
    weights = (scores.scale(HEAD_SIZE**-0.5) + Value(mask)).log_softmax().exp()
    mixed = (weights @ value.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3).reshape(B, T, C)
    return conv1d(mixed, p, name + ".c_proj")


def forward(p, tokens, targets):
    T = tokens.shape[1]
    x = p["wte.weight"].rows(tokens) + p["wpe.weight"].rows(np.arange(T))
    for layer in range(LAYERS):
        name = f"h.{layer}"
        x = x + attention(layer_norm(x, p, name + ".ln_1"), p, name + ".attn")
        hidden = gelu_new(conv1d(layer_norm(x, p, name + ".ln_2"), p, name + ".mlp.c_fc"))
        x = x + conv1d(hidden, p, name + ".mlp.c_proj")
    logits = layer_norm(x, p, "ln_f") @ p["wte.weight"].transpose(1, 0)
    picked = np.eye(VOCABULARY)[targets]
    losses = (logits.log_softmax() * Value(picked)).mean().scale(-float(VOCABULARY))   # the one that is picked
    loss = losses.reshape(1, losses.data.size).mean().reshape()
    return logits, losses, loss


# ---------------------------------------------------------------------------------------------------------------------
# The data


def as_bf16(x):
    """Rounds to the nearest bf16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def make_parameters(random):
    """Weights a few times larger than GPT-2's initial ones, so that softmax, GELU and layernorm are well off zero."""
    C = CHANNELS
    shapes = {"wte.weight": (VOCABULARY, C), "wpe.weight": (POSITIONS, C)}
    for layer in range(LAYERS):
        h = f"h.{layer}"
        shapes |= {f"{h}.ln_1.weight": (C,), f"{h}.ln_1.bias": (C,), f"{h}.attn.c_attn.weight": (C, 3 * C),
                   f"{h}.attn.c_attn.bias": (3 * C,), f"{h}.attn.c_proj.weight": (C, C), f"{h}.attn.c_proj.bias": (C,),
                   f"{h}.ln_2.weight": (C,), f"{h}.ln_2.bias": (C,), f"{h}.mlp.c_fc.weight": (C, 4 * C),
                   f"{h}.mlp.c_fc.bias": (4 * C,), f"{h}.mlp.c_proj.weight": (4 * C, C), f"{h}.mlp.c_proj.bias": (C,)}
    shapes |= {"ln_f.weight": (C,), "ln_f.bias": (C,)}
    parameters = {}
    for name, shape in shapes.items():
        is_norm_weight = len(shape) == 1 and name.endswith("weight")
        values = random.standard_normal(shape) * (0.12 if len(shape) == 2 else 0.1)
        parameters[name] = as_bf16(values + (1.0 if is_norm_weight else 0.0))
    return parameters


def check_gradients(parameters, gradients, tokens, targets, random):
    """Along a random direction of each tensor, against the complex step: Im loss(x + i h d) / h, exact to rounding."""
    h = 1e-30
    for name, values in parameters.items():
        direction = random.standard_normal(values.shape)
        shifted = {n: Value(v.astype(complex)) for n, v in parameters.items()}
        shifted[name] = Value(values + 1j * h * direction)
        expected = forward(shifted, tokens, targets)[2].data.imag / h
        found = (gradients[name] * direction).sum()
        scale = np.linalg.norm(gradients[name]) * np.linalg.norm(direction)
        assert abs(found - expected) < 1e-14 * scale, (name, found, expected)


def write_safetensors(path, tensors, metadata):
    """https://github.com/huggingface/safetensors: u64 header length, JSON header, data."""
    types = {"float64": "F64", "float32": "F32", "int64": "I64"}
    header, offset = {"__metadata__": metadata}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": types[str(values.dtype)], "shape": list(values.shape),
                        "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


def main():
    random = np.random.default_rng(SEED)
    parameters = make_parameters(random)
    tokens = random.integers(0, VOCABULARY, (BATCH, POSITIONS))
    targets = random.integers(0, VOCABULARY, (BATCH, POSITIONS))

    p = {name: Value(values) for name, values in parameters.items()}
    logits, losses, loss = forward(p, tokens, targets)
    loss.backward()
    gradients = {name: p[name].grad for name in parameters}
    check_gradients(parameters, gradients, tokens, targets, random)

    # eight-byte tensors first keep every tensor aligned
    tensors = {"tokens": tokens, "targets": targets, "logits": logits.data,
               "losses": losses.data.reshape(BATCH, POSITIONS), "loss": loss.data}
    tensors |= {"grad." + name: gradients[name] for name in parameters}
    tensors |= {name: values.astype(np.float32) for name, values in parameters.items()}
    sizes = {"layers": LAYERS, "channels": CHANNELS, "heads": HEADS, "vocab_size": VOCABULARY, "max_seq_len": POSITIONS}
    write_safetensors(sys.argv[1], tensors, {name: str(size) for name, size in sizes.items()})
    print(f"loss {float(loss.data):.12f}, wrote {sys.argv[1]}")


if __name__ == "__main__":
    main()
