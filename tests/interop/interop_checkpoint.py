#!/usr/bin/env python3
"""Checks that Hugging Face's packages read what weft writes, and that weft reads what they write.

    tests/interop/interop_checkpoint.py [--weft build/weft] [--logits build/logits] [--require]

Trains tiny models with `weft train`, and makes others with transformers. Then it
  - reads every safetensors file that weft wrote with the safetensors package, and recomputes `weft inspect --digest`;
  - loads checkpoints unchanged with AutoModelForCausalLM and AutoTokenizer, and compares the logits at every position, token
    by token and prefilled, losses with `weft eval`, tokens with `weft tokenizer encode`, greedy text with `weft generate`;
  - does the same for `weft export` in bf16 and as the mean of checkpoints, and for averaged weights (optimizer.ema), both as the
    variant "ema" of a checkpoint and from `weft export --ema`;
  - saves models with save_pretrained, in one file and in several, compares those in the same way, and continues training from
    them: the first loss is the one that transformers computes for that batch, and the checkpoint loads in transformers again;
  - writes safetensors files of every dtype with the package, and lets weft inspect them.
Exits with 77 (a skipped test) and a message if safetensors is missing. Checks that need torch and transformers are skipped with a
message if those are missing. With --require, a missing package is a failure."""
import argparse
import hashlib
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
TOLERANCE = 1e-5  # relative, of an fp32 loss
LOGIT_TOLERANCE = 1e-4  # absolute, in fp32
CONTEXT = 48
WINDOWS = 8  # of the text for continued training: each step uses all of them
WORDS = "the quick brown fox jumps over the lazy dog Zürich naïve 12 3456 -- (so) \n".split(" ")
MODEL = {"hidden_size": 48, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
VARIANTS = {  # trained by weft
    "plain": {},
    "tied": {"tie_word_embeddings": "true", "head_dim": 20},
    "biased": {"attention_bias": "true", "mlp_bias": "true"},
    "scaled": {"rope_theta": 500000, "rope_factor": 8, "rope_low_freq_factor": 1, "rope_high_freq_factor": 4,
               "rope_original_positions": 32},
}
FOREIGN = {  # made by transformers
    "plain": {},
    "ungrouped": {"num_key_value_heads": 4, "head_dim": 16},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "scaled": {"rope": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
    "bf16": {"dtype": "bfloat16"},
}

failures = []
largest = {}  # largest differences seen, by kind


def check(condition, what):
    print(("ok    " if condition else "FAIL  ") + what, flush=True)
    if not condition:
        failures.append(what)


def check_close(what, difference, limit):
    kind = what.rsplit(": ", 1)[1]
    largest[kind] = max(largest.get(kind, 0.0), difference)
    check(difference <= limit, f"{what} differ by {difference:.2e}, limit {limit:.0e}")


def relative(a, b):
    return abs(a - b) / abs(b)


class Weft:
    def __init__(self, path, logits):
        self.path, self.logits_path = str(pathlib.Path(path).resolve()), str(pathlib.Path(logits).resolve())

    def __call__(self, *args, data=None):
        return self.run(self.path, *args, data=data)

    @staticmethod
    def run(*command, data=None):
        done = subprocess.run([*map(str, command)], input=data, capture_output=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    def digest(self, path):
        return self("inspect", "--digest", path).decode().strip()

    def loss(self, path, text):
        return json.loads(self("eval", path, text, "--json", "--compute", "fp32", "--context", CONTEXT))

    def encode(self, tokenizer, data):
        return [int(word) for word in self("tokenizer", "encode", tokenizer, data=data).split()]

    def logits(self, path, ids, *flags):
        lines = self.run(self.logits_path, *flags, path, data=" ".join(map(str, ids)).encode()).decode().splitlines()
        return [[float(word) for word in line.split()] for line in lines]


# The digest, from its definition


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


# Models


def train(weft, work, name, variant, *options):
    options = [*options, *(f"model.{key}={value}" for key, value in {**MODEL, **variant}.items())]
    run = work / name
    weft("train", work / "run.yaml", f"run.dir={run}", *options)
    return run / "checkpoints" / "latest"


def make_foreign(torch, tokenizer, variant):
    """Makes a transformers model with all weights random, norms and biases too."""
    import transformers

    options = {**MODEL, "max_position_embeddings": 64, "initializer_range": 0.15, **variant}
    dtype = getattr(torch, options.pop("dtype", "float32"))
    rope = options.pop("rope", None)
    if rope and int(transformers.__version__.split(".")[0]) >= 5:
        options["rope_parameters"] = rope
    elif rope:
        options["rope_theta"] = rope["rope_theta"]
        options["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    ends = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokenizer) + 7, **ends, **options))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn(parameter.shape)
    return model.to(dtype).eval()


def load(name, checkpoint, **options):
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True, **options)
    clean = not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    check(clean, f"{name}: AutoModelForCausalLM loads it, nothing missing or left over")
    return model.eval()


def ids_of(tokenizer, text):
    """Returns the ids of a document as weft reads it."""
    ends = [tokenizer.bos_token_id], [tokenizer.eos_token_id]
    ids = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
    return [token for token in [*ends[0], *ids, *ends[1]] if token is not None]


def mean_loss(torch, model, ids):
    """Returns the loss over windows as weft cuts them: each token except the first is a target once."""
    total, count = 0.0, len(ids) - 1
    with torch.no_grad():
        for start in range(0, count, CONTEXT):
            window = torch.tensor(ids[start : min(start + CONTEXT, count) + 1])
            logits = model(window[None, :-1]).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    return total / count


# Checks


def check_files(weft, name, checkpoint):
    import safetensors

    for path in sorted(checkpoint.glob("*.safetensors")):
        with safetensors.safe_open(path, "numpy") as opened:
            shapes = {key: list(opened.get_slice(key).get_shape()) for key in opened.keys()}
        check(shapes and shapes == {key: value[1] for key, value in read_safetensors(path).items()},
              f"{name}: safetensors opens {path.name}")
        check(digest_of([path]) == weft.digest(path), f"{name}: digest of {path.name}")
    weft("inspect", checkpoint)


def check_values(torch, name, checkpoint):
    """Checks that the package reads every tensor with the values in the file."""
    import safetensors.torch

    for path in sorted(checkpoint.glob("*.safetensors")):
        tensors, raw = safetensors.torch.load_file(path), read_safetensors(path)
        same = all(bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy()) == raw[key][2] for key, tensor in tensors.items())
        check(same and set(tensors) == set(raw), f"{name}: safetensors loads {path.name}")


def check_logits(torch, weft, name, directory, model, ids):
    ids = ids[:CONTEXT]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].double()
    for how, flags, rows in (("token by token", (), expected), ("prefilled", ("--prefill",), expected[-1:])):
        found = torch.tensor(weft.logits(directory, ids, *flags), dtype=torch.float64)
        check(found.shape == rows.shape, f"{name}: {how}, {found.shape[0]} rows of {found.shape[1]} logits")
        check_close(f"{name}: logits {how}", (found - rows).abs().max().item(), LOGIT_TOLERANCE)


def check_loss(torch, weft, name, directory, model, text, ids):
    result, expected = weft.loss(directory, text), mean_loss(torch, model, ids)
    check(result["tokens"] == len(ids) - 1, f"{name}: weft counts {result['tokens']} targets, expected {len(ids) - 1}")
    check_close(f"{name}: relative losses", relative(result["loss"], expected), TOLERANCE)


def token_bytes(tokenizer, ids):
    """Returns tokens as bytes, by the byte-level alphabet; text could not distinguish parts of characters."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
    return bytes(alphabet[character] for token in tokenizer.convert_ids_to_tokens(ids) for character in token)


def check_generation(torch, weft, name, checkpoint, model, tokenizer):
    prompt, tokens = "the quick brown", 32
    ids = [tokenizer.bos_token_id, *tokenizer.encode(prompt, add_special_tokens=False)]
    with torch.no_grad():
        made = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=tokens)[0, len(ids) :].tolist()
    expected = token_bytes(tokenizer, [token for token in made if token != tokenizer.eos_token_id])
    found = weft("generate", checkpoint, "--prompt", prompt, "--temperature", 0, "--tokens", tokens, "--compute", "fp32", "--quiet")
    check(found == expected + b"\n", f"{name}: greedy text, {len(made)} tokens: {found[:-1]} of weft, {expected} of transformers")


def check_tokenizer(weft, name, directory, tokenizer, text):
    ours = weft.encode(directory / "tokenizer.json", text.read_bytes())
    theirs = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
    check(ours == theirs, f"{name}: AutoTokenizer gives weft's {len(ours)} tokens")


def check_checkpoint(torch, weft, work, name, checkpoint):
    """Checks a checkpoint of weft in transformers, and back."""
    from transformers import AutoTokenizer

    text = work / "eval.txt"
    check_values(torch, name, checkpoint)
    model, tokenizer = load(name, checkpoint, dtype=torch.float32), AutoTokenizer.from_pretrained(checkpoint)
    check_tokenizer(weft, name, checkpoint, tokenizer, text)
    ids = ids_of(tokenizer, text)
    check_logits(torch, weft, name, checkpoint, model, ids)
    check_loss(torch, weft, name, checkpoint, model, text, ids)
    check_generation(torch, weft, name, checkpoint, model, tokenizer)
    check_saved(torch, weft, work, name, model, tokenizer)
    for out in (work / f"{name}-whole", work / f"{name}-shards"):
        check(weft.digest(out) == weft.digest(checkpoint), f"{name}: weft reads the same weights from {out.name}")


def check_saved(torch, weft, work, name, model, tokenizer):
    """Checks in weft what transformers saved."""
    text = work / "eval.txt"
    ids = ids_of(tokenizer, text)
    for kind, size in (("whole", "5GB"), ("shards", "40KB")):
        out, what = work / f"{name}-{kind}", f"{name} saved, {kind}"
        model.save_pretrained(out, max_shard_size=size)
        tokenizer.save_pretrained(out)
        files = sorted(out.glob("*.safetensors"))
        check((len(files) > 1) == (kind == "shards"), f"{what}: {len(files)} files")
        check(weft.digest(out) == digest_of(files), f"{what}: digest")
        check_tokenizer(weft, what, out, tokenizer, text)
        wide = load(what, out, dtype=torch.float32)
        check_logits(torch, weft, what, out, wide, ids)
        check_loss(torch, weft, what, out, wide, text, ids)


def check_continued(torch, weft, work, name, start, tokenizer):
    """Checks training from a directory of transformers, with the whole text in every step."""
    text, run = work / "few.txt", work / f"{name}-on"
    ids = ids_of(tokenizer, text)
    check(-(-(len(ids) - 1) // CONTEXT) == WINDOWS, f"{name}: {len(ids)} tokens are {WINDOWS} windows")
    weft("train", work / "run.yaml", f"run.dir={run}", f"model.init={start}", f"data.tokenizer={start}/tokenizer.json",
         f"data.sources=[{text}]", "data.validation_fraction=0", "data.document_mask=false", "train.microbatch=4",
         f"train.tokens_per_step={WINDOWS * CONTEXT}", "lr_schedule.warmup_steps=0", "metrics.log_freq=1")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    expected = mean_loss(torch, load(f"{name}: start", start, dtype=torch.float32), ids)
    check_close(f"{name}: relative first losses of training", relative(losses[0], expected), TOLERANCE)
    check(losses[-1] < 0.95 * losses[0], f"{name}: training goes on, loss {losses[0]:.4f} to {losses[-1]:.4f}")
    checkpoint = run / "checkpoints" / "latest"
    check_files(weft, f"{name}, trained on", checkpoint)
    model = load(f"{name}, trained on", checkpoint, dtype=torch.float32)
    check_logits(torch, weft, f"{name}, trained on", checkpoint, model, ids)
    check_loss(torch, weft, f"{name}, trained on", checkpoint, model, text, ids)
    check(mean_loss(torch, model, ids) < losses[-1], f"{name}, trained on: the loss of transformers has fallen too")


def check_foreign(torch, weft, work, tokenizer):
    for variant, options in FOREIGN.items():
        name = f"transformers-{variant}"
        check_saved(torch, weft, work, name, make_foreign(torch, tokenizer, options), tokenizer)
        for kind in ("whole", "shards"):
            check_continued(torch, weft, work, f"{name}-{kind}", work / f"{name}-{kind}", tokenizer)


def check_rounded(weft, work, torch):
    """Checks the export in bf16."""
    name = "rounded"
    checkpoint = train(weft, work, name, {}, "checkpoint.dtype=bf16")
    check_files(weft, name, checkpoint)
    types = {value[0] for value in read_safetensors(checkpoint / "model.safetensors").values()}
    check(types == {"BF16"}, f"{name}: model.safetensors is of {types}")
    if torch:
        check(load(name, checkpoint, dtype="auto").dtype == torch.bfloat16, f"{name}: transformers takes it as bf16")
        check_checkpoint(torch, weft, work, name, checkpoint)


def check_exported(weft, work, torch):
    import numpy

    last = train(weft, work, "kept", {}, "checkpoint.every=2", "checkpoint.keep=4")
    run = last.parent.parent
    weights = lambda path: {k: numpy.frombuffer(widen(v[0], v[2]), "<f4") for k, v in read_safetensors(path / "model.safetensors").items()}
    for name, words in (("exported", ["--dtype", "bf16"]), ("averaged", ["--average", 3]), ("both", ["--average", 3, "--dtype", "bf16"])):
        weft("export", run, work / name, *words)
        check_files(weft, name, work / name)
        taken = [weights(path) for path in sorted(run.glob("checkpoints/step-*"))[-3 if "--average" in words else -1 :]]
        made, limit = weights(work / name), 2**-8 if "bf16" in words else 2**-23
        means = {key: numpy.mean([w[key].astype("f8") for w in taken], axis=0) for key in taken[0]}
        near = all(numpy.all(abs(made[key] - mean) <= limit * abs(mean) + 1e-30) for key, mean in means.items())
        check(near and set(made) == set(means), f"{name}: the mean of {len(taken)} checkpoints")
        if torch:
            dtype = torch.bfloat16 if "bf16" in words else torch.float32
            check(load(name, work / name, dtype="auto").dtype == dtype, f"{name}: transformers takes it as {dtype}")


def check_averaged(weft, work, torch):
    """Checks that variant="ema" of a checkpoint gives the averaged weights that weft exports, and not the other weights in it."""
    name = "ema"
    checkpoint = train(weft, work, name, {}, "optimizer.ema=0.7")
    check_files(weft, name, checkpoint)
    weft("export", checkpoint.parent.parent, work / "ema-exported", "--ema")
    check_files(weft, "ema-exported", work / "ema-exported")
    if not torch:
        return
    from transformers import AutoTokenizer

    ids = ids_of(AutoTokenizer.from_pretrained(checkpoint), work / "eval.txt")[:CONTEXT]
    averaged = load("variant ema", checkpoint, variant="ema", dtype=torch.float32)
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0] for model in (
            averaged, load("ema exported", work / "ema-exported", dtype=torch.float32), load("beside ema", checkpoint, dtype=torch.float32))]
    check(torch.equal(logits[0], logits[1]), "variant ema: the logits of weft's export, to the bit")
    check(not torch.equal(logits[0], logits[2]), "variant ema: others than the logits of the weights themselves")
    check_logits(torch, weft, "variant ema", work / "ema-exported", averaged, ids)


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


def write_words(path, rng, count):
    path.write_text(" ".join(rng.choice(WORDS) for _ in range(count)), encoding="utf-8")


def make_run(weft, work):
    rng = random.Random(1)
    write_words(work / "train.txt", rng, 12000)
    write_words(work / "eval.txt", rng, 300)
    weft("tokenizer", "train", work / "train.txt", "--vocab", 320, "--out", work / "tokenizer.json")
    words, wanted = 0, (WINDOWS - 1) * CONTEXT + 2  # the last window is not full
    while len(weft.encode(work / "tokenizer.json", (work / "few.txt").read_bytes()) if words else []) < wanted:
        words += 20
        write_words(work / "few.txt", random.Random(2), words)
    (work / "run.yaml").write_text(
        f"data: {{sources: [{work}/train.txt], tokenizer: {work}/tokenizer.json, cache_dir: {work}/cache}}\n"
        f"train: {{steps: 8, context: {CONTEXT}, microbatch: 4, compute: fp32}}\n"
        "optimizer: {lr: 3e-3}\nlr_schedule: {warmup_steps: 1}\n")


def torch_if_there(require):
    if any([missing("torch", require), missing("transformers", require)]):
        return None
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # texts here are longer than contexts
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    return torch


def check_all(weft, work, torch):
    make_run(weft, work)
    check_written_by_package(weft, work)
    for variant, options in VARIANTS.items():
        checkpoint = train(weft, work, variant, options)
        check_files(weft, variant, checkpoint)
        if torch:
            check_checkpoint(torch, weft, work, variant, checkpoint)
    check_rounded(weft, work, torch)
    check_exported(weft, work, torch)
    check_averaged(weft, work, torch)
    if torch:
        from transformers import AutoTokenizer

        check_foreign(torch, weft, work, AutoTokenizer.from_pretrained(work / "plain" / "checkpoints" / "latest"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--logits", help="default: next to weft")
    parser.add_argument("--require", action="store_true", help="a missing package is a failure")
    args = parser.parse_args()
    if missing("numpy", args.require) or missing("safetensors", args.require):
        sys.exit(SKIPPED)
    torch = torch_if_there(args.require)
    with tempfile.TemporaryDirectory(prefix="weft-interop-") as name:
        check_all(Weft(args.weft, args.logits or pathlib.Path(args.weft).with_name("logits")), pathlib.Path(name), torch)
    for kind, difference in largest.items():
        print(f"largest difference of {kind}: {difference:.2e}")
    if failures:
        sys.exit(f"{len(failures)} checks failed")
    print("all checks passed")


if __name__ == "__main__":
    main()
