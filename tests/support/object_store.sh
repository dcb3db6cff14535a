# For tests with an object store: ./s3/BUCKET/KEY, requests in s3.log, failures on command in s3.faults (tests/support/remote_server.py).
command -v python3 >/dev/null || { echo "skipped: no python3 (apt-get install python3)"; exit 77; }
"$weft" --version | grep -q libcurl || { echo "skipped: built without libcurl (apt-get install libcurl4-openssl-dev libexpat1-dev)"; exit 77; }
export HOME=$directory AWS_ACCESS_KEY_ID=AKIDEXAMPLE AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMISECRET
unset AWS_PROFILE AWS_REGION AWS_DEFAULT_REGION AWS_ENDPOINT_URL_S3 AWS_SESSION_TOKEN AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE http_proxy
faults() { printf '%s\n' "$@" >s3.faults; }
start_store() {
    mkdir -p s3
    : >s3.faults
    python3 "$WEFT_SOURCE_DIR/tests/support/remote_server.py" s3 port --keys "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" 2>server.err &
    await test -s port || { cat server.err; exit 1; }
    export AWS_ENDPOINT_URL=http://127.0.0.1:$(cat port)
}
