#!/bin/bash
# weft schedule: CSV in and out, figures, drawings, and errors.
. "$(dirname "$0")/../support/prelude.sh"

# schedule STATUS WORD...
schedule() { expect_alone "$1" schedule "${@:2}"; }

# The compute order alone.
schedule 0 1f1b --pp 2 --microbatches 3 --csv
printf '%s\n' 0F0,0F1,0B0,0F2,0B1,0B2 1F0,1B0,1F1,1B1,1F2,1B2 >wanted
cmp -s out wanted || fail "1f1b as CSV: $(cat out)"
[ ! -s err ] || fail "--csv wrote to stderr: $(cat err)"

# Lowered: the worked example of two ranks and two microbatches.
schedule 0 1f1b --pp 2 --microbatches 2 --csv=lowered
cat >wanted <<END
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD
END
cmp -s out wanted || fail "1f1b lowered: $(cat out)"
schedule 0 1f1b --pp 2 --microbatches 2 --csv=p2p
sed 's/[01]UNSHARD,//; s/,[01]REDUCE_GRAD,[01]RESHARD//' wanted | cmp -s out - || fail "1f1b with transfers: $(cat out)"

# Every schedule survives writing and reading, with the same figures.
names="gpipe 1f1b looped_bfs interleaved_1f1b zb_h1 zb_h2 interleaved_zero_bubble v_min v_half zbv dualpipev"
"$weft" schedule --help >help
for name in $names; do
    has help "$name"
    for form in --csv --csv=p2p; do
        schedule 0 "$name" --pp 4 --microbatches 8 "$form"
        mv out mine.csv
        schedule 0 mine.csv "$form"
        cmp -s out mine.csv || fail "$name $form changes when read back"
    done
    schedule 0 "$name" --pp 4 --microbatches 8 --cost 1,1.5,0.5,0.25 --json
    grep -v '"schedule"' out >first
    schedule 0 "$name" --pp 4 --microbatches 8 --cost 1,1.5,0.5,0.25 --csv
    mv out mine.csv
    schedule 0 mine.csv --cost 1,1.5,0.5,0.25 --json
    grep -v '"schedule"' out | cmp -s first - || fail "$name from a file has other figures"
done

# Segments: each is a microbatch of the schedule, backwards descend within one, and the costs are those of whole microbatches.
schedule 0 1f1b --pp 2 --microbatches 2 --segments 2 --csv
printf '%s\n' 0F0,0F1,0F2,0B1,0F3,0B0,0B3,0B2 1F0,1F1,1B1,1F2,1B0,1F3,1B3,1B2 >wanted
cmp -s out wanted || fail "segments as CSV: $(cat out)"
schedule 0 1f1b --pp 8 --microbatches 16 --segments 4 --json
grep -q '"makespan": 53.25,' out && grep -q '"microbatches": 16,' out && grep -q '"segments": 4,' out || fail "figures of segments: $(head -8 out)"
schedule 0 --pp 8 --microbatches 16 --segments 4
grep -q '^1f1b  *1  *53.25  *9.9 %  *9.9 %  *2.75  *2.75 ' out || fail "the row of segments: $(grep ^1f1b out)"
grep -q '^zbv .*does not cut microbatches into segments (4): 1f1b and gpipe do' out || fail "a schedule without segments: $(grep ^zbv out)"
schedule 78 zbv --pp 2 --microbatches 4 --segments 2
has err 'does not cut microbatches into segments (2)'

# Known figures: makespan and peaks from the zero-bubble papers, in stage times.
if command -v python3 >/dev/null; then
    check() { # NAME MAKESPAN IDLE PEAK_I PEAK_W of rank 0
        schedule 0 "$1" --pp 4 --microbatches 8 --json
        python3 -c '
import json, sys
d, want = json.load(open("out")), [float(x) for x in sys.argv[1:]]
r = d["per_rank"][0]
got = [d["makespan"], r["idle"], r["peak_to_input"], r["peak_to_weight"]]
assert len(d["per_rank"]) == d["ranks"] == 4 and abs(d["bubble"] - max(r["idle"] for r in d["per_rank"]) / d["makespan"]) < 1e-12
sys.exit(f"{got} instead of {want}" if got != want else 0)' "${@:2}" || fail "figures of $1"
    }
    check gpipe 33 9 8 8
    check 1f1b 33 9 4 4
    check interleaved_1f1b 57 9 11 11
    check zb_h1 27 3 4 4
    check v_half 55 7 6 6
    check zbv 51 3 8 8
fi

# Drawings: to scale without colour; a complete SVG file.
LC_ALL=C schedule 0 1f1b --pp 2 --microbatches 3 --width 43
has out "rank 0 F0-F1-......B0----F2-B1----...B2----"
LC_ALL=C.UTF-8 schedule 0 1f1b --pp 2 --microbatches 3 --width 43
has out "F0─F1─······B0────"
schedule 0 zbv --pp 4 --microbatches 8 --svg zbv.svg
[ ! -s out ] || fail "--svg wrote to stdout: $(head -c 200 out)"
has zbv.svg "zbv: 4 ranks, 8 microbatches, 8 stages"
[ "$(tail -1 zbv.svg)" = "</svg>" ] || fail "the SVG ends with: $(tail -1 zbv.svg)"
cp zbv.svg first
schedule 0 zbv --pp 4 --microbatches 8 --svg -
cmp -s out first || fail "--svg - is a different drawing"
if command -v python3 >/dev/null; then
    python3 -c 'import xml.dom.minidom as x; x.parse("zbv.svg")' || fail "the SVG is not XML"
fi
schedule 73 zbv --pp 4 --microbatches 8 --svg not/there.svg

# A colour terminal, and NO_COLOR.
if script -qec true /dev/null </dev/null >/dev/null 2>&1; then
    TERM=xterm script -qec "'$weft' schedule 1f1b --pp 2 --microbatches 3" /dev/null </dev/null >out
    LC_ALL=C grep -q $'\x1b\\[48;5;' out || fail "no colour on a terminal"
    NO_COLOR=1 TERM=xterm script -qec "'$weft' schedule 1f1b --pp 2 --microbatches 3" /dev/null </dev/null >out
    ! LC_ALL=C grep -q $'\x1b\\[' out || fail "colour in spite of NO_COLOR"
fi

# A table of all schedules; those that do not fit have a reason.
schedule 0 --pp 4 --microbatches 6
for name in $names; do has out "$name"; done
grep -q '^dualpipev .*8' out || fail "why dualpipev needs 8 microbatches: $(grep dualpipev out)"
grep -qE '^zb_h1 +1 +21 ' out || fail "zb_h1 takes 3 x 6 + 3: $(grep zb_h1 out)"

# Wrong words and numbers.
schedule 2 1f1v --pp 4 --microbatches 8
has err 'did you mean "1f1b"'
schedule 2 1f1b --pp 4
has err "--microbatches"
schedule 2 1f1b --pp 0 --microbatches 8
schedule 2 1f1b --pp 4096 --microbatches 65536
has err "x 1 stage a rank are more than"
schedule 2 --pp 4096 --microbatches 65536
schedule 2 1f1b --pp 4 --microbatches 8 --cost 1,1
schedule 2 1f1b --pp 4 --microbatches 8 --cost 1,1,-1
schedule 2 1f1b --pp 4 --microbatches 8 --cost 0,0,0
schedule 2 1f1b --pp 4 --microbatches 8 --cost 1,1,1,1,1
schedule 2 1f1b --pp 4 --microbatches 8 --cost 1,nan,1
schedule 2 1f1b --pp 4 --microbatches 8 --cost 1e308,1e308,1e308
has err "from 0 to 1e+12"
schedule 2 1f1b --pp 4 --microbatches 8 --csv=fancy
schedule 2 1f1b --pp 4 --microbatches 8 --csv --json
schedule 2 --pp 4 --microbatches 8 --csv
schedule 78 1f1b --pp 4 --microbatches 8 --stages-per-rank 2
schedule 78 dualpipev --pp 4 --microbatches 4
has err "8"

# Bad files: one error with the position.
schedule 66 missing.csv
printf '0F0,0B0\n1F0\n' >bad.csv
schedule 65 bad.csv
has err "bad.csv"
printf '0F0,0B0x\n1F0,1B0\n' >bad.csv
schedule 65 bad.csv
printf '1F0,0F0,0B0,1B0\n' >bad.csv # waits for itself
schedule 65 bad.csv
: >bad.csv
schedule 65 bad.csv
schedule 2 bad.csv --pp 2

conclude
