"""words: windows of 16 words from presidential addresses, masked diffusion, judged by a character model."""

from __future__ import annotations

import lzma
from functools import cached_property
from typing import Any

import torch
from tokenizers import Tokenizer

from di4c_cli import embedded
from di4c_cli.metric.ngram import CharacterModel
from di4c_cli.tasks.base import TaskData, ToyTask

TOKENIZER_FILE = "text-units.json"
WINDOW_LENGTH = 16
TRAIN_STRIDE, HELD_OUT_STRIDE = 1, 4


class TextTask(ToyTask):
    """Words and punctuation marks, all among the 1500 most frequent ones."""

    name = "words"
    figures = ("bits_per_char", "entropy", "distinct")
    diversity = "entropy"
    eval_steps, eval_samples = (1, 2, 4, 8, 16), 500
    steps_saved_samples = 500

    @cached_property
    def lines(self) -> tuple[list[str], list[str]]:
        """Addresses since 1945, one per line: (training, held out = every tenth)."""
        text = lzma.decompress(embedded.data("sotu.txt.xz").read_bytes()).decode()
        lines = text.split("\n")
        return [t for i, t in enumerate(lines) if i % 10 != 9], [t for i, t in enumerate(lines) if i % 10 == 9]

    @cached_property
    def judge(self) -> CharacterModel:
        """The character model fitted to the training addresses; fitting takes about two seconds."""
        return CharacterModel(self.lines[0])

    def load_data(self) -> TaskData:
        tokenizer = Tokenizer.from_file(str(embedded.asset(TOKENIZER_FILE)))
        unknown = tokenizer.get_vocab()["[MASK]"]
        parts = []
        for lines, stride in zip(self.lines, (TRAIN_STRIDE, HELD_OUT_STRIDE), strict=True):
            windows = []
            for line in lines:
                window = torch.tensor(tokenizer.encode(line).ids).unfold(0, WINDOW_LENGTH, stride)
                windows.append(window[window.ne(unknown).all(1)])
            parts.append(torch.cat(windows))
        return TaskData(parts[0], parts[1])

    def has_codec(self, entry: dict[str, Any]) -> bool:
        return entry.get("asset") == TOKENIZER_FILE
