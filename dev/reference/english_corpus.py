#!/usr/bin/env python3
"""Collects English text that does not repeat, from what is installed on this machine; nothing is downloaded.

    python3 dev/reference/english_corpus.py --output corpus.txt [--mb 60] [--folder DIR ...]

Sources: text, Markdown, reStructuredText, HTML and manual pages, and the documentation strings of Python files. Markup
is removed. Of what is left, paragraphs count as English when they consist of letters and spaces for the most part and
of common English words for a sixth. Every sentence is taken once, wherever it stands: case, digits and punctuation do
not make it another one. So what repeats is words, as in any English text, and not passages.

The output has one document per source file, with the byte 0x1e (record separator) between documents.
"""
import argparse
import gzip
import hashlib
import html
import os
import pathlib
import random
import re
import sys

SEPARATOR = "\x1e"
COMMON = frozenset("the of to and a in is that for it as with be by on are this an or not from at if which can have "
                   "was you will but when all has more may its they used one use their other than only into been "
                   "any these must should there some also does were between each would about such do no so".split())
MARKUP = re.compile(r"(?s)<(script|style|pre|code)\b.*?</\1>|<!--.*?-->")
BLOCK_TAG = re.compile(r"</?(p|div|li|ul|ol|h\d|br|tr|td|th|table|dd|dt|dl|section|summary|details|blockquote)\b[^>]*>")
TAG = re.compile(r"<[^>]*>")
ROFF_FONT = re.compile(r"\\f(?:\[[^]]*\]|\(..|.)|\\s[-+]?\d|\\[&|^/,]")
DOCSTRING = re.compile(r'(?s)"""(.*?)"""|\'\'\'(.*?)\'\'\'')
SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")
NOT_LETTERS = re.compile(r"[^a-z]+")
WORD = re.compile(r"[A-Za-z]+")


def from_html(text):
    text = MARKUP.sub(" ", text)
    return html.unescape(TAG.sub("", BLOCK_TAG.sub("\n\n", text)))


def from_roff(text):
    text = ROFF_FONT.sub("", text).replace("\\-", "-").replace("\\ ", " ").replace("\\(aq", "'").replace("\\e", "\\")
    lines = []
    for line in text.split("\n"):
        word, _, rest = line.partition(" ")
        if word in (".B", ".I", ".BR", ".IR", ".RB", ".RI", ".Nm", ".Xr", ".Fl", ".Ar"):
            lines.append(rest.replace('"', ""))
        else:
            lines.append("" if line.startswith((".", "'")) else line)
    return "\n".join(lines)


def from_python(text):
    return "\n\n".join(a or b for a, b in DOCSTRING.findall(text))


READERS = {".html": from_html, ".htm": from_html, ".py": from_python, ".pyi": from_python}
PLAIN = {".txt", ".md", ".rst", ".texi", ".info", ".pod"}


def text_of(path):
    """The text of a file without its markup; None where it is of no known kind."""
    name = path.name
    opener = open
    if name.endswith(".gz"):
        name, opener = name[:-3], gzip.open
    suffix = pathlib.PurePath(name).suffix
    reader = READERS.get(suffix)
    if re.fullmatch(r"\.[1-9][a-z]*", suffix):
        reader = from_roff
    elif reader is None and (suffix in PLAIN or name in ("README", "NEWS", "copyright", "LICENSE", "changelog")):
        reader = str
    if reader is None:
        return None
    try:
        if not 0 < path.stat().st_size < 4 << 20:
            return None
        with opener(path, "rb") as file:
            return reader(file.read().decode("utf-8"))
    except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile):
        return None


def is_english(paragraph):
    if len(paragraph) < 80:
        return False
    prose = sum(c.isascii() and (c.isalpha() or c.isspace()) for c in paragraph)
    words = WORD.findall(paragraph)
    return prose > 0.85 * len(paragraph) and sum(w.lower() in COMMON for w in words) * 6 > len(words)


def new_sentences(paragraph, seen):
    """The paragraph without sentences that were met before; a sentence of a few words may repeat, and stays."""
    kept = []
    for sentence in SENTENCE_END.split(paragraph):
        key = NOT_LETTERS.sub(" ", sentence.lower()).strip()
        mark = hashlib.blake2b(key.encode(), digest_size=8).digest()
        if mark in seen:
            continue
        if len(key) > 20:
            seen.add(mark)
        kept.append(sentence)
    return " ".join(kept)


def documents(folders, rng):
    """(path, text) of every readable file, in an order that depends only on their names."""
    paths = []
    for folder in folders:
        for place, _, names in os.walk(folder):
            paths += [os.path.join(place, name) for name in names]
    paths = sorted(set(paths))
    rng.shuffle(paths)
    for path in map(pathlib.Path, paths):
        if path.is_symlink():
            continue
        text = text_of(path)
        if text:
            yield path, text.replace(SEPARATOR, " ").replace("\r\n", "\n")


def collect(folders, megabytes, seed=1):
    """Documents (str) of English text, until they have so many MB of UTF-8."""
    seen, size = set(), 0
    for _, text in documents(folders, random.Random(seed)):
        paragraphs = (new_sentences(p.strip("\n"), seen) for p in re.split(r"\n[ \t]*\n", text) if is_english(p))
        document = "\n\n".join(p for p in paragraphs if len(p) >= 80)
        if not document:
            continue
        yield document
        size += len(document.encode()) + 1
        if size >= megabytes * 1e6:
            return


def default_folders():
    home = pathlib.Path.home()
    return [f for f in ("/usr/share", "/usr/lib", "/usr/local", sys.prefix, home / ".rustup", home / ".pyenv", home / ".cargo")
            if os.path.isdir(f)]


def write_corpus(path, folders, megabytes):
    count = 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        for document in collect(folders, megabytes):
            file.write((SEPARATOR if count else "") + document)
            count += 1
    print(f"{path}: {count} documents, {os.path.getsize(path) / 1e6:.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True)
    parser.add_argument("--mb", type=float, default=60)
    parser.add_argument("--folder", action="append", help="where to look, instead of where documentation is installed")
    args = parser.parse_args()
    write_corpus(args.output, args.folder or default_folders(), args.mb)


if __name__ == "__main__":
    main()
