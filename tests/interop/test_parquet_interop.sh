#!/bin/bash
# Compares the reading of Parquet files with pyarrow, polars and duckdb; skipped (77) if pyarrow is missing.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/parquet_interop.py" "${WEFT:?}" "${WEFT_BINARY_DIR:?}/parquet_rows"
