#!/bin/bash
# weft launch: starts ranks, passes on signals, reports how they ended; ranks that meet at an address, those that do not come, and strangers.
# ranks: 4, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"

# ---- starting and ending ----

exits 0 launch -n 3 sh -c 'echo "$WEFT_RANK of $WEFT_RANKS, $1"' sh -n
[ "$(sort out)" = "$(printf '%s of 3, -n\n' 0 1 2)" ] || fail "three ranks say $(cat out)"
exits 7 launch -n 3 sh -c 'exit $((WEFT_RANK == 2 ? 7 : 0))'
[ ! -s err ] || fail "it repeats what a rank has said: $(cat err)"
# The others are killed: at once after one was, some time after one has failed.
exits 137 launch -n 3 sh -c 'echo $$; [ "$WEFT_RANK" != 1 ] || kill -KILL $$; exec sleep 1000'
has err 'rank 1 was killed by signal 9 (SIGKILL)'
for pid in $(cat out); do is_gone "$pid" || fail "process $pid is left"; done
exits 7 launch -n 2 sh -c '[ "$WEFT_RANK" != 1 ] || exit 7; exec sleep 1000'
# With --tolerant they go on.
exits 0 launch -n 3 --tolerant sh -c '[ "$WEFT_RANK" != 1 ] || kill -KILL $$; sleep 0.1; echo "$WEFT_RANK is left"'
[ "$(sort out)" = "$(printf '%s is left\n' 0 2)" ] || fail "with --tolerant: $(cat out)"
exits 127 launch -n 2 ./nothing
has err 'cannot start ./nothing'
exits 64 launch -n 1 sh -c 'exit 64'
expect 2 launch sh
has err '-n N is missing'
expect 2 launch -n 2 --of 4 sh
has err '2 of 4 ranks are on other machines, but --meet is missing'
expect 2 launch -n 2 --of 4 --first 3 --meet localhost:1 sh
has err 'name ranks 3 to 4, but --of is 4'

# SIGTERM and SIGINT ask every rank to save and stop, and SIGQUIT kills all.
waiting='trap "echo \$WEFT_RANK stops; exit 75" USR1; echo $$ >>pids; while :; do sleep 0.02; done'
for signal in TERM INT QUIT; do
    rm -f pids
    "$weft" launch -n 2 sh -c "$waiting" >out 2>err &
    await has_lines pids 2
    kill -"$signal" $!
    status=0
    wait $! || status=$?
    if [ "$signal" != QUIT ]; then
        [ "$status" -eq 75 ] && [ "$(grep -c stops out)" -eq 2 ] || fail "SIG$signal: $status, $(cat out)"
    else
        [ "$status" -eq 131 ] || fail "SIGQUIT: $status, $(cat err)"
    fi
    while read -r pid; do is_gone "$pid" || fail "SIG$signal: process $pid is left"; done <pids
done

# A second SIGINT asks them to end at once, and a third one kills them.
waiting='trap "echo stops >>heard" USR1; trap "echo ends >>heard" USR2; echo $$ >>pids; while :; do sleep 0.02; done'
rm -f pids
"$weft" launch -n 2 sh -c "$waiting" >out 2>err &
await has_lines pids 2
for lines in 2 4; do
    kill -INT $!
    await has_lines heard $lines
done
[ "$(tr '\n' ' ' <heard)" = 'stops stops ends ends ' ] || fail "SIGINT twice: $(cat heard)"
kill -INT $!
status=0
wait $! || status=$?
[ "$status" -eq 130 ] || fail "SIGINT three times: $status, $(cat err)"

# ---- training ----

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 4, context: 32, microbatch: 2, tokens_per_step: 256}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
comm: {transport: sockets}
END
exits 0 train run.yaml run.dir=one
same() { [ "$(curve "$1")" = "$(curve one)" ] && [ "$(digest "$1")" = "$(digest one)" ] || fail "$1: another curve"; }
exits 0 train run.yaml run.dir=four -n 4 mesh.pp=2
same four
exits 137 train run.yaml run.dir=killed -n 4 mesh.pp=2 --inject kill:rank=2,step=3
has err 'rank 2 was killed by signal 9 (SIGKILL)'
[ "$(grep -c '^weft:' err)" -eq 1 ] || fail "not one line: $(grep ^weft: err)"
exits 0 train run.yaml run.dir=killed -n 4 mesh.pp=2
same killed
exits 0 train run.yaml run.dir=again -n 2 --restarts 1 restart.backoff_s=0 --inject kill:rank=1,step=3
same again
# What is wrong is said once, by one of them.
expect 78 train run.yaml run.dir=bad -n 2 mesh.pp=3
exits 0 launch -n 2 "$weft" eval one text.txt
if command -v "$launcher" >/dev/null; then
    needs_ranks
    over_mpi=1 on_ranks 2 "$weft" train run.yaml run.dir=refused >out 2>err </dev/null && fail "MPI in place of sockets: not refused"
    [ "$(grep -c 'comm.transport=sockets, but these ranks are joined by MPI' err)" -eq 1 ] || fail "not refused once: $(cat err)"
fi

# ---- an address ----

port=$((20000 + $$ % 20000))
# part FIRST OF WORD...: two ranks of a job that meets at the port.
part() { WEFT_MEET_S=${patience:-60} "$weft" launch -n 2 --first "$1" --of "$2" --meet "localhost:$port" "$weft" train run.yaml "${@:3}" >"part$1.out" 2>"part$1.err" </dev/null; }
part 2 4 run.dir=parts mesh.pp=2 &
part 0 4 run.dir=parts mesh.pp=2 || fail "ranks 0 and 1 of 4: $(tail -3 part0.err)"
wait $! || fail "ranks 2 and 3 of 4: $(tail -3 part2.err)"
same parts
# Those that do not come are named.
patience=2 part 0 4 run.dir=alone && fail "two of four ranks train"
has part0.err 'rank 0 waited 2 s at localhost:'
has part0.err 'for rank 2 and 1 others'
patience=2 part 2 4 run.dir=alone && fail "ranks train without rank 0"
has part2.err 'rank 0 did not answer at localhost:'
# Ranks of another job are turned away, and so is whoever talks nonsense.
WEFT_MEET_KEY=other patience=5 part 2 4 run.dir=mixed &
other=$!
patience=5 part 0 4 run.dir=mixed && fail "ranks of two jobs train"
wait $other && fail "ranks of another job train"
has part2.err 'another key (WEFT_MEET_KEY)'
part 0 4 run.dir=nonsense mesh.pp=2 &
first=$!
call() { exec 8<>"/dev/tcp/localhost/$port"; }
until (call) 2>/dev/null || is_gone $first; do sleep 0.02; done
(call 2>/dev/null && head -c 5000 /dev/zero >&8) 2>/dev/null
part 2 4 run.dir=nonsense mesh.pp=2 || fail "with strangers at the door: $(tail -3 part2.err)"
wait $first || fail "with strangers at the door: $(tail -3 part0.err)"
same nonsense
for place in nowhere localhost:2x localhost:80000; do
    expect 2 launch -n 1 --of 2 --meet $place "$weft" train run.yaml run.dir=bad
    has err 'neither HOST:PORT nor @NAME'
done
WEFT_RANK=4 WEFT_RANKS=4 WEFT_MEET=@here expect 2 train run.yaml run.dir=bad
has err 'ranks are 0 to 3'
conclude
