#!/bin/bash
# Context parallelism: ranks that share the tokens of a microbatch have the bits of one rank in exact numerics, whatever else the mesh has,
# and those of data-parallel ranks of their number in fast ones; then runs as users make them, that go on on another degree.
#   CURVE=full tests/ranks/test_context.sh      all meshes of up to 8 ranks, 20 steps (make soak)
#   CURVE=brief tests/ranks/test_context.sh     fewer, for sanitizers
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
program=$WEFT_BINARY_DIR/ranks_engine

# PP DP_REPLICATE DP_SHARD CP TP CANONICAL_TP
case ${CURVE:-quick} in
full)
    steps=20
    meshes=()
    for pp in 1 2 4; do for replicas in 1 2; do for shards in 1 2 4; do for cp in 1 2 4; do for tp in 1 2; do
        [ $((pp * replicas * shards * cp * tp)) -gt 8 ] || [ $((cp * tp)) -gt 4 ] || meshes+=("$pp $replicas $shards $cp $tp 2")
        [ $((pp * replicas * shards * cp)) -gt 8 ] || [ "$tp" -gt 1 ] || meshes+=("$pp $replicas $shards $cp 1 1")
    done; done; done; done; done
    ;;
quick)
    steps=2
    meshes=("1 1 1 1 1 1" "1 1 1 2 1 1" "2 1 1 2 1 1" "1 2 1 4 1 1" "1 1 1 1 1 2" "1 1 1 2 2 2")
    ;;
brief) steps=2 meshes=("1 1 1 1 1 1" "1 1 1 2 1 1" "1 1 2 2 1 1" "1 1 1 4 1 1") ;;
*) echo "CURVE is ${CURVE}: expected full, quick or brief"; exit 2 ;;
esac

# run PP DP_REPLICATE DP_SHARD CP TP CANONICAL_TP: its lines go to all.
run() {
    on_ranks $(($1 * $2 * $3 * $4 * $5)) "$program" "$1" "$2" "$3" cp "$4" "$5" 4 "$6" "$steps" >lines 2>err ||
        { echo "FAILED: mesh $*: ended with $?: $(tail -5 err)"; exit 1; }
    [ -s lines ] || { echo "FAILED: mesh $* printed nothing"; exit 1; }
    cat lines >>all
}
# shellcheck disable=SC2086
for mesh in "${meshes[@]}"; do run $mesh; done
grep '^exact' all >exact
one_curve exact 0 || exit 1
# Fast ones agree as far as they are run more than once: with the same ranks along cp, on other axes.
awk '!($1 in digest) { digest[$1] = $2 } digest[$1] != $2 { print "FAILED: " $0; bad = 1 } END { exit bad }' all || exit 1
grep -q ' cp 4 ' exact || fail "no run had four ranks along cp"
[ "${CURVE:-quick}" != brief ] || { conclude; exit; }

# The same on a device that runs ops when it must.
WEFT_DEFER=1 on_ranks 2 "$program" 1 1 1 cp 2 1 4 1 "$steps" >deferred 2>err || fail "deferred: $(tail -3 err)"
grep ' cp 2 tp 1 pp 1 - replicate 1 shard 2 ' all | grep -e '-c1-' | diff - deferred >/dev/null || fail "deferred: other bits"

# ---- as users run it ----

awk 'BEGIN { srand(7); split("the light and dark of day night sea land was made good very many seed tree fruit", w, " ")
    for (p = 0; p < 300; p++) { n = 3 + int(rand() * 40); for (i = 0; i < n; i++) printf "%s ", w[int(rand() * 16) + 1]; printf "\n\n" } }' >text.txt
cat >run.yaml <<EOF
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, document_mask: true, validation_fraction: 0.1}
train: {steps: 8, context: 32, microbatch: 1, tokens_per_step: 128, compute: fp32, numerics: exact}
optimizer: {lr: 3e-3}
schedule: {warmup_steps: 2}
validation: {every: 4, samples: 5}
checkpoint: {every: 4}
metrics: {log_freq: 1, tensorboard: false}
check: {replicas_every: 2}
run: {threads: 1}
EOF
train() {
    local dir=$1
    shift
    status=0
    timeout -k 5 900 "$weft" train run.yaml run.dir="$dir" "$@" >"$dir.out" 2>"$dir.err" </dev/null || status=$?
}
# All digits of every loss and norm, and of every validation.
curve() {
    sed -n -e 's/.*"kind": "train", "step": \([0-9]*\),.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/p' \
        -e 's/.*"kind": "validation", "step": \([0-9]*\),.*"loss": \([^,]*\),.*"tokens": \([0-9]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"
}
# same DIR BASE: a run went as another, to the last byte of its model file.
same() {
    [ "$status" -eq 0 ] || { fail "$1: exit status $status: $(tail -3 "$1.err")"; return; }
    [ "$(curve "$1")" = "$(curve "$2")" ] || fail "$1 is another curve than $2: $(diff <(curve "$2") <(curve "$1") | head -4)"
    cmp -s "$1/checkpoints/latest/model.safetensors" "$2/checkpoints/latest/model.safetensors" || fail "$1 writes another model file than $2"
}
refused() {
    local text=$1
    shift
    train bad "$@"
    [ "$status" -eq 78 ] || fail "$*: exit status $status, expected 78: $(tail -2 bad.err)"
    grep -qF -- "$text" bad.err || fail "$*: no \"$text\" in: $(tail -3 bad.err)"
    rm -rf bad
}

train one numerics.canonical_cp=4
[ "$status" -eq 0 ] || { cat one.err; exit 1; }
[ "$(curve one | wc -l)" -eq 11 ] || fail "8 steps and 3 validations make $(curve one | wc -l) records"
train four -n 4 mesh.cp=4
same four one
train both -n 4 mesh.cp=2 numerics.canonical_cp=4 train.recompute=full train.gradient_sync=microbatch
same both one
train piped -n 4 mesh.pp=2 mesh.cp=2 numerics.canonical_cp=4 pipeline.schedule=zb_h1
same piped one
# A run that began with four goes on with one, then with two and shards: numerics.canonical_cp is kept.
train moved -n 4 mesh.cp=4 train.steps=4 schedule.total_steps=8
[ "$status" -eq 0 ] || fail "moved: $(tail -3 moved.err)"
train moved schedule.total_steps=8 train.steps=6
[ "$status" -eq 0 ] || fail "moved to one rank: $(tail -3 moved.err)"
grep -q 'canonical_cp: 4' moved/config.yaml || fail "canonical_cp is not kept: $(grep canonical moved/config.yaml)"
train moved -n 4 mesh.cp=2 schedule.total_steps=8
[ "$status" -eq 0 ] || fail "moved to two: $(tail -3 moved.err)"
cmp -s moved/checkpoints/latest/model.safetensors one/checkpoints/latest/model.safetensors || fail "moved ends with other weights"
"$weft" eval one text.txt >one.eval 2>/dev/null && "$weft" eval four text.txt >four.eval 2>/dev/null && cmp -s one.eval four.eval || fail "weft eval"
# With tp beside: both kinds of pieces.
train plain numerics.canonical_cp=2 numerics.canonical_tp=2
train crossed -n 4 mesh.cp=2 mesh.tp=2
same crossed plain
# Fast: cp's ranks are terms of sums, and another number of them is said to change last bits.
train fast -n 2 mesh.cp=2 train.numerics=fast train.steps=4 schedule.total_steps=8
[ "$status" -eq 0 ] || fail "fast: $(tail -3 fast.err)"
train fast train.numerics=fast schedule.total_steps=8
grep -q 'mesh.cp' fast.err fast.out || fail "another cp in fast numerics is not said: $(tail -5 fast.err)"

refused 'mesh.cp 3 does not divide num_key_value_heads 4: 1, 2 or 4 would' -n 3 mesh.cp=3
refused 'mesh.cp 4 does not divide num_key_value_heads 2: 1 or 2 would' -n 4 mesh.cp=4 model.num_key_value_heads=2
refused 'mesh.cp 4 does not divide the key and value heads that mesh.tp leaves a rank, 2: 1 or 2 would' -n 8 mesh.cp=4 mesh.tp=2
refused 'mesh.cp 4 does not divide numerics.canonical_cp 6: 1, 2, 3 or 6 would' -n 4 mesh.cp=4 numerics.canonical_cp=6
refused 'does not divide the 30 tokens of a microbatch' -n 4 mesh.cp=4 train.context=30 train.tokens_per_step=120
refused 'which is of train.numerics: exact' -n 2 mesh.cp=2 train.numerics=fast numerics.canonical_cp=2
refused 'metrics.probe: with mesh.cp 2' -n 2 mesh.cp=2 metrics.probe=2
conclude "context parallelism has the bits of one rank"
