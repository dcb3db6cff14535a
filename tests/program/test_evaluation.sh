#!/bin/bash
# Evaluation of a model: named validation sets, before the first step and at the end; tasks, during training and by weft eval.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/tasks.sh"

letters 60 3 >text.txt
letters 20 4 >news.txt
letters 10 5 >code.txt
make_tasks 12 7
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data:
  sources: [text.txt]
  validation: [{path: news.txt, name: news}, {path: code.txt, name: code}, {path: text.txt, name: news}]
  cache_dir: cache
train: {steps: 6, context: 64, microbatch: 4, compute: fp32}
optimizer: {lr: 1e-2}
lr_schedule: {kind: constant, warmup_steps: 0}
validation: {every: 4, samples: 5}
evaluation:
  every: 3
  tasks: [hellaswag.jsonl, arc_easy.jsonl, {path: piqa.jsonl, limit: 5}, winogrande.jsonl, boolq.jsonl, mmlu.jsonl, lambada.jsonl,
          {path: text.jsonl, name: held-out}]
checkpoint: {every: 3}
metrics: {log_freq: 1}
run: {threads: 1, dir: run}
END
train() { "$weft" train run.yaml "$@" >out 2>err </dev/null || fail "train $*: $(tail -3 err)"; }
# figures DIR KIND: prints the records of a kind without their times.
figures() { grep "\"kind\": \"$2\"" "$1/metrics.jsonl" | sed 's/"wall": [^,]*, //; s/, "seconds": .*//'; }
field() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p"; }

# Before step 1, every few steps, and after the last one.
train
[ "$(figures run validation | field step | xargs)" = "0 4 6" ] || fail "validations at $(figures run validation | field step | xargs)"
[ "$(figures run set | field step | xargs)" = "0 0 4 4 6 6" ] || fail "sets at $(figures run set | field step | xargs)"
[ "$(figures run set | field name | xargs)" = "news code news code news code" ] || fail "sets are $(figures run set | field name | xargs)"
[ "$(figures run task | field step | uniq -c | xargs)" = "8 0 8 3 8 6" ] || fail "tasks at $(figures run task | field step | uniq -c | xargs)"
# The validation loss over all sets is the mean of their losses, weighted by tokens.
awk -v sets="$(paste -d' ' <(figures run set | field tokens) <(figures run set | field loss))" \
    -v all="$(paste -d' ' <(figures run validation | field tokens) <(figures run validation | field loss))" 'BEGIN {
    n = split(sets, s, /[ \n]/); split(all, a, /[ \n]/)
    for (i = 1; 4 * i <= n; i++) {
        tokens = s[4*i-3] + s[4*i-1]; loss = (s[4*i-3] * s[4*i-2] + s[4*i-1] * s[4*i]) / tokens
        if (tokens != a[2*i-1] || loss - a[2*i] > 1e-12 * loss || a[2*i] - loss > 1e-12 * loss) exit 1
    }
    exit i != 4 }' || fail "sets do not add up to the validation"
has err "validate step:  0  set: news  loss:"
has err "evaluate step:  6  task: hellaswag  acc:"
grep -q '"event": "validation", "step": 4, "detail": "news [0-9.]*, code [0-9.]*", "loss"' run/journal.jsonl || fail "journal: $(grep validation run/journal.jsonl)"
grep -q '"event": "evaluation", "step": 3, "detail": "hellaswag acc_norm [0-9.]*, arc_easy acc_norm' run/journal.jsonl || fail "journal: $(grep evaluation run/journal.jsonl)"
exits 0 report run
has run/report.html '<figure id="tasks">'
exits 0 compare run run
has out "no figure differs in 6 logged steps and 3 validations of both"

# weft eval of the last checkpoint gives the same results with any batch size.
for batch in 1 4; do
    exits 0 eval run --tasks run.yaml --compute fp32 --threads 2 --batch $batch --json
    mv out eval$batch.json
    command -v python3 >/dev/null || continue
    python3 - eval$batch.json <<'END' || fail "weft eval --batch $batch differs from the run"
import json, sys
ours = json.load(open(sys.argv[1]))["tasks"]
run = {r["name"]: r for r in map(json.loads, open("run/metrics.jsonl")) if r["kind"] == "task" and r["step"] == 6}
assert set(ours) == set(run), (set(ours), set(run))
for name, task in ours.items():
    for key in task.keys() - {"task", "requests"}:
        a, b = task[key], run[name][key]
        assert abs(a - b) <= 1e-5 * abs(b), (name, key, a, b)
assert ours["piqa"]["documents"] == 5 and ours["hellaswag"]["documents"] == 12
END
done
exits 0 eval run --tasks run.yaml --compute fp32
grep -qE '^hellaswag +acc +0\.[0-9]{4} \+- 0\.[0-9]{4}$' out && grep -qE '^ +acc_norm +0\.[0-9]{4} \+- ' out || fail "the table: $(head -3 out)"
grep -qE '^lambada +acc ' out && grep -qE '^held-out +word_perplexity' out || fail "the table: $(cat out)"
# A file with only the evaluation section; a context that is too short is reported and counted.
printf 'evaluation:\n  add_bos: true\n  tasks: [mmlu.jsonl]\n' >tasks.yaml
exits 0 eval run --tasks tasks.yaml --context 32 --json
has err "task mmlu (mmlu): 12 documents, 48 requests, 48 of them cut at the left to the context of 32 tokens"
has out '"truncated": 48'

# Errors are reported in one line, before anything is trained.
wrong() { # STATUS WORDS OPTION...
    local status=$1 words=$2
    shift 2
    exits "$status" train run.yaml run.dir=wrong "$@"
    has err "$words"
    [ ! -e wrong/metrics.jsonl ] || fail "a run began with $*"
}
wrong 66 "no.jsonl" 'evaluation.tasks=[{path: no.jsonl, task: piqa}]'
wrong 78 'is no task: expected one of hellaswag, arc_easy' 'evaluation.tasks=[{path: piqa.jsonl, task: squad}]'
wrong 78 'two tasks are called piqa' 'evaluation.tasks=[piqa.jsonl, piqa.jsonl]'
wrong 78 'the name "a b"' 'evaluation.tasks=[{path: piqa.jsonl, name: a b}]'
wrong 65 'piqa.jsonl:1: endings: expected an array of texts' 'evaluation.tasks=[{path: piqa.jsonl, task: hellaswag}]'
wrong 65 'does not fit the context of 4' 'evaluation.tasks=[hellaswag.jsonl]' train.context=4 'data.validation=[]' validation.every=0
wrong 78 '1 of 2 sources of data.validation have a name' 'data.validation=[{path: news.txt, name: news}, code.txt]'
wrong 78 'the name "a/b"' 'data.validation=[{path: news.txt, name: a/b}]'
expect_alone 2 eval run
has err "expected a text to evaluate on, or --tasks"
expect_alone 2 eval run text.txt --tasks tasks.yaml
has err "not both"
printf 'evaluation:\n  taks: [mmlu.jsonl]\n' >typo.yaml
expect_alone 78 eval run --tasks typo.yaml
has err 'tasks'
printf 'run: {seed: 1}\n' >none.yaml
expect_alone 78 eval run --tasks none.yaml
has err "evaluation.tasks is empty"

# Resuming after step 3 keeps the earlier records and repeats the later measurements, to the last bit.
cp -r run again
rm -rf again/checkpoints/step-00000006 && ln -sfn step-00000003 again/checkpoints/latest
train run.dir=again
for kind in validation set task; do
    [ "$(figures run $kind)" = "$(figures again $kind)" ] || fail "$kind of a resumed run: $(diff <(figures run $kind) <(figures again $kind) | head -4)"
done
# Measuring does not change training.
train run.dir=blind 'evaluation.tasks=[]' 'data.validation=[]'
[ "$(curve run)" = "$(curve blind)" ] && [ "$(digest run)" = "$(digest blind)" ] || fail "measuring changes the run"

conclude
