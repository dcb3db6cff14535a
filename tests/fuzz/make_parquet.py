"""Writes tests/fuzz/corpus/parquet: good files by pyarrow, polars and duckdb, whose rows tests/formats/test_parquet.c knows, and broken ones by
hand. Usage: make_parquet.py DIRECTORY"""
import struct
import sys
import zlib
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

out = Path(sys.argv[1])


def row(i, nulls):
    if nulls and i % 5 == 3:
        return None
    return "" if i % 11 == 10 else f"row {i}:" + " word" * (i % 7)


def rows(nulls=True):
    return [row(i, nulls) for i in range(40)]


def write(name, codec="NONE", version="1.0", nulls=True, encoding=None, table=None, **options):
    schema = pa.schema([pa.field("n", pa.int32()), pa.field("text", pa.string(), nullable=nulls)])
    table = table if table is not None else pa.table([pa.array(range(40), pa.int32()), pa.array(rows(nulls))], schema=schema)
    if encoding:
        options |= dict(use_dictionary=False, column_encoding={"text": encoding})
    pq.write_table(table, out / name, compression=codec, data_page_version=version, store_schema=False,
                   **(dict(row_group_size=17, data_page_size=60, write_batch_size=4) | options))


write("plain", use_dictionary=False)
write("dictionary-snappy", "SNAPPY")
write("dictionary-zstd-v2", "ZSTD", "2.0")
write("fallback-snappy", "SNAPPY", dictionary_pagesize_limit=60)
write("delta-length-gzip-v2", "GZIP", "2.0", encoding="DELTA_LENGTH_BYTE_ARRAY")
write("delta-bytes-lz4-v2", "LZ4", "2.0", encoding="DELTA_BYTE_ARRAY")
write("delta-bytes-zstd", "ZSTD", encoding="DELTA_BYTE_ARRAY")
write("required-plain-snappy", "SNAPPY", nulls=False, use_dictionary=False)
write("required-delta-v2", "NONE", "2.0", nulls=False, encoding="DELTA_LENGTH_BYTE_ARRAY")
write("required-dictionary-gzip", "GZIP", nulls=False)
write("sums", "ZSTD", write_page_checksum=True, write_page_index=True)
struct_type = pa.struct([pa.field("text", pa.string()), pa.field("n", pa.int32())])
write("nested", "ZSTD", "2.0", table=pa.table({"meta": pa.array([v if v is None else {"text": v, "n": 1} for v in rows()], struct_type)}))
write("list", table=pa.table({"text": pa.array([["a", "b"], []], pa.list_(pa.string()))}))
write("no-rows", table=pa.table({"text": pa.array([], pa.string())}))
write("all-null", table=pa.table({"text": pa.array([None] * 40, pa.string())}))
write("brotli", "BROTLI")
write("integers", table=pa.table({"text": list(range(40)), "body": rows()}))
polars.DataFrame({"text": rows()}).write_parquet(out / "polars-zstd", compression="zstd", row_group_size=17)
table = pa.table({"text": rows()})
duckdb.from_arrow(table).query("t", f"copy t to '{out}/duckdb-snappy' (format parquet)")
duckdb.from_arrow(table).query("t", f"copy t to '{out}/duckdb-v2' (format parquet, codec 'zstd', parquet_version 'v2')")




# Conversation i has i % 4 messages, none at all for every tenth, and an element that is null in every seventh.
def chat(i):
    messages = [{"role": "user" if k % 2 == 0 else "assistant", "content": None if k == 2 else f"m{k} of {i}", "height": k} for k in range(i % 4)]
    return None if i % 10 == 9 else messages + ([None] if i % 7 == 6 else [])


chats = pa.table({"messages": [chat(i) for i in range(40)], "system": [None if i % 3 else f"s{i}" for i in range(40)]})
write("chat", "ZSTD", table=chats)
write("chat-v2", "SNAPPY", "2.0", table=chats, use_compliant_nested_type=False, use_dictionary=False)
write("chat-json", "ZSTD", table=pa.table({"messages": [None if i % 5 == 3 else "[]" if i % 2 else f' {{"n": {i}}}' for i in range(40)]}))
polars.from_arrow(chats).write_parquet(out / "chat-polars", compression="zstd", row_group_size=17)
duckdb.from_arrow(chats).query("t", f"copy t to '{out}/chat-duckdb' (format parquet)")
write("chat-kto", table=pa.table({"prompt": ["p", "q"], "completion": ["a", "b"], "label": [True, False]}))
write("chat-weight", table=pa.table({"messages": [[{"role": "user", "content": "q", "weight": None}, {"role": "assistant", "content": "a", "weight": 0}]]}))
write("chat-chosen", table=pa.table({"prompt": ["p"], "completion": ["a"], "chosen": [[{"role": "assistant", "content": "a"}]]}))


# ---- by hand ----
def varint(n):
    done = b""
    while n > 127:
        done, n = done + bytes([n & 127 | 128]), n >> 7
    return done + bytes([n])


def zigzag(n):
    return varint((n << 1 ^ n >> 63) & (1 << 64) - 1)


class Raw(bytes):
    """A field that is written as it is: its type and its bytes."""


I32, I64, BYTES, LIST, STRUCT = 5, 6, 8, 9, 12


def record(*fields):
    """(number, type, value)...; a value of LIST is (type, [bytes]), one of STRUCT bytes."""
    done, last = b"", 0
    for number, kind, value in fields:
        done += bytes([number - last << 4 | kind])
        last = number
        if kind in (I32, I64):
            done += zigzag(value)
        elif kind == BYTES:
            done += varint(len(value)) + value
        elif kind == LIST:
            count = len(value[1])
            done += (bytes([count << 4 | value[0]]) if count < 15 else bytes([0xF0 | value[0]]) + varint(count)) + b"".join(value[1])
        else:
            done += value
    return done + b"\0"


def element(name, repetition=None, children=None, kind=6):
    fields = [] if children is not None else [(1, I32, kind)]
    fields += [] if repetition is None else [(3, I32, repetition)]
    fields += [(4, BYTES, name)]
    fields += [(6, I32, 0)] if children is None else [(5, I32, children)]
    return record(*fields)


def page(body, values, encoding=0, size=None, kind=0, crc=None, stored=None):
    inner = [(1, I32, values), (2, I32, encoding)] + ([(3, I32, 3), (4, I32, 3)] if kind == 0 else [])
    crcs = [] if crc is None else [(4, I32, crc)]
    number = 5 if kind == 0 else 7
    head = [(1, I32, kind), (2, I32, len(body) if size is None else size), (3, I32, len(body) if stored is None else stored)]
    return record(*head, *crcs, (number, STRUCT, record(*inner))) + body


def page_v2(body, values, nulls, levels, encoding=0, size=None):
    inner = record((1, I32, values), (2, I32, nulls), (3, I32, values), (4, I32, encoding), (5, I32, len(levels)), (6, I32, 0), (7, 2, b""))
    return record((1, I32, 3), (2, I32, len(body) + len(levels) if size is None else size), (3, I32, len(body) + len(levels)),
                  (8, STRUCT, inner)) + levels + body


def meta(pages, values, codec=0, data=4, dictionary=None, stored=None, path=b"text"):
    fields = [(1, I32, 6), (2, LIST, (I32, [zigzag(0)])), (3, LIST, (BYTES, [varint(len(path)) + path])), (4, I32, codec), (5, I64, values),
              (6, I64, len(pages)), (7, I64, len(pages) if stored is None else stored), (9, I64, data)]
    return record(*fields, *([] if dictionary is None else [(11, I64, dictionary)]))


def group(pages, rows, chunk=(), values=None, **more):
    column = record((2, I64, 4), (3, STRUCT, meta(pages, rows if values is None else values, **more)), *chunk)
    return record((1, LIST, (STRUCT, [column])), (2, I64, len(pages)), (3, I64, rows))


def whole(name, pages, rows=1, schema=None, groups=None, total=None, footer=None, repetition=0, length=None, tail=b"PAR1", **more):
    schema = schema or [element(b"schema", children=1), element(b"text", repetition)]
    groups = [group(pages, rows, **more)] if groups is None else groups
    footer = footer or record((1, I32, 1), (2, LIST, (STRUCT, schema)), (3, I64, rows if total is None else total), (4, LIST, (STRUCT, groups)))
    (out / name).write_bytes(b"PAR1" + pages + footer + struct.pack("<I", len(footer) if length is None else length) + tail)


def plain(*strings):
    return b"".join(struct.pack("<I", len(s)) + s for s in strings)


def equal(count, value, width=1):
    return varint(count << 1) + value.to_bytes((width + 7) // 8, "little")


def levels(hybrid):
    return struct.pack("<I", len(hybrid)) + hybrid


def delta(first, rest=(), block=128, minis=4, total=None):
    """Lengths: differences of up to 8 bits in one block."""
    done = varint(block) + varint(minis) + varint(1 + len(rest) if total is None else total) + zigzag(first)
    if rest:
        least, widths = min(rest), [8] * minis
        bits = bytes(r - least for r in rest)
        done += zigzag(least) + bytes(widths) + bits + bytes(-len(bits) % (block // minis))
    return done


text = page(plain(b"a text"), 1)
whole("hand-good", text)
whole("hand-padded", page(plain(b"a text") + bytes(8), 1))  # as fastparquet pads pages
whole("bad-padding", page(plain(b"a text") + bytes(12), 1))
whole("hand-two-pages", text * 2, rows=2)
# An index page, which is passed over.
whole("hand-other-page", record((1, I32, 1), (2, I32, 3), (3, I32, 3)) + b"abc" + text)
# The dictionary's offset is not stated.
whole("hand-dictionary", page(plain(b"x", b"yz"), 2, kind=2) + page(b"\1" + varint(3) + b"\x02", 3, 8), rows=3)
whole("hand-v2", page_v2(plain(b"v2"), 3, 2, varint(3) + b"\2"), rows=3, repetition=1)
# 2.5 kB of legal Parquet for a terabyte of text.
bomb = page(plain(b"x" * 1000), 1, kind=2) + page(b"\0" + equal(1 << 30, 0, 0), 1 << 30, 8)
whole("hand-bomb", bomb, rows=1 << 30)
nulls = page(levels(equal(1 << 30, 0)), 1 << 30)
whole("hand-null-bomb", nulls, rows=1 << 30, repetition=1)

whole("bad-magic-at-end", text, tail=b"PAR2")
whole("bad-encrypted-footer", text, tail=b"PARE")
whole("bad-footer-length", text, length=1 << 27)
whole("bad-list-count", text, footer=record((1, I32, 1)) [:-1] + bytes([1 << 4 | LIST, 0xF0 | STRUCT]) + varint(1 << 60))
whole("bad-depth", text, footer=b"\x1c" * 200)
whole("bad-field-type", text, footer=record((1, I32, 1), (2, I32, 5)))
whole("bad-varint", text, footer=b"\x16" + b"\xff" * 11)
whole("bad-children", text, schema=[element(b"schema", children=5), element(b"text", 0)])
whole("bad-elements", text, schema=[element(b"schema", children=1), element(b"text", 0), element(b"more", 0)])
whole("bad-groups-before-schema", text, footer=record((4, LIST, (STRUCT, [group(text, 1)]))))
whole("bad-total", text, total=7)
whole("bad-rows", text, rows=-1)
whole("bad-values", text, values=2)
whole("bad-offset", text, data=1 << 40)
whole("bad-offset-low", text, data=0)
whole("bad-stored", text, stored=1 << 62)
whole("bad-path", text, path=b"body")
whole("bad-codec", text, codec=77)
whole("bad-elsewhere", text, groups=[record((1, LIST, (STRUCT, [record((1, BYTES, b"f"), (2, I64, 4), (3, STRUCT, meta(text, 1)))])), (3, I64, 1))])
whole("bad-encrypted", text, chunk=[(8, STRUCT, record((1, STRUCT, b"\0")))])
whole("bad-two-columns", text, schema=[element(b"schema", children=2), element(b"text", 0), element(b"text", 0)])
whole("bad-page-short", text[:-2])
whole("bad-page-beyond", page(plain(b"a"), 1, stored=1000))
whole("bad-page-negative", page(plain(b"a"), 1, stored=-5))
whole("bad-page-size", page(plain(b"a"), 1, size=(1 << 30) - 1))
whole("bad-page-giant", page(plain(b"a"), 1, size=(1 << 31) - 1))
whole("bad-page-rows", page(plain(b"a", b"b"), 2))
whole("bad-page-missing", text, rows=2)
whole("bad-crc", page(plain(b"a"), 1, crc=5))
whole("bad-encoding", page(plain(b"a"), 1, encoding=9))
whole("bad-plain-length", page(struct.pack("<I", 1 << 31) + b"a", 1))
whole("bad-plain-left", page(plain(b"a", b"b"), 1))
whole("bad-no-dictionary", page(b"\1\2\0", 1, 8))
whole("bad-two-dictionaries", page(plain(b"x"), 1, kind=2) * 2 + page(b"\1\2\0", 1, 8))
whole("bad-dictionary-count", page(plain(b"x"), 100, kind=2) + page(b"\1\2\0", 1, 8))
whole("bad-index", page(plain(b"x"), 1, kind=2) + page(b"\x08" + equal(1, 9, 8), 1, 8))
whole("bad-index-width", page(plain(b"x"), 1, kind=2) + page(b"\x50\2\0", 1, 8))
whole("bad-run-empty", page(levels(b"\0\0\0\0") + plain(b"a"), 1), repetition=1)
whole("bad-levels-length", page(struct.pack("<I", 1 << 30) + plain(b"a"), 1), repetition=1)
whole("bad-level", page(levels(equal(1, 255, 8)) + plain(b"a"), 1), repetition=1)
whole("bad-level-count", page(levels(equal(1, 1)) + plain(b"a"), 3), rows=3, repetition=1)
whole("bad-v2-nulls", page_v2(plain(b"v2"), 3, 1, varint(3) + b"\2"), rows=3, repetition=1)
whole("bad-v2-levels", page_v2(b"", 3, 1, varint(3) + b"\2", size=1), rows=3, repetition=1)
whole("bad-delta-sum", page(delta(9) + b"abc", 1, 6))
whole("bad-delta-negative", page(delta(-9) + b"abc", 1, 6))
whole("bad-delta-count", page(delta(3, total=9) + b"abc", 1, 6))
whole("bad-delta-block", page(delta(3, block=100) + b"abc", 1, 6))
whole("bad-delta-cut", page(delta(1, [0])[:-30], 2, 6), rows=2)
whole("bad-prefix", page(delta(4) + delta(1) + b"a", 1, 7))
whole("bad-snappy-claim", page(b"\xff\xff\xff\xff\x0f\0\0", 1, size=60), codec=1)
whole("bad-snappy", page(b"\x05\x10abc", 1, size=5), codec=1)
whole("bad-gzip", page(zlib.compress(plain(b"abc"))[:-4], 1, size=7), codec=2)
whole("bad-zstd", page(b"\x28\xb5\x2f\xfd\x20\x07\x39\0\0abcdefg", 1, size=9), codec=6)
whole("bad-lz4", page(b"\xf0\xff\xff", 1, size=50), codec=7)
(out / "not-parquet").write_bytes(b"a text of more than twelve bytes")
(out / "cut").write_bytes((out / "hand-good").read_bytes()[:-9])
(out / "short").write_bytes(b"PAR1")
# A few strings many times: megabytes of text, for builds that are interrupted.
strings = plain(*(bytes([97 + i]) * (100 + 200 * i) for i in range(5)))
parts = [page(levels(equal(350, 1) + equal(50, 0)) + b"\3" + equal(100 + k, k % 5, 3) + equal(250 - k, (k + 1) % 5, 3), 400, 8) for k in range(30)]
halves = [page(strings, 5, kind=2) + b"".join(parts[:11]), page(strings, 5, kind=2) + b"".join(parts[11:])]
groups = [group(halves[0], 4400), group(halves[1], 7600, data=4 + len(halves[0]))]
whole("hand-repeats", halves[0] + halves[1], rows=12000, groups=groups, repetition=1)
