#!/usr/bin/env python3
"""A web server and object store for tests, which fails on command. Standard library only.

    remote_server.py ROOT PORT_FILE [--tls CERT KEY] [--keys ID SECRET [TOKEN]] [--page N] [--region NAME]

Serves ROOT/BUCKET/KEY as /BUCKET/KEY with ranges, ETag, If-Match; lists buckets (ListObjectsV2); takes PUT and multipart uploads. With --keys
each request for a bucket that does not begin with "public" must have a right SigV4 signature, which is recomputed from the bytes of the request.

ROOT.faults has lines "TIMES TEXT ACTION [ARGUMENT]": the next TIMES requests with TEXT in their target fail so. ROOT.log lists the requests. "hold FILE" answers
once FILE exists, "missing" with 404, neither to a request for a version alone.
The actions in VERSIONS change what names the version of a file, and come on top of another one.
"""
import email.utils, hashlib, hmac, http.server, os, re, socketserver, ssl, sys, threading, time, urllib.parse
from xml.sax.saxutils import escape

root, port_file = sys.argv[1:3]
options = {"--tls": [], "--keys": [], "--page": ["1000"], "--region": ["us-east-1"]}
name = None
for word in sys.argv[3:]:
    if word in options:
        name, options[word] = word, []
    else:
        options[name].append(word)
keys, page, region = options["--keys"], int(options["--page"][0]), options["--region"][0]
lock = threading.Lock()
VERSIONS = ("noetag", "weak", "dated")
AFTER_PROBE = ("hold", "missing")
uploads, etags = {}, {}  # etags: of objects made in parts


def take_fault(target, version=False, probe=False):
    with lock:
        try:
            lines = open(root + ".faults").read().splitlines()
        except FileNotFoundError:
            return None
        for i, line in enumerate(lines):
            times, text, action, *argument = line.split(" ")
            if probe and action in AFTER_PROBE:
                continue
            if text in target and int(times) > 0 and (action in VERSIONS) == version:
                lines[i] = " ".join([str(int(times) - 1), text, action, *argument])
                with open(root + ".faults.new", "w") as out:
                    out.write("\n".join(lines) + "\n")
                os.rename(root + ".faults.new", root + ".faults")
                return action, argument[0] if argument else ""
    return None


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def note(self, words):
        with lock, open(root + ".log", "a") as out:
            out.write(f"{self.command} {self.path} {self.headers.get('Range', '-')} {words}\n")

    def answer(self, status, body=b"", headers=()):
        self.note(status)
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def problem(self, status, code, message="", headers=()):
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self.answer(status, text.encode(), headers)

    # ---- signatures ----

    def refused(self, bucket, body):
        """What is wrong with the signature, or None."""
        if not keys or bucket.startswith("public"):
            return None
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})",
                             self.headers.get("Authorization", ""))
        if not found:
            return "AccessDenied", "no signature"
        identity, day, where, names, signature = found.groups()
        date, content = self.headers.get("X-Amz-Date", ""), self.headers.get("X-Amz-Content-Sha256", "")
        if identity != keys[0]:
            return "InvalidAccessKeyId", "unknown key"
        if where != region:
            return "AuthorizationHeaderMalformed", f"expecting {region}"
        if content != hashlib.sha256(body).hexdigest():
            return "XAmzContentSHA256Mismatch", "another body"
        if len(keys) > 2 and self.headers.get("X-Amz-Security-Token") != keys[2]:
            return "InvalidToken", "no token"
        required = {"host", "x-amz-date", "x-amz-content-sha256"} | ({"x-amz-security-token"} if len(keys) > 2 else set())
        if not required <= set(names.split(";")) or names.split(";") != sorted(names.split(";")):
            return "AccessDenied", "signed headers"
        path, _, query = self.path.partition("?")
        if re.search(r"[^A-Za-z0-9/._~%-]", path) or [p for p in query.split("&")] != sorted(query.split("&")):
            return "SignatureDoesNotMatch", "not in canonical form"
        for part in filter(None, query.split("&")):
            key, equals, value = part.partition("=")
            if not equals or urllib.parse.quote(urllib.parse.unquote(value), safe="-_.~") != value:
                return "SignatureDoesNotMatch", "query not in canonical form"
        headers = "".join(f"{n}:{' '.join(self.headers.get(n, '').split())}\n" for n in names.split(";"))
        canonical = "\n".join([self.command, path, query, headers, names, content])
        scope = f"{day}/{where}/s3/aws4_request"
        text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = sign(sign(sign(sign(("AWS4" + keys[1]).encode(), day), where), "s3"), "aws4_request")
        if not hmac.compare_digest(sign(key, text).hex(), signature):
            return "SignatureDoesNotMatch", "another signature"
        return None

    # ---- requests ----

    def split(self):
        path, _, query = self.path.partition("?")
        bucket, _, key = urllib.parse.unquote(path.lstrip("/")).partition("/")
        parameters = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        return bucket, key, parameters

    def handle_one(self):
        body = b""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().strip(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = take_fault(self.path, probe=self.headers.get("Range") == "bytes=0-0")
        if fault and fault[0] == "hold":
            self.note("hold")
            while not os.path.exists(fault[1]):
                time.sleep(0.02)
        if fault and self.fail(*fault):
            return
        bucket, key, parameters = self.split()
        if wrong := self.refused(bucket, body):
            return self.problem(400 if wrong[0] == "AuthorizationHeaderMalformed" else 403, *wrong, headers=[("x-amz-bucket-region", region)])
        if self.command in ("PUT", "POST", "DELETE"):
            return self.upload(bucket, key, parameters, body)
        if not key and "list-type" in parameters:
            return self.list(bucket, parameters)
        self.get(os.path.join(root, bucket, key), fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_one

    def fail(self, action, argument):
        """True if the answer has been given."""
        if action == "missing":
            self.problem(404, "NoSuchKey", "on command")
        elif action == "status":
            status, _, code = argument.partition(":")
            self.problem(int(status), code or "Busy", "on command", [("Retry-After", "0")])
        elif action == "redirect":
            self.answer(302, headers=[("Location", argument.replace("SELF", f"{self.headers['Host']}"))])
        elif action == "garbage":
            self.note("garbage")
            self.wfile.write(b"\x00\x01 not HTTP\r\n\r\n")
            self.close_connection = True
        elif action == "hangup":
            self.note("hangup")
            self.close_connection = True
        elif action == "body":
            self.answer(200, urllib.parse.unquote(argument).encode())
        else:
            return False
        return True

    def get(self, path, fault):
        action, argument = fault or ("", "")
        try:
            data = open(path, "rb").read()
        except OSError:
            return self.problem(404, "NoSuchKey", "The specified key does not exist.")
        etag = etags.get(path) or '"%s"' % hashlib.md5(data).hexdigest()
        if action == "etag":
            etag = f'"{argument}"'
        version = (take_fault(self.path, True) or ("etag",))[0]
        headers = {"etag": [("ETag", etag)], "weak": [("ETag", 'W/"1"')], "noetag": [],
                   "dated": [("Last-Modified", email.utils.formatdate(os.path.getmtime(path), usegmt=True))]}[version]
        headers.append(("Accept-Ranges", "bytes"))
        if action == "type":
            headers.append(("Content-Type", argument))
        if self.headers.get("If-Match") not in (None, etag):
            return self.problem(412, "PreconditionFailed")
        first, end, status = 0, len(data), 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and action not in ("norange", "unsized"):
            first, end = int(asked[1]), min(int(asked[2]) + 1 if asked[2] else end, end)
            if first >= len(data):
                return self.problem(416, "InvalidRange", headers=[("Content-Range", f"bytes */{len(data)}")])
            status = 206
            where, total = first + (int(argument) if action == "shift" else 0), len(data) + (int(argument) if action == "total" else 0)
            headers.append(("Content-Range", f"bytes {where}-{where + end - first - 1}/{total}"))
        part = data[first:end]
        self.send(status, part, headers, action, argument)
        if action == "swap":
            os.replace(path + ".next", path)

    def send(self, status, part, headers, action, argument):
        self.note(f"{status} {action}")
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        length = len(part)
        if action == "length":
            length += int(argument)
        if action == "long":
            part += b"x" * int(argument)
        if action in ("nolength", "unsized", "long"):
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command == "HEAD":
            return
        if action in ("cut", "swap"):
            self.wfile.write(part[:int(argument)])
            self.wfile.flush()
            self.close_connection = True
        elif action == "slow":
            for at in range(0, len(part), 16384):
                self.wfile.write(part[at:at + 16384])
                time.sleep(float(argument))
        elif action == "stall":
            self.wfile.write(part[:len(part) // 2])
            self.wfile.flush()
            time.sleep(float(argument))
            self.close_connection = True
        else:
            self.wfile.write(part)
            if action == "length":
                self.close_connection = True

    # ---- buckets ----

    def list(self, bucket, parameters):
        prefix, delimiter = parameters.get("prefix", ""), parameters.get("delimiter", "")
        base = os.path.join(root, bucket)
        if not os.path.isdir(base):
            return self.problem(404, "NoSuchBucket", "The specified bucket does not exist")
        found = sorted(os.path.relpath(os.path.join(d, f), base) for d, _, files in os.walk(base) for f in files)
        found = [k for k in found if k.startswith(prefix) and not (delimiter and delimiter in k[len(prefix):])]
        start = int(parameters.get("continuation-token", "+0/=")[1:-2])
        size = min(page, int(parameters.get("max-keys", 1000)))
        entries = ""
        for key in found[start:start + size]:
            data = open(os.path.join(base, key), "rb").read()
            entries += (f"<Contents><Key>{escape(urllib.parse.quote_plus(key, safe='/'))}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                        f"<ETag>&quot;{hashlib.md5(data).hexdigest()}&quot;</ETag><Size>{len(data)}</Size><StorageClass>STANDARD</StorageClass></Contents>")
        more = start + size < len(found)
        token = f"<NextContinuationToken>+{start + size}/=</NextContinuationToken>" if more else ""
        text = (f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name>'
                f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount><MaxKeys>{size}</MaxKeys><EncodingType>url</EncodingType>"
                f"<IsTruncated>{str(more).lower()}</IsTruncated>{entries}{token}</ListBucketResult>")
        self.answer(200, text.encode(), [("Content-Type", "application/xml")])

    def store(self, bucket, key, data, etag):
        path = os.path.join(root, bucket, key)
        etags.pop(path, None)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new", "wb") as out:
            out.write(data)
        os.rename(path + ".new", path)
        self.answer(200, headers=[("ETag", etag)])

    def upload(self, bucket, key, parameters, body):
        identity, digest = parameters.get("uploadId"), '"%s"' % hashlib.md5(body).hexdigest()
        if self.command == "PUT" and not identity:
            return self.store(bucket, key, body, digest)
        if self.command == "POST" and "uploads" in parameters:
            identity = f"upload+{len(uploads)}/="
            uploads[identity] = {}
            return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{identity}</UploadId></InitiateMultipartUploadResult>".encode())
        if identity not in uploads:
            return self.problem(404, "NoSuchUpload")
        parts = uploads[identity]
        if self.command == "DELETE":
            del uploads[identity]
            return self.answer(204)
        if self.command == "PUT":
            parts[int(parameters["partNumber"])] = body
            return self.answer(200, headers=[("ETag", digest)])
        listed = re.findall(rb"<PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag>", body)
        sums = [(int(n), etag.replace(b"&quot;", b'"').decode()) for n, etag in listed]
        if sums != [(n, '"%s"' % hashlib.md5(parts[n]).hexdigest()) for n in sorted(parts)]:
            return self.problem(400, "InvalidPart")
        data = b"".join(parts[n] for n in sorted(parts))
        etag = '"%s-%d"' % (hashlib.md5(b"".join(hashlib.md5(parts[n]).digest() for n in sorted(parts))).hexdigest(), len(parts))
        path = os.path.join(root, bucket, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "wb").write(data)
        etags[path] = etag
        del uploads[identity]
        self.answer(200, f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>".encode())


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        pass


server = Server(("127.0.0.1", 0), Handler)
if options["--tls"]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*options["--tls"])
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(port_file + ".new", "w") as out:
    out.write(str(server.server_port))
os.rename(port_file + ".new", port_file)
server.serve_forever()
