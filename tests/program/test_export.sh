#!/bin/bash
# weft export: the same weights in another directory, another type, or the mean of several checkpoints.
. "$(dirname "$0")/../support/prelude.sh"

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 9, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
optimizer: {lr: 1e-2}
checkpoint: {every: 3, keep: 4}
metrics: {tensorboard: false}
run: {threads: 1}
END
train() { "$weft" train run.yaml run.dir="$@" >train.out 2>&1 </dev/null || fail "train $*: $(tail -3 train.out)"; }
# numbers FILE: prints the numbers of a safetensors file in fp32, in file order.
numbers() { od -An -v -w4 -t f4 -j $((8 + $(od -An -t u8 -N 8 "$1"))) "$1"; }

train run
exits 0 export run plain
has out "of weights in F32"
[ "$(digest plain)" = "$(digest run)" ] || fail "the weights are not those of the run"
for file in config.json generation_config.json tokenizer.json tokenizer_config.json; do
    cmp "plain/$file" "run/checkpoints/latest/$file" || fail "$file is different"
done
[ "$(ls plain | wc -l)" -eq 5 ] || fail "in the directory: $(ls plain)"
exits 0 export run/checkpoints/step-00000003 early
[ "$(digest early)" = "$(digest run/checkpoints/step-00000003)" ] || fail "a checkpoint that is named"

exits 0 export run short --dtype bf16
has short/config.json '"bfloat16"'
exits 0 inspect short
has out "BF16"
train rounded checkpoint.dtype=bf16
[ "$(digest short)" = "$(digest rounded)" ] || fail "bf16 is rounded otherwise than in a checkpoint"
exits 0 export rounded exact
[ "$(digest exact)" = "$(digest run)" ] || fail "the exact weights of a rounded checkpoint are not taken"
exits 0 eval short text.txt
exits 0 generate plain --tokens 4

# The mean, to the last bits of fp32.
exits 0 export run mean --average 3
has out "the mean of 3 checkpoints"
for step in 9 6 3; do numbers run/checkpoints/step-0000000$step/model.safetensors >$step.txt; done
paste 9.txt 6.txt 3.txt <(numbers mean/model.safetensors) >all.txt
[ "$(wc -l <all.txt)" -gt 1000 ] || fail "$(wc -l <all.txt) numbers"
awk '{ m = ($1 + $2 + $3) / 3; d = m - $4; if (d < 0) d = -d; if (d > 1e-6 * (1 + (m < 0 ? -m : m))) bad++ } END { exit bad > 0 }' all.txt ||
    fail "the mean is different"
exits 0 eval mean text.txt

# Refused exports leave nothing behind.
exits 73 export run plain
exits 66 export run five --average 5
has err "3 good checkpoints, but"
exits 66 export nowhere new
exits 2 export run new --dtype fp8
exits 73 export run no/such/directory
printf 'x' | dd of=run/checkpoints/step-00000006/model.safetensors bs=1 seek=3000 conv=notrunc 2>/dev/null
exits 66 export run three --average 3
has err "2 good checkpoints"
exits 66 export run/checkpoints/latest/config.json new
[ "$(ls -d five new three ./*partial* 2>/dev/null)" = "" ] || fail "left: $(ls -d five new three ./*partial*)"

conclude
