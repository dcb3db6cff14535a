#!/bin/bash
# metrics.command: a program gets every record on stdin, and cannot stop, slow down or outlive a run.
. "$(dirname "$0")/../support/prelude.sh"

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes, validation_fraction: 0.1}
train: {steps: 12, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {kind: constant, warmup_steps: 0, total_steps: 100}
validation: {every: 4, samples: 4}
checkpoint: {every: 6}
metrics: {tensorboard: false, log_freq: 1}
run: {threads: 1}
END
# run DIR WORD...: runs weft train, which must succeed for any behaviour of the program.
run() {
    local dir=$1 status=0
    shift
    timeout 1500 "$weft" train run.yaml run.dir="$dir" "$@" >"$dir.out" 2>"$dir.err" </dev/null || status=$?
    [ "$status" -eq 0 ] || fail "$dir: exit status $status: $(tail -3 "$dir.err")"
}
# told DIR TEXT: the run reported TEXT once in the log and once in the journal.
told() {
    [ "$(grep -c "metrics.command: .*$2" "$1.err")" -eq 1 ] || fail "$1: not reported once ($2): $(grep metrics.command "$1.err")"
    [ "$(grep '"event": "command"' "$1/journal.jsonl" | grep -c "$2")" -eq 1 ] || fail "$1: the journal: $(grep '"event": "command"' "$1/journal.jsonl")"
}
untold() { ! grep -q 'metrics.command' "$1.err" "$1/journal.jsonl" || fail "$1: $(grep -h 'metrics.command' "$1.err" "$1/journal.jsonl")"; }

cat >get <<'END'
#!/bin/bash
# get FILE: a program that records its input and how it was started.
printf '%s\n' "$@" >"$1.words"
echo "$WEFT_RUN_DIR" >"$1.dir"
ls -l /proc/self/fd >"$1.open"
sed -n 's/^Sig\(Blk\|Ign\):[[:blank:]]*//p' /proc/self/status >"$1.signals"
echo "on stdout"
echo "on stderr" >&2
echo $$ >"$1.pid"
exec cat >"$1.got"
END
chmod +x get

# The program gets each record exactly as in the file, and its arguments exactly as in the list: no shell expands them.
run plain metrics.command="['$directory/get', '$directory/a', '\$HOME \$(touch broken); x', '*', '']"
cmp plain/metrics.jsonl a.got || fail "what the program got is not what the run wrote"
printf '%s\n' "$directory/a" '$HOME $(touch broken); x' '*' '' | cmp - a.words || fail "words: $(cat a.words)"
[ ! -e broken ] || fail "a shell has seen the words"
[ "$(cat a.dir)" = "$(realpath plain)" ] || fail "WEFT_RUN_DIR is $(cat a.dir)"
[ "$(cat plain/metrics-command.log)" = $'on stdout\non stderr' ] || fail "the log: $(cat plain/metrics-command.log)"
[ "$(grep -c -- '->' a.open)" -le 4 ] || fail "descriptors of the run in the program: $(cat a.open)" # and that of ls
while read -r set; do # except two of the C library
    [ $((0x$set & ~0x180000000)) -eq 0 ] || fail "signals of the program: $(cat a.signals)"
done <a.signals
untold plain
"$weft" train run.yaml run.dir=without >without.err 2>&1 || fail "a run without a program: $(tail -3 without.err)"
[ "$(curve plain)" = "$(curve without)" ] || fail "a program that listens changes the curve"

# A resumed run sends the remaining records to a new program.
run again train.steps=6
run again train.steps=12 metrics.command="[$directory/get, $directory/b]"
cmp <(grep -vE '"step": [0-6],' again/metrics.jsonl) b.got || fail "a resumed run sent: $(cat b.got)"

# A program that is missing, not executable, ends at once, ends later or never reads: reported once, and the run is unchanged.
run nowhere metrics.command=no-such-program-anywhere
told nowhere "cannot be started (No such file or directory)"
run notone metrics.command="$directory/text.txt"
told notone "cannot be started (Permission denied)"
run dead metrics.command="[sh, -c, 'echo last words; exit 3']" train.steps=400 checkpoint.every=0
told dead "ended with status 3"
grep -q 'last words' dead/metrics-command.log || fail "last words: $(cat dead/metrics-command.log)"
run later metrics.command="[sh, -c, 'head -c 3000 >/dev/null; kill -KILL \$\$']" train.steps=400 checkpoint.every=0
told later "was killed by signal 9"
long="checkpoint.every=0 validation.every=0"
"$weft" train run.yaml run.dir=deaf train.steps=1000000 $long metrics.command="[sh, -c, 'exec <&-; exec sleep 1000']" metrics.command_wait_s=0 \
    >deaf.out 2>deaf.err </dev/null &
await grep -q "closed its standard input" deaf.err
kill -TERM $!
wait $! && fail "a run that was stopped ends with 0"
told deaf "closed its standard input"
told deaf "had not ended after metrics.command_wait_s = 0 s"
run failing metrics.command="[sh, -c, 'cat >/dev/null; exit 7']"
told failing "ended with status 7"
for dir in nowhere notone dead later failing; do
    [ "$(curve "$dir" | head -12)" = "$(curve plain)" ] || fail "$dir: a different curve"
done

# A program that reads nothing: records that do not fit are dropped, counted and reported. At the end it is ended, with its children.
run full metrics.command="[sh, -c, 'sleep 1000 & echo \$! >$directory/child; exec sleep 1000']" train.steps=2000 $long metrics.command_wait_s=0.1
told full "does not keep up"
told full "did not keep up: [0-9]* records were left out, it got [0-9]*; it had not ended after"
[ ! -e child ] || await is_gone "$(cat child)"
[ "$(curve full | wc -l)" -eq 2000 ] || fail "a program that does not read costs records: $(curve full | wc -l)"

# When a program has ended, by itself or on request, its children are ended too, even if they ignore signals.
stubborn="(trap \"\" TERM; echo \$BASHPID >$directory/left; exec sleep 1000) & until [ -s $directory/left ]; do sleep 0.01; done"
for end in "cat >/dev/null" "exit 0" "exec sleep 1000"; do
    rm -f left
    run leaving metrics.command="[bash, -c, '$stubborn; $end']" train.steps=20 metrics.command_wait_s=0.1
    # The program may have been ended before it started a child.
    [ ! -s left ] || await is_gone "$(cat left)"
    rm -rf leaving
done

# A killed run leaves no program behind: the end of its input ends it.
"$weft" train run.yaml run.dir=killed train.steps=1000000 $long metrics.command="[$directory/get, $directory/c]" >killed.err 2>&1 </dev/null &
await has_lines c.got 20
kill -KILL $!
wait $! 2>/dev/null
await is_gone "$(cat c.pid)"

# A run that starts over removes the log; a link in place of the log does not lead out of the directory.
ln -sf "$directory/text.txt" plain/metrics-command.log
sum=$(cksum text.txt)
run plain run.overwrite=true metrics.command="[$directory/get, $directory/d]"
[ "$(cksum text.txt)" = "$sum" ] && [ ! -L plain/metrics-command.log ] || fail "the log was written through a link"
ln -sf "$directory/text.txt" again/metrics-command.log
run again train.steps=14 metrics.command="[$directory/get, $directory/e]"
told again "is not started"
[ "$(cksum text.txt)" = "$sum" ] || fail "the log was written through a link"

# Only rank 0 starts the program.
if command -v "$launcher" >/dev/null; then
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
    run ranks -n 2 train.tokens_per_step=64 metrics.all_ranks=true metrics.command="[$directory/get, $directory/f]"
    cmp ranks/metrics.jsonl f.got || fail "ranks: $(wc -l f.got)"
    untold ranks
fi

exits 78 config run.yaml metrics.command="['']"
has err "metrics.command"
conclude
