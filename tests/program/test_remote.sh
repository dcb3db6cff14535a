#!/bin/bash
# ranks: 2, mostly waiting
# Sources from https:// and s3://, fetched from a server that fails on command: the same tokens as from local files, or one clear error; what
# was fetched is not fetched again; no secret is printed or stored.
. "$(dirname "$0")/../support/prelude.sh"
command -v python3 >/dev/null || { echo "skipped: no python3 (apt-get install python3)"; exit 77; }
command -v openssl >/dev/null || { echo "skipped: no openssl (apt-get install openssl)"; exit 77; }
"$weft" --version | grep -q libcurl || { echo "skipped: built without libcurl (apt-get install libcurl4-openssl-dev libexpat1-dev)"; exit 77; }
server=$WEFT_SOURCE_DIR/tests/support/remote_server.py
export HOME=$directory AWS_ACCESS_KEY_ID=AKIDEXAMPLE AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMISECRET AWS_SESSION_TOKEN=FwoGZXIvYXdzTOKEN
unset AWS_PROFILE AWS_REGION AWS_DEFAULT_REGION AWS_ENDPOINT_URL_S3 AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE CURL_CA_BUNDLE SSL_CERT_FILE http_proxy

cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
END

# serve NAME WORD...: starts a server on NAME/, with faults in NAME.faults and its log in NAME.log. Sets $base, without the scheme.
serve() {
    local name=$1
    shift
    mkdir -p "$name"
    python3 "$server" "$name" "$name.port" "$@" 2>"$name.err" &
    await test -s "$name.port" || { cat "$name.err"; exit 1; }
    base=127.0.0.1:$(cat "$name.port")
}
faults() { printf '%s\n' "$@" >s3.faults; }
forget() { rm -rf cache; : >s3.log; : >s3.faults; }
# tokens WORD...: tokenizes and prints the data's fingerprint.
tokens() { exits 0 tokenize run.yaml "$@" && sed -n 's/^fingerprint *//p' out; }
# refused STATUS TEXT SOURCE: tokenizing ends with STATUS and with TEXT in its error.
refused() {
    expect "$1" tokenize run.yaml "data.sources=['$3']"
    grep -qF -- "$2" err || fail "$3: no \"$2\" in: $(head -c 600 err)"
}
requests() { grep -c -- "$1" s3.log || true; } # PATTERN
says() { grep -q -- "$1" err || fail "no \"$1\" in: $(cat err)"; }

serve s3 --keys "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" "$AWS_SESSION_TOKEN" --page 2
export AWS_ENDPOINT_URL=http://$base
mkdir -p "s3/data/corpus/deep" "s3/data/dump=2024/k (é)" s3/public-data
for i in 00 01 02; do letters 20 $i >s3/data/corpus/$i.txt; done
letters 20 3 >s3/data/corpus/deep/03.txt
letters 20 4 >"s3/data/dump=2024/k (é)/a+b&c=d~.txt"
letters 20 5 >s3/public-data/open.txt
: >s3/data/corpus/empty.txt
: >s3.faults

# ---- the same data as from local files ----
local=$(tokens 'data.sources=[s3/data/corpus/0*.txt]')
[ "$(tokens 'data.sources=["s3://data/corpus/0*.txt"]')" = "$local" ] || fail "a pattern gives other data than local files"
[ "$(requests 'list-type=2')" -eq 2 ] || fail "pages of the listing: $(cat s3.log)"
has err "fetching s3://data/corpus/0*.txt: "
[ "$(tokens 'data.sources=["s3://data/corpus/{00..02}.txt"]')" = "$local" ] || fail "braces give other data than local files"
[ "$(requests '^GET /data/corpus/..\.txt ')" -eq 3 ] || fail "a file was fetched twice: $(cat s3.log)"
[ "$(tokens 'data.sources=["s3/data/dump=2024/k (é)/a+b&c=d~.txt"]')" = "$(tokens 'data.sources=["s3://data/dump=2024/*/a+b&c=d~.txt"]')" ] ||
    fail "a key with special characters gives other data"
[ "$(tokens 'data.sources=[s3/data/corpus/*.txt]')" = "$(tokens 'data.sources=["s3://data/corpus/*.txt"]')" ] || fail "an empty object gives other data"
exits 0 train run.yaml run.dir=r "data.sources=['s3://data/corpus/0*.txt']" "data.validation=['s3://data/corpus/deep/03.txt']" data.audit=true
grep -q '"path": "s3://data/corpus/0\*\.txt"' r/journal.jsonl || fail "the journal does not name the source: $(grep '"read"' r/journal.jsonl)"
exits 0 audit r
refused 66 "s3://data/corpus/03.txt: no such object" 's3://data/corpus/{00..03}.txt'
refused 66 "s3://data/corpus/*.json: no object matches" 's3://data/corpus/*.json'
refused 66 "s3://data/corpus/99.txt: the server answers 404 NoSuchKey" s3://data/corpus/99.txt
refused 66 "the server answers 404 NoSuchBucket" 's3://none/*.txt'

# A connection that stalls is given up after half a minute, while the rest of this test runs.
letters 20 8 >s3/data/stall.txt
stalled=$(tokens 'data.sources=[s3/data/stall.txt]' data.cache_dir=stall)
rm -r stall
faults '1 stall.txt none' '1 stall.txt stall 300'
"$weft" tokenize run.yaml 'data.sources=["s3://data/stall.txt"]' data.cache_dir=stall >stall.out 2>&1 &
stalling=$!
await grep -q '^GET /data/stall.txt - 200 stall' s3.log

# ---- credentials ----
AWS_SECRET_ACCESS_KEY=another refused 66 "the server answers 403 SignatureDoesNotMatch" s3://data/corpus/00.txt
AWS_SESSION_TOKEN='' refused 66 "403 InvalidToken" s3://data/corpus/00.txt
AWS_ACCESS_KEY_ID='' refused 78 "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" s3://data/corpus/00.txt
mkdir .aws
printf '[other]\naws_access_key_id = %s\naws_secret_access_key = %s\naws_session_token = %s\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" "$AWS_SESSION_TOKEN" >.aws/credentials
(
    failures=0
    unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN
    rm -rf cache
    AWS_PROFILE=other exits 0 tokenize run.yaml 'data.sources=["s3://data/corpus/00.txt"]'
    exits 0 tokenize run.yaml 'data.sources=["s3://public-data/*.txt"]'
    refused 66 "no credentials were found" s3://data/corpus/01.txt
    [ "$failures" -eq 0 ]
) || fail "credentials of a profile, or none"
serve far --keys "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" --region eu-west-9
cp -r s3/data far/
AWS_ENDPOINT_URL=http://$base AWS_SESSION_TOKEN='' exits 0 tokenize run.yaml 'data.sources=["s3://data/corpus/00.txt"]'

# ---- no secret is printed or stored ----
for secret in "$AWS_SECRET_ACCESS_KEY" "$AWS_SESSION_TOKEN" "$AWS_ACCESS_KEY_ID"; do
    ! grep -rlF "$secret" r cache out err || fail "the secret $secret is in these files"
done
for url in 'https://user:hunter2@host/a.txt' 'https://host/a.txt?X-Amz-Signature=hunter2' 'https://host/a.txt?access_token=hunter2' \
    'https://host/a.txt?pwd=hunter2' 's3://user:hunter2@data/a.txt' 's3://data/a.txt?X-Amz-Signature=hunter2'; do
    expect 78 train run.yaml run.dir=leak "data.sources=['$url']"
    hasnt err hunter2
    [ ! -e leak ] || fail "a run directory was made for $url"
    expect 78 tokenizer train "$url" --vocab 260 --out t.json
    hasnt err hunter2
done
for url in ftp://host/a http://example.org/a.txt https://host/ https://host:99999/a.txt 'https://host/*.txt' 's3://bucket' gs://bucket/a; do
    refused 78 "" "$url"
done

# ---- what passes is tried again, and goes on where it was ----
letters 9000 6 >s3/data/large.txt # more than one buffer of a socket
large=$(tokens 'data.sources=[s3/data/large.txt]')
size=$(stat -c %s s3/data/large.txt)
whole='^GET /data/large\.txt - 200' rest='^GET /data/large\.txt bytes=[1-9][0-9]*- 206'
# survives FAULT...: with these faults the data is the same.
survives() {
    forget
    faults "$@"
    [ "$(tokens 'data.sources=["s3://data/large.txt"]')" = "$large" ] || fail "other data with $*: $(cat err s3.log)"
}
survives '2 large status 503:SlowDown'
survives '1 large status 429' '1 large status 500' '1 large hangup' '1 large garbage'
survives '1 large none' '1 large cut 100000' '1 large cut 50000'
[ "$(requests "$rest")" -ge 1 ] || fail "a cut transfer began again: $(cat s3.log)"
survives '1 large none' '1 large cut 100000' '1 large norange' # all of it comes again
survives '1 large none' '1 large cut 100000' '1 large shift 5'
survives '1 large none' '1 large cut 100000' '1 large total 5'
survives '1 large none' '1 large length 1000'
survives '1 large none' '1 large length -1000'
survives '1 large none' '1 large long 1000'
survives '1 large nolength'
survives '1 large none' '1 large etag another'
survives '1 large none' '1 large cut 100000' '1 large status 412:PreconditionFailed'

# ---- what does not pass is one error ----
faults '99 00.txt status 500:InternalError'
rm -rf cache
refused 74 "s3://data/corpus/00.txt: the server answers 500 InternalError (on command), also after 8 tries" s3://data/corpus/00.txt
: >s3.faults
faults '99 list-type=2 body <!DOCTYPE%20x%20[<!ENTITY%20a%20"b">]><x/>'
refused 65 "not a listing of an object store: it has a DTD" 's3://data/corpus/*.txt'
faults '99 list-type=2 body <ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>1</NextContinuationToken></ListBucketResult>'
refused 65 "the same page of its listing again and again" 's3://data/corpus/*.txt'
: >s3.faults

# One file of several that fails ends the others.
forget
mkdir s3/data/several
cp s3/data/large.txt s3/data/several/large.txt
cp s3/data/corpus/02.txt s3/data/several/
faults "9 /02.txt status 403:AccessDenied" "9 several/large.txt slow 1"
exits 66 tokenize run.yaml 'data.sources=["s3://data/several/*.txt"]'
has err "s3://data/several/02.txt: the server answers 403 AccessDenied"

# ---- a kill while it is fetched: goes on there ----
forget
faults '1 large none' '1 large slow 0.01'
"$weft" tokenize run.yaml 'data.sources=["s3://data/large.txt"]' >killed.out 2>&1 &
killed=$!
part() { find cache/remote -name .part -size +200k 2>/dev/null | grep -q .; }
await part
kill -KILL $killed
wait $killed 2>/dev/null
part || fail "nothing was left by the killed process: $(find cache)"
[ "$(tokens 'data.sources=["s3://data/large.txt"]')" = "$large" ] || fail "other data after a kill"
[ "$(requests "$rest")" -eq 1 ] || fail "a killed transfer began again: $(cat s3.log)"

# ---- several processes: one fetches ----
forget
faults '1 large none' '1 large slow 0.002'
"$weft" tokenize run.yaml 'data.sources=["s3://data/large.txt"]' >one.out 2>&1 &
one=$!
await test -e cache/remote/in-use
exits 0 tokenize run.yaml 'data.sources=["s3://data/large.txt"]'
wait $one || fail "two processes at once: $(cat one.out)"
[ "$(requests "$whole")" -eq 1 ] && [ "$(requests "$rest")" -eq 0 ] || fail "two processes fetched one file: $(cat s3.log)"
if command -v "$launcher" >/dev/null; then
    needs_ranks
    forget
    mesh 2 two "data.sources=['s3://data/corpus/{00..02}.txt']"
    [ "$(requests '^GET /data/corpus/..\.txt - 200')" -eq 3 ] || fail "two ranks fetched a file twice: $(cat s3.log)"
fi

# ---- a file that changes on the server ----
forget
before=$(tokens 'data.sources=["s3://data/corpus/00.txt"]')
cp s3/data/corpus/00.txt kept.txt
letters 21 7 >s3/data/corpus/00.txt
[ "$(tokens 'data.sources=["s3://data/corpus/00.txt"]')" != "$before" ] || fail "a change went unnoticed"
says "s3://data/corpus/00.txt: changed on the server"
mv kept.txt s3/data/corpus/00.txt
[ "$(tokens 'data.sources=["s3://data/corpus/00.txt"]')" = "$before" ] || fail "the file of before gives other data"

# ---- a file that changes while it is fetched, on a server that has no strong ETag and heeds no condition: never parts of two versions ----
cp s3/data/large.txt kept.txt
tr a-z b-za <kept.txt >changed.txt
changed=$(tokens 'data.sources=[changed.txt]')
for version in dated weak noetag; do
    forget
    cp changed.txt s3/data/large.txt.next
    touch -d '2001-02-03 04:05:06 UTC' s3/data/large.txt.next
    faults "99 large $version" '1 large none' '1 large swap 100000'
    [ "$(tokens 'data.sources=["s3://data/large.txt"]')" = "$changed" ] || fail "$version: other data after a change: $(cat err s3.log)"
    [ "$version" != dated ] || says 'large.txt: changed on the server (Last-Modified Sat, 03 Feb 2001 04:05:06 GMT, before '
    cp kept.txt s3/data/large.txt
done
forget
faults '99 large dated' '1 large none' '1 large cut 100000'
[ "$(tokens 'data.sources=["s3://data/large.txt"]')" = "$large" ] || fail "other data by Last-Modified: $(cat err s3.log)"
[ "$(requests "$rest")" -ge 1 ] || fail "a cut transfer of a file with Last-Modified began again: $(cat s3.log)"

# ---- a limit of size: the least recently used go; tokens stay ----
forget
gib() { awk -v bytes="$1" 'BEGIN { printf "%.9f", bytes / 2^30 }'; }
limit=data.remote_cache_gib=$(gib $(($(stat -c %s s3/data/corpus/00.txt) * 5 / 2)))
for i in 00 01 02; do tokens "data.sources=['s3://data/corpus/$i.txt']" "$limit" >/dev/null; done
[ -z "$(find cache/remote -name 00.txt)" ] && [ -n "$(find cache/remote -name 02.txt)" ] || fail "what the limit keeps: $(find cache/remote)"
: >s3.log
[ "$(tokens "data.sources=['s3://data/corpus/00.txt']" "$limit")" = "$before" ] || fail "without the copy, other data"
[ "$(requests '^GET /data/corpus/00\.txt - 200')" -eq 0 ] || fail "a file was fetched whose tokens are there"
rm -r cache/[0-9a-f]*
[ "$(tokens "data.sources=['s3://data/corpus/00.txt']" "$limit")" = "$before" ] || fail "fetched for tokenizing again, other data"
[ "$(requests '^GET /data/corpus/00\.txt - 200')" -eq 1 ] || fail "not fetched for tokenizing"
expect 78 tokenize run.yaml data.remote_cache_gib="$(gib 2000)" 'data.sources=["s3://data/corpus/*.txt"]' data.cache_dir=other
says "more than data.remote_cache_gib allows"

# ---- https:// ----
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout key.pem -out cert.pem 2>openssl.err || fail "openssl: $(cat openssl.err)"
serve web --tls cert.pem key.pem
web=https://localhost:${base#*:}
mkdir web/pages
cp s3/data/corpus/0*.txt s3/data/large.txt web/pages/
cp s3/data/corpus/00.txt "web/pages/with space.txt"
refused 74 "certificate" "$web/pages/00.txt"
for variable in CURL_CA_BUNDLE SSL_CERT_FILE; do
    rm -rf cache
    export $variable=$directory/cert.pem
    [ "$(tokens "data.sources=['$web/pages/{00..02}.txt?download=true']")" = "$local" ] || fail "https:// gives other data ($variable)"
    unset $variable
done
export CURL_CA_BUNDLE=$directory/cert.pem
[ "$(tokens "data.sources=['$web/pages/with space.txt']")" = "$before" ] || fail "a space in a URL"
printf '99 loop.txt redirect https://SELF/pages/loop.txt\n' >web.faults
refused 65 "redirects more than 5 times" "$web/pages/loop.txt"
printf '1 moved.txt redirect /pages/00.txt?X-Amz-Signature=hunter2\n9 moved.txt redirect https://SELF/pages/00.txt\n' >web.faults
[ "$(tokens "data.sources=['$web/pages/moved.txt']")" = "$before" ] || fail "a redirect"
! grep -rlF hunter2 cache out err || fail "the signature of a redirect is in these files"
printf '9 down.txt redirect http://SELF/pages/00.txt\n9 out.txt redirect ftp://SELF/00.txt\n' >web.faults
refused 78 "redirects to a place that weft does not follow" "$web/pages/down.txt"
refused 78 "redirects to a place that weft does not follow" "$web/pages/out.txt"
rm -rf cache
printf '1 large none\n1 large cut 100000\n' >web.faults
[ "$(tokens "data.sources=['$web/pages/large.txt']")" = "$large" ] || fail "a cut transfer over https://"
rm -rf cache
printf '9 large noetag\n' >web.faults
[ "$(tokens "data.sources=['$web/pages/large.txt']")" = "$large" ] || fail "a server without ETag"
says "the server names no version"
refused 66 "the server answers 404" "$web/pages/none.txt"
printf '9 00.txt unsized\n' >web.faults
refused 65 "states no length" "$web/pages/00.txt"

cp web/pages/00.txt web/pages/page.html
printf '9 /pages/ type text/html;charset=utf-8\n' >web.faults
refused 65 "01.txt: the server sends an HTML page" "$web/pages/01.txt"
[ "$(tokens "data.sources=['$web/pages/page.html']")" = "$before" ] || fail "a page that is named as one"

# ---- Megatron's index is fetched with its file ----
rm -rf cache
exits 0 tokenize run.yaml 'data.sources=["s3://data/corpus/0*.txt"]' --export megatron --out ids
mkdir s3/data/ids web/ids
for i in 0 1; do cp ids/train-0.bin s3/data/ids/$i.bin && cp ids/train-0.idx s3/data/ids/$i.idx; done
cp s3/data/ids/* web/ids/
indexed=$(tokens 'data.sources=[{path: s3/data/ids/*.bin, format: tokens}]')
[ "$(tokens "data.sources=[{path: 's3://data/ids/*.bin', format: tokens}]")" = "$indexed" ] || fail "s3://, with an index: $(cat err)"
[ "$(tokens "data.sources=[{path: '$web/ids/{0,1}.bin?download=true', format: tokens}]")" = "$indexed" ] || fail "https://, with an index: $(cat err)"
exits 0 data inspect "$web/ids/0.bin"
has out "by the index next to it"
rm -rf cache s3/data/ids/*.idx
: >s3.log
exits 65 tokenize run.yaml "data.sources=[{path: 's3://data/ids/*.bin', format: tokens}]"
has err "give the source dtype: uint16, uint32 or int32 (of Megatron, put the .idx next to it)"
[ "$(requests '^GET /data/ids/.\.idx')" -eq 1 ] || fail "all files are asked for an index: $(cat s3.log)"
printf '9 0.idx status 500\n' >web.faults
exits 74 tokenize run.yaml "data.sources=[{path: '$web/ids/0.bin', format: tokens}]"
has err "ids/0.idx: the server answers 500"

# ---- the connection that stalled ----
wait $stalling || fail "a connection that stalls: $(cat stall.out)"
grep -q "^fingerprint *$stalled" stall.out || fail "other data after a connection that stalled: $(cat stall.out)"

# ---- damaged content names the source ----
gzip -c s3/data/corpus/00.txt | head -c 700 >s3/data/cut.txt.gz
exits 65 tokenize run.yaml 'data.sources=["s3://data/cut.txt.gz"]'
has err "s3://data/cut.txt.gz: cache/remote/"
conclude
