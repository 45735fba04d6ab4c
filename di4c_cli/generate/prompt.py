"""Symbols that must appear: a text prefix, perhaps in a template, or a file with `[MASK]` where the model writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from di4c_cli.errors import UserError
from di4c_cli.foreign.text import check_unicode, read_text

if TYPE_CHECKING:
    from di4c_cli.codec import Codec

MASK_MARKER = re.compile(r"\[MASK(?:\*(\d{1,6}))?\]")
"""`[MASK]` is one free position, `[MASK*12]` stands for twelve."""
FREE_POSITION = -1
PLACE = "{prompt}"


def in_template(template: str | None, text: str) -> str:
    """The text in the place of `{prompt}`; the two characters `\\n` of a template are a line break."""
    if template is None:
        return text
    before, place, after = template.replace("\\n", "\n").partition(PLACE)
    if not place or PLACE in after:
        raise UserError(f"--template must contain {PLACE} once.", f"Write e.g. '<|user|>{PLACE}<|assistant|>'.")
    return before + text + after


def prefix(codec: Codec, text: str, length: int, answer: int | None = None) -> list[int]:
    """Ids that start with `text`, then -1 where the model writes: `answer` times, or up to `length` in all."""
    ids = encode(codec, text)
    if len(ids) + (answer or 0) > length:
        more = "" if answer is None else f" and the answer {answer}"
        hint = "Shorten the prompt." if answer is None else "Shorten one of them."
        raise UserError(f"The prompt has {len(ids)} tokens{more} but the model writes {length} in all.", hint)
    return ids + [FREE_POSITION] * (length - len(ids) if answer is None else answer)


def infill(codec: Codec, text: str, length: int, symbols: int, any_length: bool = False) -> list[int]:
    """All positions of a file: text or, for images, numbers, with markers for the free ones.

    There are `length` of them, or at most that many for a model of `any_length`.
    """
    ids: list[int] = []
    # the markers are counted first: a short file must not stand for a gigabyte
    free = sum(int(part or 1) for part in MASK_MARKER.split(text)[1::2])
    if free > length:
        raise UserError(f"The infill file has {free} free positions but the model has {length}.", "Use fewer [MASK].")
    for place, part in enumerate(MASK_MARKER.split(text)):
        if place % 2 == 0:
            ids += encode(codec, part) if codec.kind == "text" else _numbers(part, symbols)
        else:
            ids += [FREE_POSITION] * int(part or 1)
    if len(ids) > length or (len(ids) < length and not any_length):
        raise UserError(
            f"The infill file has {len(ids)} positions but the model has {length}.",
            "Add or remove text or [MASK] (or [MASK*N] for N of them).",
        )
    return ids


def encode(codec: Codec, text: str) -> list[int]:
    """Text to ids; a symbol that the model cannot write is an error."""
    import torch  # slow; flags are checked without it

    if not text:
        return []
    ids = codec.encode(check_unicode(text, "The prompt"))
    back = codec.decode(torch.tensor([ids], dtype=torch.long))[0] if ids else ""
    wrong = _first_lost(codec.normalized(text), back)
    if wrong is not None:
        raise UserError(f"The model has no symbol for {wrong!r} in the text.", "Leave it out.")
    return ids


def _first_lost(wanted: str, back: str) -> str | None:
    """The first word that the tokenizer does not reproduce; spacing may differ, letters may not."""
    letters = "".join(back.split())
    for word in wanted.split():
        if not letters.startswith(word):
            return word
        letters = letters[len(word) :]
    return None


def _numbers(text: str, symbols: int) -> list[int]:
    ids = []
    for word in text.split():
        if not word.isdecimal() or int(word) >= symbols:
            raise UserError(f"'{word[:20]}' is not a symbol of this model.", f"Use 0 to {symbols - 1} or [MASK].")
        ids.append(int(word))
    return ids


def read(path: Path) -> str:
    """A prompt or infill file without the newline that editors add at the end."""
    return read_text(path).removesuffix("\n")
