#!/usr/bin/env python3
"""Collects source code, or text of many languages, from what is installed on this machine; nothing is downloaded.

    python3 dev/reference/mixed_corpus.py code|languages --output corpus.txt [--mb 60] [--folder DIR ...]

`code` takes files of Python, C, C++, JavaScript and shell; `languages` takes the translations of programs' messages
(gettext's catalogues). Every file is taken once, in an order that depends only on the names. The output has one
document per file, with the byte 0x1e (record separator) between documents.
"""
import argparse
import gettext
import hashlib
import os
import random

import english_corpus

CODE = (".py", ".h", ".hpp", ".c", ".cc", ".cpp", ".js", ".sh")


def translations(path):
    with open(path, "rb") as file:
        catalogue = gettext.GNUTranslations(file)._catalog
    return "\n".join(v for v in catalogue.values() if isinstance(v, str) and v)


def code(path):
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def documents(kind, folders):
    suffixes, read = {"code": (CODE, code), "languages": ((".mo",), translations)}[kind]
    paths = [os.path.join(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names
             if name.endswith(suffixes)]
    paths = sorted(set(paths))
    random.Random(1).shuffle(paths)
    seen = set()
    for path in paths:
        try:
            text = read(path)
        except (OSError, LookupError, UnicodeError, ValueError):   # gettext raises all of these for damaged catalogues
            continue
        mark = hashlib.blake2b(text.encode(), digest_size=8).digest()
        if text and mark not in seen:
            seen.add(mark)
            yield text.replace(english_corpus.SEPARATOR, " ")


def write_corpus(path, kind, folders, megabytes):
    size = 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        for text in documents(kind, folders):
            file.write((english_corpus.SEPARATOR if size else "") + text)
            size += len(text.encode())
            if size >= megabytes * 1e6:
                break
    print(f"{path}: {size / 1e6:.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["code", "languages"])
    parser.add_argument("--output", required=True)
    parser.add_argument("--mb", type=float, default=60)
    parser.add_argument("--folder", action="append", help="where to look, instead of where programs are installed")
    args = parser.parse_args()
    write_corpus(args.output, args.kind, args.folder or ["/usr/include", *english_corpus.default_folders()], args.mb)


if __name__ == "__main__":
    main()
