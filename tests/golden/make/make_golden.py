#!/usr/bin/env python3
"""Golden values for the tests: a small Llama trained for a few steps in float64, with numpy alone.

Writes directories that `golden DIR` reads:

    config.json         the model, in Hugging Face's format
    model.safetensors   weights before step 1 (fp32)
    batch.safetensors   tokens [steps, rows, context + 1] (i64); also targets [steps, rows, context] if some of them
                        are ignored (-1); without targets, the target of a token is the next token
    expected.json       optimizer settings; loss, gradient norms and clip coefficient of each step
    grads.safetensors   gradients of step 1, before clipping (fp32)
    final.safetensors   weights after the last step (fp32)

Everything is computed in float64 from the fp32 weights and rounded only when written. Before it writes, the script checks its
gradients against central differences. With --check DIR it recomputes an existing directory and prints the largest relative
deviation: none for its own, about 1e-8 if anything, such as the RoPE table, was held in fp32.

    make_golden.py OUT                 writes OUT/tied-odd, OUT/biased-gqa, OUT/rope-scaled
    make_golden.py --check DIR [...]   recomputes and compares
"""
import argparse
import json
import math
import pathlib
import struct
import sys

import numpy as np

DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32}


# Files


def read_tensors(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[8 + size + begin : 8 + size + end]
        tensors[name] = np.frombuffer(raw, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write_tensors(path, tensors, metadata=None):
    """Writes like the reference writer: sorted by name (one dtype per file), no gaps, header padded to 8 bytes with spaces."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name in sorted(tensors):
        array = tensors[name]
        dtype = next(key for key, value in DTYPES.items() if value == array.dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            out.write(np.ascontiguousarray(tensors[name]).tobytes())


def to_fp32(tensors):
    return {name: value.astype(np.float32) for name, value in tensors.items()}


# Model: a forward function returns what its backward function needs; the two are next to each other


def rope_frequencies(config):
    dim = config["head_dim"]
    frequency = config["rope_theta"] ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    scaling = config.get("rope_scaling")
    if not scaling:
        return frequency
    wavelength = 2 * math.pi / frequency
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    # Long wavelengths are stretched by the factor, short ones kept, those in between interpolated (Llama 3.1).
    blend = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return frequency * (blend + (1 - blend) / factor)


def rotate(x, cos, sin):
    """RoPE, half-split form: rotates dimension i with i + D/2. x is [B, T, heads, D]. With -sin it is the inverse, and the gradient."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def norm_forward(x, w, eps):
    r = 1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * r * w, r


def norm_backward(x, w, r, dy):
    dxhat = dy * w
    dx = r * (dxhat - x * r * r * (dxhat * x).mean(-1, keepdims=True))
    return dx, (dy * x * r).sum(axis=tuple(range(x.ndim - 1)))


def linear_forward(p, name, x):
    y = x @ p[name + ".weight"].T
    return y + p[name + ".bias"] if name + ".bias" in p else y


def linear_backward(p, g, name, x, dy):
    flat_x, flat_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    g[name + ".weight"] += flat_dy.T @ flat_x
    if name + ".bias" in p:
        g[name + ".bias"] += flat_dy.sum(0)
    return dy @ p[name + ".weight"]


def attention_forward(q, k, v):
    """q [B, T, H, D], k and v [B, T, G, D]; causal; H / G query heads share one KV head."""
    batch, length, heads, dim = q.shape
    group = heads // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(dim)
    scores[:, :, np.triu(np.ones((length, length), dtype=bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights, v), (q, k, v, weights, group)


def attention_backward(cache, dout):
    q, k, v, weights, group = cache
    dv = np.einsum("bhqk,bqhd->bkhd", weights, dout)
    dweights = np.einsum("bqhd,bkhd->bhqk", dout, v)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True)) / math.sqrt(q.shape[-1])
    dq = np.einsum("bhqk,bkhd->bqhd", dscores, k)
    dk = np.einsum("bhqk,bqhd->bkhd", dscores, q)
    shape = (*k.shape[:2], k.shape[2] // group, group, k.shape[3])
    return dq, dk.reshape(shape).sum(3), dv.reshape(shape).sum(3)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def block_forward(config, p, layer, x, cos, sin):
    name, eps = f"model.layers.{layer}.", config["rms_norm_eps"]
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    batch, length, _ = x.shape
    n1, r1 = norm_forward(x, p[name + "input_layernorm.weight"], eps)
    q = linear_forward(p, name + "self_attn.q_proj", n1).reshape(batch, length, heads, dim)
    k = linear_forward(p, name + "self_attn.k_proj", n1).reshape(batch, length, kv, dim)
    v = linear_forward(p, name + "self_attn.v_proj", n1).reshape(batch, length, kv, dim)
    mixed, attention = attention_forward(rotate(q, cos, sin), rotate(k, cos, sin), v)
    mixed = mixed.reshape(batch, length, heads * dim)
    middle = x + linear_forward(p, name + "self_attn.o_proj", mixed)
    n2, r2 = norm_forward(middle, p[name + "post_attention_layernorm.weight"], eps)
    gate = linear_forward(p, name + "mlp.gate_proj", n2)
    up = linear_forward(p, name + "mlp.up_proj", n2)
    act = gate * sigmoid(gate) * up
    out = middle + linear_forward(p, name + "mlp.down_proj", act)
    return out, (x, n1, r1, attention, mixed, middle, n2, r2, gate, up, act)


def block_backward(p, g, layer, cache, dout, cos, sin):
    name = f"model.layers.{layer}."
    x, n1, r1, attention, mixed, middle, n2, r2, gate, up, act = cache
    dact = linear_backward(p, g, name + "mlp.down_proj", act, dout)
    s = sigmoid(gate)
    dgate, dup = dact * up * s * (1 + gate * (1 - s)), dact * gate * s
    dn2 = linear_backward(p, g, name + "mlp.gate_proj", n2, dgate) + linear_backward(p, g, name + "mlp.up_proj", n2, dup)
    dx, dw = norm_backward(middle, p[name + "post_attention_layernorm.weight"], r2, dn2)
    g[name + "post_attention_layernorm.weight"] += dw
    dmiddle = dout + dx
    dmixed = linear_backward(p, g, name + "self_attn.o_proj", mixed, dmiddle)
    dq, dk, dv = attention_backward(attention, dmixed.reshape(attention[0].shape))
    flat = (*n1.shape[:2], -1)
    dn1 = linear_backward(p, g, name + "self_attn.q_proj", n1, rotate(dq, cos, -sin).reshape(flat))
    dn1 += linear_backward(p, g, name + "self_attn.k_proj", n1, rotate(dk, cos, -sin).reshape(flat))
    dn1 += linear_backward(p, g, name + "self_attn.v_proj", n1, dv.reshape(flat))
    dx, dw = norm_backward(x, p[name + "input_layernorm.weight"], r1, dn1)
    g[name + "input_layernorm.weight"] += dw
    return dmiddle + dx


def loss_and_gradients(config, p, inputs, targets):
    """Returns the mean cross-entropy over the targets that are not ignored, and its gradient by every parameter."""
    g = {name: np.zeros_like(value) for name, value in p.items()}
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    angle = np.arange(inputs.shape[1])[:, None] * rope_frequencies(config)
    cos, sin = np.cos(angle)[None, :, None, :], np.sin(angle)[None, :, None, :]
    x, caches = p["model.embed_tokens.weight"][inputs], []
    for layer in range(config["num_hidden_layers"]):
        x, cache = block_forward(config, p, layer, x, cos, sin)
        caches.append(cache)
    y, r = norm_forward(x, p["model.norm.weight"], config["rms_norm_eps"])
    logits = y @ p[head].T
    valid = targets >= 0
    peak = logits.max(-1, keepdims=True)
    log_sum = np.log(np.exp(logits - peak).sum(-1, keepdims=True)) + peak
    picked = np.take_along_axis(logits, np.maximum(targets, 0)[..., None], -1)
    loss = ((log_sum - picked)[..., 0] * valid).sum() / valid.sum()

    dlogits = np.exp(logits - log_sum)
    np.put_along_axis(dlogits, np.maximum(targets, 0)[..., None],
                      np.take_along_axis(dlogits, np.maximum(targets, 0)[..., None], -1) - 1, -1)
    dlogits *= valid[..., None] / valid.sum()
    g[head] += dlogits.reshape(-1, dlogits.shape[-1]).T @ y.reshape(-1, y.shape[-1])
    dx, g["model.norm.weight"] = norm_backward(x, p["model.norm.weight"], r, dlogits @ p[head])
    for layer in reversed(range(config["num_hidden_layers"])):
        dx = block_backward(p, g, layer, caches[layer], dx, cos, sin)
    np.add.at(g["model.embed_tokens.weight"], inputs, dx)
    return loss, g


# Training


def norms(g):
    flat = np.abs(np.concatenate([value.ravel() for value in g.values()]))
    return {"grad_norm_l2": float(np.sqrt((flat**2).sum())), "grad_norm_l1": float(flat.sum()),
            "grad_norm_inf": float(flat.max()), "grad_norm_l3": float((flat**3).sum() ** (1 / 3))}


def train(config, optimizer, weights, batch):
    """Returns the figures of each step, the gradients of step 1 and the final weights."""
    p = {name: value.astype(np.float64) for name, value in weights.items()}
    m, v = ({name: np.zeros_like(value) for name, value in p.items()} for _ in range(2))
    tokens, steps, first = batch["tokens"], [], None
    targets = batch.get("targets", tokens[:, :, 1:])
    lr, b1, b2, eps = (optimizer[key] for key in ("lr", "beta1", "beta2", "eps"))
    for step in range(1, len(tokens) + 1):
        loss, g = loss_and_gradients(config, p, tokens[step - 1, :, :-1], targets[step - 1])
        first = first or g
        figures = norms(g)
        # PyTorch's clip_grad_norm_, with its guard against division by zero.
        clip = min(1.0, optimizer["clip"] / (figures["grad_norm_l2"] + 1e-6))
        steps.append({"step": step, "loss": float(loss), **figures, "clip_coefficient": clip})
        for name in p:
            grad = g[name] * clip
            m[name] = b1 * m[name] + (1 - b1) * grad
            v[name] = b2 * v[name] + (1 - b2) * grad * grad
            p[name] = p[name] * (1 - lr * optimizer["weight_decay"])
            p[name] -= lr * (m[name] / (1 - b1**step)) / (np.sqrt(v[name] / (1 - b2**step)) + eps)
    return steps, first, p


# The directories in the repository

OPTIMIZER = {"name": "adamw", "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1,
             "decay": "all parameters", "clip": 1.0}

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}

# name: model sizes, rows, context, share of ignored targets, optimizer
CASES = {
    # Sizes that no vector width divides, one KV head for three query heads, a tied head.
    "tied-odd": (dict(vocab_size=97, hidden_size=33, intermediate_size=53, num_hidden_layers=2, num_attention_heads=3,
                      num_key_value_heads=1, head_dim=14, tie_word_embeddings=True), 5, 19, 0.0, OPTIMIZER),
    "biased-gqa": (dict(vocab_size=112, hidden_size=32, intermediate_size=44, num_hidden_layers=2, num_attention_heads=4,
                        num_key_value_heads=2, head_dim=8, attention_bias=True, mlp_bias=True), 6, 24, 0.25,
                   dict(OPTIMIZER, lr=3e-3, beta2=0.99, weight_decay=0.01, clip=0.5)),
    "rope-scaled": (dict(vocab_size=80, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=2, head_dim=16, rope_theta=500.0, rope_scaling=LLAMA3), 3, 40, 0.1,
                    dict(OPTIMIZER, clip=100.0)),
}


def complete_config(sizes, context):
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": context, "tie_word_embeddings": False,
            "attention_bias": False, "mlp_bias": False, "torch_dtype": "float32", "bos_token_id": None, "eos_token_id": None}
    return {**base, **sizes}


def parameter_shapes(c):
    h, i = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], h)
    linears = [("self_attn.q_proj", q, h, "attention_bias"), ("self_attn.k_proj", kv, h, "attention_bias"),
               ("self_attn.v_proj", kv, h, "attention_bias"), ("self_attn.o_proj", h, q, "attention_bias"),
               ("mlp.gate_proj", i, h, "mlp_bias"), ("mlp.up_proj", i, h, "mlp_bias"), ("mlp.down_proj", h, i, "mlp_bias")]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        shapes[name + "input_layernorm.weight"] = shapes[name + "post_attention_layernorm.weight"] = (h,)
        for linear, rows, cols, bias in linears:
            shapes[name + linear + ".weight"] = (rows, cols)
            if c[bias]:
                shapes[name + linear + ".bias"] = (rows,)
    return shapes


def draw_weights(config, rng):
    """Draws weights larger than an initialiser would, so that no gradient vanishes and no norm weight is exactly 1."""
    weights = {}
    for name, shape in sorted(parameter_shapes(config).items()):
        mean = 1.0 if "norm" in name else 0.0
        weights[name] = (mean + 0.15 * rng.standard_normal(shape)).astype(np.float32)
    return weights


def draw_batch(config, rng, steps, rows, context, ignored):
    tokens = rng.integers(0, config["vocab_size"], (steps, rows, context + 1), dtype=np.int64)
    if ignored == 0.0:
        return {"tokens": tokens}
    targets = np.where(rng.random((steps, rows, context)) < ignored, -1, tokens[:, :, 1:])
    targets[:, 0, :] = -1  # a row without targets, such as padding
    return {"targets": targets, "tokens": tokens}


def check_gradients(config, weights, batch):
    """Compares gradients with central differences along one random direction of every tensor."""
    rng = np.random.default_rng(1)
    p = {name: value.astype(np.float64) for name, value in weights.items()}
    inputs = batch["tokens"][0, :, :-1]
    targets = batch.get("targets", batch["tokens"][:, :, 1:])[0]
    _, g = loss_and_gradients(config, p, inputs, targets)
    worst, h = 0.0, 1e-5
    for name in p:
        direction = rng.standard_normal(p[name].shape)
        direction /= np.linalg.norm(direction)
        sides = [loss_and_gradients(config, {**p, name: p[name] + s * h * direction}, inputs, targets)[0] for s in (1, -1)]
        difference = abs((sides[0] - sides[1]) / (2 * h) - (g[name] * direction).sum())
        worst = max(worst, difference / np.linalg.norm(g[name]))
    return worst


def write_case(path, name, seed, steps):
    sizes, rows, context, ignored, optimizer = CASES[name]
    config, rng = complete_config(sizes, context), np.random.default_rng(seed)
    weights = draw_weights(config, rng)
    batch = draw_batch(config, rng, steps, rows, context, ignored)
    worst = check_gradients(config, weights, batch)
    if worst > 1e-7:
        sys.exit(f"{name}: gradients differ from central differences by {worst:.1e} of their norm")
    figures, first, final = train(config, optimizer, weights, batch)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (path / "expected.json").write_text(json.dumps({"optimizer": optimizer, "steps": figures}, indent=1) + "\n")
    write_tensors(path / "model.safetensors", weights, {"format": "pt"})
    write_tensors(path / "batch.safetensors", batch)
    write_tensors(path / "grads.safetensors", to_fp32(first))
    write_tensors(path / "final.safetensors", to_fp32(final))
    print(f"{path}: central differences agree to {worst:.1e}; loss {figures[0]['loss']:.6f} -> {figures[-1]['loss']:.6f}")


def frobenius(found, expected):
    worst = 0.0
    for name, value in expected.items():
        difference = np.linalg.norm(found[name].astype(np.float64) - value)
        worst = max(worst, difference / max(np.linalg.norm(value.astype(np.float64)), 1e-300))
    return worst


def check_directory(path):
    """Returns the largest relative deviations of a directory from what this script computes for it."""
    path = pathlib.Path(path)
    config = json.loads((path / "config.json").read_text())
    expected = json.loads((path / "expected.json").read_text())
    weights = read_tensors(path / "model.safetensors")
    steps, first, final = train(config, expected["optimizer"], weights, read_tensors(path / "batch.safetensors"))
    scalars = max(abs(found[key] - value) / abs(value)
                  for found, want in zip(steps, expected["steps"]) for key, value in want.items())
    grads = frobenius(to_fp32(first), read_tensors(path / "grads.safetensors"))
    weights = frobenius(to_fp32(final), read_tensors(path / "final.safetensors"))
    print(f"{path}: figures {scalars:.1e}, gradients {grads:.1e}, final weights {weights:.1e} (relative)")
    return scalars < 1e-7 and grads < 1e-6 and weights < 1e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="directory to write the cases into")
    parser.add_argument("--check", nargs="+", metavar="DIR", default=[], help="recompute these directories and compare")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    if not args.out and not args.check:
        parser.error("give OUT or --check DIR")
    for seed, name in enumerate(CASES if args.out else []):
        write_case(pathlib.Path(args.out) / name, name, seed, args.steps)
    if not all([check_directory(path) for path in args.check]):
        sys.exit("deviations above the limits")


if __name__ == "__main__":
    main()
