#!/bin/bash
# weft doctor --burn: a good machine passes; a flipped bit of a core, of memory, of a file is found, and its place is named.
. "$(dirname "$0")/../support/prelude.sh"

core=$(sed -n 's/^Cpus_allowed_list:[[:blank:]]*\([0-9]*\).*/\1/p' /proc/self/status)
burn="doctor --burn=0.2 --memory=0.05" # at least one round, pass and block, however short

exits 0 $burn
has out "one core alone"
has out "all cores at once"
has out "threads"
has out "memory "
has out "file "
has out "Everything has the same bits."
[ -z "$(ls -A . | grep -v '^out$\|^err$')" ] || fail "it leaves files: $(ls -A)"

exits 1 $burn --inject "bitflip:core=$core"
grep -q "^core $core: training steps fp32: 1 of [0-9]* repeats" out || fail "the core is not named: $(cat out)"
has err "1 difference above"
hasnt out "Everything"

exits 1 $burn --inject bitflip:memory=4096
grep -q "^memory: 1 words of the part of core $core differ, from offset 0x1000 to 0x1008" out || fail "the addresses are not named: $(cat out)"

exits 1 $burn --inject bitflip:file=12345
grep -q "^file: .: .* first at offset 12345$" out || fail "the offset is not named: $(cat out)"

expect 2 doctor --burn=soon
expect 2 doctor --burn=0
expect 2 $burn --inject kill:core=1
expect 2 $burn --inject bitflip:core=
expect 2 $burn --inject bitflip:core=1000000
expect 2 $burn --json
expect 73 $burn --dir missing
conclude
