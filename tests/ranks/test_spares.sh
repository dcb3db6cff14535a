#!/bin/bash
# Spares (recovery.spares) take the place of ranks that are killed: the same mesh goes on in the same step, with the losses, norms, validations,
# weights and samples of a run that was left alone, in fast numerics too. When they are used up the mesh shrinks.
#   KILLS=100 SEED=7 tests/ranks/test_spares.sh       runs with a kill at a random moment, and what they are drawn from
# ranks: 6, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/recovery.sh"
needs_ranks
RANDOM=${SEED:-1}
recovery_run
sed -i 's/^recovery: .*/recovery: {mode: in_place, spares: 1}/' run.yaml
alone=(recovery.mode=restart recovery.spares=0 recovery.partner_copy=false)

# ---- what is refused; the plan ----

refuses 'recovery.spares: with recovery.mode: restart nobody takes the place of a dead rank' recovery.mode=restart
"$weft" launch --tolerant -n 2 "$weft" train run.yaml run.dir=refused recovery.spares=2 >out 2>err </dev/null && fail 'no rank is left for the mesh: not refused'
has err 'recovery.spares is 2, and all ranks together are 2: start as many more as the mesh needs'
if [ -n "$(type -p "$launcher")" ]; then
    refuses 'recovery.spares: spares wait only where ranks are joined by sockets' -n 2 comm.transport=mpi
fi
"$weft" plan run.yaml -n 2 >out 2>err || fail "plan: $(tail -3 err)"
has out 'spares  1 rank more waits, and takes the place of one that dies (recovery.spares)'

# ---- one spare, one death: the same mesh ----

whole pair 2 "${alone[@]}"
loses pair 2 kill:rank=1,step=9 "rank 1 died in step 9; 2 ranks go on with dp_replicate 2; rank 2, a spare, is rank 1 now\"" data.audit=false
loses pair 2 kill:rank=0,step=9 "rank 0 died after the update of step 8; 2 ranks go on with dp_replicate 2; rank 2, a spare, is rank 0 now"
loses pair 2 kill:rank=0,step=9,action=UPDATE 'rank 0 died after the update of step 9; 2 ranks go on' data.audit=false
loses pair 2 kill:rank=0,phase=validation,step=5 'rank 2, a spare, is rank 0 now' metrics.all_ranks=true
loses pair 2 kill:rank=1,phase=saving,step=10 'rank 2, a spare, is rank 1 now'
grep -q '"event": "started".*"spares": 1' pair-kill-rank-1-step-9/journal.jsonl || fail "the journal does not name the spares: $(grep started pair-*-9/journal.jsonl)"
grep -q 'spares  1 rank more waits' pair-kill-rank-1-step-9.err || fail "the header does not name the spare"
grep '"event": "recovered"' pair-kill-rank-1-step-9/journal.jsonl | grep -q '"spares": 0' || fail "the journal does not say that none is left"

# ---- other numbers ----

# Two deaths and one spare: the second one shrinks the mesh. Two spares: the one that took over is replaced itself.
loses pair 2 'kill:rank=1,step=6;kill:rank=2,step=12' 'rank 2 died .* 1 ranks go on with dp_replicate 1"'
loses pair 2 'kill:rank=1,step=7;kill:rank=2,step=13' 'rank 2 died .* 2 ranks go on with dp_replicate 2; rank 3, a spare, is rank 1 now' recovery.spares=2
# The spare dies while it takes over: one event, which names both.
loses pair 2 'kill:rank=1,step=9;kill:rank=2,phase=loading' 'rank 1, 2 died .* 1 ranks go on with dp_replicate 1'
# Two at a time: three replicas do not divide the microbatches of a step, two do, and the spare goes on waiting until it is needed.
whole four 4 mesh.dp_replicate=4 "${alone[@]}"
loses four 4 'kill:rank=3,step=8;kill:rank=1,step=8;kill:rank=0,step=14' 'rank 0 died .* 2 ranks go on with dp_replicate 2; rank 4, a spare, is rank 0 now' mesh.dp_replicate=4
# One that no replica needs waits, too: rank 4, which is rank 3 by then.
loses four 4 'kill:rank=3,step=6;kill:rank=2,step=11;kill:rank=1,step=16' 'rank 2 died .* 2 ranks go on with dp_replicate 2; rank 4 waits as a spare, which no replica needs' mesh.dp_replicate=4
grep -q 'rank 1 died .* 2 ranks go on with dp_replicate 2; rank 4, a spare, is rank 1 now' four-kill-rank-3-step-6*/journal.jsonl || fail "the journal says $(grep recovered four-kill-rank-3-step-6*/journal.jsonl)"

# ---- axes ----

for axis in tp pp; do
    whole "$axis" 4 "mesh.$axis=2" "${alone[@]}"
    victim=$((RANDOM % 4))
    loses "$axis" 4 "kill:rank=$victim,step=9" "4 ranks go on with dp_replicate 2; rank 4, a spare, is rank $victim now" "mesh.$axis=2"
done

# ---- fast numerics: the same mesh, or the last checkpoint ----

whole fast 2 numerics.mode=fast mesh.dp_shard=1 "${alone[@]}"
loses fast 2 kill:rank=1,step=9 'rank 2, a spare, is rank 1 now' numerics.mode=fast data.audit=false
broken fast-twice 0 -n 2 numerics.mode=fast --restarts 1 restart.backoff_s=0 --inject 'kill:rank=1,step=6;kill:rank=2,step=12'
equal fast-twice fast
[ "$(grep -c 'no spare is left, and with numerics.mode: fast another mesh would have other bits' fast-twice.err)" -eq 1 ] || fail "the cause is not said once: $(tail -3 fast-twice.err)"

# ---- partner copies ----

sed -i 's/^numerics: .*/numerics: {mode: exact, tp_invariant_up_to: 2}/' run.yaml
copies=(mesh.dp_replicate=1 recovery.partner_copy=true)
whole one 1 mesh.dp_replicate=1 "${alone[@]}"
loses one 2 kill:rank=1,step=7,action=UPDATE 'rank 1 died after the update of step 7; 2 ranks go on with mesh.pp 1, dp_shard 2, cp 1, tp 1, ep 1; rank 2, a spare, is rank 1 now' \
    mesh.dp_shard=2 "${copies[@]}"
loses one 2 kill:rank=0,step=7,action=BWD '2 ranks go on with mesh.pp 2, .* rank 2, a spare, is rank 0 now' mesh.pp=2 "${copies[@]}"
loses one 2 kill:rank=1,step=9,action=NORM '2 ranks go on with .* tp 2, ep 1; rank 2, a spare, is rank 1 now' mesh.tp=2 "${copies[@]}"
# The new rank has a copy, and a copy is kept of it.
loses one 4 'kill:rank=2,step=7;kill:rank=0,step=11;kill:rank=4,step=15' 'rank 4 died .* 2 ranks go on with .* dp_shard 2, .* waits as a spare, which has no place in this mesh' \
    mesh.dp_shard=4 "${copies[@]}" recovery.spares=2 train.steps=20

# ---- an idle spare dies; all die but the spare; a request to stop ----

# process NAME RANK: the process of a rank of the run with this launcher.
process() {
    local pid
    for pid in $(ranks_of "$1"); do ! tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "WEFT_RANK=$2" || echo "$pid"; done
}
"$weft" train run.yaml run.dir=idle -n 2 train.steps=240 >/dev/null 2>idle.err </dev/null &
run=$!
until [ -s idle/metrics.jsonl ] || is_gone $run; do sleep 0.01; done
kill -KILL "$(process $run 2)"
wait $run || fail "the spare is killed: ends with $?: $(tail -3 idle.err)"
whole long-dp 2 train.steps=240 "${alone[@]}"
equal idle long-dp
grep '"event": "recovered"' idle/journal.jsonl | grep -q 'rank 2 (a spare) died .*; 2 ranks go on with dp_replicate 2"' || fail "the journal says $(grep recovered idle/journal.jsonl)"
broken none 76 -n 2 --inject 'kill:rank=0,step=7;kill:rank=1,step=7'
[ "$(grep -c 'the others cannot go on without it: only spares are left, which hold no weights' none.err)" -eq 1 ] || fail "the cause is not said once: $(tail -3 none.err)"
"$weft" launch --tolerant -n 3 "$weft" train run.yaml run.dir=stopped train.steps=100000 >/dev/null 2>stopped.err </dev/null &
run=$!
until [ -s stopped/metrics.jsonl ] || is_gone $run; do sleep 0.01; done
kill -TERM $run
wait $run
[ $? -eq 75 ] || fail "stopped: $(tail -3 stopped.err)"

# ---- deaths at any moment, of any rank ----

strike_one() { # NUMBER MESH
    local words=(train.steps=240) number=4
    [ "$2" = dp ] && number=2
    [ "$2" = dp ] || words+=("mesh.$2=2")
    [ -d "long-$2" ] || whole "long-$2" "$number" "${words[@]}" "${alone[@]}"
    strike "struck-$1" "long-$2" "$number" "${words[@]}"
}
meshes=(dp tp pp dp_shard)
for i in $(seq "${KILLS:-2}"); do strike_one "$i" "${meshes[RANDOM % 4]}"; done
echo "ranks struck in ${KILLS:-2} runs: $recovered recoveries, $ended runs ended with 76"
conclude
