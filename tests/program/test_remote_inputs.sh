#!/bin/bash
# Training of a tokenizer, evaluation of texts and tasks by s3:// and https://: the same as from files, fetched once; what is not there, damaged
# or no single file is one error, which names the URL.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
. "$(dirname "$script")/../support/object_store.sh"
. "$(dirname "$script")/../support/tasks.sh"

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 64, microbatch: 1, tokens_per_step: 64, compute: fp32}
run: {threads: 1, dir: run}
END
letters 40 5 >text.txt
start_store
fetches() { grep -c -- "^GET /public/$1[^ ]* - 200" s3.log || true; } # KEY; whole files
mkdir -p s3/public/corpus s3/public/tasks
for i in 0 1 2; do letters 40 $i | sed 's/^\(..*\)$/{"text": "\1"}/; /^$/d' | gzip >s3/public/corpus/$i.jsonl.gz; done
letters 40 8 >s3/public/held.txt
url=s3://public/corpus
http=http://127.0.0.1:$(cat port)/public # of a bucket that everybody may read

# ---- tokenizer train ----
train=(tokenizer train --vocab 400 --out)
exits 0 "${train[@]}" local.json s3/public/corpus/*.gz
: >s3.log
for urls in "$url/*.gz" "$url/{0..2}.jsonl.gz" "$http/corpus/{0..2}.jsonl.gz?download=true" "$url/0.jsonl.gz s3/public/corpus/1.jsonl.gz $http/corpus/2.jsonl.gz"; do
    set -f
    # shellcheck disable=SC2086
    exits 0 "${train[@]}" t.json $urls
    set +f
    cmp local.json t.json || fail "$urls: another tokenizer than of the files"
    rm t.json
done
[ "$(fetches corpus/0.jsonl.gz)" -eq 2 ] || fail "a file was fetched more than once by a URL: $(cat s3.log)"
exits 0 "${train[@]}" one.json s3/public/corpus/1.jsonl.gz
! cmp -s local.json one.json || fail "the tokenizer does not depend on the files"
expect 66 "${train[@]}" t.json $url/9.jsonl.gz
has err "$url/9.jsonl.gz"
expect 66 "${train[@]}" t.json "$url/*.txt"
has err "no object matches"
expect 78 "${train[@]}" t.json ftp://host/a.txt
gzip -c text.txt | head -c 700 >s3/public/cut.txt.gz
head -c 3000 "$weft" >s3/public/program.txt
exits 65 "${train[@]}" t.json s3://public/cut.txt.gz
has err "s3://public/cut.txt.gz: .weft-cache/remote/"
exits 65 "${train[@]}" t.json "$http/program.txt"
has err "$http/program.txt: "
[ ! -e t.json ] || fail "a tokenizer was written after an error"
exits 0 "${train[@]}" t.json --bytes "$http/program.txt"
printf '<!DOCTYPE html>\n<p>%s\n' "$(cat text.txt)" >s3/public/page.txt
exits 0 "${train[@]}" t.json s3://public/page.txt
has err "s3://public/page.txt: this is HTML"

# ---- eval TEXT ----
exits 0 train run.yaml
exits 0 eval run s3/public/held.txt --threads 1 --json
cp out expected
: >s3.log
for text in s3://public/held.txt "$http/held.txt"; do
    for ranks_of in "" "-n 2"; do
        # shellcheck disable=SC2086
        exits 0 eval run "$text" --threads 1 --json $ranks_of
        cmp expected out || fail "eval $text $ranks_of: other figures than of the file: $(cat out)"
    done
done
[ "$(fetches held.txt)" -eq 2 ] || fail "a text was fetched more than once: $(cat s3.log)"
exits 66 eval run s3://public/none.txt
has err "s3://public/none.txt"

# ---- tasks ----
make_tasks 12 3
cp hellaswag.jsonl s3/public/tasks/
gzip -c mmlu.jsonl >s3/public/tasks/mmlu.jsonl.gz
cp mmlu.jsonl s3/public/tasks/dev.jsonl
# tasks WHERE: a file of tasks at that place.
tasks() { printf 'evaluation:\n  tasks:\n    - "%s/hellaswag.jsonl%s"\n    - {path: "%s/mmlu.jsonl.gz", num_fewshot: 2, examples: "%s/dev.jsonl"}\n' "$1" "${2:-}" "$1" "$1"; }
tasks s3/public/tasks >local.yaml
tasks s3://public/tasks >s3.yaml
tasks "$http/tasks" '?download=a/b.json' >http.yaml
exits 0 eval run --tasks local.yaml --threads 1 --json
cp out expected
grep -q '"hellaswag"' out && grep -q '"mmlu"' out || fail "no tasks: $(cat out)"
: >s3.log
for file in s3 http; do
    for ranks_of in "" "-n 2"; do
        # shellcheck disable=SC2086
        exits 0 eval run --tasks $file.yaml --threads 1 --json $ranks_of
        cmp expected out || fail "$file.yaml $ranks_of: other figures than of the files: $(cat out)"
    done
done
[ "$(fetches tasks/dev.jsonl)" -eq 2 ] || fail "a task was fetched more than once: $(cat s3.log)"
for file in local s3; do
    sed 's/^evaluation:/&\n  every: 1/' $file.yaml | cat run.yaml - >with.yaml
    exits 0 train with.yaml run.dir=tasks.$file
    grep '"kind": "task"' tasks.$file/metrics.jsonl | sed 's/"wall": [^,]*, //; s/, "seconds": [^,}]*//' >figures.$file
done
[ -s figures.local ] && cmp figures.local figures.s3 || fail "a run evaluates other tasks by URL: $(cat figures.local figures.s3)"
[ -n "$(find cache/remote -name hellaswag.jsonl)" ] || fail "a run's task is not in data.cache_dir: $(find cache/remote)"

# refuses STATUS TEXT PATH: a task at PATH ends with STATUS and with TEXT in its error.
refuses() {
    printf 'evaluation: {tasks: [{path: "%s", task: hellaswag, name: bad}]}\n' "$3" >bad.yaml
    exits "$1" eval run --tasks bad.yaml
    has err "$2"
}
refuses 78 "s3://public/tasks/dev.jsonl: the first of 2 files of this URL: a task is one file" 's3://public/tasks/*.jsonl'
refuses 66 "s3://public/tasks/none.jsonl" s3://public/tasks/none.jsonl
refuses 65 "$http/tasks/dev.jsonl: .weft-cache/remote/" "$http/tasks/dev.jsonl"
refuses 78 "evaluation.tasks: " "$http/a.jsonl?X-Amz-Signature=hunter2"
hasnt err hunter2
expect 78 train run.yaml run.dir=leak "evaluation.tasks=[{path: mmlu.jsonl, num_fewshot: 1, examples: 'https://user:hunter2@host/a.jsonl'}]"
hasnt err hunter2
[ ! -e leak ] || fail "a run directory was made for a URL with a password"
conclude
