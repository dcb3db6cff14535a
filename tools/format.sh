#!/bin/sh
# Runs clang-format on all C and C++ files and kernels. --check changes nothing: it names the files that would change, and lines of more
# than 110 columns (comments are wrapped by hand), and fails if there are any. Versions of clang-format differ in details: this tree uses 14.
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
# Columns are characters, so only the first byte of a UTF-8 sequence counts. Generated code is exempt: it is where clang-format is off.
long=$(sources | LC_ALL=C xargs awk '
    FNR == 1 { made = 0 }
    /clang-format off/ { made = 1 }
    /clang-format on/ { made = 0 }
    !made { line = $0; gsub(/[\200-\277]/, "", line); if (length(line) > 110) print "  " FILENAME ":" FNR ": " length(line) " columns" }')
[ -z "$long" ] || { echo "format: lines of more than 110 columns, to be broken by hand"; echo "$long"; exit 1; }
