#!/bin/bash
# ranks: 2
# Fine-tuning on conversations: the same samples and curve on other meshes and after a restart, weft audit, messages about conversations that
# do not fit, weft generate --chat, and refusals.
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

awk 'BEGIN { srand(1); for (i = 0; i < 90; i++) { q = a = ""; for (k = 0; k < 3 + i % 20; k++) q = q sprintf("%c", 97 + int(rand() * 26))
    for (k = 0; k < 2 + i * 7 % 23; k++) a = a sprintf("%c", 97 + int(rand() * 26)); if (i == 40) while (length(a) < 200) a = a "x"
    printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%s\"}, {\"role\": \"assistant\", \"content\": \"%s\"}]}\n", q, a } }' >chat.jsonl
printf '%s' "{% for m in messages %}{{ bos_token + m.role + ' ' + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}{{ bos_token + 'assistant ' }}{% endif %}" >chat.jinja
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: chat.jsonl, format: chat}], chat_template: chat.jinja, cache_dir: cache, audit: true, validation_fraction: 0.1}
train: {steps: 24, context: 64, microbatch: 1, tokens_per_step: 256, compute: fp32}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 8}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END

exits 0 tokenize run.yaml
has out "packed into"
has err "1 of "
has err "were longer than a context of 64 and lost their ends"

exits 0 train run.yaml run.dir=whole || cat err
exits 0 audit whole
has out "was used exactly once"
curve whole >whole.curve
[ "$(wc -l <whole.curve)" -eq 24 ] || fail "no curve: $(cat whole.curve)"
cmp -s chat.jinja whole/checkpoints/step-00000024/chat_template.jinja || fail "the checkpoint has not the chat template"

# Killed and resumed; two data-parallel ranks; two pipeline ranks: the same samples, the same bits.
exits 0 train run.yaml run.dir=resumed train.steps=11 lr_schedule.total_steps=24
exits 0 train run.yaml run.dir=resumed
for mesh in dp_shard pp; do
    on_ranks 2 "$weft" train run.yaml run.dir=$mesh mesh.$mesh=2 >out 2>err </dev/null || fail "mesh.$mesh=2: $(tail -3 err)"
done
for run in resumed dp_shard pp; do
    curve $run | cmp -s - whole.curve || fail "$run has a different curve"
    exits 0 audit whole $run
    has out "both used the same samples in each of their 24 steps"
done

# The choice of learned tokens and the template are part of the curve.
exits 78 train run.yaml run.dir=whole train.steps=25 data.chat_loss_on=all
has err "data.chat_loss_on"
sed "s/ ' '/ ': '/; s/assistant /assistant: /" chat.jinja >other.jinja
exits 78 train run.yaml run.dir=whole train.steps=25 data.chat_template=other.jinja
has err "data"

exits 0 generate whole --chat --prompt "why?" --tokens 8 --temperature 0
cp out first
exits 0 generate whole --prompt "<|begin_of_text|>user why?" --tokens 8 --temperature 0
cmp -s out first && fail "--chat is as without"
exits 0 eval whole chat.jsonl --format chat --context 64
has out "loss"
expect 2 generate whole --chat
expect 2 generate whole --date 2025-01-01 --prompt x
expect 78 generate whole --chat --prompt x --date yesterday

# Errors have a position.
echo '{"messages": [{"role": "user", "content": "x"}]}' >bad.jsonl
exits 65 tokenize run.yaml 'data.sources=[{path: bad.jsonl, format: chat}]'
has err "bad.jsonl:1: no message has the role \"assistant\", found \"user\""
expect 66 tokenize run.yaml data.chat_template=
has err "no chat template"
printf 'a\n{{ messages|wordwrap }}' >bad.jinja
expect 65 tokenize run.yaml data.chat_template=bad.jinja
has err "bad.jinja:2: weft knows no filter wordwrap"
conclude
