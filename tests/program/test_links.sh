#!/bin/bash
# Links and crafted names among weft's own files: in a run, among its checkpoints, in what it removes, in a token cache. Each
# trick leads to an outside directory that must not change by a byte, and has a clear result: an error or a message that names
# the path, or the link itself replaced or removed.
. "$(dirname "$0")/../support/prelude.sh"

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes, audit: true}
train: {steps: 4, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {total_steps: 6}
checkpoint: {every: 2, keep: 2}
run: {threads: 1}
END
letters 40 5 >text.txt
touch -d '1 hour ago' text.txt
exits 0 train run.yaml run.dir=base
[ -d base/checkpoints/step-00000004 ] || { cat err; exit 1; }

# The outside directory: a run like the real one, and files with names that weft would remove or write.
cp -a base outside
cp -a cache outside/cache
mkdir outside/more
for name in word.json part-00000.tok lock stop events.out.tfevents.1.x.1.1 .tmp-step-00000001; do echo mine >"outside/more/$name"; done
canary() { (cd outside && find . -printf '%P %y %s %m %T@\n' | sort && find . -type f -exec sha256sum {} + | sort); }

tricks=0
# trick STATUS TEXT SETUP WORD...: copies the run to t and the cache to c, evaluates SETUP, then runs weft WORD... Checks its exit status, TEXT
# in its messages ("" for any), and that the outside directory is unchanged.
trick() {
    local status=$1 text=$2 setup=$3 before
    shift 3
    rm -rf t c
    cp -a base t
    cp -a cache c
    eval "$setup" || fail "cannot set up: $setup"
    before=$(canary)
    exits "$status" "$@"
    [ -z "$text" ] || grep -qF -- "$text" err out || fail "after \"$setup\": no \"$text\" in: $(head -c 600 err)"
    [ "$(canary)" = "$before" ] || fail "\"$setup\" and weft $1 change what is outside: $(diff <(echo "$before") <(canary) | head -5)"
    tricks=$((tricks + 1))
}
# gone PATH...: the paths no longer exist. real PATH...: they exist and are no links.
gone() { for path; do [ ! -e "$path" ] && [ ! -L "$path" ] || fail "$path is still there"; done; }
real() { for path; do [ -e "$path" ] && [ ! -L "$path" ] || fail "$path is a link, or not there"; done; }
go=(train run.yaml run.dir=t train.steps=6 data.cache_dir=c)
anew=(train run.yaml run.dir=t train.steps=2 data.cache_dir=c run.overwrite=true)

# ---- the run directory: links are refused for files that are written in place ----
for name in lock metrics.jsonl journal.jsonl audit-00000.log; do
    refused=73
    case $name in metrics.jsonl | audit-00000.log) refused=66 ;; esac # read before they are written
    trick $refused "t/$name: expected a regular file, found a link" "ln -sf ../outside/$name t/$name" "${go[@]}"
    [ $name = metrics.jsonl ] && refused=73
    trick $refused "t/$name: expected a regular file, found a link" "ln -sf ../outside/nothing t/$name" "${go[@]}"
    trick 73 "t/$name: expected a file with this name alone, found one with 2" "ln -f outside/$name t/$name" "${go[@]}"
done
trick 73 "found a device, pipe or socket" "rm t/lock && mkfifo t/lock" "${go[@]}"
trick 73 "t/lock" "rm t/lock && mkdir t/lock" "${go[@]}"
trick 66 "t/audit-00007.log: expected a regular file, found a link" "ln -s ../outside/audit-00000.log t/audit-00007.log" "${go[@]}"
trick 73 "t/stop: cannot remove it" "mkdir t/stop" "${go[@]}"
for words in go anew; do
    declare -n these=$words
    trick 73 "t/checkpoints: expected a directory, found a link" "rm -r t/checkpoints && ln -s ../outside/checkpoints t/checkpoints" "${these[@]}"
    trick 73 "t/tensorboard: expected a directory, found a link" "rm -r t/tensorboard && ln -s ../outside/more t/tensorboard" "${these[@]}"
done

# ---- the run directory, the checkpoints, their trash: replacing and removing act on the link, not its target ----
harmless='
ln -sf ../outside/config.yaml t/config.yaml
ln -f outside/tokenizer.json t/tokenizer.json
ln -s ../outside/more/word.json t/stop
ln -s ../outside/more/word.json t/config.yaml.1.2.tmp
echo mine >t/notes.1.2.tmp
mkdir -p t/checkpoints/.tmp-step-mine t/checkpoints/.tmp-step-00000003/deep/deeper t/checkpoints/.trash-step-00000001
ln -s ../../outside/checkpoints/step-00000004 t/checkpoints/.tmp-step-00000006
ln -s ../../../../outside/more t/checkpoints/.tmp-step-00000003/deep/out
ln -s ../../outside/more t/checkpoints/.trash-step-00000002
ln -f outside/more/word.json t/checkpoints/.trash-step-00000001/word.json
ln -sn ../../../outside/more t/checkpoints/.trash-step-00000001/out
mkdir t/checkpoints/.tmp-latest
ln -s ../../../outside/more/word.json t/checkpoints/.tmp-latest/word.json
ln -sfn ../../outside/more t/checkpoints/latest
ln -s ../../outside/nothing t/checkpoints/step-00000006
ln -s ../../outside/checkpoints/step-00000004 t/checkpoints/step-00000009
'
trick 0 "t/checkpoints/step-00000009: expected a directory, found a link" "$harmless" "${go[@]}"
has err "resumed after step 4"
real t/config.yaml t/tokenizer.json t/checkpoints/step-00000006 t/notes.1.2.tmp t/checkpoints/.tmp-step-mine
gone t/stop t/config.yaml.1.2.tmp t/checkpoints/.tmp-step-0000000{3,6} t/checkpoints/.trash-step-0000000{1,2} t/checkpoints/.tmp-latest
[ "$(readlink t/checkpoints/latest)" = step-00000006 ] || fail "latest leads to $(readlink t/checkpoints/latest)"
tricks=$((tricks + 14)) # the tricks in `harmless`

trick 0 "" "ln -s ../../outside/more/word.json t/tensorboard/events.out.tfevents.9.x.1.1; ln -s ../outside/metrics.jsonl t/metrics-00009.jsonl
    ln -sf ../outside/nothing t/audit-00000.log; ln -sf ../outside/nothing t/journal.jsonl
    ln -s ../outside/audit-00000.log t/audit-00009.log; ln -s ../../../outside/more t/checkpoints/step-00000002/out" "${anew[@]}"
real t/audit-00000.log t/journal.jsonl
gone t/tensorboard/events.out.tfevents.9.x.1.1 t/metrics-00009.jsonl t/audit-00009.log t/checkpoints/step-00000004
trick 0 "" "mkdir keep; ln -sfn ../../outside/more t/checkpoints/latest; rm -rf t/checkpoints/step-00000006; echo x >t/checkpoints/step-00000006" "${go[@]}"
real t/checkpoints/step-00000006/manifest.json

# ---- in a checkpoint: nothing is read through a link, and a copied or renamed checkpoint does not count ----
for name in manifest.json model.safetensors optimizer.safetensors state.json config.json; do
    trick 0 "checkpoint passed over" "ln -sf ../../../outside/checkpoints/step-00000004/$name t/checkpoints/step-00000004/$name" "${go[@]}"
    has err "step-00000004/$name: expected a regular file, found a link"
    has err "resumed after step 2"
done
trick 0 "it holds the checkpoint of step 4: a directory that was copied or renamed" \
    "mv t/checkpoints/step-00000004 t/checkpoints/step-00000005" "${go[@]}"
has err "resumed after step 2"
trick 65 "damaged: t/checkpoints/step-00000005: it holds the checkpoint of step 4" \
    "cp -a t/checkpoints/step-00000004 t/checkpoints/step-00000005" checkpoint list t
trick 65 "damaged: t/checkpoints/step-00000009: expected a directory, found a link" \
    "ln -s ../../outside/checkpoints/step-00000004 t/checkpoints/step-00000009" checkpoint verify t
trick 0 "0 removed" "ln -s ../../outside/more t/checkpoints/.trash-step-00000001; ln -s ../../outside/checkpoints/step-00000004 t/checkpoints/step-00000009" \
    checkpoint prune t
gone t/checkpoints/.trash-step-00000001
for verb in "checkpoint list t" "checkpoint prune t" "generate t" "inspect t"; do
    trick 73 "t/checkpoints: expected a directory, found a link" "rm -r t/checkpoints && ln -s ../outside/checkpoints t/checkpoints" $verb
done
trick 66 "t/metrics.jsonl: expected a regular file, found a link" "ln -sf ../outside/metrics.jsonl t/metrics.jsonl" report t
trick 66 "t/config.yaml: expected a regular file, found a link" "ln -sf ../outside/config.yaml t/config.yaml" report t
trick 0 "" "ln -s ../outside/more/word.json t/report.html" report t
real t/report.html
trick 66 "t/audit-00000.log: expected a regular file, found a link" "ln -sf ../outside/audit-00000.log t/audit-00000.log" audit t
trick 73 "t/lock: expected a regular file, found a link" "ln -sf ../outside/lock t/lock" stop t

# ---- the token cache ----
key=$(cd cache && echo [0-9a-f]*[0-9a-f])
again=(tokenize run.yaml data.cache_dir=c)
trick 73 "c/$key: expected a directory, found a link" "rm -r c/$key && ln -s ../outside/cache/$key c/$key" "${again[@]}"
trick 66 "c/$key/part-00000.tok: expected a regular file, found a link" \
    "ln -sf ../../outside/cache/$key/part-00000.tok c/$key/part-00000.tok" "${again[@]}"
trick 66 "found a device, pipe or socket" "rm c/$key/part-00000.tok && mkfifo c/$key/part-00000.tok" "${again[@]}"
trick 73 "c/$key/lock: expected a regular file, found a link" "rm c/$key/*; ln -s ../../outside/lock c/$key/lock" "${again[@]}"
trick 73 "found one with 2 (hard links)" "rm c/$key/*; ln outside/lock c/$key/lock" "${again[@]}"
trick 0 "" "rm c/$key/*; ln -s ../../outside/more/part-00000.tok c/$key/part-00000.tok.tmp; ln -s ../../outside/more/word.json c/$key/about.json
    ln -s ../../outside/more/word.json c/$key/about.json.1.1.tmp; ln outside/more/part-00000.tok c/$key/part-00001.tok.tmp" "${again[@]}"
real "c/$key/about.json" "c/$key/part-00000.tok"
gone "c/$key/"{part-00000.tok.tmp,part-00001.tok.tmp,about.json.1.1.tmp}
tricks=$((tricks + 3))
sleep 2 # fingerprints are cached only for files that are a while old
memory=c/fingerprints.jsonl
trick 0 "$memory: expected a regular file, found a link" "rm -f $memory; ln -s ../outside/more/word.json $memory" "${again[@]}"
trick 0 "found one with 2 (hard links)" "rm $memory; ln outside/more/word.json $memory" "${again[@]}"
rm $memory

[ "$tricks" -ge 50 ] || fail "only $tricks tricks were tried"
conclude "$tricks tricks"
