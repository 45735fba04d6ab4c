"""Causal language models that judge text, and generative perplexity in two named protocols.

`published`: the sample's own ids are scored directly, all tokens (the first is only given), exp of the mean
of the per-sample means; with a prompt, only the positions after it. Texts from a file have no ids and are tokenised
by the judge. `strict`: the judge tokenises the decoded
text again, the first token is scored too, tokens after the first end-of-text do not count, and the bits per
byte do not depend on the judge's tokenizer.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from di4c_cli import hub
from di4c_cli.errors import Failure, UserError
from di4c_cli.foreign.structured import read_json
from di4c_cli.foreign.text import pieces
from di4c_cli.foreign.tokenizer import MAX_FILE_BYTES, check_tree
from di4c_cli.metric.features import tensors_digest

PUBLISHED, STRICT = "published", "strict"
MAX_LOGITS = 64_000_000
"""Logits in memory at once (256 MB); GPT-2 on 1024 tokens has 51 million."""


class CausalJudge:
    """A tokenizer and log-probabilities of tokens given the ones before."""

    def __init__(self, name: str, network: Any, tokenizer: Any, half: bool = False) -> None:
        """`half`: the network computes in bf16."""
        self.name, self.network, self.tokenizer, self.half = name, network.eval(), tokenizer, half
        self._last: tuple[list[list[int]], list[tuple[Tensor, Tensor]]] = ([], [])
        self.digest = tensors_digest(network.state_dict()) + ("-bf16" if half else "")
        self.device = next(network.parameters()).device
        self.window = int(getattr(network.config, "max_position_embeddings", 1024))
        self.vocabulary = int(network.config.vocab_size)
        self.end: int | None = tokenizer.eos_token_id
        # the token before the first one, so that the first one can be scored too
        self.start: int | None = self.end if tokenizer.bos_token_id is None else tokenizer.bos_token_id

    @torch.no_grad()
    def losses(self, ids: Tensor) -> Tensor:
        """-log p(token | tokens before) in nats, `(n, D)` -> `(n, D - 1)`; the first token is only given."""
        if int(ids.max()) >= self.vocabulary:
            raise UserError(
                f"Token {int(ids.max())} is outside the judge's vocabulary of {self.vocabulary}.",
                "Use a judge with the model's tokenizer, or the strict protocol alone.",
            )
        if ids.shape[1] > self.window:
            raise UserError(
                f"{ids.shape[1]} tokens do not fit into the judge's window of {self.window}.", "Use another --judge."
            )
        return torch.stack(self.read(ids.tolist()))

    @torch.no_grad()
    def read(self, rows: list[list[int]]) -> list[Tensor]:
        """-log p of the tokens after the first one, in nats, for rows of any lengths up to the window."""
        return [losses for losses, _ in self._read(rows)]

    def _read(self, rows: list[list[int]]) -> list[tuple[Tensor, Tensor]]:
        """Losses `(T - 1,)` and last hidden states `(T, H)` of rows of any lengths; those of the last call are kept."""
        if self._last[0] != rows:
            found: dict[int, tuple[Tensor, Tensor]] = {}
            order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
            while order:
                size = max(1, MAX_LOGITS // (len(rows[order[-1]]) * self.vocabulary))
                part, order = order[-size:], order[:-size]
                given = [torch.tensor(rows[number], device=self.device) for number in part]
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
                    ids = pad_sequence(given, batch_first=True)  # a causal network does not look at what follows
                    states = self.network(input_ids=ids, output_hidden_states=True)
                for number, own, z, h in zip(part, given, states.logits, states.hidden_states[-1], strict=True):
                    loss = F.cross_entropy(z[: len(own) - 1].float(), own[1:], reduction="none")
                    found[number] = (loss.cpu(), h[: len(own)].float().cpu())
            self._last = (rows, [found[number] for number in range(len(rows))])
        return self._last[1]

    @torch.no_grad()
    def features(self, texts: list[str], length: int) -> Tensor:
        """Last hidden state at the last of at most `length` tokens that fit the window, `(n, H)`, for MAUVE."""
        rows = [self.encode(text, min(length, self.window)) or [self.start or 0] for text in texts]
        return torch.stack([hidden[-1] for _, hidden in self._read(rows)])

    @torch.no_grad()
    def gain_gradients(self, texts: list[str], length: int) -> Tensor:
        """Gradients `(n, H)` of the mean log-likelihood of `length` tokens in a gain on the last hidden state."""
        weight = self.network.get_output_embeddings().weight
        rows = [[self.start or 0, *self.encode(text, min(length, self.window - 1))] for text in texts]
        out = []
        for ids, (_, hidden) in zip(rows, self._read(rows), strict=True):
            before = hidden[:-1].to(weight.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
                expected = F.linear(before, weight).softmax(-1) @ weight
            gradient = before * (weight[ids[1:]] - expected.float())
            out.append(gradient.mean(0).float().cpu() if len(ids) > 1 else torch.zeros(weight.shape[1]))
        return torch.stack(out)

    def encode(self, text: str, count: int | None = None) -> list[int]:
        """Text to ids without additions, the first `count`; end-of-text in the text is the token, not its letters."""
        ids: list[int] = []
        for piece in pieces(text):  # the library takes 60 times the memory of the text it gets
            ids += self.tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
            if count is not None and len(ids) >= count:
                return ids[:count]
        return ids

    def same_tokens(self, tokenizer: Any) -> bool:
        """Whether a `tokenizers` tokenizer numbers its tokens as the judge does."""
        return bool(tokenizer.get_vocab().items() <= self.tokenizer.get_vocab().items())


def load_judge(ref: str, device: str = "cpu", half: bool = False) -> CausalJudge:
    """A judge by Hub id, folder or .gguf file; weights are only read from formats that cannot run code."""
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise UserError("A causal judge needs transformers.", "Run `pip install 'di4c[text]'`.") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    path = Path(ref)
    gguf = path.suffix == ".gguf"
    if not path.exists() and (gguf or ref.startswith((".", "/", "~")) or ref.count("/") > 1):
        raise UserError(f"There is no judge {path}.", "Check the path.")
    where = str(path.parent) if gguf else ref
    options: dict[str, Any] = {"gguf_file": path.name} if gguf else {}
    if not path.exists() and not hub.Fetcher(ref).reachable("config.json"):
        options["local_files_only"] = True  # transformers would try again for a minute before it reads its cache
    tokenizer = _load_tokenizer(transformers, ref, where, options)
    try:
        extra = {} if gguf else {"use_safetensors": True}
        with redirect_stderr(io.StringIO()):  # unpacking a GGUF file draws its own progress bar
            network = transformers.AutoModelForCausalLM.from_pretrained(
                where, dtype=torch.float32, trust_remote_code=False, **options, **extra
            )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise _cannot(ref, path, "cannot be loaded as a causal language model", error) from error
    return CausalJudge(path.name if path.exists() else ref, network.to(device), tokenizer, half)


def _load_tokenizer(transformers: Any, ref: str, where: str, options: dict[str, Any]) -> Any:
    path = Path(ref)
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if path.is_dir() and not any((path / name).is_file() for name in names):
        raise UserError(f"The judge {ref} has no tokenizer.", "Put its tokenizer.json into the folder.")
    if (path / names[0]).is_file():
        check_tree(read_json(path / names[0], MAX_FILE_BYTES, "tokenizer"), f"{ref}/{names[0]}")
    try:
        # without this argument transformers may ask at the terminal whether to run a repository's code
        return transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, AttributeError, TypeError) as error:
        raise _cannot(ref, path, "has no tokenizer that can be loaded", error) from error


def _cannot(ref: str, path: Path, what: str, error: Exception) -> UserError | Failure:
    """A damaged local judge is the user's mistake; an unreachable Hub is a failure."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    if path.exists():
        return UserError(f"The judge {ref} {what}: {first}.", "Name another --judge.")
    return Failure(f"The judge {ref} {what}: {first}.", "Name a local folder or .gguf file with --judge.")


def published_losses(judge: CausalJudge, ids: Tensor, prompt: int = 0) -> np.ndarray:
    """Mean loss in nats of each sample's tokens from position `prompt` on, `(n, D)` -> `(n,)`."""
    losses = judge.losses(ids)[:, max(0, prompt - 1) :]  # column i belongs to position i + 1
    return np.asarray(losses.double().mean(1))


def published_text_losses(judge: CausalJudge, texts: list[str]) -> np.ndarray:
    """`published_losses` of texts by the judge's own tokens, cut to its window; NaN where there is none to score."""
    rows = [judge.encode(text, judge.window) for text in texts]
    losses = iter(judge.read([row for row in rows if len(row) > 1]))
    return np.array([float(next(losses).double().mean()) if len(row) > 1 else np.nan for row in rows])


class StrictScore(NamedTuple):
    """Sums over the scored tokens of one text."""

    nats: float
    tokens: int
    bytes: int


def strict_scores(judge: CausalJudge, texts: list[str]) -> list[StrictScore]:
    """Score texts, tokenised again, up to and with their first end-of-text, cut to the judge's window."""
    given = [] if judge.start is None else [judge.start]
    rows = []
    for text in texts:
        ids = judge.encode(text, judge.window)
        if judge.end is not None and judge.end in ids:
            ids = ids[: ids.index(judge.end) + 1]
        rows.append(given + ids[: judge.window - len(given)])
    long = [row for row in rows if len(row) > 1]
    losses = iter(judge.read(long))
    return [_strict_score(judge, row, next(losses)) if len(row) > 1 else StrictScore(0.0, 0, 0) for row in rows]


def _strict_score(judge: CausalJudge, row: list[int], losses: Tensor) -> StrictScore:
    counted = row[1:]
    visible = [token for token in counted if token != judge.end]  # only the last one can be end-of-text
    size = len(judge.tokenizer.decode(visible).encode())
    # end-of-text is scored, but it is not a byte of the text; a text of nothing else counts as one byte
    return StrictScore(float(losses.double().sum()), len(counted), max(1, size))
