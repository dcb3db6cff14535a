#!/bin/sh
# clang-format over all C files; --check changes nothing and fails where something would change. Versions of clang-format differ in
# details: 14 is the one that counts.
set -eu
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14 || command -v clang-format || true)
case $("${tool:-true}" --version 2>/dev/null) in
*"version 14."*) ;;
*) echo "format: clang-format 14 is not here; nothing done"; exit 0 ;;
esac
if [ "${1:-}" = --check ]; then set -- --dry-run -Werror; else set -- -i; fi
find src tests bench -name '*.[ch]' -print0 | xargs -0 "$tool" "$@"
