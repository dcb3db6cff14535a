#!/bin/bash
# Runs as users start them: the same bits with any layout and interruption, constant memory, and an error with its own exit
# status for each kind of bad input.
. "$(dirname "$0")/../support/prelude.sh"

# A text with structure: some hundred short paragraphs.
awk 'BEGIN { srand(7); split("the light and dark of day night sea land was made good very many seed tree fruit", w, " ")
    for (p = 0; p < 300; p++) { for (i = 0; i < 40; i++) printf "%s ", w[int(rand() * 16) + 1]; printf "\n\n" } }' >text.txt

cat >run.yaml <<EOF
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data:
  sources: [{path: text.txt, split: paragraphs}]
  cache_dir: cache
  document_mask: true
  validation_fraction: 0.1
train: {steps: 30, context: 32, microbatch: 2, tokens_per_step: 256, compute: fp32}
optimizer: {lr: 3e-3}
lr_schedule: {warmup_steps: 4}
validation: {every: 10, samples: 8}
checkpoint: {every: 10, keep: 8}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
EOF

# train DIR WORD... : runs weft train; exit status in $status.
train() {
    local dir=$1
    shift
    status=0
    "$weft" train run.yaml run.dir="$dir" "$@" >"$dir.out" 2>"$dir.err" </dev/null || status=$?
}
# same DIR WHAT : DIR must be equal to the run `base`.
same() {
    [ "$status" -eq 0 ] || fail "$2: exit status $status: $(tail -3 "$1.err")"
    [ "$(curve "$1")" = "$(curve base)" ] || fail "$2 changes the curve: $(diff <(curve base) <(curve "$1") | head -4)"
    [ "$(digest "$1")" = "$(digest base)" ] || fail "$2 changes the final weights"
}

# Nothing freed is kept: some processors' products allocate, and what an address sanitizer keeps of that would count as growth.
ASAN_OPTIONS=${ASAN_OPTIONS:-}:quarantine_size_mb=0:thread_local_quarantine_size_kb=0 train base
[ "$status" -eq 0 ] || { cat base.err; exit 1; }
[ "$(curve base | wc -l)" -eq 30 ] || fail "30 steps make $(curve base | wc -l) records"
awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < 0.8 * first) }' <(curve base) || fail "the loss does not fall: $(curve base)"
! LC_ALL=C grep -q $'\x1b' base.out base.err || fail "escape bytes where there is no terminal"
grep -q "memory" base.err || fail "the plan is not printed"
has base.err "4 microbatches of 2 sequences of 32,"
exits 0 plan run.yaml train.microbatch=1 train.tokens_per_step=32
has out "1 microbatch of 1 sequence of 32,"

train again
same again "running again"
train threads run.threads=2
same threads "a second thread"
train split train.split_backward=true
same split "splitting the backward pass"
train recompute train.recompute=full
same recompute "recomputing"
train prefetch data.prefetch=1
same prefetch "another prefetch depth"
train bf16 train.compute=bf16
train bf16b train.compute=bf16 run.threads=2
[ "$(curve bf16)" = "$(curve bf16b)" ] || fail "bf16: a second thread changes the curve"
[ "$(curve bf16)" != "$(curve base)" ] || fail "bf16 computes in fp32"

# The memory of the process in step 2 is that of the last step, except for up to 1 MiB that the system adds.
awk -F'"memory_resident": ' '/"kind": "train"/ { split($2, a, ","); n++; if (n == 2) two = a[1]; last = a[1] }
    END { if (last - two > 1048576) { print two, last; exit 1 } }' base/metrics.jsonl || fail "memory grows between step 2 and the last"

# Killed and resumed, stopped and resumed: the same run.
"$weft" train run.yaml run.dir=killed >/dev/null 2>&1 </dev/null &
until [ -e killed/checkpoints/step-00000010/manifest.json ] || ! kill -0 $! 2>/dev/null; do sleep 0.01; done
kill -KILL $! 2>/dev/null
wait $! 2>/dev/null
train killed
same killed "being killed"
"$weft" train run.yaml run.dir=stopped metrics.log_freq=1 >/dev/null 2>stopped.first </dev/null &
until grep -q "step:  3 " stopped.first 2>/dev/null || ! kill -0 $! 2>/dev/null; do sleep 0.01; done
kill -USR1 $! 2>/dev/null
wait $!
first=$?
case $first in
75) grep -q "everything saved" stopped.first || fail "no message about stopping: $(tail -1 stopped.first)" ;;
0) ;; # the run finished before the signal came
*) fail "SIGUSR1: exit status $first, expected 75" ;;
esac
train stopped
same stopped "being stopped"
# Nothing freed is kept: some processors' products allocate, and what an address sanitizer keeps of that would count as growth.
ASAN_OPTIONS=${ASAN_OPTIONS:-}:quarantine_size_mb=0:thread_local_quarantine_size_kb=0 train base
[ "$status" -eq 0 ] && [ "$(curve base | wc -l)" -eq 30 ] || fail "a finished run started again: status $status"

# Advice on how often to save is only for runs to which it makes a difference.
train unadvised checkpoint.mttf_hours=0.001
hasnt unadvised.err "loses least"
train advised checkpoint.mttf_hours=1e6
has advised.err "loses least (Young)"

# With -q: no summary, no plan, no chart.
train quiet -q metrics.profile=true
same quiet "being quiet"
[ ! -s quiet.out ] && [ ! -s quiet.err ] || fail "train -q says: $(head -3 quiet.out quiet.err)"

# On a terminal the live line is never behind the lines above it.
TERM=xterm WEFT_TERMINAL=120 NO_COLOR=1 train live metrics.log_freq=5
tr '\r' '\n' <live.err | awk '/step: +[0-9]/ && !/validate/ { match($0, /step: +[0-9]+/); shown = substr($0, RSTART + 5, RLENGTH - 5) + 0 }
    match($0, / [0-9]+\/30  loss/) { seen++; behind += substr($0, RSTART + 1, RLENGTH) + 0 < shown }
    END { exit !(seen && !behind) }' || fail "the live line: $(cat -v live.err | tail -20)"

# A checkpoint is a model to evaluate, to sample from, to start from.
"$weft" eval base text.txt --context 32 --json >eval.json 2>/dev/null || fail "eval"
exits 66 eval base nofile
[ "$(grep -o nofile err | wc -l)" -eq 1 ] || fail "eval of no file: $(cat err)"
exits 71 eval base text.txt -b 1000000 -c 2048
has err "--batch"
exits 0 generate --help
[ "$(grep -c -e --quiet out)" -eq 1 ] || fail "generate --help lists --quiet $(grep -c -e --quiet out) times"
grep -q '"bits_per_byte": [0-9.]*,' eval.json || fail "eval says $(cat eval.json)"
"$weft" generate base --prompt "the light" --tokens 20 --seed 3 >one.txt 2>/dev/null || fail "generate"
"$weft" generate base --prompt "the light" --tokens 20 --seed 3 --threads 2 >two.txt 2>/dev/null
cmp -s one.txt two.txt || fail "the same seed gives another text"
grep -q "^the light" one.txt || fail "generate writes: $(cat one.txt)"
train onward model.init=base train.steps=31 lr_schedule.warmup_steps=0
[ "$status" -eq 0 ] || fail "starting from a model: $(tail -1 onward.err)"
awk 'NR == FNR { last = $2; next } FNR == 1 { exit !($2 < last * 1.2) }' <(curve base) <(curve onward) || fail "weights of model.init are not used"
"$weft" report base >/dev/null 2>&1 && grep -q "</html>" base/report.html || fail "report"
"$weft" config run.yaml optimizer.lr=1e-4 >config.out || fail "config"
grep -q "command line" config.out && grep -q "run.yaml:" config.out || fail "config names no sources"
exits 0 config --plain base/config.yaml
diff <(sed 's/  # .*//' base/config.yaml) out >diff.out || fail "config.yaml of a run does not read back: $(head -5 diff.out)"
printf 'model: {init: base}\ntrain: {context: 32}\n' >init.yaml
exits 0 config init.yaml
grep -q 'hidden_size: 32  # .*base/checkpoints/step-.*/config.json' out || fail "a value of config.json has another source: $(grep hidden out)"

# A checkpoint whose model file is bf16 resumes with the same bits.
train rounded checkpoint.dtype=bf16 train.steps=20 lr_schedule.total_steps=30
train rounded checkpoint.dtype=bf16 lr_schedule.total_steps=30 'run.allow_changes=[train.steps]'
[ "$(curve rounded)" = "$(curve base)" ] || fail "a bf16 model file: resuming changes the curve"

# bad STATUS TEXT WORD... : training fails with that status and message.
bad() {
    local wanted=$1 text=$2
    shift 2
    train bad "$@"
    [ "$status" -eq "$wanted" ] || fail "$*: exit status $status, expected $wanted: $(tail -2 bad.err)"
    [ ! -e bad ] || [ -e bad/config.yaml ] || fail "$*: a start that failed leaves $(ls -A bad)"
    grep -qF -- "$text" bad.err || fail "$*: no \"$text\" in: $(tail -2 bad.err)"
    rm -rf bad
}
bad 78 'did you mean optimizer.lr' optimizer.lrr=1
bad 78 'optimizer.lr' optimizer.lr=fast
bad 78 'train.compute' train.compute=fp8
bad 78 'run.allow_changes: trains.steps: unknown key; did you mean train.steps?' 'run.allow_changes=[data, trains.steps]'
bad 78 'run.allow_changes: nonsense: unknown key' 'run.allow_changes=[train.steps, nonsense]'
bad 78 'num_attention_heads' model.num_attention_heads=5
bad 78 'attention heads of 258 elements (head_dim); at most 256 are done on CPUs' model.head_dim=258
bad 78 'tokens on 1 data-parallel rank do not divide: ' train.tokens_per_step=100
bad 78 'data.sources is empty' 'data.sources=[]'
bad 66 'missing.txt' 'data.sources=[missing.txt]'
bad 66 'no-such.json' data.tokenizer=no-such.json
bad 78 'model.vocab_size is 100' model.vocab_size=100
bad 2 'expected' nonsense
bad 78 'did you mean avx2?' run.device=avx22
grep -qw avx512f /proc/cpuinfo || bad 69 'cannot run "avx512" kernels' run.device=avx512 data.cache_dir=unused
[ ! -e unused ] || fail "text is tokenized for kernels that this processor lacks"
bad 78 'command line: metrics.trace: expected steps as in 3-5, counted from 1, found "5-3"' metrics.trace=5-3
printf 'metrics:\n  trace: abc\n' >trace.yaml
exits 78 config trace.yaml
has err "trace.yaml:2: metrics.trace: expected steps"
bad 78 'run.dir: expected text that is not empty' run.dir=
bad 78 'data.sources[0]: path is missing' 'data.sources=[{weight: 2}]'
bad 71 'parameters' model.hidden_size=40000 model.intermediate_size=100000 model.num_attention_heads=400 model.num_key_value_heads=400 model.num_hidden_layers=200
bad 66 'no/such/model' model.init=no/such/model
mkdir hollow
bad 66 'hollow: neither a model directory (it holds no config.json) nor a run' model.init=hollow
bad 78 'model.hidden_size does not fit the weights of model.init' model.init=base model.hidden_size=64
bad 78 'model.num_key_value_heads does not fit' model.init=base model.num_key_value_heads=4
printf '{"text": "fine"}\n{"text": 3}\n' >broken.jsonl
bad 65 'broken.jsonl:2' 'data.sources=[broken.jsonl]' data.validation_fraction=0
printf '{"model": {"type": "BPE"}}' >broken.json
bad 65 'broken.json' data.tokenizer=broken.json
printf 'model:\n  hidden_size: 8\n hidden_size: 9\n' >broken.yaml
"$weft" train broken.yaml 2>err && fail "a broken YAML file is accepted"
grep -q 'broken.yaml:' err || fail "a broken YAML file: $(cat err)"
"$weft" train absent.yaml 2>err
[ $? -eq 66 ] || fail "an absent configuration: $(cat err)"

# A non-finite step is skipped, counted and reported; several in a row end the run.
bad 17 'steps in a row were not finite' optimizer.lr=1000 optimizer.clip=0 model.initialiser=normal model.init_std=100 train.stop_after_bad=2 optimizer.weight_decay=100

# A non-finite validation is marked wherever it is shown.
mkdir broken-model
cp base/checkpoints/latest/{config.json,tokenizer.json,model.safetensors} broken-model
printf '\0\0\300\177' | dd of=broken-model/model.safetensors bs=1 seek=$(($(stat -c %s broken-model/model.safetensors) - 4)) conv=notrunc status=none
train wild model.init=broken-model train.steps=1
[ "$status" -eq 0 ] || fail "weights that are not finite: exit status $status: $(tail -2 wild.err)"
grep -q 'validate step:  1  loss: nan .* NOT FINITE$' wild.err && grep -q '^warning: validation after step 1: the losses of ' wild.err ||
    fail "a validation that is not finite: $(grep -i valid wild.err)"
grep -q '"kind": "validation", .*"loss": null, .*"nonfinite": [1-9]' wild/metrics.jsonl || fail "metrics: $(grep validation wild/metrics.jsonl)"
exits 0 eval wild text.txt --context 32
grep -q '^loss  *nan nats a token$' out && grep -q '^not finite  *[1-9]' out && grep -q 'warning: the losses of' err ||
    fail "eval of a wild model: $(cat out err)"
exits 0 eval wild text.txt --context 32 --json
grep -q '"loss": null, .*"nonfinite": [1-9]' out || fail "eval --json of a wild model: $(cat out)"

exits 17 generate broken-model --prompt a
has err "the model's logits are not finite"
exits 0 eval base text.txt --context 64
has err "warning: --context is 64: this model is for sequences of 32"

# Settings that will have no effect give a warning.
train remarks train.steps=3 lr_schedule.total_steps=2 lr_schedule.warmup_steps=0 data.validation_fraction=0 validation.every=1 metrics.trace=4-5
[ "$status" -eq 0 ] || fail "remarks: exit status $status: $(tail -2 remarks.err)"
has remarks.err "warning: lr_schedule.total_steps is 2 of 3 steps: the learning rate is 0 after it"
has remarks.err "warning: validation.every is 1, and there is nothing to validate on: set data.validation_fraction, or data.validation"
has remarks.err "warning: metrics.trace is 4-5, and the run has 3 steps: nothing is traced"
train remarks train.steps=1 lr_schedule.warmup_steps=5 validation.samples=100000 run.overwrite=true
has remarks.err "warning: lr_schedule.warmup_steps is 5, and the schedule has 1 steps: the learning rate warms up to the end and never comes down; a tenth is usual, lr_schedule.warmup_steps=1"
grep -q '^warning: validation.samples is 100000, and there are [0-9]*: all are taken' remarks.err || fail "too many samples: $(grep warn remarks.err)"
cp text.txt twice.txt
train remarks train.steps=1 lr_schedule.warmup_steps=0 run.overwrite=true data.cache_dir=twice 'data.sources=[text.txt, twice.txt]'
has remarks.err "warning: twice.txt holds what text.txt holds: it is trained on that much more often"
train remarks train.steps=1 lr_schedule.warmup_steps=0 run.overwrite=true data.cache_dir=twice data.validation_fraction=0 'data.validation=[twice.txt]'
has remarks.err "warning: twice.txt holds what text.txt holds: the validation loss is one of text that is trained on"
! grep '^warning' base.err | grep -v 'other programs use this machine' || fail "remarks on a run that has what it asks for"
sed '/^lr_schedule:/d' run.yaml >unsaid.yaml
exits 0 train unsaid.yaml run.dir=unsaid train.steps=2 data.validation_fraction=0
has err "warning: lr_schedule.warmup_steps is 200 by default, and the schedule has 2 steps: "
! grep -q 'mfu\|matrix-product peak' err || fail "a run of milliseconds has an mfu: $(cat err)"

# Before its first step, a long run reports how long it will take, and how often its text is read.
train endless train.steps=100000000 lr_schedule.total_steps=30 --inject kill:rank=0,step=2
[ "$status" -eq 137 ] || fail "killed: exit status $status"
grep -qE '^time    about [0-9dhms.]+ for 100,000,000 steps on this machine, at [0-9.e-]+ TFLOP/s: [0-9.e-]+ s a step, ' endless.err || fail "how long a run takes: $(cat endless.err)"
grep -q '^warning: text.txt is read [0-9.]* times in 100000000 steps: ' endless.err || fail "how often a text is read: $(grep ^warning endless.err)"
# More tokens than 64 bits can count, for a run that is meant to go on until it is stopped.
train forever train.steps=1000000000000 train.tokens_per_step=16777216 train.rampup_start=256 train.rampup_tokens=10000 lr_schedule.total_steps=30 --inject kill:rank=0,step=1
grep -qE '^warning: text.txt is read [0-9.e+]* times in 1000000000000 steps: ' forever.err || fail "how often a text is read: $(grep ^warning forever.err)"
grep -qE '^time    about .+ for 1,000,000,000,000 steps on' forever.err || fail "how long a run without end takes: $(cat forever.err)"

# A complete run continues if given more steps; an incomplete one keeps its schedule.
train more train.steps=4
train more train.steps=6
[ "$status" -eq 0 ] && [ "$(curve more | wc -l)" -eq 6 ] || fail "more steps for a finished run: status $status: $(tail -1 more.err)"
has more.err "from step 5 on: train.steps was 4 and is 6 now (another curve)"
grep -q '^the run had its 4 steps and goes on to 6: the learning rate is .* at first, and was .* at last$' more.err || fail "more steps: $(cat more.err)"
has more/journal.jsonl "train.steps was 4 and is 6 now"
train more train.steps=5
[ "$status" -eq 78 ] || fail "fewer steps than a run has made: exit status $status: $(tail -1 more.err)"

# Weights of one tokenizer and text of another: the sizes match, but the model would be meaningless.
"$weft" tokenizer train text.txt -o other.json -n 258 >/dev/null 2>&1 || fail "a tokenizer of 258 entries"
exits 78 train run.yaml run.dir=unlike model.init=base data.tokenizer=other.json
has err "data.tokenizer, other.json, is not the tokenizer of model.init, base: set data.tokenizer=base/checkpoints/step-00000030/tokenizer.json"
train unlike model.init=base data.tokenizer=other.json train.steps=1 'run.allow_changes=[tokenizer]'
[ "$status" -eq 0 ] || fail "another tokenizer, allowed: $(tail -2 unlike.err)"

# An evaluation keeps its tokens in a scratch directory; the next one removes what killed ones left.
mkdir scratch
export TMPDIR=$directory/scratch
awk 'BEGIN { for (i = 0; i < 300000; i++) printf "%d ", i * 7919 % 100003 }' >long.txt
"$weft" eval base long.txt >/dev/null 2>&1 </dev/null &
until [ -n "$(ls scratch)" ] || is_gone $!; do sleep 0.01; done
kill -KILL $! 2>/dev/null
wait $! 2>/dev/null
mkdir -p scratch/weft-evaluation scratch/weft-eval-ours scratch/mine
echo kept >scratch/mine/file
ln -s ../mine scratch/weft-eval-linked
exec 8<scratch/weft-eval-ours
flock 8
exits 0 eval base text.txt --context 32
[ "$(cd scratch && echo *)" = "mine weft-eval-linked weft-eval-ours weft-evaluation" ] && [ -e scratch/mine/file ] ||
    fail "a killed evaluation left, or the next removed too much: $(cd scratch && echo *)"
exec 8<&-
unset TMPDIR
rm long.txt

# All checkpoints damaged: the error says what to do.
cp -r base damaged
for step in damaged/checkpoints/step-*; do printf X | dd of="$step/model.safetensors" bs=1 seek=5000 conv=notrunc status=none; done
train damaged
[ "$status" -eq 65 ] && grep -q 'no checkpoint is good: "weft checkpoint verify" .* run.overwrite=true' damaged.err ||
    fail "all checkpoints damaged: status $status: $(tail -1 damaged.err)"
# A directory that existed before stays.
train hollow data.tokenizer=no-such.json
[ "$status" -eq 66 ] && [ -d hollow ] && [ -z "$(ls -A hollow)" ] || fail "a failed start in an empty directory: $(ls -A hollow)"

# Changing a key that would change the curve is refused with an error that names it.
train base optimizer.lr=1e-3
[ "$status" -eq 78 ] && grep -q "optimizer.lr was" base.err || fail "another lr: status $status: $(tail -1 base.err)"
train base optimizer.lr=1e-3 optimizer.beta1=0.5 train.steps=20
[ "$status" -eq 78 ] && grep -q "optimizer.lr was .*train.steps was 30 .*run.allow_changes=\[optimizer.lr, optimizer.beta1, train.steps\]" base.err ||
    fail "not all that differs is named: $(tail -1 base.err)"
train base optimizer.kind=sgd run.allow_changes=[optimizer.kind]
[ "$status" -eq 78 ] && grep -q "optimizer.kind was adamw when .* is sgd now, which is another run" base.err ||
    fail "another optimizer: status $status: $(tail -1 base.err)"
train base 'optimizer.groups=[{match: mlp, lr: 1e-3}]'
[ "$status" -eq 78 ] && grep -q "optimizer.groups was \[\] when .* is \[{match: mlp, lr: 0.001}\] now" base.err ||
    fail "other groups: status $status: $(tail -1 base.err)"
# A group whose optimizer states differ from the checkpoint's: the error names them.
train base 'optimizer.groups=[{match: mlp, kind: sgd}]' run.allow_changes=[optimizer.groups]
[ "$status" -eq 65 ] && grep -q "exp_avg.model.layers.0.mlp.* or the run has another optimizer" base.err ||
    fail "states that are not there: status $status: $(tail -1 base.err)"
bad 78 'optimizer.groups[0].match: no parameter has "experts" in its name' 'optimizer.groups=[{match: experts, lr: 1e-3}]'

# More steps are not a change if the learning rate does not depend on them.
train longer train.steps=20 lr_schedule.total_steps=30
train longer lr_schedule.total_steps=30
[ "$status" -eq 0 ] || fail "more steps with lr_schedule.total_steps: status $status: $(tail -1 longer.err)"
[ "$(curve longer)" = "$(curve base)" ] || fail "more steps with lr_schedule.total_steps: a different curve"
train longer train.steps=25
[ "$status" -eq 78 ] && grep -q "train.steps was 30 .* is 25 now" longer.err || fail "another length: $(tail -1 longer.err)"

# A limit on file sizes is an error like a full disk, and leaves nothing half written.
(ulimit -f 64 && exec "$weft" train run.yaml run.dir=limited metrics.log_freq=10) >/dev/null 2>limited.err </dev/null
status=$?
[ "$status" -eq 74 ] && grep -q "saving the checkpoint of step 10: .*File too large" limited.err || fail "ulimit -f: status $status: $(tail -1 limited.err)"
[ -z "$(ls -A limited/checkpoints 2>/dev/null)" ] || fail "ulimit -f leaves $(ls -A limited/checkpoints)"
head -c 5000 text.txt >other.txt
train base 'data.sources=[other.txt]'
[ "$status" -eq 78 ] && grep -q "data is not what" base.err || fail "other data: status $status: $(tail -1 base.err)"

# A damaged newest checkpoint is named, and the one before it is used; for a damaged cache the error says what to do.
train hurt
printf X | dd of=hurt/checkpoints/step-00000030/model.safetensors bs=1 seek=9000 conv=notrunc status=none
train hurt
grep -q "step-00000030" hurt.err && grep -q "resumed after step 20" hurt.err || fail "a damaged checkpoint: $(head -5 hurt.err)"
same hurt "a damaged checkpoint"
part=$(find cache -name 'part-*.tok' | head -1)
printf X | dd of="$part" bs=1 seek=5000 conv=notrunc status=none
train hurtcache
[ "$status" -eq 65 ] && grep -q "part-" hurtcache.err || fail "a damaged cache: status $status: $(tail -1 hurtcache.err)"

conclude "all runs behave as expected"
