#!/bin/bash
# Segments of a microbatch (pipeline.segments): with exact numerics, pipelines over segments have the bits of one rank; with fast numerics, those
# of every pipeline with as many segments. Then what cannot be cut into segments, which plan and train refuse.
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$0")/../support/degrees.sh"
needs_ranks
# Grouped keys, and steps of three microbatches, fewer than ranks.
sed -i 's/num_hidden_layers: 2/num_hidden_layers: 4/; s/num_key_value_heads: 4/num_key_value_heads: 2/; s/tokens_per_step: 128/tokens_per_step: 96/
    s/steps: 8/steps: 4/; s/every: 4/every: 2/g' run.yaml
tokenized

# pair NAME WORD...: a run on one rank whose exact chunks are four. Then `launch` others.
pair() { launch "$1" numerics.cp_invariant_up_to=4 "${@:2}"; }
cut=(pipeline.segments=4)
pair one
launch two -n 2 mesh.pp=2 pipeline.segments=2 numerics.cp_invariant_up_to=4
launch four -n 2 mesh.pp=2 "${cut[@]}" check.replay_every=2
launch longer -n 4 mesh.pp=4 "${cut[@]}" pipeline.schedule=gpipe train.recompute=full metrics.probe=2
# Splits of tp; several sequences in a microbatch; two sources of data.
sources='data.sources=[{path: text.txt, split: paragraphs, weight: 1}, {path: text.txt, split: lines, weight: 2}]'
pair plain numerics.tp_invariant_up_to=2 train.microbatch=2 train.tokens_per_step=192 "$sources"
launch crossed -n 4 mesh.pp=2 mesh.tp=2 "${cut[@]}" train.microbatch=2 train.tokens_per_step=192 "$sources"
# Sliding windows that end inside a segment, and in others; bf16. More exact chunks than segments: their sums go through several levels of the
# tree.
window=(model.family=mistral model.sliding_window=10 train.compute=bf16 numerics.cp_invariant_up_to=8)
launch narrow "${window[@]}"
launch window -n 2 mesh.pp=2 pipeline.segments=2 "${window[@]}"
# Sinks, whose gradients are of a segment's own tokens; experts, a segment's rows at a time; parameters sharded, gradients reduced each time.
experts=(model.family=gpt_oss model.num_experts=4 model.num_experts_per_tok=2 model.sliding_window=10 model.tie_word_embeddings=false)
pair sinks "${experts[@]}" train.tokens_per_step=192
each=(train.gradient_sync=microbatch train.reshard_after_forward=always)
launch dispatched -n 4 mesh.pp=2 mesh.dp_shard=2 mesh.ep=2 "${cut[@]}" "${experts[@]}" "${each[@]}" train.tokens_per_step=192
# Latents, an attention layer of its own.
latents=(model.family=deepseek_v2 model.num_key_value_heads=4 model.kv_lora_rank=16 model.qk_nope_head_dim=6 model.qk_rope_head_dim=4 model.v_head_dim=8)
pair latent "${latents[@]}"
launch latent_cut -n 2 mesh.pp=2 "${cut[@]}" "${latents[@]}"
# Fast numerics: one order of sums on every pipeline, and another than without segments.
fast=(numerics.mode=fast)
launch fast -n 2 mesh.pp=2 "${cut[@]}" "${fast[@]}"
launch fast_longer -n 4 mesh.pp=4 "${cut[@]}" "${fast[@]}" pipeline.schedule=gpipe train.recompute=full
# A run that goes on with other segments, and on one rank.
move() {
    train moved -n 2 mesh.pp=2 pipeline.segments=2 numerics.cp_invariant_up_to=4 train.steps=2 lr_schedule.total_steps=4
    went moved
    train moved -n 2 mesh.pp=2 "${cut[@]}" train.steps=3 lr_schedule.total_steps=4
    went moved
    train moved lr_schedule.total_steps=4
    went moved
}
meanwhile 2 move
together

for name in two four longer; do same $name one; done
same crossed plain
same window narrow
same dispatched sinks
same latent_cut latent
same fast_longer fast
cmp -s moved/checkpoints/latest/model.safetensors one/checkpoints/latest/model.safetensors || fail "moved ends with other weights"
grep -q 'cp_invariant_up_to: 4' four/config.yaml || fail "exact chunks do not follow from segments: $(grep invariant four/config.yaml)"
grep -q '0 steps were made again' four.out four.err || fail "a replay of segments differs"
[ "$(grep -c '"kind": "source"' plain/metrics.jsonl)" -ge 4 ] || fail "no losses of sources"
of_sources() { sed -n '/"kind": "source"/s/"wall": [^,]*, //p' "$1/metrics.jsonl"; }
diff <(of_sources plain) <(of_sources crossed) || fail "other losses of sources"
# On another mesh than that of segments the run says what changes in fast numerics.
train fast numerics.mode=fast train.steps=5
grep -q 'microbatches in 4 segments' fast.err fast.out || fail "other last bits are not reported: $(tail -3 fast.err)"

# The same on the deferred device, which runs ops only when something waits for them.
WEFT_DEFER=1 train deferred -n 2 mesh.pp=2 "${cut[@]}" train.steps=1 lr_schedule.total_steps=4 validation.every=0
went deferred
[ "$(curve deferred | head -1)" = "$(curve one | grep '^1 ')" ] || fail "deferred: $(curve deferred), expected $(curve one)"

# ---- what is refused, by plan and by train ----

# weft train refuses by the same check of its plan, so it is tried for the first ones only.
unplanned() {
    "$weft" plan run.yaml "${@:2}" run.dir=none >plan.out 2>plan.err
    [ $? -eq 78 ] || fail "weft plan ${*:2}: not refused"
    grep -qF -- "$1" plan.err || fail "weft plan: no \"$1\" in: $(tail -3 plan.err)"
}
refused_twice() {
    unplanned "$@"
    refused "$@"
}
unplanned 'pipeline.segments: 3: expected 1, 2, 4, 8, 16, 32 or 64' -n 2 mesh.pp=2 pipeline.segments=3
refused_twice 'schedule zbv does not cut microbatches into segments (4): 1f1b and gpipe do' -n 2 mesh.pp=2 "${cut[@]}" pipeline.schedule=zbv
refused_twice 'pipeline.segments 4 with mesh.cp 2' -n 4 mesh.pp=2 mesh.cp=2 "${cut[@]}" numerics.cp_invariant_up_to=4
refused_twice 'the model (recurrent) has recurrences' -n 2 mesh.pp=2 "${cut[@]}" model.family=recurrent 'model.mixer=[min_gru]' numerics.mode=fast
unplanned 'predicts several tokens (train.mtp_depth)' -n 2 mesh.pp=2 "${cut[@]}" train.mtp_depth=1 model.tie_word_embeddings=false
unplanned 'has a balance loss (output_router_logits)' -n 2 mesh.pp=2 "${cut[@]}" model.family=mixtral model.num_experts=4 model.num_experts_per_tok=2 model.output_router_logits=true model.router_aux_loss_coef=0.01
unplanned 'mesh.tp 4 is more than num_key_value_heads 2' -n 8 mesh.pp=2 mesh.tp=4 "${cut[@]}"
unplanned 'numerics.tp_invariant_up_to 4 is more than num_key_value_heads 2' -n 2 mesh.pp=2 numerics.tp_invariant_up_to=4 "${cut[@]}"
unplanned 'pipeline.segments 4 does not divide numerics.cp_invariant_up_to 2' -n 2 mesh.pp=2 "${cut[@]}" numerics.cp_invariant_up_to=2
unplanned 'numerics.cp_invariant_up_to is 12: expected a power of two' -n 2 mesh.pp=2 "${cut[@]}" numerics.cp_invariant_up_to=12 train.context=48 train.tokens_per_step=96
unplanned 'pipeline.segments 4 does not divide the 30 tokens of a microbatch' -n 2 mesh.pp=2 "${cut[@]}" train.context=30 train.tokens_per_step=60 numerics.mode=fast
unplanned 'metrics.noise_scale: with pipeline.segments 4' -n 2 mesh.pp=2 "${cut[@]}" metrics.noise_scale=true numerics.mode=fast
"$weft" schedule 1f1b --pp 2 --microbatches 3 --csv >mine.csv
unplanned 'pipeline.schedule is the file mine.csv, whose microbatches are whole' -n 2 mesh.pp=2 "${cut[@]}" pipeline.schedule=mine.csv
refusals
# On one pipeline rank the key has no effect.
"$weft" plan run.yaml -n 1 "${cut[@]}" run.dir=none >plan.out 2>plan.err || fail "one rank: $(cat plan.err)"
! grep -q segments plan.out || fail "one rank plans segments"
conclude "segments have the bits of whole microbatches"
