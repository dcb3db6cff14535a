#!/bin/bash
# tools/interop.sh reports skipped tests and then fails. Uses a fake ctest and venv, so that nothing is installed.
. "$(dirname "$0")/../support/prelude.sh"
mkdir -p bin tools venv/bin
cp "$WEFT_SOURCE_DIR/tools/interop.sh" tools/
for program in venv/bin/python venv/bin/pip; do printf '#!/bin/sh\nexit 0\n' >"$program"; done
printf '#!/bin/sh\ncat "%s/said"\nexit $(cat "%s/ends")\n' "$directory" "$directory" >bin/ctest
chmod +x bin/ctest venv/bin/*

# runs STATUS_OF_CTEST STATUS WORDS: checks its exit status, and its report of skipped tests (nothing, if WORDS is empty).
runs() {
    local status=0
    echo "$1" >ends
    PATH=$directory/bin:$PATH VENV=venv tools/interop.sh >out 2>err || status=$?
    [ "$status" -eq "$2" ] || fail "ended with $status instead of $2: $(cat said)"
    if [ -n "$3" ]; then grep -q "$3" err || fail "does not say \"$3\": $(cat err)"; else [ ! -s err ] || fail "says $(cat err)"; fi
}
printf '1: all as expected\n1/1 Test #1: test_a ...   Passed  1.0 sec\n' >said
runs 0 0 ''
runs 8 8 ''
printf '1: skipped: there is no chromium\n1/1 Test #1: test_b ...***Skipped   0.1 sec\n' >said
runs 0 69 'there is no chromium'
runs 0 69 'NOT TESTED'
printf '2: [  SKIPPED ] test_c\n2/2 Test #2: test_d ...   Passed  1.0 sec\n' >said
runs 0 69 'SKIPPED'
printf '3: peft is not installed: what needs it is skipped\n' >said
runs 0 69 'peft'
conclude
