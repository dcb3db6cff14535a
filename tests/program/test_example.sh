#!/bin/bash
# examples/one_step.c, the first program that newcomers read: it runs, learns, and reports its two possible errors.
. "$(dirname "$0")/../support/prelude.sh"
one_step=$WEFT_BINARY_DIR/one_step
text=$WEFT_SOURCE_DIR/LICENSE

"$one_step" "$text" >first || fail "one_step ends with $?"
"$one_step" "$text" >second
cmp -s first second || fail "two runs print different figures"
grep -q '^FWD *u0..3 m0$' first || fail "the program of a step is not printed: $(head -20 first)"
losses=$(sed -n 's/^step .* loss \([0-9.]*\) .*/\1/p' first)
[ "$(wc -l <<<"$losses")" -eq 20 ] || fail "not 20 steps: $losses"
# A uniform guess over 256 bytes has a loss of ln 256 = 5.545; letter frequencies alone give less than 3.4 for English.
awk 'NR == 1 { first = $1 } { last = $1 } END { exit !(first > 5.4 && first < 5.8 && last < first - 1) }' <<<"$losses" ||
    fail "it does not learn: $losses"

"$one_step" 2>message && fail "no file is no error"
grep -q '^one_step: usage: ' message || fail "no file: $(cat message)"
printf a >short
"$one_step" short 2>message && fail "a text of one byte is no error"
grep -q 'short: found 1 bytes, expected at least 2' message || fail "a text of one byte: $(cat message)"
conclude
