#!/bin/bash
# The program as a user meets it: exit statuses, messages, help of every verb, man page, completion.
set -uo pipefail
weft=${WEFT:?the program under test}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# expect STATUS WORD... : runs weft WORD..., compares the status; output lands in the files out and err.
expect() {
    local wanted=$1 status=0
    shift
    "$weft" "$@" >out 2>err </dev/null || status=$?
    [ "$status" -eq "$wanted" ] || fail "weft $*: exit status $status, expected $wanted: $(head -c 300 err)"
}
has() { grep -qF -- "$2" "$1" || fail "no \"$2\" in: $(head -c 300 "$1")"; }
is_plain() { ! LC_ALL=C grep -q $'\x1b' out err || fail "escape bytes in the output of $*"; }

# The overview, and what is said without one.
expect 0 --help
has out "Verbs:"
[ ! -s err ] || fail "--help wrote to stderr"
expect 0 help
expect 0 --version
grep -qE '^weft [0-9]+\.[0-9]+\.[0-9]+$' out || fail "--version begins with: $(head -1 out)"
has out "oneDNN"
expect 2
[ ! -s out ] || fail "a usage error wrote to stdout"

# Unknown words: status 2, one line on stderr, a suggestion.
expect 2 docter
has err 'did you mean "doctor"'
[ "$(wc -l <err)" -eq 1 ] || fail "a usage error is one line, not: $(cat err)"
has err "exit status 2"
expect 2 --frobnicate
expect 2 doctor --jason
has err 'did you mean "--json"'
expect 2 doctor one-too-many
expect 2 doctor --seconds
expect 2 doctor --seconds=fast
expect 2 help --completion fish
expect 2 $'\x1b[31mred'
is_plain "an unknown verb with escapes"

# Every verb explains itself, to itself and through help, within 100 columns, without colour.
verbs=$("$weft" help --completion bash | sed -n 's/^    "\(.*\)")$/\1/p')
[ "$(wc -l <<<"$verbs")" -ge 2 ] || fail "verbs found: $verbs"
while read -r verb; do
    # shellcheck disable=SC2086
    expect 0 $verb --help
    has out "Usage: weft $verb"
    has out "--help"
    is_plain "$verb --help"
    [ "$(wc -L <out)" -le 128 ] || fail "weft $verb --help: a line of $(wc -L <out) columns"
    mv out first
    # shellcheck disable=SC2086
    expect 0 help $verb
    cmp -s out first || fail "weft $verb --help and weft help $verb differ"
    # shellcheck disable=SC2086
    expect 2 $verb --no-such-flag-anywhere
done <<<"$verbs"

# A group of verbs: named alone it says what it has.
expect 0 tokenizer --help
has out "Usage: weft tokenizer VERB"
expect 0 help tokenizer
expect 2 tokenizer
has err "needs one of: train, encode, decode"
expect 2 tokenizer trian
has err 'did you mean "tokenizer train"'

# Data that cannot be written is an error; a reader that leaves is not worth a word.
if [ -e /dev/full ]; then
    status=0
    "$weft" --help >/dev/full 2>err || status=$?
    [ "$status" -eq 74 ] || fail "a full disk gives exit status $status, expected 74"
fi
"$weft" help --man 2>err | head -1 >/dev/null
[ ! -s err ] || fail "a closed pipe was reported: $(cat err)"

# Numbers do not follow the locale.
LC_ALL=de_DE.UTF-8 expect 0 doctor --seconds 0.01 --json
has out '"cores"'
is_plain "doctor"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; d = json.load(open("out")); sys.exit(not (d["cores"] >= 1 and d["peak_fp32_flops"] > 1e6))' ||
        fail "doctor --json: $(head -c 600 out)"
fi
expect 73 doctor --seconds 0.01 --dir "$directory/not/there"
has err "$directory/not/there"
[ -z "$(find . -name '.weft-doctor*')" ] || fail "doctor left a file behind"

# The man page is clean, the completion loads and completes.
"$weft" help --man >weft.1 || fail "help --man"
if command -v man >/dev/null; then
    warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=100 man --warnings -E UTF-8 -l -Tutf8 -Z ./weft.1 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "man --warnings: $warnings"
fi
"$weft" help --completion bash >weft.bash || fail "help --completion bash"
completed=$(bash --norc -c '
    source ./weft.bash || exit 1
    COMP_WORDS=(weft doc); COMP_CWORD=1; _weft 2>/dev/null; echo "${COMPREPLY[@]}"
    COMP_WORDS=(weft doctor --js); COMP_CWORD=2; _weft 2>/dev/null; echo "${COMPREPLY[@]}"')
[ "$completed" = $'doctor\n--json' ] || fail "completion gave: $completed"

[ "$failures" -eq 0 ] && echo "all as expected" || { echo "$failures failures"; exit 1; }
