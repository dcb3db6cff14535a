#!/bin/bash
# Keys under other programs' names: the error suggests weft's key. Also help on one key and on one section.
. "$(dirname "$0")/../support/prelude.sh"

# Writes a configuration file with one key.
write() { # KEY
    awk -v key="$1" 'BEGIN { n = split(key, part, "."); for (i = 1; i <= n; i++) printf "%*s%s:%s", 2 * (i - 1), "", part[i], i < n ? "\n" : " 1\n" }' >k.yaml
}
while read -r name key; do
    write "$name"
    status=0
    "$weft" config k.yaml >out 2>err || status=$?
    [ "$status" -eq 78 ] && grep -qF "$name: unknown key; did you mean $key?" err || fail "$name ($status), expected $key: $(cat err)"
done <"$WEFT_SOURCE_DIR/tests/program/synonyms.txt"
[ "$(wc -l <"$WEFT_SOURCE_DIR/tests/program/synonyms.txt")" -ge 60 ] || fail "the list is short"

exits() { # STATUS words...
    local wanted=$1 status=0
    shift
    "$weft" "$@" >out 2>err || status=$?
    [ "$status" -eq "$wanted" ] || fail "weft $*: status $status and not $wanted: $(cat err)"
}
printf 'run: {dir: x}\n' >k.yaml
exits 78 config k.yaml train.batch_size=8
grep -qF "command line: train.batch_size: unknown key; did you mean train.microbatch?" err || fail "$(cat err)"
exits 0 help optimizer.lr
grep -q '^ *optimizer.lr=' out && ! grep -q 'optimizer.weight_decay=' out || fail "help on a key: $(cat out)"
exits 0 help learning_rate
grep -q '^ *optimizer.lr=' out || fail "help on a synonym: $(cat out)"
exits 0 help optimizer
grep -q '^ *optimizer.weight_decay=' out && ! grep -q 'mesh.tp=' out || fail "help on a section: $(cat out)"
exits 0 help train
grep -qF 'Usage: weft train' out || fail "help on a verb that is a section too: $(head -3 out)"
exits 78 help optimizer.beta3
grep -qF "help: optimizer.beta3: unknown key; did you mean optimizer.beta" err || fail "help on no key: $(cat err)"

conclude
