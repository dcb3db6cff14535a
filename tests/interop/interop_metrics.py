#!/usr/bin/env python3
"""Runs examples/metrics_wandb.py and examples/metrics_mlflow.py in a run that is resumed once, with the real packages, offline.

    tests/interop/interop_metrics.py --weft build/weft

Compares every figure that they stored with RUN/metrics.jsonl. Exits with 77 (a skipped test) and a message if no package is installed, 1
if something differs."""
import argparse
import glob
import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "examples"
CONFIG = """
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes, validation: [{path: text.txt, name: one}, {path: text.txt, name: two}]}
train: {steps: 12, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {kind: constant, warmup_steps: 0, total_steps: 12}
validation: {every: 4, samples: 4}
evaluation: {every: 4, tasks: [piqa.jsonl, lambada.jsonl]}
metrics: {tensorboard: false, log_freq: 1, command_wait_s: 300, probe: 5}
run: {threads: 1}
"""
# Records with names: of validation sets, of tasks, of the units of a probed step.
NAMED = ("set/one/loss", "set/two/loss", "task/piqa/acc_norm", "task/lambada/acc", "probe/layers.0/output_rms", "probe/head/weight_rms")
PIQA = {"goal": "a b", "sol1": "c", "sol2": "dd", "label": 0}
LAMBADA = {"text": "a b c"}


def train(weft, run, tool, steps, **environment):
    command = json.dumps([sys.executable, "-B", str(PROGRAMS / tool)])
    done = subprocess.run(
        [weft, "train", "run.yaml", f"run.dir={run}", f"metrics.command={command}", f"train.steps={steps}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    log = pathlib.Path(run, "metrics-command.log").read_text(encoding="utf-8")
    if done.returncode != 0 or "metrics.command" in done.stderr:
        sys.exit(f"{tool}: exit status {done.returncode}: {done.stderr[-800:]}\n{log[-2000:]}")


def written(run):
    """Returns {(kind/key or kind/name/key, step): value} for the known values."""
    figures = {}
    with open(f"{run}/metrics.jsonl", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            for key, value in record.items():
                if isinstance(value, (int, float)) and key not in ("step", "wall"):
                    named = f"/{record['name']}" if "name" in record else ""
                    figures[f"{record['kind']}{named}/{key}", record["step"]] = float(value)
    return figures


def log_blocks(path):
    """Yields the records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    data, at, record = pathlib.Path(path).read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or its last part
            yield record
            record = b""


def wandb_figures(run):
    from wandb.proto import wandb_internal_pb2

    figures = {}
    for path in sorted(glob.glob(f"{run}/wandb/offline-run-*/*.wandb")):
        for block in log_blocks(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(block)
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            for key, value in items.items():
                if "/" in key and not key.endswith("/wall"):
                    figures[key, items["_step"]] = float(value)
    return figures


def mlflow_figures(run):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{os.path.abspath(run)}/mlflow.db")
    client = mlflow.MlflowClient()
    run_id = pathlib.Path(run, "mlflow-run").read_text(encoding="utf-8").strip()
    kept = client.get_run(run_id)
    if kept.info.status != "FINISHED" or kept.data.params["train.context"] != "16":
        sys.exit(f"MLflow's run: {kept.info.status}, {kept.data.params}")
    names = list(kept.data.metrics)
    return {(name, m.step): m.value for name in names for m in client.get_metric_history(run_id, name)}


def check(package, weft, figures_of, **environment):
    tool, run = f"metrics_{package}.py", f"run-{package}"
    for steps in (6, 12):
        train(weft, run, tool, steps, **environment)
    expected, found = written(run), figures_of(run)
    kept = {name for name, step in expected}
    if missing := {"train/loss", "validation/loss", *NAMED} - kept:
        sys.exit(f"the run has no record of {sorted(missing)}: {sorted(kept)}")
    if found != expected:
        odd = sorted(set(expected.items()) ^ set(found.items()))
        sys.exit(f"{tool}: {len(odd)} figures differ: {odd[:4]}")
    print(f"{tool}: {len(found)} figures, all as in metrics.jsonl")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", required=True)
    weft = os.path.realpath(parser.parse_args().weft)
    there = [p for p in ("wandb", "mlflow") if importlib.util.find_spec(p)]
    if not there:
        print("skipped: neither wandb nor mlflow is installed")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        pathlib.Path("run.yaml").write_text(CONFIG, encoding="utf-8")
        pathlib.Path("text.txt").write_text("".join(f"line {i * i % 97} of a text\n\n" for i in range(300)), encoding="utf-8")
        for name, document in (("piqa", PIQA), ("lambada", LAMBADA)):
            pathlib.Path(f"{name}.jsonl").write_text((json.dumps(document) + "\n") * 4, encoding="utf-8")
        if "wandb" in there:
            check("wandb", weft, wandb_figures, WANDB_MODE="offline", WANDB_SILENT="true")
        if "mlflow" in there:
            check("mlflow", weft, mlflow_figures)
        os.chdir("/")


if __name__ == "__main__":
    main()
