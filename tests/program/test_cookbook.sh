#!/bin/bash
# Runs every command of docs/use/cookbook.md, in order, with smaller numbers.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
docs=$WEFT_SOURCE_DIR/docs

mkdir bin texts more
ln -s "$weft" bin/weft
export PATH=$directory/bin:$PATH
letters 60 1 >texts/one.txt
letters 60 2 >texts/two.txt
letters 20 3 >held-out.txt
letters 60 4 | awk 'NF { printf "{\"text\": \"%s\"}\n", $0 }' >more/lines.jsonl

# Replaces the page's numbers by smaller ones. Numbers of steps keep their proportions.
smaller() {
    sed 's/hidden_size: 512/hidden_size: 32/; s/intermediate_size: 1408/intermediate_size: 48/; s/num_hidden_layers: 8/num_hidden_layers: 2/
        s/num_attention_heads: 8/num_attention_heads: 4/; s/context: 512/context: 32/; s/tokens_per_step: 16384/tokens_per_step: 512/
        s/--vocab 8192/--vocab 300/; s/\(steps[=:] *\)\([1-9][0-9]*\)00\b/\1\2/g; s/\(every: *\)\([1-9][0-9]*\)00\b/\1\2/g
        s/train.steps=3\b/train.steps=60/; s/--tokens 100/--tokens 5/'
}
# Prints the kind of each block of the page, and its text with \001 for line ends.
blocks() {
    awk '/^```/ { if (kind) print kind, text; kind = kind ? "" : substr($0, 4); text = ""; next }
        kind { text = text $0 "\001" }' "$docs/use/cookbook.md"
}
count=0
while read -r kind text; do
    tr '\001' '\n' <<<"$text" | smaller >block
    if [ "$kind" = yaml ]; then
        name=$(sed -n '1s/^# //p' block)
        [ -n "$name" ] || fail "a configuration of the page has no name"
        cp block "$name"
        continue
    fi
    # One command at a time: comparing runs that differ exits with 1.
    while IFS= read -r line; do
        while [[ $line == *\\ ]]; do IFS= read -r next; line="${line%\\} $next"; done
        [ -n "$line" ] || continue
        count=$((count + 1))
        status=0
        OMP_NUM_THREADS=1 bash -c "$line" >out 2>err </dev/null || status=$?
        [ "$status" -eq 0 ] || { [ "$status" -eq 1 ] && [[ $line == "weft compare "* ]]; } || fail "status $status: $line: $(tail -3 err)"
        cp err "err.$count"
    done <block
done < <(blocks)
[ "$count" -ge 20 ] || fail "only $count commands were found on the page"

# The results that the page promises.
[ "$(grep -c '^## [0-9]' "$docs/use/cookbook.md")" -eq 10 ] || fail "the page does not have ten recipes"
grep -hq 'the loss falls from' err.* || grep -hq 'no suggestion' err.* || fail "weft report does not say what a range test has shown"
[ "$(digest runs/mine)" = "$(digest runs/paused)" ] || fail "a run that went on has other weights"
[ -s runs/mine/report.html ] && [ -s both.html ] && [ -s my-model/model.safetensors ] && [ -s averaged/model.safetensors ] || fail "files are missing"
[ -s runs/mine/slurm.sh ] && [ "$(grep -c '^[0-9]*) run=' runs/sweep/slurm.sh)" -eq 3 ] || fail "the batch scripts are not as the page says"
grep -q '"perplexity"' score.json || fail "score.json: $(cat score.json)"

conclude
