#!/usr/bin/env python3
"""Sends the records of a run to MLflow as they are written:

    metrics: {command: [python3, examples/metrics_mlflow.py, --experiment, my-experiment]}

weft starts this program and writes one JSON object per line to its standard input (docs/use/metrics.md). WEFT_RUN_DIR is the run directory,
whose config.yaml is sent as parameters. A resumed run continues under the id in RUN/mlflow-run. MLFLOW_TRACKING_URI selects the server;
without it everything is stored in RUN/mlflow.db, for `mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db`."""
import argparse
import json
import os
import pathlib
import sys

import mlflow
import yaml
from mlflow.entities import Metric, Param

MOST_PARAMETERS = 100  # per call


def configuration(run_dir):
    """Returns the keys with weft's names, such as optimizer.lr."""
    try:
        tree = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))
    except OSError:
        return {}
    return {f"{section}.{key}": value for section, keys in tree.items() for key, value in keys.items()}


def metrics(record):
    """Returns the numbers of a record under its kind, and its name if it has one: train/loss, set/code/loss. Null means "not known"."""
    milliseconds = int(1000 * record["wall"])
    numbers = {k: v for k, v in record.items() if isinstance(v, (int, float)) and k not in ("step", "wall")}
    prefix = "/".join(filter(None, [record["kind"], record.get("name")]))
    return [Metric(f"{prefix}/{k}", float(v), milliseconds, record["step"]) for k, v in numbers.items()]


def open_run(client, experiment, name, run_dir):
    """Returns the id of the MLflow run: that of an earlier start, if there is one."""
    kept = run_dir / "mlflow-run"
    if kept.exists():
        return kept.read_text(encoding="utf-8").strip()
    found = client.get_experiment_by_name(experiment)
    run = client.create_run(found.experiment_id if found else client.create_experiment(experiment), run_name=name)
    parameters = [Param(key, str(value)) for key, value in configuration(run_dir).items()]
    for first in range(0, len(parameters), MOST_PARAMETERS):
        client.log_batch(run.info.run_id, params=parameters[first : first + MOST_PARAMETERS])
    kept.write_text(run.info.run_id + "\n", encoding="utf-8")
    return run.info.run_id


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--experiment", default="weft")
    parser.add_argument("--name", help="of the run; default: its directory's")
    args = parser.parse_args()
    run_dir = pathlib.Path(os.environ.get("WEFT_RUN_DIR", os.getcwd()))
    if "MLFLOW_TRACKING_URI" not in os.environ:
        mlflow.set_tracking_uri(f"sqlite:///{run_dir}/mlflow.db")
    client = mlflow.MlflowClient()
    run_id = open_run(client, args.experiment, args.name or run_dir.name, run_dir)
    client.update_run(run_id, status="RUNNING")
    for line in sys.stdin:
        record = json.loads(line)
        client.log_batch(run_id, metrics=metrics(record))
    client.set_terminated(run_id)


if __name__ == "__main__":
    main()
