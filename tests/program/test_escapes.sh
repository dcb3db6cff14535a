#!/bin/bash
# Names and paths are untrusted bytes: no escape sequence in them reaches the terminal, neither in an error nor in output. Tries all commands,
# with operands of every kind and with each flag that takes a value.
. "$(dirname "$0")/../support/prelude.sh"

# ESC, BEL, the C1 form of ESC [, and the right-to-left override.
evil=$'x\x1b[31m\x07\xc2\x9b32m\xe2\x80\xae'
raw=$'\x1b|\x07|\xc2\x9b|\xe2\x80\xae'
mkdir "$evil" "$evil/empty"
letters 20 1 >"$evil/text.txt"
printf 'no JSON \x1b[31m' >"$evil/garbage.json"
{ printf '\x1b]0;title\x07'; head -c 200 /dev/urandom; } >"$evil/garbage.safetensors"
cat >"$evil/run.yaml" <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: ["$(printf %s "$evil" | LC_ALL=C sed 's/\x1b/\\e/; s/\x07/\\a/; s/\xc2\x9b/\\x9b/; s/\xe2\x80\xae/\\u202e/')/text.txt"], cache_dir: cache}
train: {steps: 2, context: 16, microbatch: 2, tokens_per_step: 32, compute: fp32}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
"$weft" train "$evil/run.yaml" run.dir="$evil/run" >out 2>err || fail "the run to show: $(tail -2 err)"
"$weft" train "$evil/run.yaml" run.dir="$evil/other" run.seed=7 >out 2>err || fail "another run: $(tail -2 err)"

count=0
# shown WORD...: runs a command and checks its output; any exit status will do.
shown() {
    local limit=60
    [ "$1" != watch ] || limit=1 # it waits for runs
    timeout -k 1 "$limit" "$weft" "$@" >out 2>err </dev/null
    [ "$1" != generate ] || : >out # a model of random letters may print anything
    count=$((count + 1))
    ! LC_ALL=C grep -qE "$raw" out err || fail "raw escapes from: weft $(printf '%q ' "$@"): $(cat -v out err | head -3)"
}
things=("$evil" "$evil/none" "$evil/empty" "$evil/text.txt" "$evil/garbage.json" "$evil/garbage.safetensors" "$evil/run.yaml" "$evil/run")
verbs=$("$weft" help --completion bash | sed -n 's/^    "\(.*\)")$/\1/p')
while read -r -u 3 verb; do
    read -ra words <<<"$verb"
    "$weft" "${words[@]}" --help >help 2>&1
    quick=()
    [ "$verb" != doctor ] || quick=(--seconds 0.01)
    json=()
    ! grep -q -- '--json' help || json=(--json)
    for thing in "${things[@]}"; do
        shown "${words[@]}" "${quick[@]}" "$thing"
        shown "${words[@]}" "${quick[@]}" "$thing" "${json[@]}" "$evil/other"
    done
    # Flags of this command that take a value, and operands of every kind.
    for flag in $(sed -n 's/^  *\(-., \)\?\(--[a-z-]*\) [A-Z].*/\2/p' help); do
        [ "$flag" != --prompt ] || continue # a prompt is printed as it is
        for thing in "$evil/none" "$evil/garbage.json" "$evil/run"; do
            shown "${words[@]}" "${quick[@]}" "$evil/run" "$flag" "$thing"
            shown "${words[@]}" "${quick[@]}" "$evil/run.yaml" "$flag" "$thing"
        done
    done
done 3<<<"$verbs"
for key in data.sources data.tokenizer model.init run.dir data.cache_dir pipeline.schedule evaluation.tasks data.validation model.config; do
    for value in "$evil/none" "$evil" "[$evil/none]" "$evil/garbage.json"; do shown plan "$evil/run.yaml" "$key=$value" && shown train "$evil/run.yaml" run.dir=new "$key=$value"; done
done
echo "$count commands"
[ "$count" -ge 300 ] || fail "only $count commands: are flags and verbs found?"
conclude "no escape sequence reaches the terminal"
