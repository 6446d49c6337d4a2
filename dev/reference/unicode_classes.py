#!/usr/bin/env python3
"""Writes llmc/tokenizer/split/unicode_table.inc: what every code point is to the regular expressions of Hugging Face's tokenizers.

    python3 -m venv venv && venv/bin/pip install tokenizers tiktoken
    venv/bin/python dev/reference/unicode_classes.py > llmc/tokenizer/split/unicode_table.inc

Asked of the package itself rather than of a Unicode data file, so that both agree on the version of Unicode. What the
program derives from the table is checked here, too: \\s and \\w, POSIX brackets, tiktoken's \\p{L}, \\p{N} and \\s, and the
characters of words beside an added token.
"""
import string
import sys

import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cn Co".split()
FLAGS = "alpha upper lower".split()
SCRIPTS = ("Arabic Armenian Bengali Bopomofo Cyrillic Devanagari Ethiopic Georgian Greek Han Hangul Hebrew Hiragana Katakana Khmer "
           "Lao Latin Mongolian Myanmar Tamil Telugu Thai Tibetan").split()
ALL = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def members(pattern):
    split = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str(ALL) for c in piece}


def tiktoken_members(pattern):
    """The code points of a class: tiktoken drops text that its pattern does not match."""
    encoding = tiktoken.Encoding("class", pat_str=pattern, mergeable_ranks={bytes([i]): i for i in range(256)},
                                 special_tokens={})
    return set(map(ord, encoding.decode_bytes(encoding.encode_ordinary(ALL)).decode()))


def word_members():
    """The characters beside which an added token is no single word; before a token and behind it they are the same."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens([AddedToken("<single>", single_word=True, normalized=False)])
    sides = [{ord(c) for c, encoding in zip(ALL, tokenizer.encode_batch_fast(texts, add_special_tokens=False)) if not encoding.ids}
             for texts in ([c + "<single>" for c in ALL], ["<single>" + c for c in ALL])]
    assert sides[0] == sides[1]
    return sides[0]


def check(sets):
    any_of = lambda *names: set().union(*(s for name, s in sets.items() if name in names or name[0] in names))
    everything = set(map(ord, ALL))
    word = any_of("alpha", "M", "Nd", "Pc")
    space = {*range(9, 14), 0x85} | any_of("Z")
    graph = everything - space - any_of("Cc", "Cn")
    expected = {r"\s": space, r"[[:space:]]": space, r"\w": word | {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE}, r"[\w]": word,
                r"[[:word:]]": word, r"\d": any_of("Nd"), r"[[:digit:]]": any_of("Nd"), r"\h": set(map(ord, string.hexdigits)),
                r"[[:alnum:]]": any_of("alpha", "Nd"), r"[[:punct:]]": any_of("P", "S"), r"\p{Punct}": any_of("P"),
                r"[[:blank:]]": any_of("Zs") | {9}, r"[[:cntrl:]]": any_of("Cc"), r"[[:graph:]]": graph,
                r"[[:print:]]": graph | any_of("Zs")}
    for pattern, codes in expected.items():
        assert members(pattern) == codes, pattern
    for pattern, codes in ((r"\p{L}", any_of("L")), (r"\p{N}", any_of("N")), (r"\s", space)):
        assert tiktoken_members(pattern) == codes, pattern
    assert word_members() == word | {0x200C, 0x200D}


def lines_of(words, indent):
    """Words as lines of a string literal."""
    line, lines = "", []
    for word in words:
        if len(indent) + len(line) + len(word) + 2 > 120:
            lines.append(line)
            line = ""
        line += word
    return "\n".join(f'{indent}"{line}"' for line in [*lines, line])


def main():
    sets = {name: members(rf"\p{{{name}}}") for name in CATEGORIES}
    assert sum(map(len, sets.values())) == len(ALL)
    kind_of = {code: (category, ) for category in CATEGORIES for code in sets[category]}
    sets.update({name: members(f"[[:{name}:]]") for name in FLAGS})
    check(sets)
    runs = []
    for code in range(0x110000):
        kind = kind_of.get(code, ("Cn", )) + tuple(code in sets[name] for name in FLAGS)   # surrogates are in no text
        if runs and runs[-1][0] == kind:
            runs[-1][1] += 1
        else:
            runs.append([kind, 1])
    kinds = sorted({kind for kind, _ in runs})
    letters = dict(zip(kinds, string.ascii_letters, strict=False))
    assert len(letters) == len(kinds)
    print("// Made by dev/reference/unicode_classes.py with tokenizers", tokenizers.__version__, "and tiktoken", tiktoken.__version__)
    print("// The kinds of characters, with the letters that stand for them below.")
    print("constexpr CharKind char_kinds[] = {")
    for (category, *flags) in kinds:
        print(f'    {{"{category}", {", ".join(str(f).lower() for f in flags)}}},   // {letters[(category, *flags)]}')
    print("};")
    print("// The kinds of all code points in order: a letter and how often it stands, if more than once.")
    print("constexpr char char_runs[] =")
    print(lines_of((letters[kind] + (str(n) if n > 1 else "") for kind, n in runs), "    ") + ";")
    print("// Scripts: in turn the number of code points outside and inside.")
    print("constexpr Script scripts[] = {")
    for name in SCRIPTS:
        codes, at, numbers = sorted(members(rf"\p{{{name}}}")), 0, []
        for i, code in enumerate(codes):
            if i == 0 or codes[i - 1] != code - 1:
                numbers += [code - at, 0]
                at = code
            numbers[-1] += 1
            at += 1
        print(f'    {{"{name.lower()}",\n' + lines_of((f"{n} " for n in numbers), "     ") + "},")
    print("};")


if __name__ == "__main__":
    sys.exit(main())
