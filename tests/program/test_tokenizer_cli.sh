#!/bin/bash
# weft tokenizer train, encode, decode: streams, exit statuses, messages.
. "$(dirname "$0")/../support/prelude.sh"

# tokenizer STATUS INPUT WORD... : runs weft tokenizer WORD... with INPUT on stdin.
tokenizer() { input=$2 exits "$1" tokenizer "${@:3}"; }

# 6 MB, several reads of the encoder: lines of text, then a long run without a space, then bytes that are not text.
for i in $(seq 1 2000); do echo "And the $i day was like the $((i * 7 % 1000))th, and it's said: \"so be it\"."; done >some.txt
for _ in $(seq 1 40); do cat some.txt; done >text
head -c 1500000 /dev/zero | tr '\0' 'a' >>text
printf ' \377\376\200 \303' >>text

tokenizer 0 /dev/null train some.txt --vocab 500 --out t.json --quiet
[ ! -s err ] || fail "--quiet, yet: $(cat err)"
tokenizer 0 /dev/null train some.txt --vocab 500 --out again.json --threads 1
cmp -s t.json again.json || fail "another number of threads, another tokenizer"
tokenizer 0 /dev/null train some.txt --vocab 300 --out special.json --special '<a>,<b>' --pattern gpt2
grep -q '"content": "<b>"' special.json || fail "no <b> in special.json"

for tokenizer in t.json bytes; do
    tokenizer 0 text encode $tokenizer
    mv out ids
    tokenizer 0 ids decode $tokenizer
    cmp -s out text || fail "$tokenizer: decoding does not give the text back"
done
printf 'ab' >ab
tokenizer 0 ab encode bytes
[ "$(cat out)" = "97 98" ] || fail "bytes of \"ab\": $(cat out)"
tokenizer 0 /dev/null encode bytes
[ ! -s out ] || fail "ids of nothing: $(cat out)"

for bad in "97 98x" "97 -1" "99999999999999999999" "97,98" "258"; do
    echo "$bad" >ids
    tokenizer 65 ids decode bytes
    has err "token"
done
tokenizer 66 /dev/null encode missing.json
echo '{"model": 7}' >bad.json
tokenizer 65 ab encode bad.json
has err "bad.json"
tokenizer 66 /dev/null train missing.txt --vocab 300 --out x.json
has err "missing.txt"
tokenizer 2 /dev/null train some.txt --out x.json
tokenizer 2 /dev/null train some.txt --vocab 300
tokenizer 2 /dev/null train some.txt --vocab 30 --out x.json
tokenizer 2 /dev/null train some.txt --vocab 300 --out x.json --pattern gpt5
has err "gpt5"
tokenizer 2 /dev/null train --vocab 300 --out x.json
hasnt err "counting"
tokenizer 2 /dev/null train some.txt --vocab 300 --out x.json -s '<a>,<b>,<a>'
has err 'special tokens 1 and 3 are both "<a>"'
hasnt err "counting"
tokenizer 2 /dev/null train some.txt --vocab 300 --out x.json -s a
has err 'special token 1 is "a"'
hasnt err "counting"
tokenizer 73 /dev/null train some.txt --vocab 300 --out no/such/dir/x.json
hasnt err "counting"
tokenizer 73 /dev/null train some.txt --vocab 300 --out .
hasnt err "counting"
[ ! -e x.json ] || fail "x.json was written"
conclude
