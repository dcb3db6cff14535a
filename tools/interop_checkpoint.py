#!/usr/bin/env python3
"""Checks that Hugging Face's packages open what weft writes, and weft what they write.

    tools/interop_checkpoint.py [--weft build/weft] [--require]

Trains a few tiny models with `weft train` and then
  - reads every safetensors file with the safetensors package and computes `weft inspect --digest` anew, in Python;
  - loads the checkpoint with AutoModelForCausalLM and AutoTokenizer as it is, and compares loss and tokens with `weft eval` and
    `weft tokenizer encode`;
  - saves the model with save_pretrained, in one file and in shards, and compares weft's digest and loss of that;
  - writes safetensors files with the package, of every type it has, and has weft inspect them.
Exits with 77 (a skipped test) and a message where safetensors is missing; what needs torch and transformers is skipped with a
message where those are. With --require, what is missing is a failure."""
import argparse
import hashlib
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
TOLERANCE = 1e-5  # relative, of an fp32 loss
WORDS = "the quick brown fox jumps over the lazy dog Zürich naïve 12 3456 -- (so) \n".split(" ")
MODEL = {"hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
VARIANTS = {
    "plain": {},
    "tied": {"tie_word_embeddings": "true", "head_dim": 20},
    "biased": {"attention_bias": "true", "mlp_bias": "true"},
    "scaled": {"rope_theta": 500000, "rope_factor": 8, "rope_low_freq_factor": 1, "rope_high_freq_factor": 4,
               "rope_original_positions": 32},
}

failures = []


def check(condition, what):
    print(("ok    " if condition else "FAIL  ") + what)
    if not condition:
        failures.append(what)


class Weft:
    def __init__(self, path):
        self.path = str(pathlib.Path(path).resolve())

    def __call__(self, *args, data=None):
        done = subprocess.run([self.path, *map(str, args)], input=data, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"weft {' '.join(map(str, args))}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def digest(self, path):
        return self("inspect", "--digest", path).decode().strip()

    def loss(self, path, text, context, *flags):
        return json.loads(self("eval", path, text, "--json", "--compute", "fp32", "--context", context, *flags))


# The digest, from its definition alone


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def widen(dtype, raw):
    import numpy

    if dtype == "BF16":
        return (numpy.frombuffer(raw, "<u2").astype("<u4") << 16).tobytes()
    return numpy.frombuffer(raw, "<f2").astype("<f4").tobytes() if dtype == "F16" else raw


def digest_of(files):
    tensors = {}
    for path in files:
        tensors.update(read_safetensors(path))
    number = lambda value: struct.pack("<Q", value)
    string = lambda value: number(len(value.encode())) + value.encode()
    digest = hashlib.sha256(number(len(tensors)))
    for name in sorted(tensors, key=str.encode):
        dtype, shape, raw = tensors[name]
        digest.update(string(name) + string("float" if dtype in ("F32", "BF16", "F16") else dtype))
        digest.update(number(len(shape)) + b"".join(map(number, shape)) + widen(dtype, raw))
    return digest.hexdigest()


# Checks


def train(weft, work, name, variant):
    options = [f"model.{key}={value}" for key, value in {**MODEL, **variant}.items()]
    run = work / name
    weft("train", work / "run.yaml", f"run.dir={run}", *options)
    return run / "checkpoints" / "latest"


def check_files(weft, name, checkpoint):
    import safetensors
    import safetensors.numpy

    for path in sorted(checkpoint.glob("*.safetensors")):
        with safetensors.safe_open(path, "numpy") as opened:
            names = list(opened.keys())
        check(set(safetensors.numpy.load_file(path)) == set(names) and names, f"{name}: safetensors reads {path.name}")
        check(digest_of([path]) == weft.digest(path), f"{name}: digest of {path.name}")
    weft("inspect", checkpoint)


def mean_loss(torch, model, ids, context):
    """Over windows as weft cuts them: each token but the first is a target once."""
    total, count = 0.0, len(ids) - 1
    for start in range(0, count, context):
        window = torch.tensor(ids[start : min(start + context, count) + 1])
        logits = model(window[None, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return total / count


def close(a, b):
    return abs(a - b) <= TOLERANCE * abs(b)


def check_transformers(weft, work, name, checkpoint, context):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, info = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True, dtype=torch.float32)
    clean = not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    check(clean, f"{name}: AutoModelForCausalLM loads the checkpoint, nothing missing or left over")
    text = work / "eval.txt"
    ours = [int(word) for word in weft("tokenizer", "encode", checkpoint / "tokenizer.json", data=text.read_bytes()).split()]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    theirs = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
    check(ours == theirs, f"{name}: AutoTokenizer gives weft's tokens")
    result = weft.loss(checkpoint, text, context)
    ids = [token for token in [tokenizer.bos_token_id] if token is not None] + theirs
    ids += [token for token in [tokenizer.eos_token_id] if token is not None]
    check(result["tokens"] == len(ids) - 1, f"{name}: weft counts {result['tokens']} targets, expected {len(ids) - 1}")
    with torch.no_grad():
        expected = mean_loss(torch, model.eval(), ids, context)
    check(close(result["loss"], expected), f"{name}: loss {result['loss']:.9f} of weft, {expected:.9f} of transformers")
    for shards, size in (("whole", "5GB"), ("shards", "40KB")):
        check_saved(weft, work, f"{name} saved {shards}", model, checkpoint, size, expected, context)


def check_saved(weft, work, name, model, checkpoint, size, expected, context):
    out = work / name.replace(" ", "-")
    model.save_pretrained(out, max_shard_size=size)
    shutil.copy(checkpoint / "tokenizer.json", out)
    shutil.copy(checkpoint / "tokenizer_config.json", out)
    check(("shards" in name) == (out / "model.safetensors.index.json").exists(), f"{name}: as asked for")
    check(weft.digest(out) == weft.digest(checkpoint), f"{name}: weft reads the same weights")
    result = weft.loss(out, work / "eval.txt", context)
    check(close(result["loss"], expected), f"{name}: loss {result['loss']:.9f} of weft")


def check_written_by_package(weft, work):
    import numpy
    import safetensors.numpy

    rng = numpy.random.default_rng(0)
    types = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64", "int64", "float64"]
    tensors = {f"t.{kind}": (rng.random((3, 5)) * 50).astype(kind) for kind in types}
    tensors.update({"scalar": numpy.array(2.5, "float32"), "empty": numpy.zeros((0, 7), "float32"), "": numpy.ones(3, "float16"),
                    "é\x1b[31m": numpy.ones((1, 1, 1, 2), "float32")})
    path = work / "package.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "np", "note": 'quotes " and \\'})
    weft("inspect", path)
    check(weft.digest(path) == digest_of([path]), "weft reads what safetensors writes, of every type")


def missing(package, require):
    try:
        __import__(package)
        return False
    except ImportError:
        message = f"{package} is not installed: what needs it is skipped"
        if require:
            sys.exit(message)
        print(message, file=sys.stderr)
        return True


def make_run(weft, work, context):
    rng = random.Random(1)
    for name, words in (("train.txt", 12000), ("eval.txt", 300)):
        (work / name).write_text(" ".join(rng.choice(WORDS) for _ in range(words)), encoding="utf-8")
    weft("tokenizer", "train", work / "train.txt", "--vocab", 320, "--out", work / "tokenizer.json")
    (work / "run.yaml").write_text(
        f"data: {{sources: [{work}/train.txt], tokenizer: {work}/tokenizer.json, cache_dir: {work}/cache}}\n"
        f"train: {{steps: 8, context: {context}, microbatch: 4, compute: fp32}}\n"
        "optimizer: {lr: 3e-3}\nschedule: {warmup_steps: 1}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--require", action="store_true", help="a missing package is a failure")
    args = parser.parse_args()
    if missing("numpy", args.require) or missing("safetensors", args.require):
        sys.exit(SKIPPED)
    bare = any([missing("torch", args.require), missing("transformers", args.require)])
    weft, context = Weft(args.weft), 48
    with tempfile.TemporaryDirectory(prefix="weft-interop-") as name:
        work = pathlib.Path(name)
        make_run(weft, work, context)
        check_written_by_package(weft, work)
        for variant, options in VARIANTS.items():
            checkpoint = train(weft, work, variant, options)
            check_files(weft, variant, checkpoint)
            if not bare:
                check_transformers(weft, work, variant, checkpoint, context)
    if failures:
        sys.exit(f"{len(failures)} checks failed")
    print("all checks passed")


if __name__ == "__main__":
    main()
