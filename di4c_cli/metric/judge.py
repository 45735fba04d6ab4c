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

    def __init__(self, name: str, network: Any, tokenizer: Any) -> None:
        self.name, self.network, self.tokenizer = name, network.eval(), tokenizer
        self.digest = tensors_digest(network.state_dict())
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
        rows = max(1, MAX_LOGITS // (ids.shape[1] * self.vocabulary))
        parts = []
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows].to(self.device)
            logits = self.network(input_ids=part).logits[:, :-1].float()
            loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="none")
            parts.append(loss.view(len(part), -1).cpu())
        return torch.cat(parts)

    @torch.no_grad()
    def features(self, texts: list[str], length: int) -> Tensor:
        """Last hidden state at the last of at most `length` tokens that fit the window, `(n, H)`, for MAUVE."""
        out = []
        for text in texts:
            ids = self.encode(text, min(length, self.window)) or [self.start or 0]
            states = self.network(input_ids=torch.tensor([ids], device=self.device), output_hidden_states=True)
            out.append(states.hidden_states[-1][0, -1].float().cpu())
        return torch.stack(out)

    @torch.no_grad()
    def gain_gradients(self, texts: list[str], length: int) -> Tensor:
        """Gradients `(n, H)` of the mean log-likelihood of `length` tokens in a gain on the last hidden state."""
        weight = self.network.get_output_embeddings().weight
        out = []
        for text in texts:
            ids = [self.start or 0, *self.encode(text, min(length, self.window - 1))]
            states = self.network(input_ids=torch.tensor([ids], device=self.device), output_hidden_states=True)
            hidden, probs = states.hidden_states[-1][0, :-1], states.logits[0, :-1].softmax(-1)
            if len(ids) == 1:  # an empty text has no gradient
                out.append(torch.zeros(weight.shape[1]))
                continue
            out.append((hidden * (weight[ids[1:]] - probs @ weight)).mean(0).float().cpu())
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


def load_judge(ref: str, device: str = "cpu") -> CausalJudge:
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
    return CausalJudge(path.name if path.exists() else ref, network.to(device), tokenizer)


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
    out = []
    for text in texts:
        ids = judge.encode(text, judge.window)
        out.append(published_losses(judge, torch.tensor([ids]))[0] if len(ids) > 1 else np.nan)
    return np.array(out)


class StrictScore(NamedTuple):
    """Sums over the scored tokens of one text."""

    nats: float
    tokens: int
    bytes: int


def strict_score(judge: CausalJudge, text: str) -> StrictScore:
    """Score one text, tokenised again, up to and with its first end-of-text, cut to the judge's window."""
    ids = judge.encode(text, judge.window)
    if judge.end is not None and judge.end in ids:
        ids = ids[: ids.index(judge.end) + 1]
    given = [] if judge.start is None else [judge.start]
    ids = ids[: judge.window - len(given)]
    if len(given) + len(ids) < 2:
        return StrictScore(0.0, 0, 0)
    losses = judge.losses(torch.tensor([given + ids]))[0].double()
    counted = ids if given else ids[1:]
    visible = [token for token in counted if token != judge.end]  # only the last one can be end-of-text
    size = len(judge.tokenizer.decode(visible).encode())
    # end-of-text is scored, but it is not a byte of the text; a text of nothing else counts as one byte
    return StrictScore(float(losses.sum()), len(counted), max(1, size))
