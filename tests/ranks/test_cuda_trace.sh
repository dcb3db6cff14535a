#!/bin/bash
# metrics.trace on simulated GPUs: the GPUs' own clocks time each action of each rank once, in program order; the run has the same bits
# and waits as without.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
simulate_gpus 2

letters 30 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 20, num_hidden_layers: 2, num_attention_heads: 2}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, validation_fraction: 0.2}
train: {steps: 4, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {warmup_steps: 1}
validation: {every: 2, samples: 2}
checkpoint: {every: 0}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, device: cuda}
END
tokenized
train() { # DIR WORD...
    "$weft" train run.yaml run.dir="$1" "${@:2}" >"$1.out" 2>"$1.err" </dev/null || fail "train $*: $(tail -3 "$1.err")"
}

# times DIR RANK STEP: prints name, begin and length of each measured slice, in whole nanoseconds, in the order of the file.
times() {
    grep '"cat": "measured"' "$1/trace.json" | grep "\"pid\": $2,.*\"step\": $3," |
        sed 's/.*"name": "\([^"]*\)".*"ts": \([^,]*\), "dur": \([^,]*\),.*/\1|\2|\3/' | awk -F'|' '{ printf "%s|%.0f|%.0f\n", $1, $2 * 1000, $3 * 1000 }'
}

# check DIR STEPS RANKS: in each step, slices do not overlap, none has a negative length, and a simulated forward pass takes a
# microsecond for each of its kernels.
check() {
    local r step
    for step in $2; do
        for ((r = 0; r < $3; r++)); do
            times "$1" $r "$step" >slices
            [ -s slices ] || fail "$1: nothing of rank $r in step $step"
            awk -F'|' '$2 < end || $3 < 0 { bad = 1 } { end = $2 + $3 } END { exit bad }' slices ||
                fail "$1: slices of rank $r in step $step are not in order: $(head -5 slices)"
            awk -F'|' '/^FWD/ && $3 < 900 { bad = 1 } /^FWD/ { n++ } END { exit bad || !n }' slices ||
                fail "$1: a pass of rank $r takes no time: $(grep '^FWD' slices | head -3)"
            cut -d'|' -f1 slices >"names.$1.$r.$step"
            cmp -s "names.$1.$r.$step" "names.cpu-$1.$r.$step" ||
                fail "$1: other actions of rank $r in step $step than on a CPU: $(diff "names.$1.$r.$step" "names.cpu-$1.$r.$step" | head -4)"
        done
    done
    [ "$(grep -c '"event": "traced"' "$1/journal.jsonl")" -eq "$(wc -w <<<"$2")" ] || fail "$1: $(grep traced "$1/journal.jsonl")"
    "$weft" report "$1" >"$1.report" 2>&1 && grep -q '<svg class="timeline"' "$1/report.html" || fail "$1: $(tail -2 "$1.report")"
}
# both DIR RANKS STEPS WORD...: runs with a trace of these steps, on GPUs and on a CPU.
both() {
    local range r step
    range=${3%% *}-${3##* }
    train "cpu-$1" -n "$2" run.device=cpu metrics.trace="$range" "${@:4}"
    for step in $3; do for ((r = 0; r < $2; r++)); do times "cpu-$1" $r "$step" | cut -d'|' -f1 >"names.cpu-$1.$r.$step"; done; done
    train "$1" -n "$2" metrics.trace="$range" "${@:4}"
    check "$1" "$3" "$2"
}

# A trace in the middle of the run, one up to its last step, and one that would end after it.
both alone 1 "1 2 3"
both end 1 "3 4" train.split_backward=true metrics.profile=true
WEFT_SIM_SEED=3 both pipe 2 "2 3" mesh.pp=2 train.tokens_per_step=128
both zero 2 "4" mesh.pp=2 pipeline.schedule=zb_h1
both shards 2 "2 3" mesh.dp_shard=2 train.tokens_per_step=64
WEFT_NCCL=none both relayed 2 "2 3" mesh.pp=2 train.tokens_per_step=128
# Streams wait for what NCCL brings from the other stage, measured with the same clock. The simulated clock does not advance while a host
# waits, so host-staged messages show no waiting.
sed -n 's/.*"waited": \([0-9.e+-]*\)[,}].*/\1/p' pipe/trace.json | awk '{ sum += $1 } END { exit !(sum >= 1) }' || fail "pipe: no rank has waited"
[ "$(grep -c '"cat": "message"' pipe/trace.json)" -eq "$(grep -c '"cat": "message"' cpu-pipe/trace.json)" ] || fail "other messages than on CPUs"

# The trace changes no bit of the results.
train plain
[ "$(curve plain)" = "$(curve alone)" ] && [ "$(digest plain)" = "$(digest alone)" ] ||
    fail "a traced run differs: $(diff <(curve plain) <(curve alone) | head -3)"
conclude "actions have the GPUs' times"
