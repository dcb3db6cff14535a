#!/bin/bash
# The layers: includes point downwards only, and each external library has one layer that may use it.
set -euo pipefail
cd "${1:-${WEFT_SOURCE_DIR:-$(dirname "$0")/../..}}"

grep -rnE '^[[:space:]]*#[[:space:]]*include' src --include='*.[ch]' --include='*.cu' --include='*.cuh' | awk -F: '
BEGIN {
    count = split("base remote device comm tokenizer template formats data model optimizer schedule config program plan forecast observe checkpoint engine train cli", names, " ") # from the ground up
    for (i = 1; i <= count; i++) rank[names[i]] = i
}
function complain(why) { print $1 ":" $2 ": " why; failures++ }
{
    split($1, path, "/")
    from = path[2]
    header = $3
    sub(/^[[:space:]]*#[[:space:]]*include[[:space:]]*/, "", header)
    if (!(from in rank)) {
        complain("\"" from "\" is not a layer")
    } else if (header ~ /^"/) {
        split(header, quoted, "\"")
        split(quoted[2], target, "/")
        if (system("test -f src/" quoted[2])) complain(header ": includes are written from src/, as \"layer/file.h\"")
        else if (rank[target[1]] > rank[from]) complain(from "/ may not include " quoted[2] ": includes point down only")
    } else if (header ~ /dnnl|immintrin|cuda|cublas/ && from != "device") {
        complain("only device/ may include " header)
    } else if (header ~ /microhttpd/ && from != "cli") {
        complain("only cli/ may include " header)
    } else if (header ~ /[<\/](curl|expat)/ && from != "remote") {
        complain("only remote/ may include " header)
    } else if (header ~ /[<\/]mpi\.h/ && $1 !~ "^src/comm/mpi/") {
        complain("only comm/mpi/ may include " header)
    } else if (header ~ /nccl/ && $1 !~ "^src/comm/nccl/") {
        complain("only comm/nccl/ may include " header)
    }
}
END {
    if (NR < 20) { print "only " NR " includes found: is this the source tree?"; exit 1 }
    if (failures) { print failures " includes break the rules of the house"; exit 1 }
    print NR " includes, all downwards"
}'

# Only two places know what an axis means: comm/mesh (which ranks form it) and program/axes.c (what each kind of parameter does on it).
if grep -rnE '\bAXIS_[A-Z]' src --include='*.[ch]' | grep -vE '^src/(comm/mesh\.[ch]|program/axes\.c):'; then
    echo "only comm/mesh and the table in program/axes.c name an axis"
    exit 1
fi

# The check itself can fail: plants a tree with one wrong include of each kind.
[ $# -eq 0 ] || exit 0
bad=$(mktemp -d)
trap 'rm -rf "$bad"' EXIT
cp -r src "$bad/src"
mkdir -p "$bad/src/attic"
printf '#include "cli/cli.h"\n' >"$bad/src/base/zz1.c"
printf '#  include <mpi.h>\n#include <oneapi/dnnl/dnnl.h>\n#include "error.h"\n' >"$bad/src/model/zz2.c"
printf '#include <stdio.h>\n' >"$bad/src/attic/zz3.c"
printf '#include <mpi.h>\n' >"$bad/src/comm/zz4.c"
found=$(bash "$0" "$bad" | grep -c '/zz[1234]\.c:' || true)
[ "$found" -eq 6 ] || { echo "the check finds $found of 6 planted violations"; exit 1; }
rm "$bad"/src/*/zz*.c
rmdir "$bad/src/attic"
printf 'int zz = AXIS_TP;\n' >"$bad/src/engine/zz5.c"
found=$(bash "$0" "$bad" | grep -c '/zz5\.c:' || true)
[ "$found" -eq 1 ] || { echo "the check does not find the name of an axis"; exit 1; }
