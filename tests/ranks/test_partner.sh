#!/bin/bash
# Ranks are killed in runs with recovery.partner_copy, on meshes without replicas: the others restore the shards of the dead from the copies of
# their partners, and go on in a smaller mesh with the losses, norms, validations, weights and samples of a run that was left alone. In exact
# numerics that run may have any mesh.
#   KILLS=100 SEED=7 tests/ranks/test_partner.sh      runs with a kill at a random moment, and what they are drawn from
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/recovery.sh"
needs_ranks
RANDOM=${SEED:-1}
recovery_run
sed -i -e 's/^numerics: .*/numerics: {mode: exact, tp_invariant_up_to: 2, cp_invariant_up_to: 4}/' -e 's/^mesh: .*/mesh: {dp_shard: 1}/' \
    -e 's/^recovery: .*/recovery: {mode: in_place, partner_copy: true}/' run.yaml

# ---- what is refused; the plan ----

refuses 'recovery.partner_copy: with recovery.mode: restart nothing reads the copies' recovery.mode=restart
refuses 'recovery.partner_copy: mesh.dp_replicate is 2, so a replica holds each shard already' mesh.dp_replicate=2
refuses 'recovery.mode in_place takes the weights of a dead rank from a replica' recovery.partner_copy=false
"$weft" plan run.yaml -n 4 mesh.dp_shard=2 mesh.tp=2 optimizer.kind=muon >out 2>err && fail 'Muon over tp is not refused'
has err 'recovery.partner_copy: an optimizer of whole matrices'

# row NAME FILE: bytes of a row of the memory table.
row() { sed -n "s/^  $1  *\([0-9.]*\) \(B\|KiB\|MiB\) .*/\1 \2/p" "$2" | awk '{ print $1 * ($2 == "B" ? 1 : $2 == "KiB" ? 1024 : 1048576) }'; }
"$weft" plan run.yaml -n 2 mesh.dp_shard=2 >with 2>err || fail "plan: $(tail -3 err)"
"$weft" plan run.yaml -n 2 mesh.dp_shard=2 recovery.partner_copy=false recovery.mode=restart >without 2>err || fail "plan: $(tail -3 err)"
[ -z "$(row 'partner copy' without)" ] || fail 'a copy is planned that nobody asked for'
# Master weights, two moments and a gradient of fp32 each: both ranks have equally much.
awk -v copy="$(row 'partner copy' with)" -v weights="$(row parameters with)" -v moments="$(row optimizer with)" \
    -v more="$(awk -v a="$(row total with)" -v b="$(row total without)" 'BEGIN { print a - b }')" \
    'BEGIN { near = weights + moments + weights; exit !(copy > 0.97 * near && copy < 1.03 * near && more > 0.9 * copy && more < 1.1 * copy) }' ||
    fail "planned copy: $(grep -e partner -e parameters -e optimizer -e total with without)"

take_repairs

# ---- one death, in each part of a step, on each axis ----

whole run 1 recovery.mode=restart recovery.partner_copy=false
# dies RANKS MESH FAULTS TEXT WORD...
dies() { loses run "$1" "$3" "$4" $2 "${@:5}"; }
dies 2 mesh.dp_shard=2 kill:rank=1,step=7,action=FWD 'rank 1 died in step 7; 1 ranks go on with mesh.pp 1, dp_shard 1, cp 1, tp 1, ep 1' data.audit=false
dies 2 mesh.dp_shard=2 kill:rank=0,step=7,action=BWD 'rank 0 died'
dies 2 mesh.dp_shard=2 kill:rank=0,step=8,action=NORM 'rank 0 died' # it has sent some of its gradients to its partner
dies 2 mesh.dp_shard=2 kill:rank=1,step=8,action=UPDATE 'rank 1 died after the update of step 8'
dies 2 mesh.dp_shard=2 kill:rank=0,step=9,action=UPDATE 'rank 0 died after the update of step 9' data.audit=false
dies 2 mesh.dp_shard=2 kill:rank=0,phase=validation,step=5 'rank 0 died after the update of step 5'
dies 2 mesh.dp_shard=2 kill:rank=1,phase=saving,step=10 'rank 1 died after the update of step 10'
dies 2 mesh.pp=2 kill:rank=1,step=9,action=UPDATE 'rank 1 died after the update of step 9; 1 ranks go on with mesh.pp 1'
dies 2 mesh.pp=2 kill:rank=0,step=9,action=TIE 'rank 0 died'
dies 2 mesh.tp=2 kill:rank=0,step=9,action=UPDATE 'rank 0 died after the update of step 9; 1 ranks go on with mesh.pp 1, dp_shard 1, cp 1, tp 1'
dies 2 mesh.tp=2 kill:rank=1,step=6,action=BWD 'rank 1 died'
dies 2 mesh.cp=2 kill:rank=1,step=6,action=UPDATE 'rank 1 died after the update of step 6; 1 ranks go on with mesh.pp 1, dp_shard 1, cp 1'

# ---- more than one rank is left: they have new partners ----

dies 4 mesh.dp_shard=4 'kill:rank=2,step=7,action=UPDATE;kill:rank=1,step=12,action=REDUCED' \
    'rank 2 died after the update of step 7; 2 ranks go on with mesh.pp 1, dp_shard 2, cp 1, tp 1, ep 1; rank 3 left, which has no place in this mesh'
dies 4 'mesh.pp=2 mesh.tp=2' 'kill:rank=1,step=7,action=UPDATE;kill:rank=2,step=12,action=FWD' \
    'rank 1 died after the update of step 7; 2 ranks go on with mesh.pp 1, dp_shard 1, cp 1, tp 2, ep 1; rank 3 left'
# A death while the others restore what the first one held.
dies 4 mesh.dp_shard=4 'kill:rank=3,step=7;kill:rank=1,phase=loading,step=6' 'rank 3, 1 died in step 7; 1 ranks go on' data.audit=false

# Two neighbours, as on one host: their partners are the other two.
dies 4 mesh.dp_shard=4 'kill:rank=2,step=9;kill:rank=3,step=9' '2 ranks go on with mesh.pp 1, dp_shard 2, cp 1, tp 1, ep 1'

# ---- deaths at any moment ----

whole long 1 train.steps=240 recovery.mode=restart recovery.partner_copy=false
meshes=('4 mesh.dp_shard=4' '2 mesh.dp_shard=2' '4 mesh.pp=2 mesh.tp=2' '4 mesh.pp=2 mesh.dp_shard=2' '2 mesh.tp=2' '2 mesh.pp=2')
for i in $(seq "${KILLS:-1}"); do strike "struck-$i" long ${meshes[i % ${#meshes[@]}]} train.steps=240; done
echo "ranks struck in ${KILLS:-1} runs: $recovered recoveries, $ended runs ended with 76"

# ---- both are gone: the last checkpoint ----

broken both 0 -n 4 mesh.dp_shard=4 --restarts 1 restart.backoff_s=0 --inject 'kill:rank=1,step=8;kill:rank=3,step=8'
equal both run
[ "$(grep -c 'the others cannot go on without it: its partner, which held the copy of its state, died too' both.err)" -eq 1 ] ||
    fail "the cause is not said once: $(tail -3 both.err)"
grep -q '"event": "restarted"' both/journal.jsonl || fail "the journal says $(tail -2 both/journal.jsonl)"
conclude
