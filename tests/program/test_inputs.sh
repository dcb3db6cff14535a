#!/bin/bash
# The journal lists the files that each start of a run has read, with their SHA-256 digests.
. "$(dirname "$0")/../support/prelude.sh"

mkdir -p web tok
letters 20 1 >text.txt
letters 20 2 >"web/a.txt"
letters 20 3 >"web/b c.txt"
letters 10 4 >held.txt
printf '{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}\n' >piqa.jsonl
printf '{"goal": "d", "sol1": "e", "sol2": "f", "label": 1}\n' >shots.jsonl
printf '{"messages": [{"role": "user", "content": "say so"}, {"role": "assistant", "content": "so, so and so"}]}\n%.0s' 1 2 3 4 >chat.jsonl
printf '{%% for m in messages %%}<{{ m.role }}>{{ m.content }}<|end_of_text|>{%% endfor %%}' >own.jinja
"$weft" tokenizer train text.txt -o tok/tokenizer.json -n 270 >/dev/null 2>&1 || fail "a tokenizer"
echo '{"eos_token": "<|end_of_text|>"}' >tok/tokenizer_config.json
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data:
  sources: [text.txt, "web/*.txt", {path: chat.jsonl, format: chat}]
  validation: [held.txt]
  tokenizer: tok
  chat_template: own.jinja
  cache_dir: cache
evaluation: {tasks: [{path: piqa.jsonl, num_fewshot: 1, examples: shots.jsonl}]}
train: {steps: 2, context: 64, microbatch: 1, compute: fp32}
checkpoint: {last_weights_only: false}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, dir: run}
END

# reads DIR: prints how many starts the journal has. lists DIR START KIND PATH: prints what the START-th start recorded for a file.
reads() { grep -c '"event": "read"' "$1/journal.jsonl"; }
lists() {
    local line entry
    line=$(grep '"event": "read"' "$1/journal.jsonl" | sed -n "$2p")
    entry="{\"kind\": \"$3\", \"path\": \"$4\", \"files\": 1, \"bytes\": $(wc -c <"$4"), \"sha256\": \"$(sha256sum "$4" | cut -d' ' -f1)\"}"
    grep -qF -- "$entry" <<<"$line" || fail "$1, start $2: no $entry: $line"
}

"$weft" train run.yaml >out 2>err || fail "a run: $(tail -3 err)"
[ "$(reads run)" -eq 1 ] || fail "a start has $(reads run) entries"
lists run 1 config run.yaml
for path in text.txt chat.jsonl; do lists run 1 source $path; done
many=$(grep -o '{"kind": "source", "path": "web/[*].txt", [^}]*}' run/journal.jsonl)
[ "$many" = "{\"kind\": \"source\", \"path\": \"web/*.txt\", \"files\": 2, \"bytes\": $(cat web/*.txt | wc -c), \"sha256\": \"$(sha256sum web/*.txt | sha256sum | cut -d' ' -f1)\"}" ] ||
    fail "a pattern: $many"
lists run 1 validation held.txt
lists run 1 tokenizer tok/tokenizer.json
lists run 1 tokenizer tok/tokenizer_config.json
lists run 1 chat_template own.jinja
lists run 1 task piqa.jsonl
lists run 1 examples shots.jsonl
grep -q '"kind": "\(checkpoint\|weights\|model.init\)"' run/journal.jsonl && fail "files that were not read: $(cat run/journal.jsonl)"
grep -q '"detail": "config run.yaml, source text.txt, source web/[*].txt (2 files), source chat.jsonl, validation held.txt, ' run/journal.jsonl ||
    fail "in words: $(grep '"read"' run/journal.jsonl)"
# The entry is the first of a start, since the last entry of a journal tells the state of the run.
sed -n 1p run/journal.jsonl | grep -q '"event": "read", "step": 0,' || fail "the order: $(cut -c1-90 run/journal.jsonl)"
[ "$(tail -1 run/journal.jsonl | grep -c '"finished"')" -eq 1 ] || fail "the end: $(tail -1 run/journal.jsonl)"

# A resumed start lists what it has read, including the checkpoint.
echo more >>held.txt
"$weft" train run.yaml train.steps=3 >out 2>err || fail "a resumed run: $(tail -3 err)"
[ "$(reads run)" -eq 2 ] || fail "two starts have $(reads run) entries"
lists run 2 validation held.txt
lists run 2 checkpoint run/checkpoints/step-00000002/manifest.json

# Of initial weights only samples are hashed; the files next to them are hashed completely.
"$weft" train run.yaml run.dir=tuned model.init=run data.tokenizer=run/tokenizer.json >out 2>err || fail "model.init: $(tail -3 err)"
init=run/checkpoints/step-00000003
lists tuned 1 model.init $init/config.json
lists tuned 1 model.init $init/tokenizer.json
grep -q "{\"kind\": \"weights\", \"path\": \"$init\", \"files\": 1, \"bytes\": [0-9]*, \"sample\": \"[0-9a-f]\{64\}\"}" tuned/journal.jsonl ||
    fail "weights: $(grep '"read"' tuned/journal.jsonl)"
"$weft" train run.yaml run.dir=own model.config=$init/config.json >out 2>err || fail "model.config: $(tail -3 err)"
lists own 1 model.config $init/config.json
"$weft" report run --out page.html >/dev/null 2>&1 && grep -q 'source web/\*.txt (2 files)' page.html || fail "the report does not list the files"
conclude "the journal lists all inputs of a run"
