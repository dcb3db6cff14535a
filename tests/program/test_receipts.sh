#!/bin/bash
# Receipts of a run: any step is confirmed, also over kills and resumes; a changed, moved, cut or forged log is found.
. "$(dirname "$0")/../support/prelude.sh"

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4}
data: {sources: [text.txt], cache_dir: cache}
train: {steps: 20, context: 32, microbatch: 2, tokens_per_step: 128}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 6, keep: 100}
metrics: {log_freq: 4, tensorboard: false}
run: {threads: 1, receipts: true}
END
train() { "$weft" train run.yaml run.dir="$1" "${@:2}" >/dev/null 2>err </dev/null; }
weights() { sed -n 's/.*"kind": "step", "step": \('"$2"'\),.*"weights": "\([0-9a-f]*\)".*/\2/p' "$1/receipts.jsonl" | tail -1; }

train whole || fail "$(tail -1 err)"
exits 0 verify whole --chain
has out "the chain of 9 receipts is whole, up to step 20, in 1 attempt; 4 checkpoints"
head=$(sed -n 's/^head //p' out)
exits 0 verify whole --chain --head "$head"
exits 65 verify whole --chain --head "${head//[0-9]/a}"
exits 0 verify whole --step 16
has out "step 16 is confirmed: made again from step 12 on 1 rank"
exits 0 verify whole --step 4 # there is no checkpoint before it
has out "from step 0"
exits 2 verify whole --step 7
has err "near it are those of steps 6 and 8"
exits 2 verify whole
exits 66 verify text.txt --chain

# A run that was killed goes on with the chain, and steps that it makes again count once.
train killed --inject kill:rank=0,step=11 && fail "not killed"
train killed || fail "$(tail -1 err)"
exits 0 verify killed --chain
has out "in 2 attempts"
exits 0 verify killed --step 12
for step in 4 8 12 20; do [ "$(weights whole $step)" = "$(weights killed $step)" ] || fail "step $step: other weights"; done

# A torn last line is cut off, and does not count.
cp -r killed torn
printf '{"kind": "st' >>torn/receipts.jsonl
exits 0 verify torn --chain
has out "a torn last line does not count"
train torn train.steps=24 lr_schedule.total_steps=20 || fail "$(tail -1 err)"
exits 0 verify torn --chain
has out "up to step 24"

# Changed, moved, removed, cut.
log=whole/receipts.jsonl
cp $log good
sed '4s/"first": 16/"first": 17/' good >$log
cmp -s good $log && fail "nothing was changed: $(sed -n 4p good)"
exits 65 verify whole --chain
has err "receipts.jsonl:4: the chain is broken"
awk 'NR == 4 { held = $0; next } { print } NR == 5 { print held }' good >$log
exits 65 verify whole --chain
has err "receipts.jsonl:4: the chain is broken"
sed '5d' good >$log
exits 65 verify whole --chain
has err "receipts.jsonl:5: the chain is broken"
head -n 8 good >$log
exits 65 verify whole --chain
has err "of the checkpoint of step 20 is missing"
train whole train.steps=24 && fail "a cut log was continued"
has err "put it back"
rm $log
train whole train.steps=24 && fail "a lost log was continued"
train whole train.steps=24 run.receipts=false || fail "$(tail -1 err)"

# A forged log: the chain is right again, and the weights of step 16 are others. Recomputing refutes it and names a parameter.
cp -r killed forged
log=forged/receipts.jsonl
cp $log good
at=$(grep -n '"step": 16,' good | cut -d: -f1)
h=0000000000000000000000000000000000000000000000000000000000000000
number=0
while IFS= read -r line; do
    number=$((number + 1))
    line=${line%', "h": "'*}
    if [ $number -eq "$at" ]; then
        root=$(weights killed 16)
        line=${line/$root/$(printf 'f%.0s' {1..64})}
        line=$(sed 's/"parameters": "......../"parameters": "ffffffff/' <<<"$line")
    fi
    h=$(printf '%s%s' "$h" "$line" | sha256sum | cut -d' ' -f1)
    printf '%s, "h": "%s"}\n' "$line" "$h"
done <good >$log
exits 65 verify forged --chain
has err "of the checkpoint of step 18 is missing"
exits 1 verify forged --step 16
has err "step 16 is refuted: at step 16 its weights differ: 1 of "
has err "the first lm_head.weight (ffffffff...,"
exits 0 verify forged --step 12

# Without the key nothing is written.
train off run.receipts=false train.steps=4 || fail "$(tail -1 err)"
[ ! -e off/receipts.jsonl ] || fail "receipts without run.receipts"
grep -q '"receipt"' off/checkpoints/step-00000004/state.json && fail "a state with a receipt"
exits 78 verify killed --step 12 optimizer.lr=1
conclude "receipts hold"
