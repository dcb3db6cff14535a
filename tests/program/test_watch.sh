#!/bin/bash
# weft watch over plain HTTP: what it serves, to whom, and what it refuses. (tests/interop/test_watch_browser.sh tests the page.)
. "$(dirname "$0")/../support/prelude.sh"
trap '' PIPE # the server closes the connection on requests that are too long
echo x >file
"$weft" watch file >out 2>err </dev/null && fail "a file in place of a run directory"
! grep -q 'built without libmicrohttpd' err || { echo "skipped: no libmicrohttpd (apt-get install libmicrohttpd-dev)"; exit 77; }
has err "file: no directory; a run directory was expected"

letters 60 3 >text.txt
letters 30 4 >held.txt
printf '{"goal": "%s", "sol1": "b", "sol2": "cc", "label": 0}\n' a b c >piqa.jsonl
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes, validation: [{path: held.txt, name: held}]}
train: {steps: 12, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {kind: constant, warmup_steps: 0, total_steps: 100}
validation: {every: 4, samples: 4}
evaluation: {every: 6, tasks: [piqa.jsonl]}
checkpoint: {every: 6}
metrics: {tensorboard: false, log_freq: 1}
run: {threads: 1}
END
mkdir young
"$weft" train run.yaml run.dir=one >train.out 2>&1 </dev/null || fail "train: $(tail -3 train.out)"
echo secret >young/secret

# watch WORD...: starts weft watch in the background; sets $host, $port and $token.
watch() {
    : >address
    "$weft" watch --port 0 "$@" >address 2>watch.err </dev/null &
    server=$!
    await has_lines address 1 || exit 1
    local rest
    rest=$(sed 's|^http://||' address)
    token=${rest#*token=} host=${rest%%:*}
    [ "$token" != "$rest" ] || token=
    port=${rest#*:} port=${port%%/*}
}
# ask PATH [METHOD [HEADER...]]: sends a request; sets $status, and writes the answer's head and body to files.
ask() {
    local path=$1 method=${2:-GET}
    shift $(($# > 1 ? 2 : 1))
    exec 5<>"/dev/tcp/127.0.0.1/$port" || { fail "$path: no connection"; return; }
    {
        printf '%s %s HTTP/1.1\r\n' "$method" "$path"
        [[ " $*" == *" Host:"* ]] || printf 'Host: localhost:%s\r\n' "$port"
        [ $# -eq 0 ] || printf '%s\r\n' "$@"
        printf 'Connection: close\r\n\r\n'
    } >&5
    cat <&5 >answer
    exec 5>&-
    sed '/^\r$/q' answer | tr -d '\r' >head
    sed '1,/^\r$/d' answer >body
    status=$(sed -n '1s/^[^ ]* \([0-9]*\).*/\1/p' head)
}
answers() { # STATUS PATH ...
    local wanted=$1
    shift
    ask "$@"
    [ "$status" = "$wanted" ] || fail "$*: status $status, expected $wanted: $(head -c 300 body)"
}

watch one young
answers 200 /
has body '<script src="watch.js" defer>'
has head "Content-Security-Policy: default-src 'none'"
has head "X-Content-Type-Options: nosniff"
! grep -qE 'https?://' body || fail "the page asks for something elsewhere"
answers 200 /watch.js
cmp -s body "${WEFT_SOURCE_DIR:?}/src/observe/watch/watch.js" || fail "the script is not what stands in its file"
! grep -E 'https?://' body | grep -v www.w3.org || fail "the script asks for something elsewhere"
answers 200 /watch.css
answers 200 /runs
has body '"runs": ["one", "young"]'
answers 200 /data?run=0
has body '"state": "finished"'
has body '"step": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]'
has body '"kind": "set", "name": "held", "figure": "loss", "share": false, "dots": [[0, '
has body '"kind": "task", "name": "piqa", "figure": "acc_norm", "share": true, "dots": [[0, '
version=$(sed -n 's/.*"version": \([0-9]*\).*/\1/p' body)
answers 200 "/data?run=0&version=$version&after=10"
has body '"all": false'
has body '"step": [11, 12]'
answers 200 "/data?run=0&version=7&after=10"
has body '"all": true'
answers 200 /data?run=1
has body '"step": []'
answers 200 /config?run=0
has body 'num_hidden_layers: 1'
answers 200 / HEAD
[ ! -s body ] || fail "HEAD has a body"

# The run continues while it is watched.
"$weft" train run.yaml run.dir=one train.steps=14 >train.out 2>&1 </dev/null || fail "resuming: $(tail -3 train.out)"
now_at_14() { ask "/data?run=0&version=$version&after=12" && grep -q '"step": \[13, 14\]' body; }
await now_at_14
"$weft" train run.yaml run.dir=one run.overwrite=true train.steps=5 >train.out 2>&1 </dev/null || fail "starting over: $(tail -3 train.out)"
anew() { ask "/data?run=0&version=$version&after=14" && grep -q '"all": true' body && grep -q '"step": \[1, 2, 3, 4, 5\]' body; }
await anew
"$weft" train run.yaml run.dir=young >train.out 2>&1 </dev/null || fail "young: $(tail -3 train.out)"
there() { ask /data?run=1 && grep -q '"step": \[1, 2, 3' body; }
await there

# The server does not wait for a body, and refuses too large a request header.
answers 405 / POST "Content-Length: 1000000"
answers 200 /runs GET "Content-Length: 1000000"
ask /runs GET "$(printf 'X: y\r\n%.0s' {1..9000})X: y" 2>/dev/null
[ "$status" != 200 ] || fail "9,000 headers"

# Only GET and HEAD; no path leads to other files; numbers must be numbers.
for method in POST PUT DELETE OPTIONS PATCH; do
    answers 405 / "$method" "Content-Length: 0"
    has head "Allow: GET, HEAD"
done
for path in /secret /young/secret /../young/secret /%2e%2e/young/secret //watch.js /watch.js/ /data/0 '/config?run=2' '/config?run=-1' \
    '/data?run=99999999999999999999'; do
    ask "$path"
    [ "$status" = 404 ] || [[ "$path" == *9999* && "$status" = 200 ]] || fail "$path: status $status"
    ! grep -q secret body || fail "$path reveals a secret"
done
answers 200 '/config?run=../young'
has body 'dir: one'
# A foreign host name that resolves to this machine (DNS rebinding); a host name that only begins like a local one.
answers 403 /data?run=0 GET "Host: evil.example"
answers 403 / GET "Host: localhost.evil.example:$port"
answers 200 /data?run=0 GET "Host: 127.0.0.1:9999"
# Requests that are not HTTP, or too long, do not affect others.
head -c 3000 /dev/urandom >"/dev/tcp/127.0.0.1/$port" || true
ask "/$(head -c 60000 /dev/zero | tr '\0' a)" 2>/dev/null
[ "$status" != 200 ] || fail "a path of 60,000 letters"
answers 200 /runs
kill -INT $server
wait $server || fail "Ctrl-C: status $?"

# weft watch may start before the run has a directory.
watch later/run/ one
await grep -q "later/run/ does not exist yet" watch.err
answers 200 /data?run=0
has body '"name": "run"'
has body '"step": []'
[ ! -e later ] || fail "the directory of a future run was made"
"$weft" train run.yaml run.dir=later/run >train.out 2>&1 </dev/null || fail "later: $(tail -3 train.out)"
begun() { ask /data?run=0 && grep -q '"step": \[1, 2, 3' body; }
await begun
answers 200 /config?run=0
has body 'num_hidden_layers: 1'
kill $server
wait $server

# A token: with --token on this address, always on others.
watch --token one
[ ${#token} -eq 32 ] || fail "the token is \"$token\""
old=$token
for words in "" "?token=" "?token=${token%?}" "?token=${token}0" "?token=${token^^}x" "?x=$token"; do
    for path in / /runs /data /config; do answers 403 "$path$words"; done
done
answers 200 "/data?run=0&token=$token"
answers 200 "/?token=$token" GET "Host: some.where"
answers 200 /watch.css
# A request header that trickles in forever is cut off; a connection serves one request.
slow_head() { # FILE WORDS: sends a byte at a time until the connection is closed, then makes FILE
    exec 6<>"/dev/tcp/127.0.0.1/$port" || return
    printf '%b' "$2" >&6
    (cat <&6 >"$1.answer"; : >"$1") &
    until [ -e "$1" ]; do printf a >&6; sleep 0.2; done 2>/dev/null
}
slow_head first 'GET /runs HTTP/1.1\r\nX: ' &
slow_head second 'GET /watch.css HTTP/1.1\r\nHost: x\r\n\r\nGET /watch.css HTTP/1.1\r\nX: ' &
await test -e first
await test -e second
[ ! -s first.answer ] || fail "a head without an end was answered: $(head -3 first.answer)"
has second.answer "HTTP/1.1 200"
has second.answer "Connection: close"
# More slow clients than connections, which reconnect when they are closed: others are still answered, with and without the token.
slow_heads() {
    local held=() i fd
    for i in {1..100}; do exec {fd}<>"/dev/tcp/127.0.0.1/$port" && held+=("$fd") && printf 'GET /runs HTTP/1.1\r\nX: ' >&"$fd"; done
    : >held
    while :; do
        for fd in "${held[@]}"; do printf a >&"$fd" || eval "exec $fd>&- $fd<>/dev/tcp/127.0.0.1/$port"; done
        : >trickled
        sleep 0.2
    done
}
slow_heads 2>/dev/null &
slow=$!
await test -e trickled
meet_slow_heads() { # if they block others, the test fails in await instead of hanging
    answers 200 "/runs?token=$token"
    answers 403 "/runs?token=x"
    answers 200 "/data?run=0&token=$token"
    echo "$failures" >met
}
for round in 1 2 3; do
    rm -f met trickled
    (failures=0; meet_slow_heads) &
    await test -s met
    failures=$((failures + $(cat met)))
    await test -e trickled
done
kill $slow
kill -TERM $server
wait $server || fail "SIGTERM: status $?"
watch --bind 0.0.0.0 one
[ ${#token} -eq 32 ] && [ "$token" != "$old" ] || fail "another address without a new token: $(cat address)"
answers 403 /data
answers 200 "/data?token=$token"
kill $server
wait $server
WEFT_WATCH_TOKEN=abcdefgh-12345678 watch --bind 0.0.0.0 one
[ "$token" = abcdefgh-12345678 ] || fail "the token that was given is not used: $(cat address)"
exits 73 watch one young --port "$port"
has err "cannot listen on port $port"
WEFT_WATCH_TOKEN=short exits 2 watch --token one
has err "WEFT_WATCH_TOKEN"
kill $server
wait $server
exits 2 watch one --bind example.com
has err "expected an address"
exits 2 watch one --port 70000

conclude
