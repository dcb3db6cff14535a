#!/bin/bash
# README's two commands, `make demo` and `make test`, where nothing is installed: bare Debian 12 and Ubuntu 24.04, made by
# debootstrap, with git and make and the committed tree. For a maintainer, as root, before a release; about a quarter of an hour
# for each on two cores.
#   tools/fresh.sh [debian] [ubuntu]     both, if none is named
# FRESH_BRIEF=1 trains the demo for 20 steps and runs a few of the tests: whether the commands work, not whether all holds.
# FRESH_DIR is where the systems lie while they are used (4 GiB each; default $TMPDIR or /tmp). DEBIAN_MIRROR, UBUNTU_MIRROR: the
# archives.
# What a system signs with is found in /usr/share/keyrings. Where Ubuntu's keyring is not packaged, it comes from Ubuntu's archive
# itself and counts only if it holds the key whose fingerprint stands below.
# All mounts are made in a namespace of this script's own: they end with it, however it ends. The last line of each system is its
# verdict; exit status 69 if a system could not be made here, 1 if a command failed in one.
set -euo pipefail

[ "$(id -u)" -eq 0 ] || { echo "fresh: must be root: it makes systems and enters them" >&2; exit 69; }
for tool in debootstrap unshare chroot git; do
    command -v "$tool" >/dev/null || { echo "fresh: $tool is not here (apt-get install debootstrap util-linux git)" >&2; exit 69; }
done
if [ -z "${FRESH_INSIDE:-}" ]; then
    FRESH_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi

source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d "${FRESH_DIR:-${TMPDIR:-/tmp}}/weft-fresh-XXXXXX")
ubuntu_key=F6ECB3762474EDA9D21B7022871920D1991BC93C # Ubuntu Archive Automatic Signing Key (2018)

# Nothing below a mount may be removed: what cannot be unmounted is left, and said.
finish() {
    local mounts
    mounts=$(awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/self/mounts | sort -r)
    for mount in $mounts; do umount "$mount" || { echo "fresh: $mount is busy; $work is left" >&2; return; }; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

unreachable() { echo "fresh: $1: NOT TRIED: $2" >&2; return 69; }

# Ubuntu's keyring as a file: of this system, or of the archive, whose key must be the one we know.
ubuntu_keyring() {
    local packaged=/usr/share/keyrings/ubuntu-archive-keyring.gpg apt="$work/apt"
    [ ! -s $packaged ] || { echo $packaged; return; }
    command -v gpg >/dev/null || { unreachable ubuntu "neither Ubuntu's keyring nor gpg is here"; return; }
    mkdir -p "$apt"/{lists/partial,cache/archives/partial}
    echo "deb [trusted=yes] $1 $2 main" >"$apt/sources.list"
    local options=(-q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$apt/lists" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
    (cd "$apt" && apt-get "${options[@]}" update && apt-get "${options[@]}" download ubuntu-keyring) >"$work/keyring.log" 2>&1 ||
        { tail -n 5 "$work/keyring.log" >&2; unreachable ubuntu "$1 does not answer; UBUNTU_MIRROR may name another archive"; return; }
    dpkg-deb -x "$apt"/ubuntu-keyring_*.deb "$apt/package"
    # Of the keys in it the one that we know by its fingerprint, and no other.
    GNUPGHOME=$apt gpg --batch --quiet --no-default-keyring --keyring "$apt/package$packaged" --export "$ubuntu_key" \
        >"$apt/key.gpg" 2>/dev/null || true
    [ -s "$apt/key.gpg" ] || { unreachable ubuntu "the keyring of $1 has no key $ubuntu_key"; return; }
    echo "$apt/key.gpg"
}

# make_system NAME RELEASE MIRROR COMPONENTS KEYRING SCRIPT: the script is debootstrap's for all newer releases of that system, of
# which an older debootstrap knows no names.
make_system() {
    local name=$1 release=$2 mirror=$3 root="$work/$1" script=/usr/share/debootstrap/scripts/$6
    echo "=== $name: $release from $mirror"
    debootstrap --variant=minbase --components="$4" --keyring="$5" --include=git,make,ca-certificates \
        "$release" "$root" "$mirror" "$script" >"$work/$name.log" 2>&1 ||
        { tail -n 20 "$work/$name.log" >&2; unreachable "$name" "debootstrap failed, see above"; return; }
    # Open MPI asks for both. What is tested is what is committed: files that git ignores could hide a missing one.
    mount -t proc proc "$root/proc" && mount -t tmpfs tmpfs "$root/dev/shm" -o mode=1777 &&
        git -c safe.directory="$source" -C "$source" archive --prefix=root/weft/ HEAD | tar -x -C "$root"
}

# inside NAME COMMAND...: in the system, with nothing of this environment.
inside() {
    local root="$work/$1" environment="HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8"
    shift
    # shellcheck disable=SC2086
    chroot "$root" /usr/bin/env -i $environment /bin/sh -c 'cd /root/weft && exec "$@"' sh "$@"
}

commands() {
    if [ -n "${FRESH_BRIEF:-}" ]; then
        inside "$1" env DEMO_OVERRIDES="train.steps=20 schedule.warmup_steps=2" make demo &&
            inside "$1" make test TESTS='^test_(base|cli|groups)'
    else
        inside "$1" make demo && inside "$1" make test
    fi
}

# try NAME ...: a system, its commands, its verdict, and away with it.
try() {
    local name=$1 status=0
    make_system "$@" || return
    commands "$name" || status=1
    umount "$work/$name/dev/shm" "$work/$name/proc" && rm -rf "${work:?}/$name"
    local verdict="make demo, make test${FRESH_BRIEF:+ (brief)}: ok"
    [ "$status" -eq 0 ] || verdict=FAILED
    echo "=== $name: $verdict"
    return $status
}

debian() {
    try debian bookworm "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" main /usr/share/keyrings/debian-archive-keyring.gpg sid
}
ubuntu() {
    local mirror=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu} keyring
    keyring=$(ubuntu_keyring "$mirror" noble) || return
    try ubuntu noble "$mirror" main,universe "$keyring" gutsy
}

[ $# -gt 0 ] || set -- debian ubuntu
worst=0
for system in "$@"; do
    case $system in
    debian | ubuntu) ;;
    *) echo "fresh: unknown system \"$system\"; there are debian, ubuntu" >&2; exit 2 ;;
    esac
    status=0
    "$system" || status=$?
    # A command that failed weighs more than a system that could not be made.
    [ "$status" -eq 0 ] || [ "$worst" -eq 1 ] || worst=$status
done
exit "$worst"
