#!/bin/bash
# Ranks are killed in a run with recovery.mode: in_place, and the others go on in the same step: losses, norms, validations, weights and
# samples are those of a run that was left alone. Ranks are killed at the start of a step (--inject), and by a seed at any moment.
#   KILLS=100 SEED=7 tests/ranks/test_recovery.sh     runs with a kill at a random moment, and what they are drawn from
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/recovery.sh"
needs_ranks
RANDOM=${SEED:-1}
recovery_run

# ---- what is refused ----

refuses 'recovery.mode: in_place changes how many ranks sum the gradients' numerics.mode=fast
refuses 'recovery.mode: in_place and run.receipts cannot be combined' run.receipts=true
refuses 'recovery.mode in_place takes the weights of a dead rank from a replica' mesh.dp_replicate=1

# ---- without ULFM: a warning, and a dead rank ends the run, which restarts ----

if ! is_open_mpi_5; then
    "$weft" train run.yaml run.dir=without -n 2 comm.transport=mpi --restarts 1 restart.backoff_s=0 --inject kill:rank=1,step=7 >out 2>err </dev/null ||
        fail "without ULFM: ends with $?: $(tail -3 err)"
    [ "$(grep -c 'recovery.mode in_place is not possible here' err)" -eq 2 ] || fail "not said once an attempt: $(grep in_place err)"
    has err 'has no ULFM'
fi
take_repairs

# ---- one death ----

whole pair 2
loses pair 2 kill:rank=1,step=7 'rank 1 died after the update of step 6; 1 ranks go on with dp_replicate 1'
loses pair 2 kill:rank=0,step=7 'rank 0 died after the update of step 6; 1 ranks go on with dp_replicate 1'
loses pair 2 kill:rank=1,step=9 'rank 1 died in step 9' data.audit=false
# The record of the step that was committed died with the rank that writes the records, while the others went on.
loses pair 2 kill:rank=0,step=9,action=UPDATE 'rank 0 died after the update of step 9' data.audit=false
loses pair 2 kill:rank=1,step=1 'rank 1 died in step 1'
loses pair 2 kill:rank=0,step=2 'rank 0 died after the update of step 1' # the validation before step 1 stays
loses pair 2 kill:rank=0,phase=validation,step=5 'rank 0 died after the update of step 5'
loses pair 2 kill:rank=1,phase=saving,step=10 'rank 1 died after the update of step 10'
loses pair 2 kill:rank=0,phase=saving,step=20 'rank 0 died after the update of step 20'
# After the last step, when all is saved.
loses pair 2 kill:rank=0,phase=ending 'rank 0 died after the update of step 20; 1 ranks go on with dp_replicate 1'
loses pair 2 kill:rank=1,phase=ending 'rank 1 died after step 20; 1 ranks go on with dp_replicate 1' data.audit=false
for name in pair-kill-rank-[01]-phase-ending; do
    [ "$(grep -c '"event": "finished"' "$name/journal.jsonl")" -eq 1 ] || fail "$name: the journal says $(tail -3 "$name/journal.jsonl")"
done
for axis in dp_shard tp pp cp; do
    whole "$axis" 4 "mesh.$axis=2"
    loses "$axis" 4 kill:rank=$((RANDOM % 4)),step=9 '2 ranks go on with dp_replicate 1; rank [0-3] left' "mesh.$axis=2"
    [ "$axis" = cp ] || [ "$axis" = dp_shard ] || loses "$axis" 4 kill:rank=0,step=12 'rank 0 died after the update of step 11' "mesh.$axis=2"
done

# ---- deaths at any moment ----

moe=(model.family=qwen3_moe model.head_dim=8 model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=24
    model.tie_word_embeddings=false)
strike_one() { # NUMBER MESH: the first run of a mesh is left alone
    local words=(train.steps=240) number=4
    [ "$2" = dp ] && number=2
    case $2 in
    dp) ;;
    twice) words+=(mesh.dp_replicate=4) ;;
    ep) words+=("${moe[@]}" mesh.dp_shard=2 mesh.ep=2) ;;
    *) words+=("mesh.$2=2") ;;
    esac
    [ -d "long-$2" ] || whole "long-$2" "$number" "${words[@]}"
    twice=
    [ "$2" != twice ] || twice=1
    strike "struck-$1" "long-$2" "$number" "${words[@]}"
}
# twice: another rank is killed shortly after the first one, mostly during the recovery.
meshes=(dp dp_shard pp tp cp ep twice)
for i in $(seq "${KILLS:-2}"); do strike_one "$i" "${meshes[RANDOM % 7]}"; done
echo "ranks struck in ${KILLS:-2} runs: $recovered recoveries, $ended runs ended with 76"

# ---- one death after another, until a rank has no replica ----

whole four 4 mesh.dp_replicate=4
loses four 4 'kill:rank=3,step=6;kill:rank=0,step=13' 'rank 3 died after the update of step 5; 2 ranks go on with dp_replicate 2; rank 2 left' mesh.dp_replicate=4
# A death during a recovery: one event, which names both.
loses four 4 'kill:rank=3,step=7;kill:rank=1,phase=loading,step=6' 'rank 3, 1 died in step 7; 1 ranks go on with dp_replicate 1; rank 2 left' \
    mesh.dp_replicate=4 data.audit=false
# mpirun's status means nothing here, and no rank has one.
broken none $([ -n "$over_mpi" ] && echo 76 || echo 137) -n 2 --inject 'kill:rank=0,step=7;kill:rank=1,step=9'
broken half 76 -n 4 mesh.tp=2 --inject 'kill:rank=0,step=7;kill:rank=2,step=7'
[ "$(grep -c 'the others cannot go on without it: they make no whole replica' half.err)" -eq 1 ] || fail "the cause is not said once: $(tail -3 half.err)"
grep -q '"event": "failed".*they make no whole replica' half/journal.jsonl || fail "the journal says $(tail -2 half/journal.jsonl)"
conclude
