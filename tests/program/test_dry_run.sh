#!/bin/bash
# weft plan is a dry run of the configuration: it refuses what weft train refuses, with the same words and exit status.
# ranks: 4, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 40 1 >text.txt
cat >run.yaml <<END
model: {vocab_size: 320, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [{path: text.txt}], tokenizer: bytes, cache_dir: cache}
train: {steps: 2, context: 32, microbatch: 2, tokens_per_step: 512, compute: fp32}
checkpoint: {every: 0}
run: {threads: 1, dir: run}
END

# refusal WORD...: prints the line of the error. On several ranks it begins with the ranks that found it, where not all did.
refusal() { "$weft" "$@" 2>&1 >/dev/null </dev/null | grep -a ', exit status [0-9]*)$' | tail -1 | sed 's/^weft: rank 0: /weft: /'; }
# refused RANKS WORD...: both refuse run.yaml with these words, as a bad configuration and with the same line.
cases=0
refused() {
    local planned trained
    cases=$((cases + 1))
    planned=$(refusal plan run.yaml -n "$1" "${@:2}")
    trained=$(refusal train run.yaml -n "$1" "${@:2}")
    [[ $trained == *"(bad configuration, exit status 78)" ]] || fail "weft train -n $*: \"$trained\" is no refusal of the configuration"
    [ "$planned" = "$trained" ] || fail "-n $*: weft plan: \"$planned\", weft train: \"$trained\""
    [ ! -e run ] || { fail "-n $*: a refused run has made its directory: $(ls run)"; rm -rf run; }
}

# What the configuration allows must pass, or nothing below means anything.
exits 0 plan run.yaml
exits 0 train run.yaml
rm -rf run

# Keys by themselves and in pairs.
refused 1 optimizer.lr=-1
refused 1 lr_schedule.kind=range
refused 1 train.rampup_start=96
refused 1 lora.rank=4
refused 1 checkpoint.mirror=ftp://x
# The step.
refused 1 train.tokens_per_step=100
refused 1 pipeline.microbatches=3
refused 1 train.microbatch=300 train.context=16777216 train.tokens_per_step=0 model.max_position_embeddings=16777216
# The shape.
refused 1 model.vocab_size=100
refused 1 model.num_attention_heads=5
refused 1 model.num_key_value_heads=3
refused 1 model.sliding_window=16
refused 1 model.num_experts=4
refused 1 model.head_dim=4096
# Data and tasks, before any file is opened.
refused 1 data.validation_fraction=0.1 'data.validation=[text.txt]'
refused 1 data.holdout_by=hash
refused 1 'data.sources=[{path: text.txt, weight: 1}, text.txt]'
refused 1 'data.sources=[{path: text.txt, min_bytes: 9, max_bytes: 3}]'
refused 1 'data.sources=[{path: text.txt, name: a/b}]' data.validation_fraction=0.1
refused 1 'data.sources=[{path: text.txt, format: chat}]' data.chat_date=tomorrow
refused 1 'evaluation.tasks=[{path: t.jsonl, task: wrong}]'
refused 1 'evaluation.tasks=[{path: t.jsonl, task: hellaswag}, {path: t.jsonl, task: hellaswag}]'
refused 1 'evaluation.tasks=[{path: t.jsonl, task: hellaswag, examples: t.jsonl}]'
refused 1 checkpoint.keep_best=validation/loss
# Invariance of sums.
refused 1 numerics.tp_invariant_up_to=3
refused 1 numerics.mode=exact numerics.cp_invariant_up_to=3
refused 1 metrics.noise_scale=true numerics.tp_invariant_up_to=2
# Parameter groups, schedules, splits.
refused 1 'optimizer.groups=[{match: nothing}]'
refused 1 pipeline.schedule=wrong
refused 1 'pipeline.split=[layers.9]'
# The mesh, which the launcher checks.
refused 1 mesh.tp=2
refused 3 mesh.dp_replicate=2
# What ranks check together.
refused 3
refused 4 mesh.pp=4 pipeline.memory_gib=0.000001
refused 4 mesh.pp=4 pipeline.stages_per_rank=9
refused 4 mesh.pp=2 'pipeline.split=[layers.1, layers.2]'
refused 4 mesh.cp=4 metrics.noise_scale=true
refused 4 mesh.tp=2 numerics.tp_invariant_up_to=3
refused 4 metrics.log_ranks='[4]'
refused 4 model.num_attention_heads=6

# A tokenizer that is not there is no matter of the configuration, unless the vocabulary is asked of it.
exits 0 plan run.yaml data.tokenizer=missing.json
exits 66 plan run.yaml data.tokenizer=missing.json model.vocab_size=0

# The shape of model.init is checked too.
exits 0 train run.yaml run.dir=base checkpoint.every=2
refused 1 model.init=base model.num_hidden_layers=3
[ "$cases" -ge 30 ] || fail "only $cases cases"

conclude "$cases configurations are refused alike"
