# Two machines, played by network namespaces with a cable between them: $left is 10.9.0.1, $right 10.9.0.2. Needs root and iproute2;
# otherwise the test is skipped. Source it after prelude.sh.
PATH=$PATH:/usr/sbin:/sbin
left=weft-l$$ right=weft-r$$
command -v ip >/dev/null || { echo "ip is missing: apt-get install iproute2"; exit 77; }
destroy_hosts() {
    local space
    for space in "$left" "$right"; do
        ip netns pids "$space" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
        ip netns del "$space" 2>/dev/null
    done
}
trap 'destroy_hosts; end_jobs; [ -n "${KEEP:-}" ] || rm -rf "$directory"' EXIT
cable() { # up or down
    ip -n "$left" link set "vl$$" "$1"
    ip -n "$right" link set "vr$$" "$1"
}
ip netns add "$left" 2>err && ip netns add "$right" 2>>err && ip link add "vl$$" netns "$left" type veth peer name "vr$$" netns "$right" 2>>err ||
    { echo "no network namespaces here ($(cat err))"; exit 77; }
ip -n "$left" addr add 10.9.0.1/24 dev "vl$$"
ip -n "$right" addr add 10.9.0.2/24 dev "vr$$"
for space in "$left" "$right"; do ip -n "$space" link set lo up; done
cable up
# Bytes that have gone over the cable to the right.
cable_bytes() { ip -n "$left" -s link show "vl$$" | awk '/TX:/ { getline; print $1 }'; }
