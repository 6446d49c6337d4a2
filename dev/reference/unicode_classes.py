#!/usr/bin/env python3
"""Writes llmc/tokenizer/split/unicode_table.inc: the class of every code point as tiktoken's regular expressions see it.

    python3 -m venv venv && venv/bin/pip install tiktoken
    venv/bin/python dev/reference/unicode_classes.py > llmc/tokenizer/split/unicode_table.inc

Asked of tiktoken itself rather than of a Unicode data file, so that both agree on the version of Unicode.
"""
import tiktoken

CLASSES = {"letter": r"\p{L}", "number": r"\p{N}", "space": r"\s"}
BYTES = {bytes([i]): i for i in range(256)}
ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(ALL)


def members(pattern):
    """The code points a class holds: tiktoken drops text that its pattern does not match."""
    encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks=BYTES, special_tokens={})
    return encoding.decode_bytes(encoding.encode_ordinary(TEXT)).decode()


def main():
    names = {}
    for name, pattern in CLASSES.items():
        for character in members(pattern):
            assert character not in names, f"U+{ord(character):04X} is in two classes"
            names[character] = name
    ranges = []
    for character in ALL:
        name = names.get(character)
        code = ord(character)
        if name is None:
            continue
        if ranges and ranges[-1][2] == name and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, name])
    print("// Made by dev/reference/unicode_classes.py with tiktoken", tiktoken.__version__)
    print("// {first, last, class}; everything else is CharClass::other.")
    line = ""
    for first, last, name in ranges:
        entry = f"{{0x{first:X}, 0x{last:X}, {name}}},"
        if len(line) + 1 + len(entry) > 120:
            print(line)
            line = ""
        line += (" " if line else "") + entry
    print(line)


if __name__ == "__main__":
    main()
