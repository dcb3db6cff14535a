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
conclude
