#!/bin/bash
# Which tokens end a text: a fine-tuned model keeps its own, with the files that name them; a tokenizer's directory names the tokenizer's;
# keys name others; generate stops at all of them.
. "$(dirname "$0")/../support/prelude.sh"

letters 60 3 >text.txt
exits 0 tokenizer train text.txt --vocab 280 --special '<|endoftext|>,<|im_start|>,<|im_end|>' --out alone.json
mkdir tok
cp alone.json tok/tokenizer.json
id() { grep -A1 "\"id\": $1," alone.json | grep -q "$2" || fail "token $1 is not $2"; }
id 277 '<|endoftext|>'
id 279 '<|im_end|>'
cat >tok/tokenizer_config.json <<END
{"tokenizer_class": "Qwen2Tokenizer", "bos_token": null, "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}, "pad_token": "<|endoftext|>",
 "model_max_length": 777}
END
cat >template.jinja <<'END'
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
END
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, tokenizer: tok}
train: {steps: 2, context: 32, microbatch: 1, tokens_per_step: 32, compute: fp32}
metrics: {tensorboard: false}
run: {threads: 1}
END
for i in 1 2 3 4 5 6; do printf '{"prompt": "abc %d", "completion": "def %d"}\n' $i $i; done >chat.jsonl
sed "/^model:/d; s/^data:.*/data: {sources: [{path: chat.jsonl, format: chat}], cache_dir: cache, tokenizer: base, chat_template: template.jinja}/" \
    run.yaml >tune.yaml
last() { echo "$1/checkpoints/latest"; }
# eos FILE: prints its eos_token_id on one line.
eos() { tr -d ' \n\t' <"$1" | sed 's/.*"eos_token_id":\(\[[^]]*\]\|[^,}]*\).*/\1/'; }
expect() { [ "$(eos "$1")" = "$2" ] || fail "$1: eos_token_id is $(eos "$1"), expected $2"; }

# From random weights: the token from the directory; with tokenizer.json alone, a well-known name; the token that a key names.
exits 0 train run.yaml run.dir=fresh || cat err
expect "$(last fresh)/config.json" 279
expect "$(last fresh)/generation_config.json" 279
has "$(last fresh)/tokenizer_config.json" Qwen2Tokenizer
grep -q '"model_max_length":.32$' "$(last fresh)/tokenizer_config.json" || fail "the longest text of a new model"
exits 0 train run.yaml run.dir=alone data.tokenizer=alone.json
expect "$(last alone)/config.json" 277
exits 0 train run.yaml run.dir=keyed 'tokenizer.eos=[<|endoftext|>, <|im_end|>]' 'tokenizer.pad=<|im_start|>' 'tokenizer.bos=<|im_start|>'
expect "$(last keyed)/config.json" '[277,279]'
expect "$(last keyed)/generation_config.json" '[277,279]'
has "$(last keyed)/config.json" '"pad_token_id": 278'
has "$(last keyed)/config.json" '"bos_token_id": 278'
grep -q '"eos_token":.*<|endoftext|>' "$(last keyed)/tokenizer_config.json" || fail "tokenizer_config.json does not name the key's token"
# The token that begins a text is read back from the checkpoint: text without a prompt begins with it.
for source in tok alone.json; do
    rm -rf keyed
    exits 0 train run.yaml run.dir=keyed data.tokenizer=$source 'tokenizer.bos=<|im_start|>'
    grep -q '"add_bos_token":.*true' "$(last keyed)/tokenizer_config.json" || fail "the token that begins texts is not read again"
done
exits 78 train run.yaml run.dir=none 'tokenizer.eos=</s>'
has err 'tokenizer.eos is "</s>"'

# Resuming with other end tokens is refused. The error names the changed key, or the key that restores the tokens if a file next to the
# tokenizer has changed.
exits 78 train run.yaml run.dir=alone data.tokenizer=alone.json train.steps=3 'tokenizer.eos=<|im_end|>'
has err 'the tokenizer is not what the checkpoint was trained with'
has err '): tokenizer.eos was'
exits 78 train run.yaml run.dir=alone train.steps=3
has err 'the tokens that begin and end its texts, which tokenizer.bos and tokenizer.eos set'
exits 0 train run.yaml run.dir=alone train.steps=3 'tokenizer.eos=<|endoftext|>' 'tokenizer.bos=none'

# A fine-tuned model keeps its ids and files, byte for byte: on text and on conversations, when resumed, exported, with adapters and merged.
exits 0 export fresh base
cp template.jinja base/chat_template.jinja
sed -i 's/"eos_token_id": 279/"eos_token_id": [279, 277], "pad_token_id": 277/' base/config.json
printf '{"bos_token_id": 277,\n "eos_token_id": [279, 277], "pad_token_id": 277, "temperature": 0.60, "top_p": 0.8, "do_sample": true}\n' >base/generation_config.json
cp tok/tokenizer_config.json base/
kept() {
    local file
    for file in generation_config.json tokenizer_config.json; do cmp "base/$file" "$1/$file" || fail "$1/$file is different"; done
    expect "$1/config.json" '[279,277]'
    has "$1/config.json" '"pad_token_id": 277'
}
exits 0 train tune.yaml model.init=base run.dir=tuned || cat err
kept "$(last tuned)"
exits 0 train tune.yaml model.init=base run.dir=tuned train.steps=3 lr_schedule.total_steps=2
kept "$(last tuned)"
exits 0 export tuned exported
kept exported
exits 0 train run.yaml model.init=base run.dir=text data.tokenizer=base
kept "$(last text)"
exits 0 train run.yaml model.init=base run.dir=other data.tokenizer=alone.json # the same tokenizer without its tokenizer_config.json
kept "$(last other)"
exits 0 train tune.yaml model.init=tuned run.dir=again
kept "$(last again)"
exits 0 train tune.yaml model.init=base run.dir=adapter lora.rank=2
cmp base/tokenizer_config.json "$(last adapter)/tokenizer_config.json" || fail "an adapter's tokenizer_config.json is different"
exits 0 merge adapter merged
kept merged
exits 0 train tune.yaml model.init=base run.dir=renamed 'tokenizer.eos=<|endoftext|>'
expect "$(last renamed)/config.json" 277
expect "$(last renamed)/generation_config.json" 277
grep -q '"top_p":.*0.8' "$(last renamed)/generation_config.json" || fail "top_p is lost where a key changes an id"

# A base model fine-tuned on conversations ends assistant turns with a token at which it did not stop before.
cp -r base plain
sed -i 's/"eos_token_id": \[279, 277\]/"eos_token_id": 277/' plain/config.json plain/generation_config.json
exits 0 train tune.yaml model.init=plain run.dir=answers
has err "answers end by token 279"
expect "$(last answers)/config.json" '[277,279]'
expect "$(last answers)/generation_config.json" '[277,279]'
exits 0 train tune.yaml model.init=plain run.dir=answers_lora lora.rank=2
exits 0 merge answers_lora answers_merged
expect answers_merged/generation_config.json '[277,279]'

# generate stops at each id of a list, in either file.
exits 0 generate base --prompt ab --tokens 20 --seed 3 --quiet --ignore-end
[ "$(wc -c <out)" -gt 5 ] || fail "nothing was generated"
printf '{"eos_token_id": [%s]}\n' "$(seq -s, 0 279)" >base/generation_config.json
exits 0 generate base --prompt ab --tokens 20 --seed 3 --quiet
[ "$(wc -c <out)" -eq 1 ] || fail "generate continues past an id of generation_config.json: $(cat out)"

# A tiktoken rank file is recognised by its content.
for byte in $(seq 0 255); do printf "%s %d\n" "$(printf "\\x$(printf %x "$byte")" | base64)" "$byte"; done >own.tiktoken
printf 'a b' >in
"$weft" tokenizer encode own.tiktoken <in >out 2>err && fail "a rank file that is not known is taken"
has err tokenizer.pattern
"$weft" tokenizer encode own.tiktoken --pattern gpt2 <in >out 2>err || fail "a rank file of a named pattern: $(cat err)"
[ "$(cat out)" = "97 32 98" ] || fail "the ids of a rank file: $(cat out)"
exits 0 train run.yaml run.dir=ranks data.tokenizer=own.tiktoken tokenizer.pattern=gpt2 'tokenizer.special=[<a>, <b>]' 'tokenizer.eos=<b>'
expect "$(last ranks)/config.json" 257
conclude
