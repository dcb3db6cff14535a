#!/bin/bash
# weft generate --prompts: many prompts, each continued as if it were alone; one line of JSON in, one line out.
. "$(dirname "$0")/../support/prelude.sh"

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, tokenizer: bytes}
train: {steps: 8, context: 64, microbatch: 1, tokens_per_step: 64, compute: fp32}
optimizer: {lr: 0.02}
lr_schedule: {warmup_steps: 1}
metrics: {tensorboard: false}
run: {threads: 1}
END
exits 0 train run.yaml run.dir=run || cat err

cat >prompts.jsonl <<'END'
{"prompt": "abc ", "id": 1234567890123456789}

{"prompt": "", "x": 100.0 }
{"prompt": "a prompt that is longer than the others of this file", "seed": 7}
{"seed": 7, "prompt": "abc "}
END
exits 0 generate run --prompts prompts.jsonl --tokens 30 --seed 3
cp out all
# The memory to be taken is reported first; how much is free is not known everywhere.
[ "$(grep -cE '^memory: this process takes [0-9.]+ [KM]iB: weights in (fp32|bf16) [0-9.]+ KiB, passes [0-9.]+ [KM]iB(; [0-9.]+ [KMGT]iB are free)?$' err)" -eq 1 ] ||
    fail "memory: $(cat err)"
[ "$(wc -l <all)" -eq 4 ] || fail "4 prompts have $(wc -l <all) lines"
has all '"id": 1234567890123456789, "generated": '
has all '"x": 100.0 , "generated": '
# The text has 12 tokens, up to the end of the context.
has all '"generated_tokens": 12, "stop": "context"'
# Each prompt gives the letters that it gives alone. Only letters are compared, since JSON cannot hold bytes that are not UTF-8.
plain() { LC_ALL=C tr -dc 'a-z' | head -c 200; }
alone() { # NUMBER SEED PROMPT: checks the line of that number
    exits 0 generate run --tokens 30 --seed "$2" --quiet --prompt "$3"
    sed -n "$1p" all | sed 's/.*"generated": "\(.*\)", "generated_tokens".*/\1/; s/\\u00[0-9a-f]*//g; s/\\[a-z]//g' | plain >one
    plain <out | cmp -s - one || fail "line $1 is not the text that its prompt has alone: $(cat one) against $(plain <out)"
}
alone 1 3 'abc '
alone 2 3 ''
alone 3 7 'a prompt that is longer than the others of this file'
alone 4 7 'abc '
"$weft" generate run --prompts - --tokens 30 --seed 3 <prompts.jsonl >out 2>err || fail "from stdin: $(cat err)"
cmp out all || fail "from stdin they are other texts"

# Weights that no cache holds: the share of the memory's rate that decoding reaches. Those above are too small.
hasnt err 'decoding reads'
exits 0 train run.yaml run.dir=large train.steps=1 train.context=8 train.tokens_per_step=8 optimizer.kind=sgd \
    model.hidden_size=1024 model.intermediate_size=1408 model.num_attention_heads=8 model.num_key_value_heads=8 || cat err
exits 0 generate large --prompt abc --tokens 4 --compute fp32 --ignore-end
grep -qE 'decoding reads 69 MB of weights a token: [0-9.]+ GB/s, [0-9]+% of the [0-9.]+ GB/s that a read of memory alone reaches$' err ||
    fail "generate does not say what decoding reads: $(cat err)"
exits 0 generate large --prompt abc --tokens 4 --compute fp32 --ignore-end --quiet
hasnt err 'decoding reads'

# Conversations.
printf '%s' '{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}' >chat.jinja
printf '{"prompt": "hi"}\n{"messages": [{"role": "user", "content": "hi"}]}\n' >chat.jsonl
exits 0 generate run --chat --template chat.jinja --prompts chat.jsonl --tokens 10 --quiet
cut -d, -f2- out | sed 's/.*"generated"/"generated"/' | uniq | wc -l | grep -qx 1 || fail "one message has two answers: $(cat out)"

# Every line is read before anything is generated.
refuses() { # STATUS WORDS LINE...
    local status=$1 words=$2
    shift 2
    printf '%s\n' '{"prompt": "good"}' "$@" >bad.jsonl
    exits "$status" generate run --prompts bad.jsonl
    has err "bad.jsonl:2"
    has err "$words"
    [ ! -s out ] || fail "answers come before the error: $(cat out)"
    hasnt err "memory:" # nor are weights loaded
}
refuses 65 'expected "prompt", a string' '{"prompt": 3}'
refuses 65 'expected "prompt", a string' '{"text": "x"}'
refuses 65 'a JSON object' '[1]'
refuses 65 'is there already' '{"prompt": "x", "generated": "y"}'
refuses 65 '--chat' '{"messages": []}'
refuses 2 'shorten it' "{\"prompt\": \"$(printf '%080d' 1)\"}"
exits 2 generate run --prompts prompts.jsonl --prompt x
exits 66 generate run --prompts nowhere.jsonl
exits 65 generate run --prompts - </dev/null

# Less free memory than needed: one error, before any is taken.
if grep -q MemAvailable /proc/meminfo; then
    # 2^31 - 4,096 tokens: more are refused as a microbatch (status 78).
    exits 71 eval run text.txt --batch 524287 --context 4096
    [ "$(grep -c 'memory: this process takes .*; only .* or ask for less (--batch, --context' err)" -eq 1 ] && [ ! -s out ] ||
        fail "more than there is: $(cat err)"
fi
conclude
