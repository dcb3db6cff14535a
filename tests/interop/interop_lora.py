#!/usr/bin/env python3
"""Checks that LoRA adapters can be exchanged between weft and PEFT in both directions, for every family.

    tests/interop/interop_lora.py [--weft build/weft] [--logits build/logits] [--require] [FAMILY ...]

For each family transformers makes a tiny model with random weights, and weft trains adapters on it. PeftModel.from_pretrained opens the
checkpoint: its tensors must be those of the file, its logits at every position weft's, and the result of merge_and_unload the weights that
`weft merge` writes. Then PEFT makes adapters with random weights on some of the matrices; weft's logits with them, and with the merged
model, must be PEFT's.
Exits with 77 (a skipped test) and a message if peft, torch or transformers is missing; with --require that is a failure."""
import argparse
import json
import pathlib
import random
import sys
import tempfile

from interop_families import CONTEXT, FAMILIES, SKIPPED, VOCAB, check, check_logits, failures, make, packages, run

WEIGHT_TOLERANCE = 1e-6  # relative to the largest of a matrix: both sum in fp32 or better, and round once
STEPS = 6
# Adapters made by PEFT: not on all matrices of a kind, and with another form of scale.
CHOSEN = {"phi3": ["qkv_proj", "down_proj"], "gpt2": ["c_attn", "mlp.c_proj"], "qwen3_moe": ["q_proj", "v_proj"],
          "olmoe": ["q_proj", "v_proj"], "deepseek_v3": ["kv_b_proj", "o_proj"], "deepseek_v2": ["kv_b_proj", "o_proj"]}
largest = {}


def seen(kind, value):
    largest[kind] = max(largest.get(kind, 0.0), value)


def logits_of(torch, model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double()


def compare(torch, args, what, directory, model, ids):
    lines = run(args.logits, directory, data=" ".join(map(str, ids)).encode()).splitlines()
    found = torch.tensor([[float(word) for word in line.split()] for line in lines], dtype=torch.float64)
    seen("logits", (found - logits_of(torch, model, ids)).abs().max().item())
    check_logits(torch, args.logits, what, directory, model, ids)


def check_weights(torch, what, ours, theirs):
    ours, theirs = ours.state_dict(), theirs.state_dict()
    check(ours.keys() == theirs.keys(), f"{what}: the same {len(ours)} tensors")
    worst = max(((ours[key] - theirs[key]).abs().max() / theirs[key].abs().max()).item() for key in ours)
    seen("merged weights, relative", worst)
    check(worst <= WEIGHT_TOLERANCE, f"{what}: weights differ by {worst:.1e} of the largest")


def from_weft(torch, transformers, peft, args, work, family, base, ids):
    from safetensors.torch import load_file

    what, trained, merged = f"{family}, adapters of weft", work / f"{family}-run", work / f"{family}-merged"
    # In PEFT, targets like gate_proj also match experts: docs/use/lora.md.
    match = ["lora.match=self_attn"] if family in ("qwen3_moe", "deepseek_v3", "deepseek_v2") else []
    run(args.weft, "train", work / "run.yaml", f"run.dir={trained}", f"model.init={base}", *match)
    losses = [record["loss"] for record in map(json.loads, (trained / "metrics.jsonl").read_text().splitlines()) if record["kind"] == "train"]
    check(losses[-1] < losses[0], f"{what}: {STEPS} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    checkpoint = trained / "checkpoints" / "latest"
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    without = logits_of(torch, plain, ids)
    model = peft.PeftModel.from_pretrained(plain, checkpoint).eval()
    file, opened = load_file(checkpoint / "adapter_model.safetensors"), peft.get_peft_model_state_dict(model)
    same = file.keys() == opened.keys() and all(torch.equal(file[key], opened[key].float()) for key in file)
    check(same, f"{what}: PeftModel has the {len(file)} tensors of the file")
    check((logits_of(torch, model, ids) - without).abs().max().item() > 0.01, f"{what}: they change the logits")
    compare(torch, args, what, checkpoint, model, ids)
    run(args.weft, "merge", trained, merged)
    again = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    compare(torch, args, f"{what}, merged", merged, model, ids)
    check_weights(torch, f"{what}, merged", again, model.merge_and_unload())


def from_peft(torch, transformers, peft, args, work, family, base, ids):
    what, directory, merged = f"{family}, adapters of PEFT", work / f"{family}-peft", work / f"{family}-peft-merged"
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    torch.manual_seed(3)
    config = peft.LoraConfig(r=5, lora_alpha=7, use_rslora=True, init_lora_weights=False, task_type="CAUSAL_LM", lora_dropout=0.1,
                             layers_to_transform=[1, 2], target_modules=CHOSEN.get(family, ["q_proj", "v_proj", "down_proj"]))
    model = peft.get_peft_model(plain, config).eval()
    model.save_pretrained(directory)
    compare(torch, args, what, directory, model, ids)
    run(args.weft, "merge", directory, merged)
    again = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    check_weights(torch, f"{what}, merged", again, model.merge_and_unload())


def peft_if_there(require):
    try:
        import peft
    except ImportError as missing:
        if require:
            sys.exit(str(missing))
        print(f"skipped: {missing}", file=sys.stderr)
        sys.exit(SKIPPED)
    return peft


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--logits", help="default: next to weft")
    parser.add_argument("--require", action="store_true", help="a missing package is a failure")
    parser.add_argument("families", nargs="*")
    args = parser.parse_args()
    args.weft = pathlib.Path(args.weft).resolve()
    args.logits = args.logits or args.weft.with_name("logits")
    torch, transformers = packages(args.require)
    peft = peft_if_there(args.require)
    with tempfile.TemporaryDirectory(prefix="weft-lora-") as directory:
        work = pathlib.Path(directory)
        words = random.Random(3)
        (work / "text.txt").write_text(" ".join(words.choice("abc de fgh ijkl m nop".split()) for _ in range(3000)))
        (work / "run.yaml").write_text(
            f"data: {{sources: [{work}/text.txt], cache_dir: {work}/cache}}\n"
            f"train: {{steps: {STEPS}, context: {CONTEXT}, microbatch: 4, compute: fp32}}\n"
            "lora: {rank: 3, alpha: 5}\noptimizer: {lr: 0.02}\nlr_schedule: {warmup_steps: 1}\nmetrics: {log_freq: 1}\n")
        for family in args.families or FAMILIES:
            name, variants = FAMILIES[family]
            base = work / family
            make(torch, transformers, name, variants[0]).save_pretrained(base)
            ids = [random.Random(5).randrange(VOCAB) for _ in range(CONTEXT + 9)]
            from_weft(torch, transformers, peft, args, work, family, base, ids)
            from_peft(torch, transformers, peft, args, work, family, base, ids)
    for kind, value in largest.items():
        print(f"largest difference of {kind}: {value:.1e}")
    if failures:
        sys.exit(f"{len(failures)} checks failed")
    print("all checks passed")


if __name__ == "__main__":
    main()
