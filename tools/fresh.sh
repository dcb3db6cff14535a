#!/bin/bash
# Runs README's two commands, `make demo` and `make test`, on systems where nothing is installed: bare Debian 12 and Ubuntu 24.04
# from debootstrap, with git, make and the committed tree. For maintainers, as root, before a release. Takes about a quarter of an
# hour per system on two cores.
#   tools/fresh.sh [debian] [ubuntu]     both, if none is named
# FRESH_BRIEF=1 trains the demo for 20 steps and runs a few of the tests: it checks that the commands work, not that all tests pass.
# FRESH_DIR holds the systems while they are used (4 GiB each; default $TMPDIR or /tmp). DEBIAN_MIRROR, UBUNTU_MIRROR: the archives.
# A system's archive keys come from /usr/share/keyrings. Where Ubuntu's keyring is not packaged, the script downloads it from Ubuntu's
# archive and accepts it only if it holds the key with the fingerprint below.
# All mounts are made in a private namespace and end with the script, however it ends. The last line for each system is its verdict.
# Exit status: 69 if a system could not be made here, 1 if a command failed in one.
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

# Nothing below a mount may be removed. If something cannot be unmounted, the directory stays, with a message.
finish() {
    local mounts
    mounts=$(awk -v work="$work/" 'index($2, work) == 1 { print $2 }' /proc/self/mounts | sort -r)
    for mount in $mounts; do umount "$mount" || { echo "fresh: $mount is busy; $work is left" >&2; return; }; done
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

unreachable() { echo "fresh: $1: NOT TRIED: $2" >&2; return 69; }

# Prints the path of Ubuntu's keyring: this system's, or one from the archive, which must hold the known key.
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
    # Exports only the key with the known fingerprint.
    GNUPGHOME=$apt gpg --batch --quiet --no-default-keyring --keyring "$apt/package$packaged" --export "$ubuntu_key" \
        >"$apt/key.gpg" 2>/dev/null || true
    [ -s "$apt/key.gpg" ] || { unreachable ubuntu "the keyring of $1 has no key $ubuntu_key"; return; }
    echo "$apt/key.gpg"
}

# make_system NAME RELEASE MIRROR COMPONENTS KEYRING SCRIPT: SCRIPT is the debootstrap script that all newer releases of that system
# use; an older debootstrap has none under the name of a newer release.
make_system() {
    local name=$1 release=$2 mirror=$3 root="$work/$1" script=/usr/share/debootstrap/scripts/$6
    echo "=== $name: $release from $mirror"
    debootstrap --variant=minbase --components="$4" --keyring="$5" --include=git,make,ca-certificates \
        "$release" "$root" "$mirror" "$script" >"$work/$name.log" 2>&1 ||
        { tail -n 20 "$work/$name.log" >&2; unreachable "$name" "debootstrap failed, see above"; return; }
    # Open MPI needs both mounts. Only committed files are copied: an ignored file could hide that one is missing from the commit.
    mount -t proc proc "$root/proc" && mount -t tmpfs tmpfs "$root/dev/shm" -o mode=1777 &&
        git -c safe.directory="$source" -C "$source" archive --prefix=root/weft/ HEAD | tar -x -C "$root"
}

# inside NAME COMMAND...: runs a command in the system, with none of this environment.
inside() {
    local root="$work/$1" environment="HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8"
    shift
    # shellcheck disable=SC2086
    chroot "$root" /usr/bin/env -i $environment /bin/sh -c 'cd /root/weft && exec "$@"' sh "$@"
}

commands() {
    if [ -n "${FRESH_BRIEF:-}" ]; then
        inside "$1" env DEMO_OVERRIDES="train.steps=20 lr_schedule.warmup_steps=2" make demo &&
            inside "$1" make test TESTS='^test_(base|cli|groups)'
    else
        inside "$1" make demo && inside "$1" make test
    fi
}

# try NAME ...: makes a system, runs the commands in it, prints the verdict, and removes it.
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
    # A failed command (1) takes precedence over a system that could not be made (69).
    [ "$status" -eq 0 ] || [ "$worst" -eq 1 ] || worst=$status
done
exit "$worst"
