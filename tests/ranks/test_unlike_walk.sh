#!/bin/bash
# One of two ranks differs in one thing, one row of the table below: the launch is refused before the first step with an error that names
# it, or the run continues because the difference cannot change the curve. test_unlike.sh has three and more ranks, and the messages.
# over MPI
# ranks: 4, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

# ---- the inputs of both ranks: a directory for each base ----

# base NAME YAML: makes a directory with all files and this run.yaml.
base() {
    mkdir "$1"
    cp -r files/. "$1"
    {
        echo "metrics: {log_freq: 1, tensorboard: false}"
        echo "checkpoint: {every: 0, last_weights_only: true}"
        echo "run: {threads: 1}"
        cat
    } >"$1/run.yaml"
}
mkdir -p files/tok
letters 40 1 >files/text.txt
letters 40 2 >files/more.txt
letters 10 3 >files/held.txt
letters 10 4 >files/other.txt
printf '{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}\n' >files/piqa.jsonl
printf '{"goal": "d", "sol1": "e", "sol2": "f", "label": 1}\n' >files/shots.jsonl
for word in one two three four five six seven eight; do
    printf '{"messages": [{"role": "user", "content": "say %s"}, {"role": "assistant", "content": "%s %s %s"}]}\n' $word $word $word $word
done >files/chat.jsonl
printf '{%% for m in messages %%}<{{ m.role }}>{{ m.content }}<|end_of_text|>{%% endfor %%}' >files/tok/chat_template.jinja
sed 's/</[/; s/>/]/' files/tok/chat_template.jinja >files/own.jinja
"$weft" tokenizer train files/text.txt -o files/tok/tokenizer.json -n 270 >/dev/null 2>&1 || fail "a tokenizer"
echo '{"eos_token": "<|end_of_text|>", "bos_token": "<|begin_of_text|>"}' >files/tok/tokenizer_config.json

base plain <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 2}
data: {sources: [text.txt, "more*.txt"], validation: [held.txt], cache_dir: cache}
evaluation: {tasks: [{path: piqa.jsonl, num_fewshot: 1, examples: shots.jsonl}]}
train: {steps: 1, context: 64, microbatch: 2, tokens_per_step: 256, compute: fp32}
END
base chat <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [{path: chat.jsonl, format: chat}], tokenizer: tok, cache_dir: cache}
train: {steps: 1, context: 64, microbatch: 1, tokens_per_step: 128, compute: fp32}
END
# Runs of two steps, to start from and to resume from; `again` differs from `had` only in its seed.
trained() { "$weft" train run.yaml run.dir="$1" train.steps=2 checkpoint.every=1 checkpoint.last_weights_only=false data.tokenizer=tok \
    evaluation.tasks=[] train.tokens_per_step=128 "${@:2}" >out 2>&1 || fail "$1: $(tail -3 out)"; }
cd plain || exit 1
trained had
trained again run.seed=7
cp -r had/checkpoints/step-00000002 ../files/model
cp -r ../files/model .
trained tuned model.init=model lora.rank=2
trained tuned.again model.init=model lora.rank=2 run.seed=7
rm -rf model cache out
for run in had again tuned tuned.again; do mv $run ..; done
cd ..
base init <<END
model: {init: model}
data: {sources: [text.txt], tokenizer: tok, cache_dir: cache}
train: {steps: 1, context: 64, microbatch: 1, tokens_per_step: 128, compute: fp32}
END
base shape <<END
model: {config: model/config.json}
data: {sources: [text.txt], tokenizer: tok, cache_dir: cache}
train: {steps: 1, context: 64, microbatch: 1, tokens_per_step: 128, compute: fp32}
END
cp -r init eval
echo "eval model held.txt" >eval/words
cp -r init tasks
echo "eval model --tasks tasks.yaml" >tasks/words
echo "evaluation: {tasks: [{path: piqa.jsonl, num_fewshot: 1, examples: shots.jsonl}, {path: more.jsonl, task: piqa}]}" >tasks/tasks.yaml
cp tasks/shots.jsonl tasks/more.jsonl
printf '{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}\n%.0s' 1 2 3 4 5 >>tasks/more.jsonl
cp -r init lora
echo "lora: {rank: 2}" >>lora/run.yaml
# Each rank has a separate run directory with the same checkpoints.
for kind in had tuned; do
    [ $kind = had ] && other=again || other=tuned.again
    cp -r plain resume.$kind
    cp -r files/model resume.$kind
    cp -r $kind resume.$kind/run
    cp -r $other resume.$kind/again
    sed -i 's/^train: .*/train: {steps: 3, context: 64, microbatch: 1, tokens_per_step: 128, compute: fp32}/; s/^evaluation.*//; s/cache_dir/tokenizer: tok, cache_dir/; s/last_weights_only: true/last_weights_only: false/' resume.$kind/run.yaml
    echo "lr_schedule: {total_steps: 2}" >>resume.$kind/run.yaml
done
sed -i 's/^model: .*/model: {init: model}/' resume.tuned/run.yaml
echo "lora: {rank: 2}" >>resume.tuned/run.yaml

# Programs that rank 1 runs if a row names them.
cp "$weft" another
printf x >>another # runs as it did, and is not the same file
env_of() { # NAME ENVIRONMENT: a program that runs weft so
    printf '#!/bin/bash\n%s exec "%s" "$@"\n' "$2" "$weft" >"$1"
    chmod +x "$1"
}
env_of none 'WEFT_CPU=none'
env_of portable 'WEFT_CPU=portable'
env_of spins 'OMP_NUM_THREADS=2 OMP_WAIT_POLICY=active TZ=Asia/Tokyo LC_ALL=C.UTF-8'

# ---- the walk ----

# start ROW BASE CHANGE PROGRAM WORDS: runs rank 0 in ROW/0 and rank 1 in ROW/1, where CHANGE was made. Both train, or run the words in the
# base's file `words`. Leaves ROW/status and ROW/err.
start() {
    local at="$directory/row.$1" own=() status=0 run="$directory/row.$1/run" words
    [ ! -e "$directory/$2/run" ] || run=run
    words=(train run.yaml "run.dir=$run")
    [ ! -e "$directory/$2/words" ] || read -ra words <"$directory/$2/words"
    mkdir -p "$at"
    cp -r "$directory/$2" "$at/0"
    cp -r "$directory/$2" "$at/1"
    (cd "$at/1" && eval "$3") || fail "$1: the change: $3"
    eval "own=($5)"
    on_ranks 1 -wdir "$at/0" "$weft" "${words[@]}" : -n 1 -wdir "$at/1" "$4" "${words[@]}" "${own[@]}" >"$at/out" 2>"$at/err" </dev/null ||
        status=$?
    echo "$status" >"$at/status"
}

# judged ROW WHAT STATUS TEXT: checks a launch that has ended.
judged() {
    local at="$directory/row.$1" status text=$4
    status=$(cat "$at/status")
    grep '^weft: ' "$at/err" >"$at/said"
    [ "$status" -eq "$3" ] || { fail "$2: exit status $status, expected $3: $(cat "$at/said")"; return; }
    [ "$3" -ne 0 ] || [ -e "$at/0/words" ] || grep -q '"step": 1,' "$at/run/metrics.jsonl" || fail "$2: not trained"
    if [ "$3" -eq 0 ] || [ "$3" -eq 73 ]; then
        [ -z "$text" ] || grep -qF -- "$text" "$at/err" || fail "$2: not reported: $text: $(tail -3 "$at/err")"
        return
    fi
    grep -qF -- "$text" "$at/said" || fail "$2: expected \"$text\", said: $(cat "$at/said")"
    [ "$(wc -l <"$at/said")" -eq 1 ] || fail "$2: not reported once: $(cat "$at/said")"
    grep -qs '"step": 1,' "$at/run/metrics.jsonl" && fail "$2: something was trained"
    grep -qs '"step": 3,' "$at/0/run/metrics.jsonl" && fail "$2: something was trained"
}

# launch: runs and checks one row of the table. SHOW=1 prints each result.
launch() { # ROW WHAT BASE CHANGE PROGRAM WORDS STATUS TEXT
    start "$1" "$3" "$4" "$5" "$6"
    judged "$1" "$2" "$7" "$8"
    [ -z "${SHOW:-}" ] || printf '%-44s %s  %s\n' "$2" "$(cat "row.$1/status")" "$(head -c 230 "row.$1/said")"
    [ -n "${KEEP:-}" ] || rm -rf "row.$1"
}

rows=0
row() { # WHAT BASE CHANGE WORDS STATUS TEXT [PROGRAM]
    rows=$((rows + 1))
    meanwhile 2 launch "$rows" "$1" "$2" "$3" "${7:-$weft}" "$4" "$5" "$6"
}
# yaml KEY OLD NEW BASE: a row that changes the file; words KEY VALUE: a row that changes the command line.
yaml() { row "run.yaml: $1 $3" "${4:-plain}" "sed -i 's/${1#*.}: $2/${1#*.}: $3/' run.yaml" "" 78 "$1 is "; }
words() { row "command line: $1=$2" "${3:-plain}" : "$1=$2" 78 "rank 1: $1 is "; }

# Keys: the model, the data, the batch, the optimizer and its schedule, the mesh, dtypes, metrics and checkpoints.
yaml model.hidden_size 16 32
yaml model.num_hidden_layers 2 1
yaml model.num_key_value_heads 2 1
yaml train.context 64 32
yaml train.microbatch 2 1
yaml train.steps 1 2
yaml train.compute fp32 bf16
words model.rope_theta 5000
words model.tie_word_embeddings true
words model.family qwen3
words model.init_std 0.1
words data.seed 7
words data.add_eos false
words data.document_mask true
words 'data.sources' '[text.txt]'
words 'data.validation' '[other.txt]'
words data.chat_loss_on all chat
words data.chat_date 2020-01-01 chat
words tokenizer.eos '[none]' chat
words train.tokens_per_step 512
words train.recompute full
words numerics.mode exact
words train.z_loss 1e-4
words train.gradient_sync microbatch
words optimizer.kind muon
words optimizer.lr 1e-2
words optimizer.beta2 0.9
words optimizer.weight_decay 0
words optimizer.clip_norm 3
words optimizer.ema 0.9
words optimizer.states bf16
words lr_schedule.kind linear
words lr_schedule.warmup_steps 1
words mesh.pp 2
words mesh.tp 2
words mesh.cp 2
words mesh.dp_replicate 2
words lora.rank 2 init
words run.seed 7
words 'run.allow_changes' '[data.seed]'
words run.overwrite true
words checkpoint.every 1
words metrics.log_freq 2
words validation.every 1
words evaluation.every 1
words check.replicas_every 1

# Keys that may differ between machines, and another spelling of the same value.
for own in run.threads=2 data.prefetch=1 comm.progress_thread=true data.cache_dir=elsewhere optimizer.lr=3e-4; do
    row "command line: $own" plain : "$own" 0 ""
done
row "run.device" plain : "run.device=portable" 0 "kernels of the ranks differ"
row "run.yaml: order and comments" plain "tac run.yaml >turned && (echo '# mine'; cat turned) >run.yaml" "" 0 ""

# run.yaml itself.
row "run.yaml: an unknown key" plain "echo 'optimiser: {lr: 1}' >>run.yaml" "" 78 "rank 1: run.yaml"
row "run.yaml: broken" plain "echo '{' >>run.yaml" "" 78 "rank 1: run.yaml"
row "run.yaml: missing" plain "rm run.yaml" "" 66 "rank 1: run.yaml"
row "run.yaml: a directory" plain "rm run.yaml; mkdir run.yaml" "" 66 "rank 1: run.yaml"

# Texts.
row "source: another byte" plain "sed -i '1s/^./Z/' text.txt" "" 65 "the file text.txt is "
row "second source: another length" plain "echo more >>more.txt" "" 65 "the file more.txt is "
row "second source: one more file" plain "cp other.txt more2.txt" "" 65 "the file more2.txt is "
row "source: empty" plain ": >text.txt" "" 65 "text.txt"
row "source: missing" plain "rm text.txt" "" 66 "rank 1: text.txt"
row "source: a directory" plain "rm text.txt; mkdir text.txt" "" 66 "rank 1: text.txt"
row "source: a dangling link" plain "ln -sf nowhere text.txt" "" 66 "rank 1: text.txt"
row "source: binary" plain "head -c 2000 /dev/zero >text.txt" "" 65 "rank 1: text.txt"
row "source: another time" plain "touch -d 2001-01-01 text.txt" "" 0 ""
row "source: a link to the same bytes" plain "mv text.txt x; ln -s x text.txt" "" 0 ""
row "validation: another byte" plain "sed -i '1s/^./Z/' held.txt" "" 65 "the validation file held.txt is "
row "validation: missing" plain "rm held.txt" "" 66 "rank 1: held.txt"
row "conversations: another word" chat "sed -i 's/three/3/g' chat.jsonl" "" 65 "the file chat.jsonl is "
row "conversations: a broken line" chat "echo '{' >>chat.jsonl" "" 65 "rank 1: chat.jsonl"

# Caches.
row "cache: of another text" plain "\"$weft\" tokenize run.yaml 'data.sources=[other.txt]' >/dev/null 2>&1" "" 0 ""
row "cache: a file in its place" plain "touch cache" "" 73 "rank 1: cache"

# Tasks.
row "task: another answer" plain "sed -i 's/\"label\": 0/\"label\": 1/' piqa.jsonl" "" 65 "the task piqa is "
row "task: another choice" plain "sed -i 's/\"c\"/\"cc\"/' piqa.jsonl" "" 65 "the task piqa is "
row "task: another example" plain "sed -i 's/\"e\"/\"x\"/; s/\"f\"/\"y\"/' shots.jsonl" "" 65 "the task piqa is "
row "task: missing" plain "rm piqa.jsonl" "" 66 "rank 1: piqa.jsonl"
row "task: a directory" plain "rm piqa.jsonl; mkdir piqa.jsonl" "" 66 "rank 1: piqa.jsonl"
row "examples: missing" plain "rm shots.jsonl" "" 66 "rank 1: "
row "task: blanks between members" plain "sed -i 's/, /,  /g' piqa.jsonl" "" 0 ""

# Tokenizer and template.
row "tokenizer.json: other merges" chat "\"$weft\" tokenizer train more.txt -o tok/tokenizer.json -n 270 >/dev/null 2>&1" "" 65 "the fingerprint of tokenizer is "
row "tokenizer.json: missing" chat "rm tok/tokenizer.json" "" 66 "rank 1: tok/tokenizer.json"
row "tokenizer.json: cut off" chat "truncate -s -100 tok/tokenizer.json" "" 65 "rank 1: tok/tokenizer.json"
row "tokenizer_config.json: another end" chat "sed -i 's/\"eos_token\": \"<|end/\"eos_token\": \"<|begin/' tok/tokenizer_config.json" "" 65 "the fingerprint of tokenizer is "
row "tokenizer_config.json: broken" chat "echo '{' >tok/tokenizer_config.json" "" 65 "rank 1: tok/tokenizer_config.json"
row "chat template: another" chat "cp own.jinja tok/chat_template.jinja" "" 65 "the chat template is "
row "chat template: missing" chat "rm tok/chat_template.jinja" "" 66 "rank 1: "
row "chat template: broken" chat "echo '{%' >tok/chat_template.jinja" "" 65 "rank 1: tok/chat_template.jinja"

# Weights to start from.
row "model.init: another weight" init "printf X | dd of=model/model.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null" "" 65 "the fingerprint of model.init is "
row "model.init: another config.json" init "sed -i 's/\"rms_norm_eps\": 1e-05/\"rms_norm_eps\": 1e-06/' model/config.json" "" 78 "rank 1: model.rms_norm_eps is "
row "model.init: another generation_config.json" init "sed -i 's/269/268/' model/generation_config.json" "" 0 ""
row "model.init: no weights" init "rm model/*.safetensors" "" 66 "rank 1: "
row "model.init: missing" init "rm -r model" "" 66 "rank 1: "
row "model.init: weights cut off" init "truncate -s -64 model/model.safetensors" "" 65 "rank 1: "

row "model.init: another tokenizer.json" init "\"$weft\" tokenizer train more.txt -o model/tokenizer.json -n 270 >/dev/null 2>&1" "" 0 ""
row "model.init: another weight under an adapter" lora "printf X | dd of=model/model.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null" "" 65 "the fingerprint of model.init is "
row "model.config: another shape" shape "sed -i 's/\"intermediate_size\": 16/\"intermediate_size\": 32/' model/config.json" "" 78 "rank 1: model.intermediate_size is "
row "model.config: missing" shape "rm model/config.json" "" 66 "rank 1: model/config.json"

# A checkpoint to resume from.
here=run/checkpoints/step-00000002
row "checkpoint: of another seed" resume.had "rm -r run; mv again run" "" 65 "the checksum of the checkpoint's manifest is "
row "checkpoint: none" resume.had "rm -r run/checkpoints" "" 65 "no checkpoint is good"
# The run falls back to a checkpoint that is valid on all ranks. It ends when it saves, since separate directories do not make a run
# directory (docs/use/reliability.md).
back="warning: checkpoint passed over: rank 1: $here"
row "checkpoint: the step before" resume.had "rm -r $here" "" 73 "$back"
for at in model.safetensors:400 model.safetensors:20000 optimizer.safetensors:9000 optimizer.safetensors:20000; do
    row "checkpoint: $at damaged" resume.had "printf XYZ | dd of=$here/${at%:*} bs=1 seek=${at#*:} conv=notrunc 2>/dev/null" "" 73 "$back"
done
row "checkpoint: state.json of another" resume.had "sed -i 's/42/43/' $here/state.json" "" 73 "$back"
row "checkpoint: of another adapter" resume.tuned "rm -r run; mv again run" "" 65 "the checksum of the checkpoint's manifest is "
row "checkpoint: an adapter, another model under it" resume.tuned "printf X | dd of=model/model.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null" "" 78 "rank 1: run/checkpoints/step-00000002: the base is not what"

# weft eval: a text, and tasks.
row "eval: nothing differs" eval : "" 0 ""
row "eval: another byte of the text" eval "sed -i '1s/^./Z/' held.txt" "" 65 "the file held.txt is "
row "eval: the text is missing" eval "rm held.txt" "" 66 "rank 1: held.txt"
row "eval: another weight" eval "printf X | dd of=model/model.safetensors bs=1 seek=20000 conv=notrunc 2>/dev/null" "" 65 "the fingerprint of the model is "
row "eval: another config.json" eval "sed -i 's/\"rms_norm_eps\": 1e-05/\"rms_norm_eps\": 1e-06/' model/config.json" "" 78 "rank 1: model.rms_norm_eps is "
row "eval: another tokenizer" eval "\"$weft\" tokenizer train more.txt -o model/tokenizer.json -n 270 >/dev/null 2>&1" "" 65 "the fingerprint of tokenizer is "
row "eval: --context" eval : "--context 32" 78 "rank 1: train.context is "
row "eval: mesh" eval : "mesh.pp=2" 78 "rank 1: mesh.pp is "
row "eval: tasks: nothing differs" tasks : "" 0 ""
row "eval: tasks: another answer" tasks "sed -i 's/\"label\": 0/\"label\": 1/' piqa.jsonl" "" 65 "the task piqa is "
row "eval: tasks: another example" tasks "sed -i 's/\"f\"/\"x\"/' shots.jsonl" "" 65 "the task piqa is "
row "eval: tasks: another name" tasks "sed -i 's/piqa.jsonl/piqa.jsonl, name: mine/' tasks.yaml" "" 65 "the task mine is "
row "eval: tasks: another order" tasks "sed -i 's/\\[\\(.*}\\), \\(.*\\)\\]/[\\2, \\1]/' tasks.yaml" "" 65 "the order of tasks is "
row "eval: tasks: another tokenizer" tasks "\"$weft\" tokenizer train more.txt -o model/tokenizer.json -n 270 >/dev/null 2>&1" "" 65 "rank 1: "

# Program and environment.
row "another build" plain : "" 78 "rank 1: the build is " "$directory/another"
row "WEFT_CPU that the machine has not" plain : "" 69 'rank 1: WEFT_CPU: unknown CPU kernels "none"' "$directory/none"
row "WEFT_CPU of other kernels" plain : "" 0 "kernels of the ranks differ" "$directory/portable"
row "threads, waiting, time zone, language" plain : "" 0 "" "$directory/spins"

together
echo "$rows launches"
conclude "every difference is refused with an error that names it, or changes no curve"
