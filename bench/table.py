#!/usr/bin/env python3
"""Rows of the table "Steps, and PyTorch on the same cores" (docs/lab/performance.md), from bench/results.json: one for each size and context.

Runs of a size are listed in the order in which they were made. The ratio is that of the better runs; with several pairs, those of
all pairs follow.

    python3 bench/table.py bench/results.json
"""
import json
import sys

HEAD = ("| date | processor | size | context | weft | tokens/s | share of peak | GiB | PyTorch | tokens/s | GiB | ratio |",
        "|---|---|---|---:|---|---:|---:|---:|---|---:|---:|---:|")


def joined(runs, form):
    """Each value once for each run; equal neighbours are not repeated."""
    texts = [form(r) for r in runs]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def rate(run):
    return f"{run['tokens_per_second']:,.0f}"


def peer_form(run):
    return run["dtype"] + (", compiled" if run["compile"] else "") + f", microbatch {run['microbatch']}"


def ratios(weft, peer):
    best = max(r["tokens_per_second"] for r in weft) / max(r["tokens_per_second"] for r in peer)
    pairs = [f"{w['tokens_per_second'] / p['tokens_per_second']:.2f}" for w, p in zip(weft, peer)]
    return f"{best:.2f}" + (f" ({', '.join(pairs)})" if len(pairs) > 1 else "")


def row(date, weft, peer):
    cells = [date, f"{weft[0]['processor']}, {weft[0]['kernels']}", weft[0]["size"], f"{weft[0]['context']:,.0f}",
             joined(weft, lambda r: r["compute"]), joined(weft, rate),
             joined(weft, lambda r: f"{100 * r['share_of_peak']:.0f}% of {r['peak_tflops']:.2f}"),
             joined(weft, lambda r: f"{r['peak_rss_bytes'] / 2**30:.2f}")]
    cells += [joined(peer, peer_form), joined(peer, rate), joined(peer, lambda r: f"{r['peak_rss_bytes'] / 2**30:.2f}"),
              ratios(weft, peer)] if peer else [""] * 4
    return "| " + " | ".join(cells) + " |"


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        results = json.load(f)
    print(*HEAD, sep="\n")
    shapes = dict.fromkeys((r["size"], r["context"]) for r in results["weft"])
    for shape in shapes:
        weft, peer = ([r for r in results[side] if (r["size"], r["context"]) == shape] for side in ("weft", "torch"))
        print(row(results["date"], weft, peer))


if __name__ == "__main__":
    main()
