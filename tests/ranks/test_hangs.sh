#!/bin/bash
# The other ranks find a rank that hangs within the limit, in every phase of a run, for rank 0 and another rank. Work that only
# takes long is not mistaken for a hang.
# over MPI
# ranks: 2, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
end_jobs() { kill $(jobs -p) 2>/dev/null || true; wait; } # mpirun ends its ranks too

letters 100 3 >text.txt
cat >run.yaml <<EOF
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], validation_fraction: 0.1}
train: {steps: 4, context: 32, microbatch: 2, tokens_per_step: 128}
lr_schedule: {warmup_steps: 1}
mesh: {dp_replicate: 2}
validation: {every: 2, samples: 2}
checkpoint: {every: 2}
metrics: {tensorboard: false}
run: {threads: 1}
comm: {watchdog_s: 8}
EOF

# The limit only keeps a test from hanging forever: no verdict depends on it.
start() { # NAME FAULT WORD...
    printf '%s\0' "$@" >"$1.start"
    timeout -k 5 1500 "$weft" train run.yaml run.dir="$1" data.cache_dir="$1.cache" -n 2 --inject "$2" "${@:3}" >"$1.out" 2>"$1.err" </dev/null
    echo $? >"$1.status"
}
# A rank that gets no processor time for half of comm.watchdog_s counts as asleep, rightly. On a busy machine the healthy rank may be that one.
# patient NAME CHECK WORD...: a check that fails is made again, of the same start with longer limits. Only `resumed` keeps its directory.
patient() {
    local limit words
    mapfile -d '' words <"$1.start"
    for limit in 32 128; do
        (failures=0; "${@:2}"; [ "$failures" -eq 0 ]) >patient.said && return
        echo "$1: again with comm.watchdog_s=$limit: $(head -1 patient.said)"
        [ "$1" = resumed ] || rm -rf "$1" "$1.cache"
        start "${words[@]}" comm.watchdog_s=$limit
    done
    "${@:2}"
}
# found NAME RANK PHASE: the other rank must have found that RANK hangs in PHASE.
found() { patient "$1" is_found "$@"; }
is_found() {
    [ "$(cat "$1.status")" -eq 76 ] || fail "$1: exit status $(cat "$1.status"), not 76: $(tail -3 "$1.err")"
    grep -q "^weft: rank $((1 - $2)): nothing has come for .*, in $3" "$1.err" || fail "$1: no rank waits in $3: $(cat "$1.err")"
    [ "$(grep -c '^weft: .*exit status' "$1.err")" -eq 1 ] || fail "$1: not one verdict: $(cat "$1.err")"
    has "$1.err" "weft: rank $2 answers nobody: it hangs, or the machine does; this was found in $3"
}

# A hang before MPI knows the ranks; finding it takes longest.
cat >late.sh <<'EOF'
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || kill -STOP $$
exec "$@"
EOF
{
    on_ranks 2 bash late.sh "$weft" train run.yaml run.dir=late >late.err 2>&1 </dev/null
    echo $? >late.status
} &

# Each phase once, with rank 0 and rank 1 in turn; with HANGS=full, each phase with both. Only some run at a time: they mostly wait, but
# starting them takes the processor.
phases=(reading tokenizing allocating measuring loading records comparing validation saving ending)
runs=()
for i in "${!phases[@]}"; do
    runs+=("$((i % 2)) ${phases[i]}")
    [ "${HANGS:-}" != full ] || runs+=("$((1 - i % 2)) ${phases[i]}")
done
started=()
for run in "${runs[@]}"; do
    words=()
    [ "${run#* }" != measuring ] || words=(train.steps=100000) # shorter runs do not measure the peak
    start "${run/ /-}" "stop:rank=${run% *},phase=${run#* }" "${words[@]}" &
    started+=($!)
    [ $((${#started[@]} % 5)) -ne 0 ] || wait "${started[@]}"
done
wait "${started[@]}"
start step "stop:rank=1,step=3" &
# A hang in a later save than the first, and one on resuming.
start later "stop:rank=1,phase=saving,step=4" &
{ start resumed "kill:rank=1,phase=validation,step=4" comm.watchdog_s=128 && start resumed "stop:rank=0,phase=loading"; } &
# A rank that neither hangs nor makes progress is reported differently.
start busy "slow:rank=1,phase=allocating,ms=600000" &
wait
for run in "${runs[@]}"; do found "${run/ /-}" "${run% *}" "${run#* }"; done
found step 1 "step 3"
found later 1 "saving after step 4"
found resumed 0 loading
is_busy() {
    [ "$(cat busy.status)" -eq 76 ] || fail "busy: exit status $(cat busy.status)"
    has busy.err "weft: rank 1: is busy, and waits for no rank, in allocating"
    grep -q "^weft: the others have waited for rank 1 for more than comm.watchdog_s = [0-9]* s" busy.err || fail "busy: $(cat busy.err)"
}
patient busy is_busy
# Before MPI starts, no rank can be asked: the message names the process.
[ "$(cat late.status)" -eq 76 ] || fail "late: exit status $(cat late.status)"
has late.err "weft: rank 0: nothing has come for"
has late.err "while waiting for all ranks (MPI start), in MPI start"
grep -q '^weft: rank 1 (process [0-9]*): stopped, and answers nobody' late.err || fail "late: rank 1 is not named: $(cat late.err)"

# Faults that do not exist are refused.
for fault in stop:rank=0,phase=steps kill:rank=0,phase=MPI nan:rank=0,phase=saving stop:phase=ending,step=5 stop:rank=2,phase=ending; do
    start refused "$fault"
    [ "$(cat refused.status)" -eq 2 ] || fail "--inject $fault: exit status $(cat refused.status)"
    [ "$(grep -c '^weft: ' refused.err)" -eq 1 ] || fail "--inject $fault: $(cat refused.err)"
done
conclude "found in every phase"
