#!/bin/sh
# clang-format over all C and C++ files and kernels; --check changes nothing, names the files that would change and fails, as it does for
# lines of more than 110 columns: comments are laid out by hand. Versions of clang-format differ in details: 14 is the one that counts.
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
sources() { find src tests bench examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' | sort; }
if [ "${1:-}" != --check ]; then
    sources | xargs "$tool" -i
    exit 0
fi
wrong=$(sources | while read -r file; do
    "$tool" "$file" | cmp -s - "$file" || echo "  $file"
done)
[ -z "$wrong" ] || { echo "format: \"make format\" would change"; echo "$wrong"; exit 1; }
# Columns are characters: of UTF-8 only first bytes count. What a script has made says so by switching the formatter off.
long=$(sources | LC_ALL=C xargs awk '
    FNR == 1 { made = 0 }
    /clang-format off/ { made = 1 }
    /clang-format on/ { made = 0 }
    !made { line = $0; gsub(/[\200-\277]/, "", line); if (length(line) > 110) print "  " FILENAME ":" FNR ": " length(line) " columns" }')
[ -z "$long" ] || { echo "format: lines of more than 110 columns, to be broken by hand"; echo "$long"; exit 1; }
