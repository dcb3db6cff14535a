#!/bin/sh
# clang-format over all C files; --check changes nothing, names the files that would change and fails. Versions of clang-format
# differ in details: 14 is the one that counts.
set -eu
cd "$(dirname "$0")/.."
tool=$(command -v clang-format-14 || command -v clang-format || true)
found=$("${tool:-true}" --version 2>/dev/null || true)
case $found in
*"version 14."*) ;;
*)
    echo "format: clang-format 14 is needed, found ${found:-none}: apt-get install clang-format-14" >&2
    exit 69
    ;;
esac
if [ "${1:-}" != --check ]; then
    find src tests bench -name '*.[ch]' -exec "$tool" -i {} +
    exit 0
fi
wrong=$(find src tests bench -name '*.[ch]' | sort | while read -r file; do
    "$tool" "$file" | cmp -s - "$file" || echo "  $file"
done)
[ -z "$wrong" ] || { echo "format: \"make format\" would change"; echo "$wrong"; exit 1; }
