#!/usr/bin/env python3
"""Sends the records of a run to Weights & Biases as they are written:

    metrics: {command: [python3, examples/metrics_wandb.py, --project, my-project]}

weft starts this program and writes one JSON object per line to its standard input (docs/use/metrics.md). WEFT_RUN_DIR is the run directory,
whose config.yaml is sent too. A resumed run continues under the same id. wandb's own environment variables apply: WANDB_MODE=offline keeps
everything in RUN/wandb, for `wandb sync` later."""
import argparse
import hashlib
import json
import os
import sys

import wandb
import yaml


def configuration(run_dir):
    try:
        with open(os.path.join(run_dir, "config.yaml"), encoding="utf-8") as text:
            return yaml.safe_load(text)
    except OSError:
        return {}


def values(record):
    """Returns the numbers of a record under its kind, and its name if it has one: train/loss, set/code/loss. Null means "not known"."""
    numbers = {k: v for k, v in record.items() if isinstance(v, (int, float)) and k != "step"}
    prefix = "/".join(filter(None, [record["kind"], record.get("name")]))
    return {f"{prefix}/{key}": value for key, value in numbers.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--project", default="weft")
    parser.add_argument("--name", help="of the run; default: its directory's")
    parser.add_argument("--entity")
    args = parser.parse_args()
    run_dir = os.environ.get("WEFT_RUN_DIR", os.getcwd())
    run = wandb.init(
        project=args.project,
        entity=args.entity,
        name=args.name or os.path.basename(run_dir),
        id=hashlib.sha256(run_dir.encode()).hexdigest()[:16],
        resume="allow",
        dir=run_dir,
        config=configuration(run_dir),
    )
    for line in sys.stdin:
        record = json.loads(line)
        run.log(values(record), step=record["step"])
    run.finish()


if __name__ == "__main__":
    main()
