#!/bin/bash
# Published runs and their plans (tools/plan_cases.sh): every row can be planned, docs/lab/published-runs.md has the tables as they are
# computed, and the ranges that `weft plan` prints are those of the rows.
. "$(dirname "$0")/../support/prelude.sh"
page=${WEFT_SOURCE_DIR:?}/docs/lab/published-runs.md

WEFT=$weft bash "$WEFT_SOURCE_DIR/tools/plan_cases.sh" >out 2>err || fail "plan_cases.sh: $(tail -3 err)"
runs=$(grep -cE '^[|] (dense|models)[^|]*[|] [A-Z l]' out)
[ "$runs" -ge 100 ] || fail "$runs rows of published runs: $(cat out)"
while IFS= read -r row; do
    grep -qxF "$row" "$page" || fail "docs/lab/published-runs.md has no line: $row"
done < <(grep '^|' out)
# Over all runs as close as the page says that plans are.
read -r median within < <(awk -F ' *[|] *' '$2 == "all" { print $4, $5 }' out)
[ "${median%\%}" -le 15 ] || fail "the median error is $median"
[ "${within%\%}" -ge 90 ] || fail "$within of the runs are within 35%"
# Groups: by experts, then by context, then by machines. No published run is like a recurrent model.
# group MODEL WORD...: prints the group of a plan.
group() {
    "$weft" plan "$WEFT_SOURCE_DIR/configs/$1.yaml" train.compute=bf16 --hardware h100 "${@:2}" >plan 2>err || fail "plan of $1: $(cat err)"
    sed -n 's/^  like published runs of \([^:]*\):.*/\1/p' plan
}
is() { [ "$2" = "$3" ] || fail "group of $1: \"$2\", expected \"$3\""; }
is "8B on 8 ranks" "$(group llama3-8b -n 8)" "dense models on one machine"
is "8B on 16 ranks" "$(group llama3-8b -n 16 train.tokens_per_step=131072)" "dense models across machines"
is "8B with 16,384 tokens" "$(group llama3-8b -n 16 train.context=16384 train.tokens_per_step=262144)" "dense models with a long context"
is "OLMoE" "$(group olmoe-1b-7b)" "models with experts"
is "Mamba-2" "$(group mamba2-1b)" ""
grep -qF "no published run is like it" plan || fail "a plan of Mamba-2 has no word about its range: $(grep -A2 prediction plan)"
conclude
