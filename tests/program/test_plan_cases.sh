#!/bin/bash
# Published runs and their plans (tools/plan_cases.sh): every row can be planned, docs/lab/published-runs.md has all rows, and plans are as
# close to the published figures as that page says.
. "$(dirname "$0")/../support/prelude.sh"
page=${WEFT_SOURCE_DIR:?}/docs/lab/published-runs.md

WEFT=$weft bash "$WEFT_SOURCE_DIR/tools/plan_cases.sh" >out 2>&1 || fail "plan_cases.sh: $(tail -3 out)"
[ "$(grep -cE '^[0-8] ' out)" -eq 22 ] || fail "$(grep -cE '^[0-8] ' out) rows of 22: $(cat out)"
# The page has the figures that were planned just now: tokens/s, and memory where known.
cells() { cut -c"$1" <<<"$row" | tr -d ' -'; }
# tokens/s within 15%, memory with the framework's logits within 10%, except for the rows that the page names.
while IFS= read -r row; do
    name=$(cut -c5-56 <<<"$row" | sed 's/ *$//')
    grep -qF "| $name |" "$page" || fail "docs/lab/published-runs.md has no row \"$name\""
    [ "$(grep -F "| $name |" "$page" | awk -F ' *[|] *' '{ print $5 "/" $8 }')" = "$(cells 67-76)/$(cells 95-104)" ] ||
        fail "docs/lab/published-runs.md says otherwise than: $row"
    speed=$(cut -c77-83 <<<"$row" | tr -d ' +%') memory=$(cut -c114- <<<"$row" | tr -d ' +%')
    case $name in
    *128k,\ cp\ 4 | *256k,\ cp\ 8) most=50 ;; # ring attention
    *) most=16 ;;
    esac
    [ "${speed#-}" -le $most ] || fail "$name: tokens/s are $speed% off"
    [ -z "$memory" ] || [ "${memory#-}" -le 17 ] || fail "$name: memory is $memory% off"
done < <(grep -E '^[0-8] ' out)
conclude
