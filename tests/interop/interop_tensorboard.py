#!/usr/bin/env python3
"""Reads TensorBoard event files that weft wrote with the real tensorboard package.

    tests/interop/interop_tensorboard.py RUN/tensorboard

Compares every scalar with RUN/metrics.jsonl, to float precision. Exits
with 77 (a skipped test) and a message if the package is not installed, 1 if something differs."""
import json
import math
import os
import struct
import sys

SKIPPED = 77
SCALARS = {
    "train/loss": lambda m: m["loss"],
    "train/grad_norm": lambda m: m["grad_norm"],
    "train/lr": lambda m: m["lr"],
    "train/tokens": lambda m: m["total_tokens"],
    "speed/tokens_per_second": lambda m: m["tokens_per_second"],
    "memory/peak_gib": lambda m: m["memory_peak"] / 2**30,
}
VALIDATION = {"validation/loss": lambda m: m["loss"], "validation/perplexity": lambda m: m["perplexity"]}


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def records(path):
    kinds = {"train": [], "validation": []}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            kinds[record["kind"]].append(record)
    return kinds


def differences(accumulator, tags, expected):
    for tag, value_of in tags.items():
        want = {m["step"]: value_of(m) for m in expected if value_of(m) is not None}
        if not want:
            continue
        found = {event.step: event.value for event in accumulator.Scalars(tag)}
        if set(found) != set(want):
            yield f"{tag}: {len(found)} steps found, {len(want)} expected"
            continue
        for step, value in want.items():
            if not math.isclose(found[step], as_float32(value), rel_tol=1e-6):
                yield f"{tag} at step {step}: {found[step]!r} found, {value!r} expected"


def main():
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        print(f"skipped: the tensorboard package is not installed ({error})")
        return SKIPPED
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    directory = sys.argv[1]
    accumulator = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    expected = records(os.path.join(os.path.dirname(os.path.abspath(directory)), "metrics.jsonl"))
    problems = list(differences(accumulator, SCALARS, expected["train"]))
    problems += differences(accumulator, VALIDATION, expected["validation"])
    for problem in problems:
        print(problem, file=sys.stderr)
    tags = accumulator.Tags()
    print(f"{len(tags['scalars'])} scalars, {len(tags['tensors'])} tensors, {len(expected['train'])} steps: "
          f"{len(problems)} differences")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
