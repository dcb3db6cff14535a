#!/bin/bash
# metrics.trace on real ranks: each traced step has every pass of every rank once, arrows in pairs, a prediction in the journal
# and a picture in the report; impossible traces are refused.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

awk 'BEGIN { for (i = 0; i < 3000; i++) printf "%d sheep, ", i * 7919 % 10007 }' >text.txt
cat >run.yaml <<EOF2
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 6, num_attention_heads: 4}
data: {sources: [{path: text.txt}], cache_dir: cache}
train: {steps: 5, context: 32, compute: fp32, tokens_per_step: 512}
pipeline: {microbatches: 8}
checkpoint: {every: 0}
metrics: {trace: 2-3, tensorboard: false}
run: {threads: 1}
EOF2

# train DIR RANKS WORD...
train() {
    local dir=$1 ranks=$2
    shift 2
    "$weft" train -n "$ranks" run.yaml run.dir="$dir" "$@" >"$dir.out" 2>&1 || { fail "$dir: $(tail -3 "$dir.out")"; return 1; }
}
# slices DIR STEP RANK PATTERN: counts the measured slices with a matching name.
slices() { grep '"cat": "measured"' "$1/trace.json" | grep "\"pid\": $3,.*\"name\": \"$4" | grep -c "\"step\": $2,"; }

# check DIR RANKS PP MICROBATCHES: checks a trace of 8 units, evenly on PP ranks.
check() {
    local dir=$1 ranks=$2 passes=$((8 * $4))
    for step in 2 3; do
        local forward=0 input=0 weight=0
        for ((r = 0; r < ranks; r++)); do
            local f b i w
            f=$(slices "$dir" $step $r 'FWD [0-9]* m'); b=$(slices "$dir" $step $r 'BWD [0-9]* m')
            i=$(slices "$dir" $step $r 'DGRAD [0-9]* m'); w=$(slices "$dir" $step $r 'WGRAD [0-9]* m')
            [ "$f" -eq $((b + i)) ] && [ "$i" -eq "$w" ] || fail "$dir: rank $r has $f forward, $b + $i backward passes, $w of weights"
            [ "$f" -gt 0 ] || fail "$dir: nothing of rank $r in step $step"
            [ "$(slices "$dir" $step $r NORM)" -eq 1 ] || fail "$dir: rank $r has not one norm"
            forward=$((forward + f))
        done
        [ "$forward" -eq $((passes * ranks / $3)) ] || fail "$dir: $forward forward passes, not $((passes * ranks / $3))"
    done
    slices "$dir" 4 0 FWD >/dev/null && fail "$dir: step 4 was traced"
    [ "$(grep '"cat": "measured"' "$dir/trace.json" | grep -o '"pid": .*"name": "[FB]WD[_A-Z]* [0-9]* m[0-9]*".*"step": [0-9]*' |
        sed 's/"ts.*"step"/"step"/' | sort | uniq -d | wc -l)" -eq 0 ] || fail "$dir: a pass is there twice"
    [ "$(grep '"cat": "message"' "$dir/trace.json" | grep -o '"id": [0-9]*' | sort | uniq -c | awk '$1 != 2' | wc -l)" -eq 0 ] ||
        fail "$dir: a message without its other end"
    [ "$(grep -c '"event": "traced"' "$dir/journal.jsonl")" -eq 2 ] || fail "$dir: not two traced steps in the journal"
    grep -q '"event": "traced", "step": 3, .*"predicted_seconds": [0-9.]*[1-9].*"predicted_bubble": ' "$dir/journal.jsonl" ||
        fail "$dir: no prediction in the journal"
    "$weft" report "$dir" >"$dir.report" 2>&1 || fail "$dir: $(cat "$dir.report")"
    [ "$(grep -c '<svg class="timeline"' "$dir/report.html")" -eq 1 ] || fail "$dir: no picture in the report"
}
messages() { grep -c '"ph": "s"' "$1/trace.json"; }

train alone 1 && check alone 1 1 8
train split 1 train.split_backward=true && check split 1 1 8
train pipe 2 mesh.pp=2 && check pipe 2 2 8
[ "$(messages pipe)" -eq 32 ] || fail "one boundary, 8 microbatches, 2 ways, 2 steps: not 32 messages but $(messages pipe)"
train zbv 2 mesh.pp=2 pipeline.schedule=zbv && check zbv 2 2 8
[ "$(messages zbv)" -eq 64 ] || fail "two boundaries between ranks: not 64 messages but $(messages zbv)"
train mesh 4 mesh.pp=2 mesh.dp_shard=2 pipeline.microbatches=4 train.microbatch=2 pipeline.schedule=interleaved_zero_bubble &&
    check mesh 4 2 4
# A collective over tp appears where it starts and where it is waited for, and belongs to its pass in both timelines.
train tensor 2 mesh.tp=2 pipeline.microbatches=2 && [ "$(slices tensor 2 0 'COLLECTIVE 1 m0 TP_REDUCE_SCATTER at part 5')" -eq 1 ] &&
    [ "$(slices tensor 2 0 'WAIT 1 m0 TP_REDUCE_SCATTER at part 5')" -eq 1 ] || fail "tensor: $(grep -c WAIT tensor/trace.json) ends of collectives"
train short 2 mesh.pp=2 metrics.trace=5-9 && [ "$(grep -c '"event": "traced"' short/journal.jsonl)" -eq 1 ] ||
    fail "a run that ends before the last step to be traced"
train none 1 metrics.trace= && [ -e none/trace.json ] && fail "a trace that was not requested"

# A run that starts over removes everything of the previous one except files that are not weft's.
train over 2 mesh.pp=2 metrics.all_ranks=true metrics.tensorboard=true data.audit=true
"$weft" report over >over.report 2>&1 || fail "over: $(cat over.report)"
echo mine >over/notes.txt
events=$(ls over/tensorboard)
train over 2 mesh.pp=2 metrics.trace= metrics.tensorboard=true run.overwrite=true
[ "$(cd over && echo *)" = "checkpoints config.yaml journal.jsonl lock metrics.jsonl notes.txt tensorboard tokenizer.json" ] ||
    fail "left by a run that was started over: $(cd over && echo *)"
[ "$(ls over/tensorboard | wc -l)" -eq 1 ] && [ "$(ls over/tensorboard)" != "$events" ] || fail "TensorBoard: $(ls over/tensorboard)"
[ "$(grep -c '"event": "started"' over/journal.jsonl)" -eq 1 ] && ! grep -q traced over/journal.jsonl ||
    fail "the journal continues: $(cat over/journal.jsonl)"

for range in 0-3 5-3 3- x -3 3-5x; do
    "$weft" train run.yaml run.dir=bad metrics.trace=$range >bad.out 2>&1
    status=$?
    [ $status -eq 78 ] && grep -q "metrics.trace" bad.out || fail "metrics.trace=$range: exit status $status: $(cat bad.out)"
done

conclude
