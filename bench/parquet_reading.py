"""Processor time to read the column `text` of Parquet files with weft's reader and with pyarrow, on one thread each, in turns. Needs pyarrow.

    python3 bench/parquet_reading.py build/parquet_rows FILE.parquet ...

build/parquet_rows is a test program (WEFT_TESTS=ON) that also writes all rows, here to /dev/null."""
import os
import resource
import subprocess
import sys

import pyarrow
import pyarrow.parquet

ROUNDS = 3
pyarrow.set_cpu_count(1)
pyarrow.set_io_thread_count(1)


def seconds(who, work):
    before = resource.getrusage(who)
    work()
    after = resource.getrusage(who)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def with_weft():
    for file in sys.argv[2:]:
        subprocess.run([sys.argv[1], file, "text", "0"], stdout=subprocess.DEVNULL, check=True)


def by_batches():
    for file in sys.argv[2:]:
        for _ in pyarrow.parquet.ParquetFile(file).iter_batches(columns=["text"], use_threads=False):
            pass


def by_tables():
    for file in sys.argv[2:]:
        pyarrow.parquet.read_table(file, columns=["text"], use_threads=False)


print(f"{sum(os.path.getsize(f) for f in sys.argv[2:]) / 1e6:.0f} MB on disk, pyarrow {pyarrow.__version__}; seconds of processor time")
for _ in range(ROUNDS):
    print(f"weft {seconds(resource.RUSAGE_CHILDREN, with_weft):.2f}  pyarrow by batches {seconds(resource.RUSAGE_SELF, by_batches):.2f}, "
          f"by tables {seconds(resource.RUSAGE_SELF, by_tables):.2f}")
