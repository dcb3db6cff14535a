#!/bin/bash
# The command line as users meet it: exit statuses, messages, help of every command, man page, completion.
. "$(dirname "$0")/../support/prelude.sh"

# The overview, and the message without a command.
exits 0 --help
has out "Verbs:"
summary=$(sed -n '1s/^weft - //p' out)
[ -n "$summary" ] || fail "--help begins with: $(head -1 out)"
! grep -qi llama out || fail "--help names one family: $(grep -i llama out)"
[ ! -s err ] || fail "--help wrote to stderr"
exits 0 help
exits 0 --version
version=$(sed -n 's/^## \[\([0-9.]*\)\].*/\1/p' "${WEFT_SOURCE_DIR:?}/CHANGELOG.md" | head -1)
grep -qx "weft $version" out || fail "--version begins with: $(head -1 out); the newest of CHANGELOG.md is $version"
has out "oneDNN"
exits 2
[ ! -s out ] || fail "a usage error wrote to stdout"

# Unknown words: status 2, one line on stderr, a suggestion.
exits 2 docter
has err 'did you mean "doctor"'
[ "$(wc -l <err)" -eq 1 ] || fail "a usage error is one line, not: $(cat err)"
has err "exit status 2"
exits 2 --frobnicate
exits 2 doctor --jason
has err 'did you mean "--json"'
exits 2 doctor one-too-many
exits 2 doctor --seconds
exits 2 doctor --seconds=fast
exits 2 help --completion fish
for words in "train" "train -n 2" "train --restarts 1" "plan" "tokenize" "config"; do
    # shellcheck disable=SC2086
    exits 2 $words run.dir=x train.steps=3
    has err "the configuration file is missing: it comes before what is assigned, as in my.yaml run.dir=x"
    [ "$(wc -l <err)" -eq 1 ] || fail "$words without a file is one line, not: $(cat err)"
done
exits 66 train nothing.dir=x
has err "nothing.dir=x: cannot open"
exits 2 $'\x1b[31mred'
is_plain "an unknown verb with escapes"

# Every command has help, by --help and by weft help, within 100 columns and without colour.
verbs=$("$weft" help --completion bash | sed -n 's/^    "\(.*\)")$/\1/p')
[ "$(wc -l <<<"$verbs")" -ge 2 ] || fail "verbs found: $verbs"
while read -r verb; do
    # shellcheck disable=SC2086
    exits 0 $verb --help
    has out "Usage: weft $verb"
    has out "--help"
    is_plain "$verb --help"
    [ "$(wc -L <out)" -le 128 ] || fail "weft $verb --help: a line of $(wc -L <out) columns"
    mv out first
    # shellcheck disable=SC2086
    exits 0 help $verb
    cmp -s out first || fail "weft $verb --help and weft help $verb differ"
    # shellcheck disable=SC2086
    exits 2 $verb --no-such-flag-anywhere
done <<<"$verbs"

# A command group without a command lists its commands.
exits 0 tokenizer --help
has out "Usage: weft tokenizer VERB"
exits 0 help tokenizer
exits 2 tokenizer
has err "needs one of: train, encode, decode"
exits 2 tokenizer trian
has err 'did you mean "tokenizer train"'

# Output that cannot be written is an error; a reader that closes the pipe is not.
if [ -e /dev/full ]; then
    status=0
    "$weft" --help >/dev/full 2>err || status=$?
    [ "$status" -eq 74 ] || fail "a full disk gives exit status $status, expected 74"
fi
"$weft" help --man 2>err | head -1 >/dev/null
[ ! -s err ] || fail "a closed pipe was reported: $(cat err)"

# Numbers do not depend on the locale.
LC_ALL=de_DE.UTF-8 exits 0 doctor --seconds 0.01 --json
has out '"cores"'
is_plain "doctor"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; d = json.load(open("out")); sys.exit(not (d["cores"] >= 1 and d["peak_fp32_flops"] > 1e6 and d["memory_read_bytes_per_second"] > 1e6))' ||
        fail "doctor --json: $(head -c 600 out)"
fi
exits 73 doctor --seconds 0.01 --dir "$directory/not/there"
has err "$directory/not/there"
[ -z "$(find . -name '.weft-doctor*')" ] || fail "doctor left a file behind"

# doctor distinguishes a control group's limit from the machine's memory. As in a container, the limit is at the root of the cgroup tree.
limited() { unshare -rm sh -c 'mount -t tmpfs none /sys/fs/cgroup && echo 1073741824 >/sys/fs/cgroup/memory.max && "$@"' sh "$@"; }
if limited true 2>/dev/null; then
    limited "$weft" doctor --seconds 0.01 >out 2>err || fail "doctor in a control group: $(cat err)"
    grep -qxE 'memory limit +1\.00 GiB' out || fail "doctor does not say the limit: $(cat out)"
    has out "This process may use 1.00 GiB of the machine's"
    limited "$weft" doctor --seconds 0.01 --json >out 2>err
    has out '"memory_limit_bytes": 1073741824'
else
    echo "no user namespaces here: doctor in a control group was left out"
fi

# The man page has no warnings; the completion loads and completes.
"$weft" help --man >weft.1 || fail "help --man"
[ "$(sed -n '/^weft .- /{ s/^weft .- //; s/\\-/-/g; p; q }' weft.1)" = "$summary" ] || fail "the man page: $(sed -n 1,6p weft.1)"
if command -v man >/dev/null; then
    warnings=$(LC_ALL=C.UTF-8 MANROFFSEQ='' MANWIDTH=100 man --warnings -E UTF-8 -l -Tutf8 -Z ./weft.1 2>&1 >/dev/null)
    [ -z "$warnings" ] || fail "man --warnings: $warnings"
fi
"$weft" help --completion bash >weft.bash || fail "help --completion bash"
completed=$(bash --norc -c '
    source ./weft.bash || exit 1
    COMP_WORDS=(weft doc); COMP_CWORD=1; _weft 2>/dev/null; echo "${COMPREPLY[@]}"
    COMP_WORDS=(weft doctor --js); COMP_CWORD=2; _weft 2>/dev/null; echo "${COMPREPLY[@]}"
    COMP_WORDS=(weft train my.yaml train.recompute = sel); COMP_CWORD=5; _weft 2>/dev/null; echo "${COMPREPLY[@]}"
    COMP_WORDS=(weft train my.yaml data.add_bos =); COMP_CWORD=4; _weft 2>/dev/null; echo "${COMPREPLY[@]}"
    touch tokens.json; COMP_WORDS=(weft train my.yaml data.tokenizer = tokens.j); COMP_CWORD=5; _weft 2>/dev/null; echo "${COMPREPLY[@]}"')
[ "$completed" = $'doctor\n--json\nselective\ntrue false\ntokens.json' ] || fail "completion gave: $completed"

conclude
