#!/usr/bin/env python3
"""Writes one column of Parquet files to standard output as JSON lines, in bounded memory, for `tokenize --format jsonl -`.

    python3 data/parquet_to_jsonl.py [--field text] FILE...
"""
import argparse
import json
import sys

import pyarrow
import pyarrow.parquet


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--field", default="text")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    for path in args.files:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                if args.field not in file.schema_arrow.names:
                    sys.exit(f"{path}: no column {args.field}, found {', '.join(file.schema_arrow.names)}")
                for batch in file.iter_batches(batch_size=1000, columns=[args.field]):
                    for value in batch.column(0).to_pylist():
                        sys.stdout.write(json.dumps({args.field: value or ""}) + "\n")
        except (pyarrow.ArrowException, OSError) as problem:
            sys.exit(f"{path}: not a readable Parquet file: {problem}")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:   # tokenize stopped and has said why
        sys.exit(1)
