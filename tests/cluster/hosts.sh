#!/bin/bash
# Tests several hosts: network namespaces, each with a name, an address and an sshd, joined by a switch. Open MPI starts ranks on them by
# ssh. For maintainers, as root (make cluster, which installs what it needs).
#   Checks: the same bits as on one host; a link that is cut in a step, and resuming after it; a slow link, compared with weft plan --link.
# Two verdicts depend on time: how soon all ranks have ended after a cut (END_LIMIT_S, twice comm.watchdog_s), and the ratio of measured to
# planned step time over the slow link (RATIO_LIMITS). On a machine that is busy with other work, widen them.
. "$(dirname "$0")/../support/prelude.sh"
PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" -eq 0 ] || { echo "hosts are network namespaces, which only root can make: left out"; exit 77; }
for program in ip tc sshd ssh-keygen mpirun unshare nsenter; do
    command -v "$program" >/dev/null || { echo "$program is missing: tools/setup.sh cluster"; exit 77; }
done
"$weft" --version | grep -q 'Open MPI' || { echo "this weft was not built with Open MPI: left out"; exit 77; }
# All hosts use the files in this directory, so everyone must be able to read it.
chmod 755 "$directory"

# ---- hosts ----

names=(a b c) tag=weft$$
declare -A host_pid
destroy() {
    local name
    for name in "${names[@]}"; do
        for pid in $(ip netns pids "$tag-$name" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null; done
        ip netns del "$tag-$name" 2>/dev/null
    done
    ip netns del "$tag-switch" 2>/dev/null
}
trap 'destroy; end_jobs; [ -n "${KEEP:-}" ] && echo "kept: $directory" || rm -rf "$directory"' EXIT
ip netns add "$tag-switch" 2>err || { echo "no network namespaces here ($(cat err)): all steps of this test were left out"; exit 77; }
ip -n "$tag-switch" link add switch type bridge 2>err || { echo "no bridges here ($(cat err)): all steps of this test were left out"; exit 77; }
ip -n "$tag-switch" link set switch up

mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f key
ssh-keygen -q -t ed25519 -N '' -f host_key
cp key.pub authorized
printf '127.0.0.1 localhost\n' >hosts
for i in "${!names[@]}"; do echo "10.77.0.$((i + 1)) ${names[$i]}" >>hosts; done
cat >sshd.conf <<END
HostKey $directory/host_key
AuthorizedKeysFile $directory/authorized
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
END
cat >ssh.conf <<END
Host *
    IdentityFile $directory/key
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
END
# A host has its own network, name, shared memory and /etc/hosts; all hosts share files and processes.
make_host() { # NAME ADDRESS
    local ns=$tag-$1
    ip netns add "$ns"
    ip link add "p$1$$" type veth peer name eth0 netns "$ns"
    ip link set "p$1$$" netns "$tag-switch" name "port-$1"
    ip -n "$tag-switch" link set "port-$1" master switch up
    ip -n "$ns" link set lo up
    ip -n "$ns" addr add "$2/24" dev eth0
    ip -n "$ns" link set eth0 up
    ip netns exec "$ns" unshare --uts --mount --ipc sh -c "hostname $1; mount -t tmpfs none /dev/shm
        mount --bind $directory/hosts /etc/hosts; exec $(command -v sshd) -D -f $directory/sshd.conf" >"sshd-$1.out" 2>&1 &
    host_pid[$1]=$!
    disown
}
on() { local name=$1; shift; nsenter -t "${host_pid[$name]}" --net --uts --mount --ipc "$@"; } # NAME WORD...
for i in "${!names[@]}"; do make_host "${names[$i]}" "10.77.0.$((i + 1))"; done
reaches() { on "$1" ssh -F "$directory/ssh.conf" -o ConnectTimeout=2 "$2" true 2>/dev/null; }
for name in b c; do await reaches a "$name"; done

# across HOSTS WORD...: runs weft train with mpirun on host a; HOSTS is host:ranks,... The output of each rank is in said/.
across() {
    local hosts=$1
    shift
    rm -rf said
    on a mpirun --allow-run-as-root --host "$hosts" --bind-to none --mca plm_rsh_agent "ssh -F $directory/ssh.conf" \
        --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --output-filename "$directory/said" \
        --mca orte_base_help_aggregate 0 --wdir "$directory" "$weft" train "$@"
}
said() { cat "$(find said -path "*rank.$1/stderr" | head -1)" 2>/dev/null; } # RANK

letters 400 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 4, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 40, context: 64, microbatch: 2, tokens_per_step: 768}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 4, total_steps: 100, min_factor: 0.1}
checkpoint: {every: 10}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
comm: {watchdog_s: 5}
END

echo "== the same bits as on one host"
"$weft" train run.yaml run.dir=alone >/dev/null 2>err || { cat err; exit 1; }
compare() { # DIR
    [ "$(digest "$1")" = "$(digest alone)" ] && [ "$(curve "$1")" = "$(curve alone)" ] || fail "$1: different bits than on one host"
}
across a:1,b:1 run.yaml run.dir=shards >out 2>err || fail "two hosts, FSDP: $(cat err)"
compare shards
across a:1,b:1,c:1 run.yaml run.dir=replicas mesh.dp_replicate=3 >out 2>err || fail "three hosts, DDP: $(tail -3 err)"
compare replicas
across a:2,b:2 run.yaml run.dir=mixed mesh.pp=2 >out 2>err || fail "two hosts with two ranks, pipeline: $(tail -3 err)"
compare mixed
grep -h '"event": "started"' shards/journal.jsonl >/dev/null || fail "no journal"

echo "== the link is cut in a step"
across a:1,b:1 run.yaml run.dir=cut train.steps=1000000 >out 2>err &
launcher=$!
await has_lines cut/metrics.jsonl 30
pids=$(pgrep -f "train run.yaml run.dir=cut" | while read -r pid; do grep -qs OMPI_COMM_WORLD_RANK "/proc/$pid/environ" && echo "$pid"; done)
[ "$(wc -w <<<"$pids")" -eq 2 ] || fail "ranks found: $pids"
begun=$(date +%s%N)
ip -n "$tag-switch" link set port-b down
none_left() { local pid; for pid in $pids; do is_gone "$pid" || return 1; done; }
await none_left
ended=$((($(date +%s%N) - begun) / 1000000)) limit=${END_LIMIT_S:-10}
echo "all ranks have ended $ended ms after the cut; comm.watchdog_s is 5"
[ "$ended" -le $((1000 * limit)) ] || fail "all ranks have ended $ended ms after the cut: later than $limit s"
# The last messages of rank 0 and rank 1, each on its own host, name the other rank.
for rank in 0 1; do
    said "$rank" | grep -q "rank $((1 - rank))" || fail "rank $rank does not name the other: $(said "$rank" | tail -n 4)"
    said "$rank" | grep "rank $((1 - rank))" | tail -1 | sed "s/^/rank $rank said: /"
done
# mpirun itself waits for its daemon on the other host, possibly for minutes; weft cannot change that.
ip -n "$tag-switch" link set port-b up
await is_gone "$launcher"
wait "$launcher"
status=$?
[ "$status" -ne 0 ] || fail "mpirun ends with 0 after a cut"
echo "mpirun ended with $status, when the link was there again"
await reaches a b
last=$(curve cut | tail -1 | cut -d' ' -f1)
across a:1,b:1 run.yaml run.dir=cut train.steps="$last" >out 2>err || fail "resuming after the cut: $(tail -3 err)"
"$weft" train run.yaml run.dir=uncut train.steps="$last" >/dev/null 2>err || fail "uncut: $(tail -1 err)"
[ "$(digest cut)" = "$(digest uncut)" ] || fail "after the cut: different bits"

echo "== a slow link"
delay=
limit_links() { # VERB RATE
    local name
    for name in a b; do tc -n "$tag-$name" qdisc "$1" dev eth0 root handle 1: tbf rate "$2" burst 256kb latency 400ms 2>err || return 1; done
}
pipeline="mesh.pp=2 train.context=256 train.microbatch=8 train.tokens_per_step=16384 train.steps=24 numerics.mode=fast checkpoint.every=0"
# The speed of a rank comes from a step on the same hosts without a limit on their link.
# shellcheck disable=SC2086
across a:1,b:1 run.yaml run.dir=fast $pipeline >out 2>err || fail "pipeline over two hosts: $(tail -3 err)"
limit_links add 1gbit ||
    { echo "tc cannot limit the rate here ($(cat err)): the slow link was left out"; conclude "hosts: all as expected, without a slow link"; exit 0; }
for name in a b; do
    tc -n "$tag-$name" qdisc add dev eth0 parent 1:1 netem delay 2.5ms limit 20000 2>err && delay=5 ||
        echo "tc cannot delay here ($(cat err)): the slow link of host $name has its rate and no delay"
done
# The fastest step counts: slower ones waited for other work on the machine.
fastest() { sed -n 's/.*"kind": "train",.*"step_seconds": \([^,]*\),.*/\1/p' "$1/metrics.jsonl" | sort -g | head -1; }
makespan() { sed -n 's/^makespan \([0-9.]*\) .*/\1/p' out; }
# shellcheck disable=SC2086
plan() { "$weft" plan run.yaml -n 2 $pipeline "$@" >out 2>err || fail "plan: $(cat err)"; }
read -r least most <<<"${RATIO_LIMITS:-0.6 1.6}"
plan
tflops=$(awk -v work="$(makespan)" -v s="$(fastest fast)" 'BEGIN { printf "%.6f", work / s }')
echo "a step of a pipeline without a limit takes $(fastest fast) s, that is $tflops TFLOP/s of a rank"
for rate in 1G 100M; do
    limit_links change "${rate}bit" || fail "tc cannot change the rate: $(cat err)"
    # shellcheck disable=SC2086
    across a:1,b:1 run.yaml run.dir="slow$rate" $pipeline >out 2>err || fail "pipeline over $rate bit/s: $(tail -3 err)"
    [ "$(digest "slow$rate")" = "$(digest fast)" ] || fail "different bits over $rate bit/s"
    # The latency of a message is half a round trip.
    plan --tflops "$tflops" --link "${rate}bit/s${delay:+,2.5ms}"
    planned=$(makespan) measured=$(fastest "slow$rate")
    ratio=$(awk -v a="$measured" -v b="$planned" 'BEGIN { printf "%.2f", a / b }')
    echo "over $rate bit/s${delay:+ and $delay ms there and back}: planned $planned s, measured $measured s, $ratio times"
    awk -v r="$ratio" -v least="$least" -v most="$most" 'BEGIN { exit !(r >= least && r <= most) }' ||
        fail "over $rate bit/s a step takes $ratio times what was planned: not from $least to $most"
done

conclude "hosts: all as expected"
