"""Writes the same documents in the formats that bench/formats.sh compares. Needs numpy, pyarrow, zstandard.

    formats.py OUT MEGABYTES DIR...     text files below the directories, one document each, in the order of their paths

A file is left out if it is not UTF-8, has a NUL byte, or is empty or longer than 1 MiB. A document is its text without a byte order mark and
without blanks at both ends.
"""
import gzip
import json
import os
import sys

import pyarrow
import pyarrow.parquet
import zstandard

ENDINGS = (".c", ".h", ".hpp", ".html", ".java", ".js", ".md", ".po", ".py", ".rs", ".rst", ".txt")
SHARD = 100_000_000  # bytes of text in a file of a format that holds many documents


def documents(directories, limit):
    """Texts, until `limit` bytes are there. Each text once: the corpus has no duplicates that only copies of a directory would bring."""
    size, seen = 0, set()
    for directory in directories:
        for parent, below, names in os.walk(directory):
            below.sort()
            for name in sorted(names):
                path = os.path.join(parent, name)
                if not name.endswith(ENDINGS) or os.path.islink(path) or not 0 < os.path.getsize(path) <= 1 << 20:
                    continue
                with open(path, "rb") as file:
                    data = file.read().removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
                if not data or b"\0" in data or hash(data) in seen:
                    continue
                try:
                    text = data.decode()
                except UnicodeDecodeError:
                    continue
                seen.add(hash(data))
                size += len(data)
                yield text
                if size >= limit:
                    return


def shards(texts):
    """Lists of texts of about SHARD characters."""
    shard, size = [], 0
    for text in texts:
        shard.append(text)
        size += len(text)
        if size >= SHARD:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def write(out, number, texts, start):
    for index, text in enumerate(texts, start):
        directory = os.path.join(out, "txt", f"{index // 1000:04}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"{index:07}.txt"), "w", encoding="utf-8", newline="") as file:
            file.write(text)
    lines = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()
    for name, data in (("jsonl", lines), ("jsonl.zst", zstandard.compress(lines, 3)), ("json.gz", gzip.compress(lines, 6))):
        os.makedirs(os.path.join(out, name), exist_ok=True)
        with open(os.path.join(out, name, f"{number:03}.{name}"), "wb") as file:
            file.write(data)
    for codec in ("zstd", "snappy"):
        directory = os.path.join(out, f"parquet-{codec}")
        os.makedirs(directory, exist_ok=True)
        pyarrow.parquet.write_table(
            pyarrow.table({"text": texts}), os.path.join(directory, f"{number:03}.parquet"), compression=codec, row_group_size=2000
        )


def main():
    out, limit = sys.argv[1], int(sys.argv[2]) * 1_000_000
    count = 0
    for number, texts in enumerate(shards(documents(sys.argv[3:], limit))):
        write(out, number, texts, count)
        count += len(texts)
        print(f"\r{count} documents", end="", file=sys.stderr)
    print(f"\n{count}")


main()
