"""Parquet files that pyarrow writes (polars, duckdb and fastparquet, too, where they are installed), over every mode that weft reads: rows as pyarrow
reads them, from the first row and from rows in the middle; and ids as of the same texts in JSON lines. Usage: parquet_interop.py WEFT ROWS
(the program parquet_rows). Ends with 77 where pyarrow is missing."""
import itertools
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    print("skipped: no pyarrow")
    sys.exit(77)

weft, rows_program = sys.argv[1:3]
random.seed(11)
words = "the quick brown fox jumps over a lazy dog, déjà vu, 中文, emoji 🙂, \"quotes\", tabs\tand\nlines".split(" ")


def text(kind):
    if kind == 0:
        return " ".join(random.choice(words) for _ in range(random.randrange(1, 60)))
    if kind == 1:
        return random.choice(words) * random.randrange(0, 4)  # repeats, and empty ones
    return "/shared/prefix/of/many/" + str(random.randrange(10**6))


def texts(count, nulls):
    out = [text(random.randrange(3)) for _ in range(count)]
    if nulls == "some":
        return [None if random.random() < 0.3 else t for t in out]
    if nulls == "ends":
        return [None] * (count // 4) + out[count // 4 : count // 2] + [None] * (count - count // 2)
    return [None] * count if nulls == "all" else out


def rows_of(path, column, first=0):
    ended = subprocess.run([rows_program, str(path), column, str(first)], capture_output=True)
    if ended.returncode:
        sys.exit(f"{path}: {ended.stderr.decode()}")
    out, at, data = [], 0, ended.stdout
    while not data.startswith(b"end ", at):
        end = data.index(b"\n", at)
        row, length = map(int, data[at:end].split())
        out.append((row, data[end + 1 : end + 1 + length].decode()))
        at = end + 2 + length
    return out, int(data[at + 4 :])


def expected(path, column):
    table = pq.ParquetFile(path).read()
    values = table.column(column.split(".")[0]).to_pylist()
    for member in column.split(".")[1:]:
        values = [None if v is None else v[member] for v in values]
    return [v.decode() if isinstance(v, bytes) else v for v in values]


files = 0


def check(path, column):
    global files
    values = expected(path, column)
    want = [(i, v) for i, v in enumerate(values) if v is not None]
    for first in sorted({0, len(values) // 3, max(0, len(values) - 1), len(values)}):
        got, nulls = rows_of(path, column, first)
        if got != [(i, v) for i, v in want if i >= first]:
            sys.exit(f"{path}: other rows than pyarrow's, from row {first}: {len(got)} of {len(want)}")
        if first == 0 and nulls != len(values) - len(want):
            sys.exit(f"{path}: {nulls} nulls of {len(values) - len(want)}")
    files += 1


def refused(path, column, words):
    ended = subprocess.run([rows_program, str(path), column], capture_output=True, text=True)
    if ended.returncode != 65 or words not in ended.stderr:
        sys.exit(f"{path}, {column}: status {ended.returncode}, no '{words}' in: {ended.stderr}")


def codecs():
    return ["NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4"]


ENCODINGS = [("dictionary", dict(use_dictionary=True)), ("small dictionary", dict(use_dictionary=True, dictionary_pagesize_limit=300)),
             ("plain", dict(use_dictionary=False)), ("delta length", dict(use_dictionary=False, column_encoding="DELTA_LENGTH_BYTE_ARRAY")),
             ("delta", dict(use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"))]


def pyarrow_files(folder):
    """Codecs, versions of pages, encodings and nulls in all combinations; sizes of groups and pages, and types, in turn."""
    types = itertools.cycle([pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
    groups, pages = itertools.cycle([1, 7, 100, 1024]), itertools.cycle([100, 2000, 1 << 20])
    modes = itertools.product(codecs(), ["1.0", "2.0"], ENCODINGS, ["some", "ends", "all", "none", "required"])
    for i, (codec, version, (_, encoding), nulls) in enumerate(modes):
        kind = pa.string() if nulls == "all" else next(types)
        values = texts(random.choice([0, 1, 50, 400]), nulls)
        column = pa.array([v.encode() if v is not None and kind == pa.binary() else v for v in values], type=kind)
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", kind, nullable=nulls != "required")])
        table = pa.table([pa.array(range(len(values)), pa.int64()), column], schema=schema)
        options = dict(encoding)
        if "column_encoding" in options:
            options["column_encoding"] = {"text": options["column_encoding"]}
        path = folder / f"pyarrow-{i}.parquet"
        pq.write_table(table, path, compression=codec, data_page_version=version, row_group_size=next(groups), data_page_size=next(pages),
                       write_batch_size=16, write_page_checksum=i % 2 == 0, write_page_index=i % 3 == 0, store_schema=False, **options)
        check(path, "text")


def nested_files(folder):
    for i, (version, codec) in enumerate(itertools.product(["1.0", "2.0"], codecs())):
        meta = pa.struct([pa.field("n", pa.int32()), pa.field("inner", pa.struct([pa.field("text", pa.string())])), pa.field("text", pa.string())])
        values = []
        for k in range(300):
            inner = None if k % 5 == 0 else {"text": None if k % 7 == 0 else text(0)}
            values.append(None if k % 11 == 0 else {"n": k, "inner": inner, "text": text(1)})
        table = pa.table({"text": texts(300, "some"), "meta": pa.array(values, meta), "tags": pa.array([["a"]] * 300), "n": list(range(300))})
        path = folder / f"nested-{i}.parquet"
        pq.write_table(table, path, compression=codec, data_page_version=version, row_group_size=64, data_page_size=500, write_batch_size=8)
        for column in ["text", "meta.text", "meta.inner.text"]:
            check(path, column)
    refused(path, "meta", "a struct or list, not a column of text, is called 'meta'; columns of text: text, meta.inner.text, meta.text")
    refused(path, "tags.list.element", "is in a list (repeated)")
    refused(path, "n", "column 'n' is no text but INT64")
    refused(path, "body", "no column 'body'")
    brotli = folder / "brotli.parquet"
    pq.write_table(pa.table({"text": texts(100, "none")}), brotli, compression="BROTLI")
    refused(brotli, "text", "is compressed with brotli, which weft does not read")


def files_of_others(folder):
    try:
        import polars
        for codec in ["uncompressed", "snappy", "gzip", "zstd", "lz4"]:
            for i, nulls in enumerate(["some", "none"]):
                path = folder / f"polars-{codec}-{i}.parquet"
                frame = polars.DataFrame({"text": texts(500, nulls), "n": list(range(500))}, schema={"text": polars.String, "n": polars.Int64})
                frame.write_parquet(path, compression=codec, row_group_size=100, data_page_size=1000)
                check(path, "text")
    except ImportError:
        pass
    try:
        import duckdb
        for codec, version, nulls in itertools.product(["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw"], ["v1", "v2"], ["some", "none"]):
            path = folder / f"duckdb-{codec}-{version}-{nulls}.parquet"
            table = pa.table({"text": pa.array(texts(5000, nulls), pa.string())})
            duckdb.from_arrow(table).query("t", f"copy t to '{path}' (format parquet, codec '{codec}', parquet_version '{version}', row_group_size 2048)")
            check(path, "text")
    except ImportError:
        pass


def files_of_fastparquet(folder):
    try:
        import fastparquet
        import pandas
    except ImportError:
        return
    for codec, pages, nulls in itertools.product(["UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4_RAW"], [1, 2], ["some", "none"]):
        for kind in ["utf8", "bytes", "category"]:
            path = folder / f"fastparquet-{codec}-{pages}-{nulls}-{kind}.parquet"
            column = texts(500, nulls)
            if kind == "bytes":
                column = [t.encode() if t is not None else None for t in column]
            column = pandas.Series(column, dtype="category" if kind == "category" else object)
            fastparquet.writer.DATAPAGE_VERSION = pages
            fastparquet.write(str(path), pandas.DataFrame({"text": column, "n": range(500)}), compression=codec, row_group_offsets=100,
                              object_encoding={"text": "bytes" if kind == "bytes" else "utf8"}, has_nulls=nulls == "some")
            check(path, "text")


def objects_of(path, names, first=0):
    ended = subprocess.run([rows_program, str(path), names, str(first)], capture_output=True)
    if ended.returncode:
        sys.exit(f"{path}: {ended.stderr.decode()}")
    out, found = ended.stdout, []
    while not out.startswith(b"end "):
        head, out = out.split(b"\n", 1)
        row, length = map(int, head.split())
        found.append((row, json.loads(out[:length])))
        out = out[length + 1 :]
    return found


def wanted_objects(table, names):
    """As pyarrow reads them, without nulls and without numbers in structs."""
    def kept(message):
        return {k: v for k, v in (message or {}).items() if isinstance(v, str)}
    found = []
    for i, row in enumerate(table.select(names).to_pylist()):
        row = {k: [kept(m) for m in v] if isinstance(v, list) else v for k, v in row.items() if v is not None}
        if row:
            found.append((i, row))
    return found


def check_objects(path, names):
    global files
    files += 1
    table = pq.read_table(path)
    want = wanted_objects(table, names)
    for first in [0, *(random.randrange(table.num_rows + 1) for _ in range(2))]:
        if objects_of(path, ",".join(names) + ",", first) != [w for w in want if w[0] >= first]:
            sys.exit(f"{path}: other objects than pyarrow's from row {first} on")


def conversations(count, keys, nulls):
    def message(k):
        if nulls and k % 13 == 12:
            return None
        return {keys[0]: random.choice(["user", "assistant"]), keys[1]: None if nulls and k % 7 == 6 else text(random.randrange(3)), "height": k}
    return [None if nulls and i % 11 == 10 else [message(k) for k in range(random.randrange(9))] for i in range(count)]


def list_files(folder):
    path = folder / "list.parquet"
    for i, (version, codec, nulls) in enumerate(itertools.product(["1.0", "2.0"], codecs(), [False, True])):
        keys = [("role", "content"), ("from", "value")][i % 2]
        struct = pa.struct([pa.field(keys[0], pa.string(), nulls), pa.field(keys[1], pa.string(), nulls), pa.field("height", pa.int32())])
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("messages", pa.list_(pa.field("element", struct, nulls)), nulls), pa.field("system", pa.string())])
        columns = [pa.array(range(400), pa.int64()), pa.array(conversations(400, keys, nulls), schema.field(1).type), pa.array(texts(400, "some"), pa.string())]
        pq.write_table(pa.table(columns, schema=schema), path, compression=codec, data_page_version=version, row_group_size=[37, 400][i % 3 == 0],
                       data_page_size=[300, 5000][i % 5 < 3], write_batch_size=16, use_compliant_nested_type=i % 4 != 1, use_dictionary=i % 3 != 2,
                       write_page_checksum=i % 2 == 0)
        check_objects(path, ["messages", "system"])
        check_objects(path, ["messages"])
    try:
        import polars
        frame = polars.from_arrow(pa.table(columns, schema=schema))
        frame.write_parquet(path, compression="zstd", row_group_size=50, data_page_size=1000)
        check_objects(path, ["messages", "system"])
        import duckdb
        for version in ["v1", "v2"]:
            table = pa.table(columns, schema=schema)
            duckdb.from_arrow(table).query("t", f"copy t to '{path}' (format parquet, codec 'zstd', parquet_version '{version}', row_group_size 2048)")
            check_objects(path, ["messages", "system"])
    except ImportError:
        pass
    as_json = [None if m is None else json.dumps(m) for m in conversations(50, ("role", "content"), False)]
    pq.write_table(pa.table({"messages": pa.array(as_json, pa.string())}), path)
    if [o["messages"] for _, o in objects_of(path, "messages,,", 0)] != [json.loads(m) for m in as_json]:
        sys.exit("JSON as text is read as something else")
    deep = pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("tool_calls", pa.list_(pa.string()))]))
    pq.write_table(pa.table({"messages": pa.array([[{"role": "user", "tool_calls": []}]], deep), "prompt": ["x"]}), path)
    for names, words in [("messages,", b"column 'messages' is neither text nor a list of structs of text: it has 'messages.list.element.tool_calls.list.element'"),
                         ("body,text,", b"no column 'body', 'text'; its columns: messages.list.element.role,")]:
        ended = subprocess.run([rows_program, str(path), names, "0"], capture_output=True)
        if ended.returncode != 65 or words not in ended.stderr:
            sys.exit(f"{names}: status {ended.returncode}: {ended.stderr.decode()}")


def check_damaged(folder):
    """A byte changed anywhere ends in an error or leaves another file that is legal, never in a crash. With checksums of pages a value
    never changes unnoticed."""
    path = folder / "sums.parquet"
    pq.write_table(pa.table({"text": texts(200, "some")}), path, compression="NONE", write_page_checksum=True, data_page_size=400, write_batch_size=8)
    good, (want, _) = path.read_bytes(), rows_of(path, "text")
    broken = folder / "broken.parquet"
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for _ in range(150):
        at = random.randrange(4, footer)
        broken.write_bytes(good[:at] + bytes([good[at] ^ 1 << random.randrange(8)]) + good[at + 1 :])
        ended = subprocess.run([rows_program, str(broken), "text"], capture_output=True)
        if ended.returncode not in (0, 65):
            sys.exit(f"byte {at} changed: status {ended.returncode}: {ended.stderr.decode()}")
        if ended.returncode == 0 and rows_of(broken, "text")[0] != want:
            sys.exit(f"byte {at} changed: other rows without an error")


def check_ids(folder):
    """The same ids as from JSON lines, through the whole program."""
    def tokens(source):
        (folder / "run.yaml").write_text("data: {sources: [%s], cache_dir: %s, tokenizer: bytes}\n" % (source, folder / "cache"))
        command = [weft, "tokenize", str(folder / "run.yaml")]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        if ended.returncode:
            sys.exit(f"{source}: {ended.stderr}")
        parts = sorted((folder / "cache").glob("*/part-*.tok"))
        ids = b"".join(p.read_bytes()[4096:] for p in parts)
        for part in parts:
            part.unlink()
        return ids
    values = texts(3000, "some")
    pq.write_table(pa.table({"text": values}), folder / "same.parquet", row_group_size=500, compression="ZSTD")
    (folder / "same.jsonl").write_text("".join(json.dumps({"text": v}) + "\n" for v in values if v is not None))
    if tokens("same.parquet") != tokens("same.jsonl"):
        sys.exit("other ids from Parquet than from JSON lines")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    pyarrow_files(folder)
    nested_files(folder)
    files_of_others(folder)
    files_of_fastparquet(folder)
    list_files(folder)
    check_damaged(folder)
    if weft != "-":
        check_ids(folder)
    print(f"{files} files read as by pyarrow {pa.__version__}")
    if files < 200:
        sys.exit(f"only {files} files")
