#!/bin/bash
# Tokenizes the same documents from each format, each into an empty cache: seconds, MB of text a second, peak memory, the share of the time that
# reading and decoding take, and whether the tokens are equal. Run it on an otherwise idle machine.
#
#     bench/formats.sh TOKENIZER.json DIR...      text files below the directories are the documents (bench/formats.py)
#
# Variables: BUILD, OUT (kept: formats are made once), MEGABYTES (1500), FORMATS, PYTHON (with numpy, pyarrow and zstandard).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 64; }
weft=$(realpath "${BUILD:-build}/weft") out=$(realpath -m "${OUT:-runs/formats}") tokenizer=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
shift
mkdir -p "$out"
[ -s "$out/documents" ] || "${PYTHON:-python3}" "$here/formats.py" "$out" "${MEGABYTES:-1500}" "$@" >"$out/documents"

# The source of a format, as in data.sources.
source_of() {
    case $1 in
    txt) echo "'$out/txt/*/*.txt'" ;;
    jsonl | jsonl.zst | json.gz) echo "'$out/$1/*.$1'" ;;
    parquet-*) echo "{path: '$out/$1/*.parquet', column: text}" ;;
    npy) echo "{path: '$out/npy/*.npy', format: tokens}" ;;
    *) echo "bench: $1 is no format" >&2; return 64 ;;
    esac
}

config() { printf 'data: {sources: [%s], tokenizer: %s, cache_dir: %s/cache-%s}\n' "$(source_of "$1")" "$tokenizer" "$out" "$1" >"$out/$1.yaml"; }

# The tokens of the first format, as a .npy: the seventh format.
token_file() {
    [ ! -e "$out/npy" ] || return 0
    "$weft" tokenize -q "$out/$1.yaml" --export npy --out "$out/npy" >"$out/export" 2>&1
    rm -f "$out"/npy/validation-*
}

# measure FORMAT: one row. Reading alone is what `weft data inspect` takes without a tokenizer: one thread reads, decodes and hashes the texts.
measure() {
    local format=$1
    config "$format"
    rm -rf "$out/cache-$format" "$out/tokens"
    /usr/bin/env time -f '%e %U %S %M' -o "$out/tokenize.time" "$weft" tokenize "$out/$format.yaml" >"$out/$format.out" 2>"$out/$format.err"
    sed "$([ "$format" = npy ] || echo "s/ tokenizer: [^,]*,/ tokenizer: bytes,/")" "$out/$format.yaml" >"$out/inspect.yaml"
    /usr/bin/env time -f '%U %S' -o "$out/inspect.time" "$weft" data inspect "$out/inspect.yaml" >"$out/$format.inspect" 2>&1
    "$weft" tokenize -q "$out/$format.yaml" --export npy --out "$out/tokens" >"$out/export" 2>&1
    awk -v name="$format" -v bytes="$(find "$out/txt" -type f -printf "%s\n" | awk "{s += \$1} END {printf \"%d\", s}")" -v sum="$(sha256sum <"$out/tokens/train-0.npy" | cut -c1-12)" \
        -v tokens="$(sed -n 's/^tokens *\([0-9,]*\).*/\1/p' "$out/$format.out")" \
        'NR == 1 {wall = $1; cpu = $2 + $3; peak = $4} NR == 2 {read = $1 + $2}
         END {printf "%-15s %6.1f s %6.1f MB/s  CPU %6.1f s  reading %5.1f s, %3.0f%%  %5.0f MiB  %s tokens %s\n",
              name, wall, bytes / wall / 1e6, cpu, read, 100 * read / cpu, peak / 1024, tokens, sum}' "$out/tokenize.time" "$out/inspect.time"
    rm -rf "$out/tokens"
}

for format in ${FORMATS:-txt jsonl jsonl.zst json.gz parquet-zstd parquet-snappy npy}; do
    [ "$format" != npy ] || token_file jsonl
    measure "$format"
done
