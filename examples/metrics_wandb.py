#!/usr/bin/env python3
"""Records of a run to Weights & Biases, as they are made:

    metrics: {command: [python3, examples/metrics_wandb.py, --project, my-project]}

weft starts it and writes a JSON object a line to its standard input (docs/use/metrics.md). Where the run lies comes in WEFT_RUN_DIR; its
configuration goes along from config.yaml. A run that is resumed goes on under the same id. What wandb itself is told by its environment
holds: WANDB_MODE=offline keeps everything in RUN/wandb, for `wandb sync` later."""
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
    """What can be drawn, by its kind, and by its name if it has one: train/loss, set/code/loss. Null stands for "not known"."""
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
