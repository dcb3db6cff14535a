#!/bin/bash
# One bit flips on one rank, in each kind of memory: which check finds it, is the right rank named, and how does the rate compare with the
# predicted one (docs/use/replica-checks.md)? Each flip is made in a run without checks on the way first: of those that change no weight at its
# end there is nothing to find. Prints a row for each kind, and the rates of all:
#   FLIPS=100 KINDS=all MESHES='replicas shards' SEED=1 tests/ranks/test_flips.sh
# ranks: 6, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
flips=${FLIPS:-1} seed=${SEED:-1} meshes=${MESHES:-replicas} steps=8 every=2 microbatches=2
all="gradients activations messages tokens weights moments staging pool=parameters pool=copy pool=gathered pool=gradients pool=slots pool=optimizer
    pool=constants pool=statistics pool=activations pool=workspace pool=communication pool=partner"
kinds=${KINDS:-gradients tokens moments staging pool=optimizer pool=constants pool=workspace}
[ "$kinds" != all ] || kinds=$all

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: $steps, context: 32, microbatch: 2, tokens_per_step: $((3 * microbatches * 64)), compute: bf16}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 1000}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, receipts: true}
comm: {transport: sockets}
END
tokenized
checks=("check.replay_every=$every" check.replicas_every=4)
none=(check.replay_every=0 check.replicas_every=1000) # at the end replicas are compared: the checkpoint has the first one's weights

# run NAME WORD...: sets status; the run's messages are in NAME.err. weights NAME: the digest.
run() {
    status=0
    timeout -k 5 300 "$weft" train run.yaml "run.dir=$1" -n 3 "${words[@]}" "${@:2}" >"$1.out" 2>"$1.err" </dev/null || status=$?
}
weights() { "$weft" inspect --digest "$1" 2>&1; }

# words_of MESH KIND: sets words, what distinguishes these runs.
words_of() {
    words=(mesh.dp_replicate=3)
    [ "$1" = replicas ] || words=(mesh.dp_shard=3)
    [ "$2" != pool=slots ] || words+=(train.gradient_sync=microbatch)
    [ "$2" != staging ] || words+=(checkpoint.every=5)
    [ "$2" != pool=partner ] || words+=(recovery.mode=in_place recovery.partner_copy=true numerics.mode=exact)
}

# verdict NAME RANK: prints what became of a run with checks, which ranks were named (or "right", if only RANK was), and the exit status.
verdict() {
    local by=nothing named=- err=$1.err
    if grep -q 'was computed again and differs' "$err"; then
        by=replay named=$(grep 'was computed again and differs' "$err" | grep -o 'rank [0-9]* on host [^ ;,.]* \(was wrong\|or rank\|is wrong\)' |
            sed 's/rank \([0-9]*\) .*/\1/' | sort -u | tr '\n' ' ')
    elif grep -q 'replicas differ after' "$err"; then
        by=replicas named=$(sed -n 's/.*replicas differ after.* on rank \([0-9]*\) not as.*/\1 /p' "$err")
    elif grep -q 'from which it was written changed in memory' "$err"; then
        by=checksum named=$(sed -n 's/.*rank \([0-9]*\): the copy of .*/\1 /p' "$err")
    elif grep -q 'non-finite' "$err"; then
        by=nonfinite named=$(sed -n 's/.*made by rank \([0-9]*\) .*/\1/p' "$err" | sort -u | tr '\n' ' ')
    elif [ "$status" -ne 0 ]; then
        by=crash
    elif ! "$weft" verify "$1" --step $steps >"$1.verify" 2>&1; then
        by=audit
    fi
    [ "$named" != "$2 " ] || named=right
    echo "$by ${named// /} $status"
}

# flip MESH KIND NUMBER: appends to the results: step, microbatch, verdict.
flip() {
    local mesh=$1 kind=$2 i=$3 words status name=$1-$2-$3 rank step m fault line whole
    RANDOM=$((seed * 7919 + i * 31 + $(cksum <<<"$mesh $kind" | cut -d' ' -f1) % 30000))
    rank=$((RANDOM % 3)) step=$((2 + RANDOM % (steps - 2))) m=$((RANDOM % microbatches)) whole=$(cat "whole-$mesh-$kind.digest")
    [ "$kind" != staging ] || [ "$mesh" = shards ] || rank=0 # of replicas the first holds the copy
    [ "$kind" != staging ] || step=$((2 + RANDOM % 4))       # before the first checkpoint
    words_of "$mesh" "$kind"
    fault="bitflip:rank=$rank,step=$step,seed=$((seed * 100000 + i)),"
    case $kind in
    pool=*) fault+=$kind m=any ;;
    weights | moments | messages | staging) fault+="what=$kind" m=any ;;
    *) fault+="what=$kind,microbatch=$m" ;;
    esac
    run "$name" "${none[@]}" --inject "$fault"
    if grep -q 'injected on .* in nothing' "$name.err"; then
        line="absent - 0"
    elif [ "$kind" != staging ] && [ "$status" -eq 0 ] && ! grep -q non-finite "$name.err" && [ "$(weights "$name")" = "$whole" ]; then
        line="harmless - 0"
    else
        run "$name-checked" "${checks[@]}" --inject "$fault"
        line=$(verdict "$name-checked" "$rank")
        judge "$line" "$fault" "$name-checked" "$whole"
    fi
    echo "$step $m $line $fault" >>"results-$mesh-$kind"
    [ -n "${KEEP:-}" ] || rm -rf "$name" "$name-checked"
}

# judge LINE FAULT RUN WHOLE: what must hold of a flip that had an effect. A step that is made again has the weights of an undisturbed one,
# unless a flip that stays, or another microbatch, was hit too.
judge() {
    local by named ended
    read -r by named ended <<<"$1"
    case $by in
    replicas | checksum) [ "$named" = right ] || [[ $2 == *pool=* ]] || fail "$2: $by blames rank '$named': $(tail -2 "$3.err")" ;;
    replay) [[ $2 != *what=gradients* && $2 != *what=activations* && $2 != *what=tokens* ]] || [ "$named $ended $(weights "$3")" = "right 0 $4" ] ||
        fail "$2: blames rank '$named', status $ended: $(tail -2 "$3.err")" ;;
    esac
    case $2 in
    *what=staging*) [ "$by" = checksum ] || fail "$2: found by $by: $(tail -2 "$3.err")" ;;
    *what=weights* | *what=moments*) [[ $2$3 != *replicas* ]] || [[ "replicas replay nonfinite" == *"$by"* ]] || fail "$2: found by $by" ;;
    esac
}

# row MESH KIND: what a single microbatch does is predicted to be found in replayed steps, if it is the first microbatch.
row() {
    awk -v mesh="$1" -v kind="$2" -v every=$every '
    { n++; by[$3]++; absent += $3 == "absent" }
    $3 == "absent" || $3 == "harmless" { next }
    { effect++; right += $4 == "right"; single = $2 != "any"; due += single && $1 % every == 0 && $2 == 0 }
    END {
        if (absent < n)
            printf "| %s | %s | %d | %d | %d%s | %d | %d | %d | %d | %d | %d | %d |\n", mesh, kind, n, effect, by["replay"], single ? " (" due + 0 ")" : "",
                by["replicas"], by["nonfinite"], by["checksum"], by["crash"], by["audit"], by["nothing"], right
    }' "results-$1-$2"
}

echo '| mesh | kind | flips | with an effect | replay | replicas | non-finite | checksum | crash | verify | nothing | only the right rank named |'
echo '|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|'
for mesh in $meshes; do
    for kind in $kinds; do
        words_of "$mesh" "$kind"
        [ "$mesh $kind" != "replicas pool=partner" ] || continue # needs shards
        run "whole-$mesh-$kind" "${none[@]}"
        [ "$status" -eq 0 ] || { fail "$mesh $kind: $(tail -3 "whole-$mesh-$kind.err")"; continue; }
        weights "whole-$mesh-$kind" >"whole-$mesh-$kind.digest"
        for ((i = 1; i <= flips; i++)); do meanwhile 3 flip "$mesh" "$kind" "$i"; done
        together
        row "$mesh" "$kind"
        [ -z "${RESULTS:-}" ] || cp "results-$mesh-$kind" "$RESULTS/"
    done
done
conclude
