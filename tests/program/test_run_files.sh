#!/bin/bash
# A run and its directory: moved away while it trains, a terminal that closes, a config.json with absurd sizes.
. "$(dirname "$0")/../support/prelude.sh"

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 1000000, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
checkpoint: {every: 50, keep: 2}
metrics: {tensorboard: false, log_freq: 10}
run: {threads: 1}
END
letters 40 5 >text.txt

# begin DIR WORD...: starts a run in the background and waits for its first checkpoint.
begin() {
    local dir=$1
    shift
    "$weft" train run.yaml run.dir="$dir" "$@" >"$dir.out" 2>"$dir.err" </dev/null &
    run=$!
    until [ -e "$dir/checkpoints/latest" ]; do
        kill -0 $run 2>/dev/null || { fail "$dir ended: $(tail -3 "$dir.err")"; return; }
        sleep 0.05
    done
}
# ended STATUS WHAT: waits for the run, which must end with STATUS.
ended() {
    local status=0
    wait $run || status=$?
    [ "$status" -eq "$1" ] || fail "$2: exit status $status, expected $1"
}

begin away
mv away elsewhere
ended 74 "a run directory that was moved"
has away.err "away: no longer holds this run: it was moved, removed or replaced"
[ ! -e away ] || fail "a new directory was made where the run was: $(find away)"
exits 0 checkpoint verify elsewhere

begin replaced
mv replaced other && cp -a other replaced
ended 74 "a run directory in whose place a copy was put"

begin closed
# weft installs no signal handlers: a kernel of oneDNN keeps the stack pointer in a workspace, and the handler's frame would overwrite the memory
# before it.
caught=$(sed -n 's/^SigCgt:[[:blank:]]*//p' "/proc/$run/status")
[ -n "$caught" ] || fail "no SigCgt in the status of a run"
for number in 1 2 10 12 15; do
    [ $((0x0$caught >> (number - 1) & 1)) -eq 0 ] || fail "signal $number is caught by a handler (SigCgt $caught)"
done
kill -HUP $run
ended 75 "SIGHUP"
has closed.err "everything saved"

begin supervised --restarts 2
kill -HUP $run
ended 75 "SIGHUP to a supervisor"
has supervised.err "everything saved"

# Under nohup the run continues when the terminal closes.
(trap '' HUP; exec "$weft" train run.yaml run.dir=nohup >nohup.out 2>nohup.err </dev/null) &
run=$!
until [ -e nohup/checkpoints/latest ] || ! kill -0 $run; do sleep 0.05; done
kill -HUP $run
for _ in 1 2; do # a run that ends saves once, so wait for two new checkpoints
    before=$(readlink nohup/checkpoints/latest)
    until [ "$(readlink nohup/checkpoints/latest)" != "$before" ] || ! kill -0 $run; do sleep 0.05; done
done
kill -0 $run || fail "SIGHUP ends a run under nohup"
kill -TERM $run
ended 75 "SIGTERM under nohup"

if command -v "$launcher" >/dev/null; then
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    begin ranks -n 2
    kill -HUP $run
    ended 75 "SIGHUP to the launcher of ranks"
fi

# config.json implies terabytes, the weights have a few KiB: refused before any memory is allocated.
model=closed/$(cd closed && echo checkpoints/step-* | cut -d' ' -f1)
cp -rL "$model" huge
sed -i 's/"intermediate_size": 16/"intermediate_size": 1000000/; s/"vocab_size": 258/"vocab_size": 10000000/' huge/config.json
rm huge/manifest.json
sed 1d run.yaml >bare.yaml
for words in "generate huge" "eval huge text.txt" "train bare.yaml model.init=huge run.dir=new train.steps=1"; do
    exits 65 $words
    has err "config.json and the weights do not match"
done
sed -i 's/"num_hidden_layers": 1,/"num_hidden_layers": 50000,/' huge/config.json
exits 65 generate huge
has err "config.json says 50000 layers, the files hold 12 tensors in all"

conclude
