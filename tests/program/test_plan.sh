#!/bin/bash
# weft plan, which plans any mesh without its ranks: what ranks hold and send, drawings of pipelines, comparisons, and errors.
#   CURVE=brief tests/program/test_plan.sh     memory limits for fewer schedules, for sanitizers
. "$(dirname "$0")/../support/prelude.sh"
unset TERM
export LC_ALL=C

cat >model.yaml <<END
model:
  vocab_size: 512
  hidden_size: 64
  intermediate_size: 192
  num_hidden_layers: 8
  num_attention_heads: 4
  num_key_value_heads: 2
train:
  context: 32
  microbatch: 2
  tokens_per_step: 4096
  compute: fp32
run:
  threads: 1
END

# plan STATUS WORD...: runs weft plan model.yaml
plan() { expect_alone "$1" plan model.yaml "${@:2}"; }
# row TABLE RANKS: prints the row of these ranks in the table whose title begins with TABLE.
row() { awk -v title="$1" -v ranks="$2" 'index($0, title) == 1 { on = 1; next } /^[^ ]/ { on = 0 } on && $1 == ranks' out; }
# bytes NUMBER UNIT: prints the whole number of bytes.
bytes() { awk -v n="$1" -v u="${2:-B}" 'BEGIN { split("B KiB MiB GiB", names); for (i = 1; names[i] != u; i++) n *= 1024; printf "%.0f\n", n }'; }
# near A B: equal within 1/200, since figures are printed with two decimals.
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d <= b / 200) }'; }
# sent AXIS WORD...: prints the bytes that rank 0 sends in a step; AXIS: pp, replicate, parameters, gradients, total.
sent() {
    local axis=$1 fields index=3
    shift
    plan 0 "$@" >&2
    read -ra fields <<<"$(row "work and bytes" "$(awk '/^work and bytes/ { on = 1 } on && $1 ~ /^0/ && NF > 4 { print $1; exit }' out)")"
    # Cells are "0" or "1.50 KiB".
    local -a cells=()
    for ((index = 2; index < ${#fields[@]}; index++)); do
        if [ "${fields[index]}" = 0 ]; then
            cells+=(0)
        else
            cells+=("$(bytes "${fields[index]}" "${fields[index + 1]}")")
            index=$((index + 1))
        fi
    done
    case $axis in
    pp) echo "${cells[0]}" ;;
    replicate) echo "${cells[1]}" ;;
    parameters) echo "${cells[2]}" ;;
    gradients) echo "${cells[3]}" ;;
    total) echo "${cells[4]}" ;;
    esac
}
is() { near "$2" "$3" || fail "$1: $2, expected $3"; }
zero() { [ "$2" = 0 ] || fail "$1: $2, expected 0"; }

# One rank: the plan mentions no mesh.
plan 0
has out "of this machine's"
hasnt out "mesh "
grep -qE '^time    about [0-9.hmsd]+ for [0-9,]+ steps on this machine, at [0-9.e-]+ TFLOP/s: [0-9.e-]+ s a step, [0-9,]+ tokens/s, by a peak of [0-9.e-]+ TFLOP/s measured now; half or twice as long is possible$' out ||
    fail "how long a run takes: $(grep ^time out)"
# The second plan has the rates of the first; other threads have their own. A file that cannot be used is measured and written again.
rates=$(echo .weft-cache/machine-*.json)
[ -f "$rates" ] || fail "no file of rates: $rates"
cp "$rates" first.json
plan 0
has out "measured before (remove $rates to measure again)"
peak() { sed -n 's/^time .* by a peak of \([0-9.e-]*\) .*/\1/p' out; }
kept=$(peak)
[ "$kept" = "$(awk -F '[:,]' '{ printf "%.3g", $2 / 1e12 }' first.json)" ] || fail "peak $kept of $(cat first.json)"
plan 0 run.threads=2
has out "measured now"
for wrong in '{"peak": 0, "copy": 1, "measured": 1}' '{"peak":' '{"peak": 1e12, "copy": 1e10, "measured": 1000000}'; do
    printf '%s\n' "$wrong" >"$rates"
    plan 0
    has out "measured now"
done
cp first.json "$rates"

# A proposal for a number of FLOPs: its keys plan, and the run they describe has these FLOPs.
# keys: prints the YAML keys of a proposal as words of a command line.
keys() { sed -n 's/^\(model\|train\|optimizer\|lr_schedule\): {\(.*\)}$/\1 \2/p' out | awk '{ section = $1; sub(/^[a-z_]+ /, ""); n = split($0, f, /, /)
    for (i = 1; i <= n; i++) { sub(/: /, "=", f[i]); print section "." f[i] } }'; }
# flops: prints the FLOPs of the run that was planned.
flops() { awk '/^step / { for (i = 1; i < NF; i++) if ($(i + 1) == "TFLOP") each = $i } /^time / { for (i = 1; i < NF; i++) if ($(i + 1) == "steps") steps = $i }
    END { gsub(",", "", steps); printf "%.6g\n", each * 1e12 * steps }' out; }
for budget in 1e14 3e16; do
    plan 0 --budget $budget
    has out "by the scaling laws of DeepSeek LLM"
    has out "an extrapolation"
    mapfile -t words < <(keys)
    [ "${#words[@]}" -ge 9 ] || fail "keys of a proposal: $(cat out)"
    plan 0 "${words[@]}"
    awk -v a="$(flops)" -v b=$budget 'BEGIN { exit !(a > 0.9 * b && a < 1.02 * b) }' || fail "a proposal for $budget FLOPs has $(flops): ${words[*]}"
done
plan 0 --hours 0.5
grep -qE "^  about (29m5|30m0)[0-9]s at " out || fail "half an hour: $(grep about out)"
mapfile -t words < <(keys)
plan 0 "${words[@]}"
# On stated hardware: twice the hours are twice the FLOPs.
plan 0 -n 16 train.compute=bf16 --hardware h100 --hours 2
one=$(sed -n 's/^proposal for \([0-9.e+]*\) FLOPs.*/\1/p' out)
mapfile -t words < <(keys)
plan 0 -n 16 train.compute=bf16 --hardware h100 "${words[@]}" --hours 4
plan 0 -n 16 train.compute=bf16 --hardware h100 --hours 4
near "$(sed -n 's/^proposal for \([0-9.e+]*\) FLOPs.*/\1/p' out)" "$(awk -v a="$one" 'BEGIN { print 2 * a }')" || fail "4 hours after 2: $(grep proposal out) $one"
# Heads divide by tp.
plan 0 -n 4 mesh.tp=2 --budget 1e15
mapfile -t words < <(keys)
plan 0 -n 4 mesh.tp=2 "${words[@]}"
plan 2 --budget 1e17 --hours 3
has err "do not go together"
plan 2 -n 2 --hours 3
has err "needs --hardware or --tflops"
plan 2 --budget 1e17 --compare
has err "do not go together"
plan 2 --budget 1e10 train.context=256 train.microbatch=256 train.tokens_per_step=65536
has err "less than one step"
plan 2 --budget 1e17 model.family=mixtral model.num_experts=4 model.num_experts_per_tok=2
has err "has experts"
plan 0 --memory 1MiB
has out "it will not fit"

# Data parallel: 16 microbatches per rank, 64 in the step. Gradients are reduced once, or once per microbatch: 16 times as much.
once=$(sent replicate -n 4 mesh.dp_replicate=4)
often=$(sent replicate -n 4 mesh.dp_replicate=4 train.gradient_sync=microbatch)
is "gradient_sync: microbatch against step" "$often" $((once * 16))
parameters=$("$weft" plan model.yaml | sed -n 's/^model *\([0-9,]*\) parameters.*/\1/p' | tr -d ,)
is "an all-reduce moves 3/4 of the gradients out, and in" "$once" $((parameters * 4 * 3 / 2))
zero "DDP on dp_shard" "$(sent parameters -n 4 mesh.dp_replicate=4)"
has out "0 on an axis of degree 1: pp dp_shard ep cp tp"
zero "DDP between stages" "$(sent pp -n 4 mesh.dp_replicate=4)"

# Sharded: the same gradients, half of an all-reduce.
once=$(sent gradients -n 4)
often=$(sent gradients -n 4 train.gradient_sync=microbatch)
is "reduce-scatter against all-reduce" "$once" $((parameters * 4 * 3 / 4))
is "reduce-scatters once a microbatch" "$often" $((once * 16))
is "exact sums are of 8 bytes" "$(sent gradients -n 4 numerics.mode=exact)" $((once * 2))
has out "numerics exact, on rank 0: memory"
has out "instead of"
always=$(sent parameters -n 4)
never=$(sent parameters -n 4 train.reshard_after_forward=never)
# Blocks are gathered for the forward and the backward pass of 16 microbatches, embedding and head for one pass of each.
{ [ "$always" -gt $((20 * never)) ] && [ "$always" -lt $((32 * never)) ]; } || fail "gathers: $always always, $never never"

# HSDP in a pipeline: ranks with the same contents share a row; two stages of four ranks each.
plan 0 -n 8 mesh.pp=2 mesh.dp_replicate=2
has out "mesh    8 ranks: pp 2 dp_replicate 2 dp_shard 2"
row "memory of a rank" 0-3 | grep -qF "embedding, layers 0-" || fail "what ranks 0-3 hold: $(cat out)"
row "memory of a rank" 4-7 | grep -qF "norm and head" || fail "what ranks 4-7 hold"
has out "a rank holds 1/2 of its units"
has out "2 replicas hold the same"
plan 0 -n 4 'optimizer.groups=[{match: proj, whole: true}]'
has out "whole matrices, each on one of 4 shards"
grep -Eq '^  units? .* self_attn.q_proj [0-3], .* mlp.down_proj [0-3]$' out || fail "who has which matrix: $(cat out)"
plan 0 -n 8 mesh.pp=2 mesh.dp_replicate=2 --rank 5
has out "memory of rank 4, and of those to 7"

# Boundaries between stages: 32 microbatches of [64, 64] fp32 forward from the first rank.
is "activations sent forward" "$(sent pp -n 4 mesh.pp=2)" $((32 * 64 * 64 * 4))
plan 0 -n 2 mesh.pp=2 model.tie_word_embeddings=true
has out "second copy of the tied embedding"

# Programs of any rank.
plan 0 -n 8 mesh.pp=2 mesh.dp_replicate=2 --program
has out "program of rank 0,"
for action in GATHER "REDUCE_SCATTER" "ALL_REDUCE" REDUCED SEND_F RECV_B RELEASE NORM; do has out "$action"; done
for action in RECV_F SEND_B; do hasnt out "$action"; done
plan 0 -n 8 mesh.pp=2 mesh.dp_replicate=2 --program --rank 7
has out "program of rank 7,"
has out "RECV_F "
hasnt out "SEND_F "
plan 0 -n 4 mesh.dp_replicate=4 --program
hasnt out GATHER
hasnt out REDUCE_SCATTER

# Pipelines: a drawing with figures and bytes; folded for many ranks.
plan 0 -n 2 mesh.pp=2 pipeline.microbatches=4 train.microbatch=32 --width 80
for words in "1f1b: 2 pipeline ranks, 4 microbatches" "makespan" "bubble" "peak to I" "bytes" "balance of the ranks" "rank 1 "; do
    has out "$words"
done
plan 0 -n 2 mesh.pp=2 pipeline.microbatches=4 train.microbatch=32 --tflops 100
grep -q "^makespan .* s, bubble" out || fail "times in seconds: $(grep makespan out)"
plan 0 -n 2 mesh.pp=2 train.microbatch=1 --width 60
has out "not drawn: 256 passes of a rank"
cat >deep.yaml <<END
model: {vocab_size: 64, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 40, num_attention_heads: 2}
mesh: {pp: 40}
train: {context: 16, microbatch: 1, tokens_per_step: 64}
END
"$weft" plan deep.yaml -n 40 --width 200 >out 2>err || fail "40 stages: $(cat err)"
has out "ranks 12 to 27 are left out"
plan 0 -n 4 mesh.pp=2 pipeline.schedule=zbv --svg out.svg
has out "makespan"
has err "wrote out.svg"
for words in "<svg" gather reduce "backward: weights"; do has out.svg "$words"; done
plan 0 -n 2 mesh.pp=2 --svg -
[ "$(head -c 4 out)" = "<svg" ] || fail "--svg - writes more than the drawing: $(head -c 100 out)"
hasnt out ">gather<"

# A memory limit: the split of layers adapts, and the plan reports whether it fits.
plan 0 -n 2 mesh.pp=2 --memory 1KiB
has out "it will not fit"
plan 0 -n 2 mesh.pp=2 --memory 1GiB
hasnt out "it will not fit"
# What an error suggests works as it is printed; a split chosen for a limit keeps it by the plan's own figures.
fits() {
    local enough factor
    plan 78 -n 4 mesh.pp=4 "$@" pipeline.memory_gib=0.0001
    enough=$(sed -n 's/.*; pipeline.memory_gib=\([0-9.e-]*\) would do\..*/\1/p' err)
    [ -n "$enough" ] || { fail "$*: no limit is named: $(cat err)"; return; }
    plan 78 -n 4 mesh.pp=4 "$@" pipeline.memory_gib="$(awk -v g="$enough" 'BEGIN { print 0.97 * g }')"
    has err "pipeline.memory_gib=$enough would do."
    for factor in 1 1.1 1.4; do
        plan 0 -n 4 mesh.pp=4 "$@" pipeline.memory_gib="$(awk -v g="$enough" -v f=$factor 'BEGIN { print g * f }')"
        has out "% at most, on rank"
        hasnt out "it will not fit"
    done
}
# A choice that changes the last bits is reported.
plan 0 -n 2 mesh.pp=2 pipeline.schedule=looped_bfs
has out "numerics.mode=exact makes the bits equal"
plan 0 -n 2 mesh.pp=2 pipeline.schedule=looped_bfs numerics.mode=exact
hasnt out "another order"
plan 0 -n 2 mesh.pp=2 pipeline.schedule=dualpipev
hasnt out "another order"

limited="gpipe 1f1b looped_bfs interleaved_1f1b zb_h1 zb_h2 interleaved_zero_bubble v_min v_half zbv dualpipev"
[ "${CURVE:-}" != brief ] || limited="1f1b interleaved_zero_bubble dualpipev"
for name in $limited; do
    fits pipeline.schedule=$name
    fits pipeline.schedule=$name train.compute=auto model.vocab_size=4096 train.recompute=full
done
fits pipeline.schedule=zb_h2 train.compute=bf16 model.tie_word_embeddings=true numerics.mode=exact
fits pipeline.schedule=zb_h1 mesh.dp_shard=1 train.split_backward=true checkpoint.dtype=bf16 run.threads=0
# With a GPU the limit is that of its memory: the checkpoint copy has a column of its own and does not count.
fits pipeline.schedule=1f1b run.device=cuda
plan 0 -n 2 mesh.pp=2 run.device=cuda
grep -Eq '^  ranks .* total +on host  holds$' out || fail "no column of the host: $(grep -m1 ' ranks ' out)"
grep -Eq '^  staging +[0-9.]+ [KM]iB  copy' out || fail "nothing is staged: $(cat out)"
# The copy takes memory only if a copy is made.
for none in checkpoint.async=false checkpoint.every=0; do
    plan 0 -n 2 mesh.pp=2 run.device=cuda $none
    hasnt out "  staging "
done
plan 0 -n 2 mesh.pp=2 run.device=cuda
plan 0 -n 2 mesh.pp=2 run.device=cuda --memory "$(awk '$1 == "total" { print 1.01 * $2 $3; exit }' out)"
hasnt out "it will not fit"
has out "device  a GPU, as stated: not this machine"
has out "  not in the table: the step's record, 5528 bytes in each of 1 rounds over all ranks"
plan 0 -n 2 mesh.pp=2 run.device=cpu
hasnt out "on host"
plan 0 -n 2 mesh.pp=2 train.microbatch=8 pipeline.schedule=gpipe model.vocab_size=8192
free_split=$(grep -c "of largest" out)$(grep "embedding, layers" out | head -1)
fullest=$(awk '$1 == "0" && /embedding/ && /iB/' out | grep -oE "[0-9.]+ MiB  embedding" | cut -d' ' -f1)
plan 0 -n 2 mesh.pp=2 train.microbatch=8 pipeline.schedule=gpipe model.vocab_size=8192 --memory 1GiB \
    pipeline.memory_gib="$(awk -v m="$fullest" 'BEGIN { print m / 1024 * 0.97 }')"
[ "$free_split" != "$(grep -c "of largest" out)$(grep "embedding, layers" out | head -1)" ] || fail "memory does not move the split: $free_split"

# A limit of activations takes memory and gives time.
for share in 1 0.75 0.5; do
    plan 0 -n 4 mesh.pp=4 pipeline.schedule=zbv train.microbatch=4 pipeline.activations=$share
    sed -n 's/^  total *\([0-9.]*\) MiB.*/\1/p' out
    has out "pipeline zbv, 8 stages, at most $share of the activations of 1f1b"
done >totals
[ "$(sort -rn totals | uniq)" = "$(cat totals)" ] && [ "$(wc -l <totals)" = 3 ] || fail "less is kept, more is planned: $(cat totals)"
# A limit of memory chooses the share: the less memory, the less is kept, and each plan fits. A share that is given stays.
zbv() { plan 0 -n 4 mesh.pp=4 pipeline.schedule=zbv train.microbatch=4 "pipeline.memory_gib=$(awk -v m="$1" -v p="$2" 'BEGIN { print m / 1024 * p / 100 }')" "${@:3}"; }
all=$(head -1 totals)
for percent in 110 95 90 86 82 78 74; do
    zbv "$all" $percent
    sed -n 's/^pipeline zbv, 8 stages\(, at most \([0-9.]*\) of the activations of 1f1b, as pipeline.memory_gib allows\)*$/\2/p' out | sed 's/^$/1/'
    hasnt out "it will not fit"
done >shares
[ "$(sort -rn shares)" = "$(cat shares)" ] && [ "$(wc -l <shares)" = 7 ] && [ "$(head -1 shares)" = 1 ] && [ "$(uniq shares | wc -l)" -ge 3 ] ||
    fail "shares by memory: $(cat shares)"
zbv "$all" 95 pipeline.activations=0.25
has out "at most 0.25 of the activations of 1f1b"
hasnt out "memory_gib allows"

# Comparison of all schedules: sorted, those that fit first, the configured one marked, with reasons for those left out.
plan 0 -n 4 mesh.pp=4 --compare --whole
for name in gpipe 1f1b looped_bfs interleaved_1f1b zb_h1 zb_h2 interleaved_zero_bubble v_min v_half zbv dualpipev; do has out " $name "; done
grep -qE "^\* 1f1b +1 +64 " out || fail "the configured one is not marked: $(cat out)"
grep -q "^left out: dualpipev with 1, 2, 4 microbatches: " out || fail "reasons: $(grep left out)"
grep -E "^[* ] [a-z0-9_]+ +[0-9]+ +[0-9]+ " out | awk '{ sub(/^[* ] /, ""); print $5 }' | sort -gc || fail "not in order of time"
has out "messages and collectives take no time here"
hasnt out " fits"
# Segments are tried where a context is long, or where they are asked for.
! grep -q 'segments=' out || fail "segments of a short context: $(grep segments= out)"
plan 0 -n 4 mesh.pp=4 --compare --whole pipeline.segments=8
grep -q '^\* 1f1b .* segments=8$' out || fail "no row of the segments that are asked for: $(grep '^\*' out)"
! grep -q '^[* ] zbv .*segments' out || fail "zbv in segments: $(grep zbv out)"
plan 0 -n 4 mesh.pp=4 --compare --whole train.context=8192 train.microbatch=1 train.tokens_per_step=32768
[ "$(grep -c '^  1f1b .* segments=[24]$' out)" -eq 6 ] || fail "rows of segments of a long context: $(grep 1f1b out)"
plan 0 -n 4 mesh.pp=4 --compare --whole --memory 6.5MiB
awk '/ no( |$)/ { no = 1 } / yes( |$)/ { if (no) exit 1; yes = 1 } END { exit !(yes && no) }' out || fail "those that fit come first: $(cat out)"
plan 0 -n 4 mesh.pp=4 --compare
has out "more; --whole lists them"
plan 0 --compare
has out "(no pipeline)"
has out " fits"

# Messages that take time: in the drawing, in makespan and bubble, and in every row of a comparison; a slow link favours few messages.
makespan() { awk '/^makespan/ { print $2 }' out; }
row_time() { awk -v name="$1" '{ sub(/^[* ] /, "") } $1 == name && $3 == 16 { print $5 }' out; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0 && a < b) }'; }
declare -A took
for link in "" 0.005; do
    for name in 1f1b interleaved_1f1b; do
        plan 0 -n 4 mesh.pp=4 train.microbatch=8 pipeline.schedule=$name --tflops 0.05 ${link:+--link $link}
        took[$name]=$(makespan)
        grep "^rank 0 " out | head -1 >row0
        if [ -n "$link" ]; then
            has out "messages of 64.00 KiB at 0.005 GB/s"
            has out "s send"
            grep -q s row0 || fail "no message is drawn: $(cat row0)"
        else
            has out "messages free"
            hasnt out "s send"
        fi
    done
    plan 0 -n 4 mesh.pp=4 --compare --whole --tflops 0.05 ${link:+--link $link}
    near "$(row_time 1f1b)" "${took[1f1b]}" || fail "1f1b compared: $(row_time 1f1b), planned: ${took[1f1b]}"
    near "$(row_time interleaved_1f1b)" "${took[interleaved_1f1b]}" || fail "interleaved compared: $(row_time interleaved_1f1b), planned: ${took[interleaved_1f1b]}"
    if [ -n "$link" ]; then
        less "${took[1f1b]}" "${took[interleaved_1f1b]}" || fail "a slow link does not hold up more messages more: ${took[1f1b]}, ${took[interleaved_1f1b]}"
        has out "with messages between stages at 0.005 GB/s"
    else
        less "${took[interleaved_1f1b]}" "${took[1f1b]}" || fail "interleaving does not pay: ${took[1f1b]}, ${took[interleaved_1f1b]}"
        has out "--tflops X --link RATE count messages"
    fi
done
# A link also has a latency: 16 messages in sequence, there and back over three links, are late by at least six latencies. Rates in bit/s are
# eighths of those in bytes.
delayed="-n 4 mesh.pp=4 train.microbatch=8 pipeline.schedule=1f1b --tflops 0.05"
plan 0 $delayed --link 0.005
prompt=$(makespan)
plan 0 $delayed --link 0.005,40ms
has out "messages of 64.00 KiB at 0.005 GB/s and 40 ms"
late=$(makespan)
awk -v a="$prompt" -v b="$late" 'BEGIN { exit !(b - a >= 6 * 0.04 && b - a < 64 * 0.04) }' || fail "40 ms a message: $prompt s become $late s"
plan 0 $delayed --link 40Mbit/s,40000us
near "$(makespan)" "$late" || fail "40 Mbit/s are not 0.005 GB/s: $(makespan), $late"
plan 0 $delayed --compare --whole --link 5MB/s,0.04s
near "$(row_time 1f1b)" "$late" || fail "1f1b compared with a delay: $(row_time 1f1b), planned: $late"
has out "at 0.005 GB/s and 40 ms"
# Over tp each exposed collective is late too: eight in a forward pass of two layers, and two of the head.
for axes in mesh.tp=1 mesh.tp=2; do
    for delay in 0.001us 40ms; do
        plan 0 -n 4 mesh.pp=2 $axes mesh.dp_shard=-1 train.microbatch=8 --tflops 0.05 --link "0.005,$delay"
        took[$axes-$delay]=$(makespan)
    done
done
awk -v one="${took[mesh.tp=1-0.001us]} ${took[mesh.tp=1-40ms]}" -v two="${took[mesh.tp=2-0.001us]} ${took[mesh.tp=2-40ms]}" 'BEGIN {
    split(one, a); split(two, b); exit !(b[2] - b[1] > a[2] - a[1] + 10 * 0.04) }' || fail "40 ms a crossing over tp: ${took[*]}"
for link in "0,1ms" "1Gbit" "1,5" "1GB/s," "1GB/s,5ms,1" ",5ms" "-1" "x"; do
    plan 2 -n 4 mesh.pp=4 --tflops 1 --link "$link"
    has err "expected a rate such as"
done
plan 2 -n 4 mesh.pp=4 --link 25
has err "--link needs --tflops"

# When gradients are reduced is left to the plan: it reports its choice, the reason, and the cost of the others.
plan 0 -n 4 train.tokens_per_step=256
has out "gradient_sync microbatch (auto: one microbatch a step, there is nothing to add up), on rank 0: memory"
has out "; step would take"
plan 0 -n 4
has out "gradient_sync step (auto: the fewest bytes, with no limit of memory), on rank 0: memory"
has out "; microbatch would take"
plan 0 -n 4 --memory 2MiB
has out "(auto: nothing fits the memory of a rank, this takes least"
deep="model.num_hidden_layers=24 train.microbatch=1"
# shellcheck disable=SC2086
{
    # A search counts the workspace of the optimised ops, whatever kernels run here; the reference kernels need less.
    WEFT_CPU=portable plan 0 -n 4 $deep train.gradient_sync=microbatch
    limit=$(awk '$1 == "total" { print 1.03 * $2 $3; exit }' out) # more than `microbatch` takes, less than `step`
    plan 0 -n 4 $deep --memory "$limit"
    has out "gradient_sync microbatch (auto: nothing that sends fewer bytes fits the memory of a rank; a run takes it with pipeline.memory_gib="
    plan 0 -n 4 $deep "$(sed -n 's/.*; a run takes it with \(pipeline.memory_gib=[0-9.]*\).*/\1/p' out)"
    has out "gradient_sync microbatch (auto: nothing that sends fewer bytes fits the memory of a rank), on rank 0"
}
plan 0 -n 4 --memory 2GiB
has out "gradient_sync step (auto: fits the memory of a rank, and sends the fewest bytes), on rank 0"
plan 0 -n 4 mesh.dp_replicate=2 train.gradient_sync=replica
has out "gradient_sync replica, on rank 0: memory"

# Silent errors: 16 microbatches a rank, of which every 5 steps one is computed again: 1/80. Without replays nothing is said.
plan 0 -n 4 mesh.dp_replicate=4 check.replay_every=5
has out "checks  1 of 16 microbatches of a rank is computed again every 5 steps: that finds 1.25% of single errors in passes, errors in a share q of"
has out "them after about 5/q steps, and takes about 1.25% of the time"
has out "        copies of weights and moments are compared every 100 steps and before checkpoints"
plan 0 -n 4 mesh.dp_shard=4 check.replay_every=5
! grep -q 'copies of weights' out || fail "nothing is there twice"
plan 0 -n 4 mesh.dp_replicate=4
! grep -q '^checks' out || fail "there are no replays"

# Meshes with cp report the attention method and the reason. Memory and work are divided among the ranks, and there is traffic.
whole=$("$weft" plan model.yaml -n 4 mesh.dp_replicate=4 | awk '/^work and bytes/ { on = 1 } on && $1 == "0-3" && NF > 4 { print $2; exit }')
for mesh in mesh.cp=2 "mesh.tp=2 mesh.cp=2"; do
    # shellcheck disable=SC2086
    plan 0 -n 4 $mesh
    has out "  gradients      passes"
    work=$(awk '/^work and bytes/ { on = 1 } on && $1 == "0-3" && NF > 4 { print $2; exit }' out)
    near "$work" "$whole" || fail "$mesh: a rank of 4 does $work TFLOP, data-parallel $whole"
done
has out "context parallelism over 2 ranks by all_gather (auto: 2 ranks cannot share 1 key and value heads)"
plan 0 -n 4 mesh.tp=2 mesh.cp=2 --program
has out "CP_ALL_GATHER_KV u1 m0 what attention reads"
has out "CP_REDUCE_SCATTER_DKV u1 m0 gradient of what attention reads"
plan 0 -n 4
hasnt out "      passes"
hasnt out "context parallelism"
plan 0 -n 2 mesh.cp=2 --program
has out "context parallelism over 2 ranks by all_to_all (auto: "
has out " a block and microbatch, by all_gather "
has out "  gradients      passes"
has out "CP_ALL_TO_ALL u1 m0 what q k v makes"
has out "CP_ALL_TO_ALL u1 m0 gradient of what attention makes"
plan 0 -n 2 mesh.cp=2 mesh.cp_comm=all_gather --program
has out "context parallelism over 2 ranks by all_gather (mesh.cp_comm)"
hasnt out "CP_ALL_TO_ALL"
plan 0 -n 2 mesh.tp=2 --program
has out "  gradients      passes"
has out "TP_ALL_GATHER u1 m0 what q k v reads"
has out "TP_REDUCE_SCATTER u1 m0 what output makes"
# In the backward pass, start and wait of a collective are separate, with a wgrad between them.
awk '/^TP_REDUCE_SCATTER u1 m0 gradient of what gate and up reads/ { getline first; getline second }
    END { exit !(first ~ /^BWD +u1 m0 down: wgrad$/ && second ~ /^WAIT +u1 m0 TP_REDUCE_SCATTER gradient of what gate and up reads$/) }' out ||
    fail "nothing runs during the reduce-scatter of a gradient: $(grep -A3 '^TP_REDUCE_SCATTER .*gradient of what gate' out | head -4)"
has out "TP_ALL_GATHER_LSE u9 m0 what head and loss reads, chunk 0"
has out "SUM_PARTIALS   u1"
hasnt out "TP_ALL_REDUCE_DKV"
hasnt out "NORM_SUMS"
plan 0 -n 2 mesh.tp=2 model.family=olmo2 --program
has out "TP_ALL_GATHER_NORM_SUMS u1 m0 what q k v makes"
has out "TP_ALL_GATHER_NORM_SUMS u1 m0 gradient of what q k v makes"
has out "WAIT           u1 m0 TP_ALL_GATHER_NORM_SUMS what q k v makes"
plan 0 -n 4 mesh.tp=4 --program # with two KV heads
has out "TP_ALL_REDUCE_DKV u1 m0 gradient of what attention reads"
has out " tp 4"
plan 78 -n 3 mesh.cp=3
has err "mesh.cp 3 by all_gather does not divide the 64 tokens of a microbatch into two parts a rank: change train.microbatch or train.context, to a multiple of 6"

# Hardware: consistent seconds of a step and of all steps, tokens/s and MFU; its memory is the limit.
plan 0 -n 4 mesh.pp=2 train.compute=auto --hardware h100
has out "compute bf16"
has out "device  h100, as stated: not this machine"
grep -qE '^  all [0-9,]+ steps of the run: [0-9.hmsd]+$' out || fail "the time of all steps: $(grep steps out)"
! grep -q '^time ' out || fail "a plan for other hardware has this machine's time: $(grep '^time ' out)"
mv out here
WEFT_CPU=reference plan 0 -n 4 mesh.pp=2 train.compute=auto --hardware h100
cmp here out || fail "a plan for stated hardware depends on this machine's kernels"
plan 0 -n 4 mesh.pp=2 train.compute=bf16 --hardware h100
has out "prediction on h100: peak 989 TFLOP/s in bf16"
has out "% at most, on rank"
# The range: that of the group of published runs, around the predicted step.
has out "like published runs of dense models on one machine: step "
awk '/^  step .* tokens\/s/ { step = $2 } match($0, /: step [0-9.e-]+ to [0-9.e-]+ s/) { split(substr($0, RSTART), f, " "); ok = f[3] < step && step < f[5] } END { exit !ok }' out ||
    fail "the step is not in its range: $(grep 'step' out)"
awk '/^  step .* tokens\/s/ { gsub(",", ""); seconds = $2; all = $4; each = $6; d = all * seconds / 4096 - 1; e = all / each / 4 - 1; ok = d * d < 1e-4 && e * e < 1e-4 } END { exit !ok }' out ||
    fail "tokens/s times seconds is not the step: $(grep '^  step' out)"
plan 0 -n 16 train.compute=bf16 train.tokens_per_step=4096 --hardware h100
has out "like published runs of dense models across machines: step "
printf 'links: {inside_gb_per_s: 0.001}\n' >slow.yaml
seconds() { awk '/^  step .* tokens\/s/ { print $2 }' out; }
plan 0 -n 4 mesh.pp=2 train.compute=bf16 --hardware h100
fast=$(seconds)
plan 0 -n 4 mesh.pp=2 train.compute=bf16 --hardware slow.yaml
awk -v a="$fast" -v b="$(seconds)" 'BEGIN { exit !(a > 0 && b > 2 * a) }' || fail "slow links: $(seconds) after $fast"
has out "messages of"
# Op by op: the longest first; their sum is a step.
plan 0 train.compute=bf16 --hardware h200
awk '/op, or product of a part/ { on = 1; next } /^  memory of/ { on = 0 } on && match($0, /[0-9.e-]+ +[0-9.]+%/) { split(substr($0, RSTART), f, " ")
    sum += f[1]; if (before && f[1] > before && $1 != "all") bad = 1; before = f[1]; n++ }
    /^  step .* tokens/ { step = $2 } END { exit !(n > 8 && !bad && sum > 0.99 * step && sum < 1.01 * step) }' out || fail "ops are no step: $(cat out)"
for words in "gate and up" "attention_backward" "cross_entropy" "adamw" "bound by" "assumed, not measured"; do has out "$words"; done
hasnt out "products with leaves"
plan 0 -n 2 mesh.tp=2 train.compute=bf16 --hardware h200
has out "split-K products and grouped ones count as others do"
plan 78 --hardware h10
has err '--hardware is "h10": expected a100, h100, h800, h200, b200, or a YAML file'
plan 66 --hardware missing.yaml
printf 'links: {inside_gbps: 1}\n' >wrong.yaml
plan 78 --hardware wrong.yaml
has err "wrong.yaml:1:9: links.inside_gbps: unknown key; did you mean links.inside_"
plan 2 --hardware h100 --tflops 3
has err "do not go together"

# All layouts, given a memory limit and a link speed: the configured one and the best of other kinds, with the reason why they are slower.
plan 0 -n 8 --compare --hardware h100 train.compute=bf16 --memory 1GiB
grep -qE "^\* +1 +1 +1 +8 +1 " out || fail "the configured mesh is not marked: $(cat out)"
grep -qE "^  +[248] +[124] +[0-9]+ +[0-9]+ +[0-9]+ +[a-z]" out || fail "there is no pipeline among the kinds: $(cat out)"
! grep -qE "^[* ] +1 +8 +1 +1 " out || fail "tp 8 is tried with 4 heads"
grep -qE "^takes pp [12], tp 1, cp 1,( gpipe,)? recompute none, [0-9]+ microbatch(es)?: the fastest that fits" out || fail "what is taken: $(tail -2 out)"
grep -qE "^  pp [248], .*: \+[0-9.e-]+ s: .*(bubble|recomputation|tp|cp) \+" out || fail "no reasons: $(cat out)"
has out "slower than the first, of other kinds"
[ "$(grep -cE "^[* ] +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +[(a-z]" out)" -ge 5 ] || fail "too few kinds: $(cat out)"
# Of all settings of the keys that trade memory for time, the choice is the best: each is compared by itself, under a limit that some exceed.
# fastest: seconds of the first row that fits.
fastest() { awk '$NF ~ /^(yes|.*=.*)$/ && / yes/ { for (i = 1; i <= NF; i++) if ($i ~ /%$/) { print $(i - 1); exit } }' "$1"; }
limited=(-n 8 --compare --hardware h100 train.compute=bf16 --memory 60MiB)
plan 0 "${limited[@]}"
mv out chosen
for sync in step microbatch; do
    for reshard in never always; do
        plan 0 "${limited[@]}" train.gradient_sync=$sync train.reshard_after_forward=$reshard
        fastest out
    done
done >each
[ "$(fastest chosen)" = "$(sort -g each | head -1)" ] || fail "chosen $(fastest chosen), but the best of $(sort -g each | tr '\n' ' ')"
[ "$(sort -gu each | wc -l)" -ge 2 ] || fail "the settings do not differ: $(cat each)"
# The keys of the choice give a plan of the same time.
read -ra keys < <(sed -n 's/^keys: //p' chosen)
[ "${#keys[@]}" -gt 4 ] || fail "no keys: $(tail -2 chosen)"
plan 0 "${limited[@]}" "${keys[@]}"
[ "$(fastest out)" = "$(fastest chosen)" ] || fail "with ${keys[*]}: $(fastest out) in place of $(fastest chosen)"
plan 0 -n 8 --compare --hardware h100 train.compute=bf16 --memory 1KiB
has out "takes nothing: none fits; smallest is pp "
plan 0 -n 8 --compare --tflops 1 --link 0.01 --memory 1GiB
has out "and what crosses over tp, cp and ep, at 0.01 GB/s"
has out "takes pp 1, tp 1, cp 1"

# Wrong meshes: the error has the numbers, and what would fit.
plan 78 -n 8 mesh.pp=3
has err "6 or 9 ranks would fit"
plan 78 -n 6 mesh.pp=4 mesh.dp_shard=2
has err "there are 6 ranks: start 8 ranks"
hasnt err "4 or 8"
plan 78 -n 6 mesh.dp_shard=4
has err "set mesh.dp_shard to 6"
plan 78 -n 16 mesh.pp=16
has err "1f1b with 1 stage a rank has 16 on 16 pipeline ranks, but there are 10 units (embedding, 8 layers, head): set mesh.pp to at most 10"
plan 78 -n 4 mesh.pp=4 pipeline.schedule=interleaved_1f1b pipeline.stages_per_rank=3
has err "set pipeline.stages_per_rank to at most 2"
plan 78 -n 8 mesh.pp=8 pipeline.schedule=zbv
has err "set mesh.pp to at most 5"
plan 78 -n 4 mesh.pp=4 pipeline.schedule=zbv pipeline.activations=0.2
has err "less than the one microbatch that a rank works on; 0.25 would do"
for pp in 1 4; do
    plan 78 -n 4 mesh.pp=$pp mesh.dp_shard=-1 pipeline.activations=0.5
    has err "schedule 1f1b has no limit of activations that can be set (0.5): zbv has"
done
plan 78 -n 4 mesh.pp=4 pipeline.schedule=zbv pipeline.activations=1.5
has err "pipeline.activations"
plan 78 -n 3 mesh.tp=3
has err "mesh.tp 3 does not fit num_attention_heads 4: 1, 2 or 4 would"
plan 78 -n 2 mesh.ep=2
has err "mesh.ep 2: the family llama has no experts: use 1"
plan 78 -n 128
has err "8192 would"
hasnt err "8192 or 8192"
plan 78 -n 4 mesh.pp=4 pipeline.schedule=dualpipev train.microbatch=32
has err "needs 8 microbatches or more"
plan 78 -n 4 'metrics.log_ranks=[0, 9]'
has err "metrics.log_ranks names rank 9: ranks are 0 to 3"
plan 0 -n 4 'metrics.log_ranks=[0, 3]'

# Pipeline keys that contradict each other: the error names both.
"$weft" schedule 1f1b --pp 4 --microbatches 64 --csv >four.csv || fail "four.csv"
printf '0F0,0F1,4F0,4F1,4B0,4B1,0B0,0B1\n1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n2F0,2F1,2B0,2B1\n' >five.csv
plan 78 -n 2 mesh.pp=2 'pipeline.split=[layers.2]' pipeline.layers_per_stage=5
has err "pipeline.split names where 2 stages start, and pipeline.layers_per_stage is 5"
interleaved="-n 2 mesh.pp=2 pipeline.schedule=interleaved_1f1b"
plan 78 $interleaved pipeline.layers_per_stage=3 pipeline.stages_per_rank=3
has err "pipeline.layers_per_stage is 3, which makes 4 stages, 2 on each of 2 ranks, but pipeline.stages_per_rank is 3"
plan 0 $interleaved pipeline.layers_per_stage=3 pipeline.stages_per_rank=2
plan 78 -n 4 mesh.pp=4 pipeline.schedule=four.csv pipeline.stages_per_rank=2
has err "pipeline.stages_per_rank is 2, but four.csv has 4 stages on 4 ranks"
plan 78 -n 4 mesh.pp=4 pipeline.schedule=four.csv pipeline.activations=0.5
has err "pipeline.schedule is the file four.csv, whose order is fixed"
plan 78 -n 4 mesh.pp=4 pipeline.schedule=four.csv pipeline.layers_per_stage=5
has err "pipeline.layers_per_stage is 5, which makes 2 stages of 10 layers (embedding and head counted), but four.csv has 4 stages"
plan 0 -n 4 mesh.pp=4 pipeline.schedule=four.csv pipeline.layers_per_stage=3 pipeline.stages_per_rank=1
plan 78 -n 3 mesh.pp=3 train.microbatch=64 pipeline.schedule=five.csv 'pipeline.split=[layers.2]'
has err "which makes 2 stages, but five.csv has 5: name 4"
for words in 'pipeline.split={layers_per_stage: 5}' pipeline.split=layers_per_stage:5 'pipeline.split="layers_per_stage: 5"'; do
    plan 78 -n 2 mesh.pp=2 "$words"
    has err "the number of layers of a stage is pipeline.layers_per_stage"
done

# Without a pipeline its keys may be set, if they are valid for some mesh.
plan 0 pipeline.schedule=zbv pipeline.split=uniform pipeline.layers_per_stage=2
plan 0 pipeline.schedule=looped_bfs pipeline.stages_per_rank=7 'pipeline.split=[layers.2, layers.7]'
plan 78 pipeline.schedule=zzz
has err 'pipeline.schedule is "zzz": expected gpipe'
plan 78 'pipeline.split=[zzz]'
has err 'pipeline.split: no stage can start at "zzz"'
plan 78 pipeline.stages_per_rank=7
has err "has 1 stage a rank, not 7"
plan 78 pipeline.schedule=four.csv
has err "set mesh.pp=4"
# A schedule of one rank: a file's order becomes its program, and its different order of sums is reported.
printf '0F0,0F1,0B1,1F0,1F1,1B0\n' >wrong.csv
plan 65 train.microbatch=64 pipeline.schedule=wrong.csv
printf '0F0,0F1,0B1,0B0\n' >one.csv
plan 0 train.microbatch=64 pipeline.schedule=one.csv --program
[ "$(awk '$1 == "FWD" || $1 == "BWD" { print $1 $NF }' out | uniq | tr '\n' ' ')" = "FWDm0 FWDm1 BWDm1 BWDm0 " ] ||
    fail "one.csv is not the program of its rank: $(cat out)"
has out "gradients are added up in another order"
plan 0 train.microbatch=64 pipeline.schedule=gpipe --program
[ "$(awk '$1 == "FWD" || $1 == "BWD" { print $1 $NF }' out | uniq | tr '\n' ' ')" = "FWDm0 BWDm0 FWDm1 BWDm1 " ] ||
    fail "one rank does not take its microbatches one after the other: $(cat out)"
echo nonsense >nonsense.csv
plan 65 pipeline.schedule=nonsense.csv
for mesh in "" "-n 2 mesh.pp=2"; do
    plan 66 $mesh pipeline.schedule=missing.csv
    has err "weft: missing.csv: cannot open: No such file or directory"
    plan 66 $mesh pipeline.schedule=dir/missing
done
# The limit on microbatches applies to each rank, not to the sum over all ranks.
plan 0 -n 16384 mesh.dp_replicate=16384 train.microbatch=1 train.tokens_per_step=$((16384 * 1024 * 32))
has out "1024 microbatches of 1 sequence of 32 on each data-parallel rank"
plan 78 train.microbatch=1 train.tokens_per_step=$((16384 * 1024 * 32))
has err "asks for 16777216 microbatches a step: at most 1,000,000"
plan 2 -n 8 --rank 8
has err "from 0 to 7"
plan 2 --memory 80gib
has err "80GiB"
plan 2 -n 2 --svg x.svg
has err "mesh.pp is 1"
plan 2 -n 2 mesh.pp=2 --compare --svg x.svg
has err "do not go together"

conclude
