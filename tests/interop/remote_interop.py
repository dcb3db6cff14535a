"""Sources from moto's S3 server, which checks signatures and permissions: the same data as from local files. Usage: remote_interop.py WEFT.
Ends with 77 where moto is missing."""
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    import boto3
    import moto.server  # noqa: F401
    from boto3.exceptions import S3UploadFailedError
except ImportError:
    print("skipped: no moto (pip install 'moto[server,s3]')")
    sys.exit(77)

weft = os.path.abspath(sys.argv[1])
os.chdir(tempfile.mkdtemp(prefix="weft-interop-"))
random.seed(5)
failures = 0
CONFIG = """
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
run: {threads: 1}
"""
Path("run.yaml").write_text(CONFIG)


def fail(words):
    global failures
    failures += 1
    print("FAILED:", words)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tokenize(source, env, *words):
    return subprocess.run([weft, "tokenize", "run.yaml", f'data.sources=["{source}"]', *words], env=env, capture_output=True, text=True)


def fingerprint(result):
    found = [line for line in result.stdout.splitlines() if line.startswith("fingerprint")]
    return found[0] if found else f"none: {result.stderr}"


def compare(pattern, where, env):
    near, far = tokenize(f"{where}/{pattern}", env), tokenize(f"s3://corpus/{pattern}", env)
    if near.returncode or fingerprint(near) != fingerprint(far):
        fail(f"{pattern}: {fingerprint(near)}, from S3 {fingerprint(far)}")


port = free_port()
endpoint = f"http://127.0.0.1:{port}"
server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"})
try:
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except OSError:
            time.sleep(0.1)
    common = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    iam = boto3.client("iam", aws_access_key_id="x", aws_secret_access_key="x", **common)
    iam.create_user(UserName="trainer")
    key = iam.create_access_key(UserName="trainer")["AccessKey"]
    policy = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
    iam.attach_user_policy(UserName="trainer", PolicyArn=iam.create_policy(PolicyName="all", PolicyDocument=policy)["Policy"]["Arn"])
    s3 = boto3.client("s3", aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"], **common)
    s3.create_bucket(Bucket="corpus")
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    env.update(AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID=key["AccessKeyId"], AWS_SECRET_ACCESS_KEY=key["SecretAccessKey"], HOME=os.getcwd())

    # More objects than a page of the listing has, keys that have to be encoded, and an upload in several parts.
    names = [f"many/{i:04d}.txt" for i in range(1100)] + ["odd/dump=2024 (a+b)&c~d'é.txt", "odd/deep/er.txt", "large.txt"]
    for name in names:
        path = Path("local", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(random.choice("abcdef ghij\n") for _ in range(200 if name != "large.txt" else 11 << 20)))
        try:
            s3.upload_file(str(path), "corpus", name)
        except S3UploadFailedError:
            print(f"skipped: this moto refuses boto3's own signature of a request for {name}: a newer one is needed")
            sys.exit(77)
    compare("many/*.txt", "local", env)
    compare("odd/*.txt", "local", env)
    compare("odd/deep/er.txt", "local", env)
    compare("large.txt", "local", env)
    if "-" not in s3.head_object(Bucket="corpus", Key="large.txt")["ETag"]:
        fail("large.txt was not uploaded in parts")
    wrong = tokenize("s3://corpus/large.txt", {**env, "AWS_SECRET_ACCESS_KEY": "wrong"}, "data.cache_dir=other")
    if wrong.returncode != 66 or "403" not in wrong.stderr:
        fail(f"a wrong secret: status {wrong.returncode}, {wrong.stderr}")
    missing = tokenize("s3://corpus/none.txt", env)
    if missing.returncode != 66 or "404" not in missing.stderr:
        fail(f"a missing key: status {missing.returncode}, {missing.stderr}")
finally:
    server.kill()
print(f"{failures} failures" if failures else "as from local files: 1,103 objects of a server that checks signatures")
sys.exit(1 if failures else 0)
