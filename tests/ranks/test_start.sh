#!/bin/bash
# Ranks die, or do not come, before the first step. Nothing is lost then: where the others may go on without a dead rank, and all are on this
# machine, all start again, once. Otherwise the run ends at once, and one line says why.
#   KILLS=100 SEED=7 tests/ranks/test_start.sh     starts with a kill at a random moment, and what they are drawn from
# ranks: 5, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
RANDOM=${SEED:-1}

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 4, context: 32, microbatch: 2, tokens_per_step: 256}
numerics: {mode: exact, tp_invariant_up_to: 2}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
comm: {transport: sockets}
mesh: {dp_replicate: 2}
END
exits 0 train run.yaml run.dir=whole -n 2
same() { [ "$(curve "$1")" = "$(curve whole)" ] && [ "$(digest "$1")" = "$(digest whole)" ] || fail "$1: another curve"; }
# says FILE COUNT TEXT: so many lines of failures, one of them with this text.
says() {
    [ "$(grep -c '^weft:' "$1")" -eq "$2" ] || fail "not $2 lines of failures: $(grep '^weft:' "$1")"
    grep '^weft:' "$1" | grep -q -- "$3" || fail "no \"$3\" in: $(tail -3 "$1")"
}
in_place=(recovery.mode=in_place)
again='before the first step: nothing is lost, and all ranks start again'

# ---- all start again ----

# starts_again DIR RANK: the run has started twice, and is the undisturbed one.
starts_again() {
    same "$1"
    [ "$(grep -c "^warning: rank $2 was killed by signal 9 (SIGKILL) $again" err)" -eq 1 ] || fail "$1: not said once: $(grep -v '│' err | head -3)"
    hasnt err 'weft:'
    [ "$(grep -c '"event": "restarted".*before the first step' "$1/journal.jsonl")" -eq 1 ] || fail "$1: the journal says $(cat "$1/journal.jsonl")"
}
for phase in reading tokenizing allocating loading records; do
    rank=$((RANDOM % 4))
    exits 0 train run.yaml run.dir="$phase" -n 4 mesh.tp=2 "${in_place[@]}" --inject "kill:rank=$rank,phase=$phase"
    starts_again "$phase" "$rank"
done
exits 0 launch -n 2 --tolerant "$weft" train run.yaml run.dir=launched "${in_place[@]}" --inject kill:rank=0,phase=loading
starts_again launched 0
# While the ranks meet: one that is killed before it has called the others.
cat >late.sh <<'END'
[ "$WEFT_RANK" != "$LATE" ] || [ -n "${WEFT_ATTEMPT:-}" ] || kill -KILL $$
exec "$@"
END
for rank in 0 1; do
    LATE=$rank exits 0 launch -n 2 --tolerant bash late.sh "$weft" train run.yaml run.dir="late$rank" "${in_place[@]}"
    starts_again "late$rank" "$rank"
done
for i in $(seq "${KILLS:-3}"); do
    "$weft" train run.yaml run.dir="struck$i" -n 4 mesh.tp=2 "${in_place[@]}" >out 2>err </dev/null &
    run=$!
    until mapfile -t pids < <(pgrep -P "$(pgrep -P $run | head -1)" 2>/dev/null) && [ ${#pids[@]} -gt 0 ] || is_gone $run; do :; done
    sleep "0.$(printf %03d $((RANDOM % 150)))"
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[RANDOM % ${#pids[@]}]}" 2>/dev/null
    wait $run || fail "struck$i: ends with $?: $(tail -3 err)"
    same "struck$i"
    again_count=$((${again_count:-0} + $(grep -c "$again" err)))
done
echo "ranks struck in ${KILLS:-3} starts, of which $again_count began again"

# ---- the end, and one line ----

exits 137 train run.yaml run.dir=twice -n 2 "${in_place[@]}" --inject 'kill:rank=1,phase=loading;kill:rank=0,phase=records,attempt=1'
says err 1 'rank 0 was killed by signal 9 (SIGKILL)'
exits 137 train run.yaml run.dir=restart -n 4 mesh.tp=2 --inject kill:rank=0,phase=loading
says err 1 'rank 0 was killed by signal 9 (SIGKILL)'
exits 0 train run.yaml run.dir=restart -n 4 mesh.tp=2
same restart
exits 0 train run.yaml run.dir=restarts -n 2 --restarts 1 restart.backoff_s=0 --inject kill:rank=0,phase=loading
same restarts
# Ranks that something else has started, and that no launcher can speak for.
for mode in restart in_place; do
    for rank in 0 1 2; do
        WEFT_MEET="@start-$$-$mode" WEFT_RANKS=3 WEFT_RANK=$rank "$weft" train run.yaml run.dir="free-$mode" mesh.dp_replicate=3 train.tokens_per_step=192 \
            recovery.mode=$mode --inject kill:rank=0,phase=loading >/dev/null 2>"free.$rank" </dev/null &
        pids[rank]=$!
    done
    for rank in 0 1 2; do
        status=0
        wait "${pids[rank]}" || status=$?
        [ "$status" -eq $((rank ? 76 : 137)) ] || fail "free-$mode: rank $rank ends with $status: $(tail -3 free.$rank)"
    done
    cat free.[012] >free
    says free 1 'rank 0 has ended'
done

# ---- two launchers ----

port=$((20000 + $$ % 20000))
# part FIRST RANKS OF WORD...
part() {
    "$weft" launch -n "$2" --first "$1" --of "$3" --meet "localhost:$port" "${@:4}" >"part$1.out" 2>"part$1.err" </dev/null
}
train=("$weft" train run.yaml "${in_place[@]}" mesh.dp_replicate=4)
part 2 2 4 --tolerant "${train[@]}" run.dir=parts --inject kill:rank=3,phase=loading &
other=$!
part 0 2 4 --tolerant "${train[@]}" run.dir=parts --inject kill:rank=3,phase=loading && fail "the others go on before the first step"
wait $other && fail "a rank that was killed counts as well"
says part0.err 1 'rank 3 has ended, and the others do not go on without it'
says part2.err 1 'rank 3 was killed by signal 9 (SIGKILL)'
# While they meet: all but rank 4 have called, and wait for it.
meets() { [ "$(ss -Htn state established "( sport = :$port )" 2>/dev/null | wc -l)" -ge 3 ]; }
if command -v ss >/dev/null; then
    for rank in 0 2; do
        port=$((port + 1))
        for first in 0 2; do
            part $first 2 5 --tolerant "${train[@]}" run.dir=met &
            parts[first]=$!
        done
        await meets
        kill -KILL "$(pgrep -P "${parts[rank]}" -x weft | head -1 | xargs -I{} pgrep -P {} | head -1)" 2>/dev/null ||
            kill -KILL "$(pgrep -P "${parts[rank]}" | head -1)"
        wait "${parts[0]}" && fail "met: a job of five goes on with three"
        wait "${parts[2]}" && fail "met: a job of five goes on with three"
        says part$rank.err 1 "rank $rank was killed by signal 9 (SIGKILL)"
        says part$((2 - rank)).err 1 "rank $rank ended before the ranks had met"
    done
fi
# A rank that no replica needs has left, and so has not finished the run.
part 2 2 4 --tolerant "${train[@]}" run.dir=left --inject kill:rank=3,step=3 &
other=$!
part 0 2 4 --tolerant "${train[@]}" run.dir=left --inject kill:rank=3,step=3 || fail "two of four ranks do not go on: $(tail -3 part0.err)"
status=0
wait $other || status=$?
[ "$status" -eq 137 ] || fail "one rank was killed and one has left: status $status"
same left

# ---- an address ----

# Whoever calls and says nothing keeps nobody waiting.
port=$((port + 1))
export WEFT_MEET_S=15
part 0 2 4 "${train[@]}" run.dir=silent &
first=$!
call() { exec {silent}<>"/dev/tcp/localhost/$port"; }
until call 2>/dev/null || is_gone $first; do sleep 0.02; done
for i in $(seq 30); do call; done
part 2 2 4 "${train[@]}" run.dir=silent || fail "with silent callers: $(tail -3 part2.err)"
wait $first || fail "with silent callers: $(tail -3 part0.err)"
same silent
# Two jobs.
"$weft" launch -n 2 --of 4 --meet "localhost:$port" "${train[@]}" run.dir=job1 >/dev/null 2>&1 </dev/null &
first=$!
until (call) 2>/dev/null || is_gone $first; do sleep 0.02; done
part 0 2 4 "${train[@]}" run.dir=job2 && fail "two jobs at one address train"
says part0.err 1 'another job\|two jobs'
kill -QUIT $first
wait $first
# A limit on open files: as a hard one it is in the way, a soft one is raised. Files that this process has inherited would count, too.
limit=12
open_files() { # FLAG WORD...
    (
        for file in $(ls /proc/$BASHPID/fd); do [ "$file" -le 2 ] || eval "exec $file>&-"; done
        ulimit "$1" $limit
        exec "$weft" launch -n 4 "$weft" train run.yaml mesh.dp_replicate=4 "${@:2}"
    ) >out 2>err </dev/null
}
open_files -n run.dir=files && fail "four ranks get along with $limit files"
says err 1 "may open $limit files at a time (ulimit -n), and needs up to"
open_files -Sn run.dir=raised || fail "the limit is not raised: $(tail -3 err)"
same raised
WEFT_MEET=@here WEFT_RANK=0 expect 2 train run.yaml run.dir=bad
has err 'WEFT_MEET and WEFT_RANK=0 are set, but not WEFT_RANKS'

conclude
