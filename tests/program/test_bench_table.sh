#!/bin/bash
# bench/table.py: rows of docs/lab/performance.md from the results of make bench, with and without PyTorch, of one pair and of two.
. "$(dirname "$0")/../support/prelude.sh"
command -v python3 >/dev/null || { echo "python3 is missing"; exit 77; }

# weft SIZE CONTEXT RATE; torch SIZE CONTEXT RATE: a result, as the benchmarks print it.
weft() {
    printf '{"size": "%s", "context": %s, "tokens_per_second": %s, "compute": "bf16", "processor": "P", "kernels": "amx",
        "share_of_peak": 0.456, "peak_tflops": 2.5, "peak_rss_bytes": 1073741824}' "$@"
}
torch() {
    printf '{"size": "%s", "context": %s, "tokens_per_second": %s, "dtype": "bf16", "compile": true, "microbatch": 2,
        "peak_rss_bytes": 2147483648}' "$@"
}
printf '{"date": "2026-11-27", "weft": [%s, %s, %s], "torch": [%s, %s]}' "$(weft 15M 1024 10497.4)" "$(weft 15M 1024 9000)" \
    "$(weft 50M 512 4000)" "$(torch 15M 1024 4500)" "$(torch 15M 1024 5000)" >results.json
python3 "$WEFT_SOURCE_DIR/bench/table.py" results.json >rows || fail "bench/table.py fails"

cat >expected <<'END'
| 2026-11-27 | P, amx | 15M | 1,024 | bf16 | 10,497, 9,000 | 46% of 2.50 | 1.00 | bf16, compiled, microbatch 2 | 4,500, 5,000 | 2.00 | 2.10 (2.33, 1.80) |
| 2026-11-27 | P, amx | 50M | 512 | bf16 | 4,000 | 46% of 2.50 | 1.00 |  |  |  |  |
END
tail -n +3 rows | diff expected - || fail "the rows are other ones"
[ "$(head -2 rows | tr -cd '|\n' | sort -u)" = "$(head -1 expected | tr -cd '|')" ] || fail "the head has another number of columns"
conclude "rows of two sizes"
