#!/usr/bin/env python3
"""Writes llmc/tokenizer/split/word_table.inc: the characters beside which an added token is no single word.

    python3 -m venv venv && venv/bin/pip install tokenizers
    venv/bin/python dev/reference/word_characters.py > llmc/tokenizer/split/word_table.inc

Asked of Hugging Face's tokenizers itself rather than of a Unicode data file, so that both agree on the version of
Unicode. Before a token and behind it the same characters must count.
"""
import tokenizers
from tokenizers import AddedToken, Tokenizer, models

ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TOKEN = "<single>"


def is_word_beside(tokenizer, texts):
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [not encoding.ids for encoding in encodings]   # what is no added token gives none here


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken(TOKEN, single_word=True, normalized=False)])
    words = []
    for first in range(0, len(ALL), 65536):
        some = ALL[first:first + 65536]
        before = is_word_beside(tokenizer, [c + TOKEN for c in some])
        behind = is_word_beside(tokenizer, [TOKEN + c for c in some])
        assert before == behind
        words += [ord(c) for c, word in zip(some, before) if word]
    ranges = []
    for code in words:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    print("// Made by dev/reference/word_characters.py with tokenizers", tokenizers.__version__)
    print("// {first, last} of characters of words.")
    line = ""
    for first, last in ranges:
        entry = f"{{0x{first:X}, 0x{last:X}}},"
        if len(line) + 1 + len(entry) > 120:
            print(line)
            line = ""
        line += (" " if line else "") + entry
    print(line)


if __name__ == "__main__":
    main()
