#!/bin/bash
# Runs of several ranks, broken on purpose again and again by faults drawn from a seed. Each attempt ends with the status and the
# message of its fault and is restarted, and the run ends with the bits of an undisturbed one. Prints how long the restarts took.
#   FAULTS=30 SEED=1 tests/ranks/test_faults.sh     (make soak)
# ranks: 4, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
faults=${FAULTS:-3}
RANDOM=${SEED:-1}

letters 200 3 >text.txt
# One non-finite step ends an attempt here, so that the restart repeats it and the curve stays the same.
cat >run.yaml <<EOF_YAML
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, audit: true}
train: {context: 32, microbatch: 2, tokens_per_step: 256, stop_after_bad: 1}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 5}
check: {replicas_every: 5}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
comm: {watchdog_s: ${WATCHDOG:-12}}
restart: {backoff_s: 0}
EOF_YAML
stamp() { while IFS= read -r line; do echo "$EPOCHREALTIME $line"; done; }
count() { grep -c -- "$1" "$2"; }

# draw RANKS COUNT KINDS...: sets spec, and ends: the exit statuses of the attempts. Each turn uses all kinds, in another order.
# Faults are ten steps apart, so that a flipped bit is noticed before the next fault.
draw() {
    local ranks=$1 number=$2 attempt=0 turn=() i at kind
    shift 2
    spec="" ends=""
    for ((i = 0; i < number; i++)); do
        [ ${#turn[@]} -gt 0 ] || turn=("$@")
        at=$((RANDOM % ${#turn[@]}))
        kind=${turn[at]}
        unset "turn[at]"
        turn=("${turn[@]}")
        spec+="$kind:rank=$((RANDOM % ranks)),step=$((10 * i + 6 + RANDOM % 4)),attempt=$attempt"
        case $kind in
        kill) ends+="137 " ;;
        stop) ends+="76 " ;;
        nan) spec+=",seed=$RANDOM" ends+="17 " ;;
        bitflip) spec+=",seed=$RANDOM" ends+="18 " ;;
        slow) spec+=",ms=200" attempt=$((attempt - 1)) ;;
        esac
        attempt=$((attempt + 1))
        spec+=";"
    done
}

# Measures, from the time stamps before the log's lines, the time from each fault that ends an attempt to that end and to the next step.
measure() {
    awk '$2 == "warning:" && $3 == "injected" && $0 !~ /: slow/ { kind = $0; sub(/.*: /, "", kind); sub(/,.*/, "", kind); hit = $1; ended = 0 }
         $0 ~ /training ended/ && hit { ended = $1 }
         $2 ~ /^step:/ && ended { printf "%s %.2f %.2f\n", kind, ended - hit, $1 - hit; hit = ended = 0 }' "$1"
}

# soak NAME COUNT RANKS OVERRIDES -- KINDS: runs with COUNT faults of these kinds and checks the result.
soak() {
    local name=$1 number=$2 ranks=$3 overrides=() status left said before=$failures
    shift 3
    while [ "$1" != -- ]; do overrides+=("$1"); shift; done
    shift
    draw "$ranks" "$number" "$@"
    overrides+=("train.steps=$((10 * number + 8))" -n "$ranks")
    "$weft" train run.yaml "run.dir=$name-whole" "${overrides[@]}" >/dev/null 2>err </dev/null || { fail "$name: $(tail -3 err)"; return; }
    "$weft" train run.yaml "run.dir=$directory/$name" "${overrides[@]}" --restarts "$number" --inject "$spec" 2>&1 >/dev/null </dev/null | stamp >"$name.log"
    status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || fail "$name: ends with $status: $(tail -3 "$name.log")"
    [ "$(count 'injected on rank' "$name.log")" -eq "$number" ] || fail "$name: not $number faults, but $(grep 'injected' "$name.log")"
    said=$(sed -n 's/.*training ended: exit status \([0-9]*\).*/\1/p' "$name.log" | tr '\n' ' ')
    [ "$said" = "$ends" ] || fail "$name: the attempts ended with $said, not $ends, of $spec"
    # Each cause is reported exactly once; a frozen rank is reported by those who waited for it.
    [ "$(count "weft: $killed" "$name.log")" -eq "$(tr ' ' '\n' <<<"$ends" | grep -c 137)" ] || fail "$name: kills"
    [ "$(count 'weft: 1 steps in a row were not finite' "$name.log")" -eq "$(tr ' ' '\n' <<<"$ends" | grep -c 17)" ] || fail "$name: NaNs"
    [ "$(count 'weft: replicas differ after step' "$name.log")" -eq "$(tr ' ' '\n' <<<"$ends" | grep -c 18)" ] || fail "$name: flipped bits"
    [ "$(count 'nothing has come for .* in step' "$name.log")" -ge "$(tr ' ' '\n' <<<"$ends" | grep -c 76)" ] || fail "$name: stops"
    [ "$(count 'weft: rank [0-9]* answers nobody' "$name.log")" -eq "$(tr ' ' '\n' <<<"$ends" | grep -c 76)" ] || fail "$name: verdicts on stops"
    ! grep -q 'microbatch -1' "$name.log" || fail "$name: $(grep -m1 'microbatch -1' "$name.log")"
    # No process is left, and curve, weights and samples are unchanged.
    left=$(pgrep -f "run.dir=$directory/$name" | tr '\n' ' ')
    [ -z "$left" ] || fail "$name: processes are left: $left"
    [ "$(curve "$name-whole")" = "$(curve "$name")" ] || fail "$name: a different curve: $(diff <(curve "$name-whole") <(curve "$name") | head -4)"
    [ "$("$weft" inspect --digest "$name-whole")" = "$("$weft" inspect --digest "$name")" ] || fail "$name: other weights"
    "$weft" audit "$name" >audit 2>&1 || fail "$name: the samples: $(cat audit)"
    measure "$name.log" | tee -a measured | sed "s/^/$name: /"
    [ "$failures" -eq "$before" ] || grep ' weft: \| warning: ' "$name.log"
    [ "$failures" -gt "$before" ] || echo "$name: $number faults ($(sed 's/:[^;]*;/ /g' <<<"$spec")), $(tr -cd ' ' <<<"$ends" | wc -c) restarts: the same curve and weights"
}

: >measured
if [ "$faults" -lt 15 ]; then
    soak hsdp "$faults" 4 mesh.dp_replicate=2 -- kill stop bitflip
else
    soak hsdp $((faults - 2 * (faults / 3))) 4 mesh.dp_replicate=2 -- kill stop nan bitflip slow
    soak fsdp $((faults / 3)) 2 mesh.dp_shard=2 -- kill stop nan slow
    soak pipe $((faults / 3)) 4 mesh.pp=2 mesh.dp_shard=2 -- kill stop nan bitflip slow
fi
[ -s measured ] || fail "no restart was measured"
echo "from the fault to the end of all ranks, and to the next step (seconds: least, median, most)"
for kind in kill stop nan bitflip; do
    for column in 2 3; do
        grep "^$kind " measured | cut -d' ' -f$column | sort -n |
            awk -v kind="$kind" -v what="$([ $column = 2 ] && echo 'the end' || echo 'next step')" \
                '{ v[NR] = $1 } END { if (NR) printf "  %-8s %3d times  %-10s %6.2f %6.2f %6.2f\n", kind, NR, what, v[1], v[int((NR + 1) / 2)], v[NR] }'
    done
done
conclude
