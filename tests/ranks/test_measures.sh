#!/bin/bash
# Figures of validation sets, tasks and probes do not depend on the mesh, to the last bit; with tp or cp, at one canonical degree.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/tasks.sh"
needs_ranks

letters 40 3 >text.txt
letters 9 6 >more.txt
letters 12 4 >news.txt
letters 5 5 >code.txt
make_tasks 9 11
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 1, tie_word_embeddings: true}
data:
  sources: [{path: text.txt, weight: 2}, {path: more.txt, weight: 1}]
  validation: [{path: news.txt, name: news}, {path: code.txt, name: code}]
  cache_dir: cache
  document_mask: true
train: {steps: 4, context: 64, microbatch: 1, tokens_per_step: 256, compute: fp32}
numerics: {mode: exact}
optimizer: {lr: 1e-2}
lr_schedule: {kind: constant, warmup_steps: 0}
validation: {every: 2, samples: 3}
evaluation: {every: 2, tasks: [hellaswag.jsonl, winogrande.jsonl, lambada.jsonl, text.jsonl]}
checkpoint: {every: 0}
metrics: {log_freq: 1, tensorboard: false, probe: 2}
run: {threads: 1}
END
train() {
    local dir=$1
    shift
    timeout -k 5 1500 "$weft" train run.yaml run.dir="$dir" "$@" >"$dir.out" 2>"$dir.err" </dev/null || fail "$dir: $(tail -3 "$dir.err")"
}
figures() { grep -E '"kind": "(validation|set|task|probe|source)"' "$1/metrics.jsonl" | sed 's/"wall": [^,]*, //; s/, "seconds": .*//'; }
same() { # DIR [BASE]
    local base=${2:-one}
    [ "$(figures "$1")" = "$(figures "$base")" ] || fail "$1: $(diff <(figures "$base") <(figures "$1") | head -4)"
}

train one
[ "$(figures one | wc -l)" -eq 39 ] || fail "$(figures one | wc -l) records of three times three validations and four tasks, twice five units, and four times two sources"
# The losses of the sources add up to the loss of the step. Of one source, about six samples of eight windows have been read.
sed 's/.*"step": \([0-9]*\),.*"loss": \([^,]*\),.*"targets": \([^,]*\), "tokens": \([^,]*\),.*/source \1 \2 \3 \4/; t; s/.*"train", "step": \([0-9]*\),.*"loss": \([^,]*\), "grad.*/step \1 \2/; t; d' one/metrics.jsonl |
    awk '$1 == "source" { sum[$2] += $3 * $4; targets[$2] += $4; tokens[$2] += $5 } $1 == "step" { loss[$2] = $3 }
    END { for (s = 1; s <= 4; s++) { d = sum[s] / targets[s] / loss[s] - 1; if (!(d * d < 1e-24) || tokens[s] != 256) { print "step", s, d, tokens[s]; bad = 1 } } exit bad }' >sums ||
    fail "losses by source: $(cat sums)"
grep -q '^  text.txt: .* 66.67% of samples, read [0-9.]* times$' one.err || fail "how often a source is read: $(grep text.txt one.err)"
# Each step is recorded once, however often a run was stopped and resumed.
told=(metrics.log_freq=3 checkpoint.every=2 validation.every=0 evaluation.every=0 metrics.probe=0)
train through "${told[@]}"
train cut "${told[@]}" train.steps=2 lr_schedule.total_steps=4
train cut "${told[@]}" lr_schedule.total_steps=4
[ "$(figures through | grep source)" = "$(figures cut | grep source)" ] && [ "$(figures through | grep -c source)" -eq 8 ] ||
    fail "sources of a resumed run: $(diff <(figures through) <(figures cut) | head -4)"
# Only one rank reports what is wrong with text.
{ letters 40 3 && printf '\xe9\xff\n'; } >broken.txt
train said -n 2 mesh.dp_replicate=2 train.steps=1 'data.sources=[broken.txt]' 'evaluation.tasks=[{path: broken.txt, task: text}]'
[ "$(grep -c 'bytes are not UTF-8' said.err)" -eq 2 ] || fail "of the source and of the task: $(grep UTF-8 said.err)"
train ddp2 -n 2 mesh.dp_replicate=2
same ddp2
train fsdp3 -n 3 mesh.dp_shard=3 train.tokens_per_step=192 train.steps=4
[ "$(figures fsdp3 | grep '"step": 0')" = "$(figures one | grep '"step": 0')" ] || fail "fsdp3: $(diff <(figures one) <(figures fsdp3) | head -4)"
train hsdp4 -n 4 mesh.dp_replicate=2 mesh.dp_shard=2
same hsdp4
train pp2x2 -n 4 mesh.pp=2 mesh.dp_shard=2
same pp2x2
train pp3 -n 3 mesh.pp=3 pipeline.schedule=gpipe
same pp3

# Ranks that shard matrices (also those of the vocabulary) and tokens, with both cp methods.
sliced=(model.num_key_value_heads=2 numerics.tp_invariant_up_to=2 numerics.cp_invariant_up_to=4 train.compute=bf16)
train slices "${sliced[@]}"
[ "$(figures slices | wc -l)" -eq 39 ] || fail "$(figures slices | wc -l) records of slices"
train tp2cp2 -n 4 "${sliced[@]}" mesh.tp=2 mesh.cp=2
same tp2cp2 slices
train tp2pp2 -n 4 "${sliced[@]}" mesh.tp=2 mesh.pp=2
same tp2pp2 slices
train cp2 -n 2 "${sliced[@]}" mesh.cp=2 mesh.cp_comm=all_to_all train.recompute=full
same cp2 slices

# weft eval has the same bits on any mesh, for a text and for tasks with examples.
sed -i 's/^evaluation: .*/evaluation: {tasks: [hellaswag.jsonl, {path: winogrande.jsonl, num_fewshot: 2}, lambada.jsonl, text.jsonl]}/' run.yaml
evaluates() { # N WORD...
    timeout -k 5 1500 "$weft" eval "${run:-one}" "${@:2}" --compute "${compute:-fp32}" --threads 1 --json -n "$1" </dev/null 2>err || fail "eval ${*:2}: $(tail -3 err)"
}
evaluates 1 text.txt >text1.json
evaluates 1 --tasks run.yaml --samples samples1 >tasks1.json
for keys in "3" "4 mesh.dp_replicate=2" "4 mesh.pp=2 mesh.dp_replicate=2"; do
    # shellcheck disable=SC2086
    set -- $keys
    evaluates "$1" text.txt "${@:2}" | cmp - text1.json || fail "a text on the ranks $keys"
    evaluates "$1" --tasks run.yaml --samples samples "${@:2}" | cmp - tasks1.json && cmp samples samples1 || fail "tasks on the ranks $keys"
done
# The same in bf16, where no rank holds weights in fp32.
compute=bf16 evaluates 1 text.txt >text2.json
for keys in "3" "2 mesh.dp_replicate=2" "4 mesh.pp=2 mesh.dp_shard=2"; do
    # shellcheck disable=SC2086
    set -- $keys
    compute=bf16 evaluates "$1" text.txt "${@:2}" | cmp - text2.json || fail "a text in bf16 on the ranks $keys"
done
has err "ranks on this machine take"
exits 71 eval one text.txt --batch 524287 --context 4096 -n 2
[ "$(grep -c "2 ranks on this machine take .* only " err)" -eq 1 ] || fail "more than there is: $(cat err)"
# With tp and cp the figures are those of one rank at the same canonical degrees; at other degrees they differ in the last bits.
run=slices canonical="numerics.tp_invariant_up_to=2 numerics.cp_invariant_up_to=4"
# shellcheck disable=SC2086
{
    evaluates 1 --tasks run.yaml --samples samples2 $canonical >tasks2.json
    evaluates 1 --tasks run.yaml --samples samples1 >tasks1.json
    evaluates 4 --tasks run.yaml --samples samples4 mesh.tp=2 mesh.cp=2 $canonical | cmp - tasks2.json && cmp samples4 samples2 || fail "tasks on ranks of tp and cp"
    evaluates 2 text.txt mesh.tp=2 $canonical | cmp - <(evaluates 1 text.txt $canonical) || fail "a text on ranks of tp"
}
numbers() { grep -o '"sums": *\[[^]]*' "$1" | grep -oE -- '-?[0-9]+\.?[0-9]*(e[-+]?[0-9]+)?'; }
[ "$(numbers samples1 | wc -l)" -gt 60 ] || fail "scores of one rank: $(head -2 samples1)"
paste <(numbers samples1) <(numbers samples2) | awk 'NF != 2 { bad = 1 } { d = $1 - $2; if (d < 0) d = -d; if (d > -1e-5 * $1) bad = 1 } END { exit bad }' ||
    fail "scores with splits are different: $(diff samples1 samples2 | head -4)"
exits 78 eval one text.txt -n 2 mesh.pp=3
exits 2 eval one text.txt mesh.pp=2 nonsense

# Ranks with different task files end with one error.
printf '{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}\n' >piqa-0.jsonl
printf '{"goal": "a", "sol1": "b", "sol2": "d", "label": 0}\n' >piqa-1.jsonl
cat >unlike.sh <<'END'
rank=${WEFT_RANK:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}}
mkdir -p "rank$rank" && cp "piqa-$rank.jsonl" "rank$rank/piqa.jsonl" && cd "rank$rank" || exit 1
exec "$@"
END
status=0
on_ranks 2 bash unlike.sh "$weft" train ../run.yaml run.dir="$PWD/unlike" data.sources="[$PWD/text.txt]" \
    data.validation='[]' data.cache_dir="$PWD/cache" 'evaluation.tasks=[piqa.jsonl]' >unlike.out 2>unlike.err || status=$?
[ "$status" -eq 65 ] && grep -q 'rank 1: the task piqa is ' unlike.err || fail "unlike tasks: $status: $(tail -3 unlike.err)"

conclude
