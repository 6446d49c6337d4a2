#!/usr/bin/env python3
"""Writes one column of text of Parquet files to standard output as JSON lines, in bounded memory, for `tokenize -`.

    python3 data/parquet_to_jsonl.py [--field text] [--plain] FILE...

The first line announces the last one, which says that all has been written; so `tokenize` refuses what a converter that failed
or was killed has left. --plain leaves both out, for other programs. Bytes are written as they are, UTF-8 or not: `tokenize
--invalid-utf8` decides about them. A null is an empty document.
"""
import argparse
import json
import os
import sys

import pyarrow
import pyarrow.parquet

# as in llmc/tokenizer/jsonl.h
STREAM_BEGIN = b'{"train_gpt_stream": "begin"}\n'
STREAM_END = b'{"train_gpt_stream": "end"}\n'


class Refused(Exception):
    """A file that cannot be read, with the reason."""


def value_type(column_type):
    return column_type.value_type if pyarrow.types.is_dictionary(column_type) else column_type


def is_text(column_type):
    # older versions of pyarrow do not have all of them; a column of nothing but nulls may have the type null
    names = ("is_string", "is_large_string", "is_string_view", "is_binary", "is_large_binary", "is_binary_view", "is_null")
    return any(getattr(pyarrow.types, name, lambda _: False)(column_type) for name in names)


def texts(path, field):
    """Yields the values of a column, as bytes."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if schema.names.count(field) != 1:
                raise Refused(f"{path}: expected one column {field}, found {', '.join(schema.names)}")
            column_type = schema.field(field).type
            if not is_text(value_type(column_type)):
                raise Refused(f"{path}: column {field} is of the type {column_type}, expected text, or bytes of text; "
                              "name another column with --field")
            for batch in file.iter_batches(batch_size=1000, columns=[field]):
                column = batch.column(0)
                if pyarrow.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                for value in column.cast(pyarrow.large_binary()).to_pylist():
                    yield value or b""
    except (pyarrow.ArrowException, OSError) as problem:
        raise Refused(f"{path}: not a readable Parquet file: {problem}") from problem


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--field", default="text")
    parser.add_argument("--plain", action="store_true", help="without the first and last line that tokenize looks for")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    out = sys.stdout.buffer
    if not args.plain:
        out.write(STREAM_BEGIN)
    for path in args.files:
        for value in texts(path, args.field):
            line = json.dumps({args.field: value.decode("utf-8", "surrogateescape")}, ensure_ascii=False) + "\n"
            out.write(line.encode("utf-8", "surrogateescape"))
    if not args.plain:
        out.write(STREAM_END)
    out.flush()


if __name__ == "__main__":
    try:
        main()
    except Refused as problem:
        sys.exit(str(problem))
    except OSError as problem:
        # what is still buffered cannot be written either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(problem, BrokenPipeError):   # the reader wants no more (--max-bytes), or has said why it failed
            sys.exit(0)
        sys.exit(f"cannot write to standard output: {problem}")
