#!/bin/sh
# The demo: takes the King James Bible, trains a tokenizer and a small Llama on it, and prints a passage that the model wrote.
# DEMO_OVERRIDES may hold section.key=value words for "weft train", for example for a shorter run. On two or more cores, two
# processes train, one per core; DEMO_RANKS (a divisor of 8) sets another number.
set -eu
cd "$(dirname "$0")/.."
weft=${BUILD:-build}/weft
data=runs/demo-data
run=runs/demo
ranks=${DEMO_RANKS:-$([ "$(nproc)" -ge 2 ] && echo 2 || echo 1)}
mesh=
[ "$ranks" -eq 1 ] || mesh="-n $ranks mesh.dp_replicate=$ranks train.microbatch=$((8 / ranks))"
started=$(date +%s)

say() { printf '\n== %s\n' "$*"; }

mkdir -p "$data"
say "The text: the King James Bible, a chapter a document"
if [ ! -s "$data/bible.txt" ]; then
    tools/kjv.sh >"$data/bible.txt.part"
    mv "$data/bible.txt.part" "$data/bible.txt"
fi
head -c 240 "$data/bible.txt"; echo "..."
wc -wc "$data/bible.txt" | awk '{ printf "%d words, %d bytes\n", $1, $2 }'

say "A tokenizer of 4096 entries, trained on it"
"$weft" tokenizer train "$data/bible.txt" --vocab 4096 --out "$data/tokenizer.json"

say "A Llama, trained on it"
# shellcheck disable=SC2086
"$weft" train configs/demo.yaml run.overwrite=true $mesh ${DEMO_OVERRIDES:-}

checkpoint=$(find "$run/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -1)
[ -n "$checkpoint" ] || { echo "demo: no checkpoint under $run" >&2; exit 1; }

say "A passage, written by the checkpoint"
"$weft" generate "$checkpoint" --prompt "In the beginning" --tokens 200 --temperature 0.8 --seed 1
echo

say "Curves"
"$weft" report "$run"

say "Done in $(($(date +%s) - started)) s"
echo "run directory  $run"
echo "curves         $run/report.html"
echo "checkpoint     $checkpoint"
echo "again, changed $weft train configs/demo.yaml optimizer.lr=1e-3 run.dir=runs/mine"
