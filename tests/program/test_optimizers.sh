#!/bin/bash
# Optimizers and related options as users meet them: Muon on several ranks and over a stop, the average of weights and its
# export, the z-loss in the records.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<EOF
model: {hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 6, context: 16, tokens_per_step: 128, microbatch: 2, compute: fp32, z_loss: 1e-3}
optimizer: {kind: muon, lr: 1e-2, ema: 0.9}
lr_schedule: {warmup_steps: 1, total_steps: 6}
checkpoint: {every: 0}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, dir: whole}
EOF
# on N DIR WORD...: runs weft train on N ranks.
on() {
    on_ranks "$1" "$weft" train run.yaml run.dir="$2" "${@:3}" >"$2.log" 2>&1 || fail "$2: $(tail -2 "$2.log")"
}
average() { "$weft" export "$1" "$1.ema" --ema >export.out 2>&1 && digest "$1.ema" || fail "export of $1: $(cat export.out)"; }

# ---- Muon: one curve and one average on every mesh of one data-parallel degree, and over a stop ----

on 4 whole mesh.dp_replicate=4
on 4 sharded mesh.dp_shard=4
on 4 both mesh.dp_replicate=2 mesh.dp_shard=2
on 4 half mesh.dp_shard=4 train.steps=3
mv half resumed
on 4 resumed mesh.dp_replicate=2 mesh.dp_shard=2
for run in sharded both resumed; do
    [ "$(curve $run)" = "$(curve whole)" ] || fail "the curve of $run is another"
    [ "$(digest $run)" = "$(digest whole)" ] || fail "the weights of $run are others"
    [ "$(average $run)" = "$(cat whole.average 2>/dev/null || average whole | tee whole.average)" ] || fail "the average of $run is another"
done
[ "$(cat whole.average)" != "$(digest whole)" ] || fail "the average is the weights"
# On which rank matrices are updated makes no difference to a resumed run; other changes of a group do.
groups() { echo "optimizer.groups=[{match: mlp, kind: adamw, lr: $1${2:-}}]"; }
on 2 lives "$(groups 1e-3)"
on 2 moved "$(groups 1e-3)" train.steps=3
exits 78 train run.yaml run.dir=moved "$(groups 2e-3 ", whole: true")" -n 2
has err "optimizer.groups was "
on 2 moved "$(groups 1e-3 ", whole: true")"
[ "$(curve moved)" = "$(curve lives)" ] && [ "$(digest moved)" = "$(digest lives)" ] || fail "matrices that have moved have another curve"
on 2 pipe mesh.pp=2
on 1 alone
[ "$(curve pipe)" = "$(curve alone)" ] && [ "$(average pipe)" = "$(average alone)" ] || fail "a pipeline has another curve or average"
[ "$(curve alone | wc -l)" -eq 6 ] || fail "six steps: $(curve alone)"

# ---- Muon with matrices sharded over tp: also in fast numerics the curve of one tp rank; and at another degree after a stop ----

boxes="numerics.tp_invariant_up_to=2 optimizer.states=bf16 train.microbatch=1"
# shellcheck disable=SC2086
{
    on 2 uncut $boxes mesh.dp_shard=2
    on 4 boxes $boxes mesh.dp_shard=2 mesh.tp=2
    on 4 down $boxes mesh.dp_replicate=2 mesh.tp=2 train.steps=3
    on 2 down $boxes mesh.dp_shard=2
    on 2 up $boxes mesh.dp_replicate=2 train.steps=3
    on 4 up $boxes mesh.dp_shard=2 mesh.tp=2
}
for run in boxes down up; do
    [ "$(curve $run)" = "$(curve uncut)" ] || fail "the curve of $run is another"
    for file in model optimizer model.ema; do
        cmp -s $run/checkpoints/latest/$file.safetensors uncut/checkpoints/latest/$file.safetensors || fail "$run has another $file"
    done
done
exits 0 plan run.yaml -n 4 mesh.tp=2 --program
has out "whole matrices, each on one of 2 shards, put together for its update on one of 2 ranks of tp (shard.rank)"
grep -q '^ *unit 1 .*mlp.gate_proj [01].[01], mlp.up_proj [01].[01]' out || fail "who makes which step: $(grep -A3 '^whole' out)"
[ "$(grep -c '^MATRIX_GATHER  *u[12]$' out)" -eq 2 ] && [ "$(grep -c '^MATRIX_SCATTER  *u[12]$' out)" -eq 2 ] || fail "no boxes on their way: $(grep -A9 NORM out)"
cp out cut
exits 0 plan run.yaml -n 2
diff <(sed -n '/^optimizer$/,/^  decay/p' cut) <(sed -n '/^optimizer$/,/^  decay/p' out) >&2 || fail "groups are not those of the whole model"

# ---- MTP heads: one curve on several ranks and over a stop; with loss weight 0 they change nothing else ----

further="optimizer.kind=adamw train.z_loss=0 optimizer.ema=0 numerics.mode=exact model.tie_word_embeddings=false train.steps=4"
heads="$further train.mtp_depth=2 train.mtp_loss_weight=0.5"
further_losses() { sed -n 's/.*"loss_2": \([^,]*\), "loss_3": \([^,]*\), "loss_4": \([^,]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }
# shellcheck disable=SC2086
{
    on 1 heads $heads
    on 4 heads4 $heads mesh.pp=2 mesh.dp_shard=2 train.microbatch=1
    on 1 heads1 $heads train.microbatch=1 train.split_backward=true
    on 2 stopped_heads $heads mesh.dp_replicate=2 train.steps=2
    on 2 stopped_heads $heads mesh.dp_shard=2
    on 1 spans $heads numerics.cp_invariant_up_to=4
    on 4 contexts $heads numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.pp=2 train.steps=2
    on 2 contexts $heads numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.cp_comm=all_gather
    on 1 leaves $heads numerics.tp_invariant_up_to=2
    on 4 tensors $heads numerics.tp_invariant_up_to=2 mesh.tp=2 mesh.pp=2 train.steps=2
    on 2 tensors $heads numerics.tp_invariant_up_to=2 mesh.dp_shard=2 train.steps=3
    on 4 tensors $heads mesh.tp=2 mesh.dp_shard=2
    on 1 unweighted $heads train.mtp_loss_weight=0 optimizer.weight_decay=0
    on 1 headless $further optimizer.weight_decay=0
}
[ "$(curve heads4)" = "$(curve heads1)" ] && [ "$(further_losses heads4)" = "$(further_losses heads1)" ] &&
    [ "$(digest heads4)" = "$(digest heads1)" ] || fail "a pipeline with shards has another curve with further heads"
[ "$(curve stopped_heads)" = "$(curve heads)" ] && [ "$(digest stopped_heads)" = "$(digest heads)" ] || fail "a stop changes further heads"
[ "$(curve contexts)" = "$(curve spans)" ] && [ "$(further_losses contexts)" = "$(further_losses spans)" ] &&
    [ "$(digest contexts)" = "$(digest spans)" ] || fail "ranks that share tokens have another curve with further heads"
[ "$(curve tensors)" = "$(curve leaves)" ] && [ "$(further_losses tensors)" = "$(further_losses leaves)" ] || fail "ranks that share the vocabulary have another curve with further heads"
for file in model optimizer; do
    cmp -s tensors/checkpoints/latest/$file.safetensors leaves/checkpoints/latest/$file.safetensors || fail "further heads that are cut have another $file"
done
[ "$(curve unweighted)" = "$(curve headless)" ] || fail "heads without weight change the curve"
[ "$(curve heads)" != "$(curve headless)" ] || fail "further heads change nothing"
further_losses heads | awk 'NF != 3 || $3 != "null" || !($1 > 1 && $2 > 1) { exit 1 } END { exit NR != 4 }' || fail "losses of MTP heads: $(further_losses heads)"
exits 0 inspect heads
grep -q 'lm_heads.weight' out || fail "the checkpoint has no further heads: $(tail -4 out)"
exits 0 eval heads text.txt --context 16 --json
# shellcheck disable=SC2086
exits 78 train run.yaml run.dir=wrong $heads model.tie_word_embeddings=true
has err "MTP heads together with"
exits 78 train run.yaml run.dir=heads optimizer.kind=adamw optimizer.ema=0 model.tie_word_embeddings=false train.z_loss=0 numerics.mode=exact train.steps=5
has err "train.mtp_depth"

# ---- batch-size ramp-up: 32, 64, 128 tokens; on several ranks, over a stop in the middle, and by the samples used ----

grow="optimizer.kind=adamw numerics.mode=exact train.rampup_start=32 train.rampup_tokens=400 train.microbatch=1 data.audit=true train.steps=14"
# shellcheck disable=SC2086
{
    on 1 grown $grow
    on 2 grown2 $grow mesh.dp_shard=2
    on 2 grownp $grow mesh.pp=2
    on 2 stopped $grow mesh.dp_replicate=2 train.steps=8
    mv stopped grown3
    on 1 grown3 $grow
}
for run in grown2 grownp grown3; do
    [ "$(curve $run)" = "$(curve grown)" ] || fail "the curve of $run is another"
    [ "$(digest $run)" = "$(digest grown)" ] || fail "the weights of $run are others"
done
# 200 tokens each: 7 steps of 32, 4 of 64, the rest of 128.
sizes=$(sed -n 's/.*"step_tokens": \([0-9]*\), "total_tokens": \([0-9]*\),.*/\1:\2/p' grown/metrics.jsonl | tr '\n' ' ')
[ "$sizes" = "32:32 32:64 32:96 32:128 32:160 32:192 32:224 64:288 64:352 64:416 64:480 128:608 128:736 128:864 " ] || fail "steps of $sizes"
grep -q '"samples": 54,' grown/checkpoints/latest/state.json || fail "samples: $(grep samples grown/checkpoints/latest/state.json)"
exits 0 audit grown
exits 0 audit grown3
# shellcheck disable=SC2086
exits 0 plan run.yaml $grow
has out "batch ramp-up: 32 tokens at first, doubled 2 times, all from step 12 on"
# shellcheck disable=SC2086
{
    expect 78 plan run.yaml $grow train.rampup_start=48
    has err "never is train.tokens_per_step"
    expect 78 plan run.yaml $grow train.rampup_tokens=0
    has err "train.rampup_start and train.rampup_tokens together"
    expect 78 plan run.yaml $grow train.rampup_start=16 -n 2
    has err "start with 32"
    expect 78 plan run.yaml $grow metrics.trace=11-12
    has err "it ends with step 11"
}

# ---- what is shown ----

exits 0 plan run.yaml
grep -q '^  the rest  *14 .* muon  *0.01 .*nesterov true, muon_scale moonlight, muon_coefficients jordan; whole matrices$' out || fail "muon's row: $(cat out)"
grep -q '^  fallback of the rest  *6 .* adamw  *0.01 ' out || fail "the row of the fallback: $(cat out)"
has out "average of weights fp32"
grep -q '"z_loss": 0\.0[0-9]*' alone/metrics.jsonl || fail "no z-loss: $(head -1 alone/metrics.jsonl)"
grep -q 'z_loss: ' alone.log || fail "no z-loss in the lines: $(cat alone.log)"
on 1 plain train.z_loss=0 optimizer.ema=0
grep -q '"z_loss": null' plain/metrics.jsonl || fail "a z-loss without one: $(head -1 plain/metrics.jsonl)"
[ ! -e plain/checkpoints/latest/model.ema.safetensors ] || fail "an average that nobody asked for"

# ---- the average begins where it is first enabled, which is reported; and can be disabled ----

on 1 plain train.steps=7 lr_schedule.total_steps=6 optimizer.ema=0.5 run.allow_changes=[train.z_loss] train.z_loss=0
grep -q 'optimizer.ema was 0 and is 0.5 now' plain.log || fail "not said: $(cat plain.log)"
[ -e plain/checkpoints/latest/model.ema.safetensors ] || fail "no average"
rm -rf plain.ema
average plain >/dev/null

# ---- wrong input ----

expect 66 export alone/checkpoints/step-00000003 nowhere --ema
expect 66 export sharded.ema nowhere --ema
has err "holds no moving average (model.ema.safetensors)"
expect 78 plan run.yaml 'optimizer.groups=[{match: embed, kind: muon}]'
has err "muon is for the matrices of blocks"
expect 78 plan run.yaml optimizer.ema=1
expect 78 plan run.yaml optimizer.kind=moun
has err "muon"
expect 78 plan run.yaml lr_schedule.kind=drops
has err "lr_schedule.min_factor"
expect 78 plan run.yaml lr_schedule.kind=range lr_schedule.min_factor=0.1 lr_schedule.warmup_from=0.1
has err "lr_schedule.warmup_from"
exits 0 plan run.yaml lr_schedule.kind=drops lr_schedule.min_factor=0.1
conclude
