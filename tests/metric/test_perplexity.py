"""Perplexity in both protocols against transformers' own loss, and judges that cannot be used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from di4c_cli.errors import UserError
from di4c_cli.evaluation.protocol import PromptSpec
from di4c_cli.evaluation.scorers.text import JudgeScorer
from di4c_cli.foreign.text import PIECE_CHARACTERS
from di4c_cli.metric.judge import CausalJudge, load_judge, published_losses, strict_scores
from tests.helpers.small_models import small_model


@pytest.fixture(scope="module")
def judge(judge_folder: Path) -> CausalJudge:
    return load_judge(str(judge_folder))


def _loss(network: Any, ids: torch.Tensor) -> float:
    with torch.no_grad():
        return float(network(input_ids=ids, labels=ids).loss)


@pytest.mark.slow
def test_published_losses_are_those_of_transformers(judge: CausalJudge) -> None:
    ids = torch.randint(0, 600, (5, 30), generator=torch.Generator().manual_seed(1))
    expected = [_loss(judge.network, row[None]) for row in ids]
    losses = published_losses(judge, ids)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_published_losses_skip_the_prompt(judge: CausalJudge) -> None:
    ids = torch.randint(0, 600, (3, 20), generator=torch.Generator().manual_seed(2))
    labels = ids.clone()
    labels[:, :8] = -100
    with torch.no_grad():
        expected = [float(judge.network(input_ids=i[None], labels=j[None]).loss) for i, j in zip(ids, labels)]
    np.testing.assert_allclose(published_losses(judge, ids, 8), expected, rtol=1e-5)


def test_judge_with_another_tokenizer_scores_what_follows_the_prompt(judge: CausalJudge) -> None:
    """The bytes of the whole text without those of the prompt, the nats likewise."""
    teacher = small_model("teacher", 0, "text")
    scorer = JudgeScorer(judge, direct=False, prompts=PromptSpec(given=6, length=16, times=2), codec=teacher.codec)
    x = torch.randint(0, 90, (4, teacher.denoiser.length), generator=torch.Generator().manual_seed(3))
    decoded, start = teacher.decode(x), teacher.decode(x[:, :6])
    whole, given = (np.array(strict_scores(judge, texts)) for texts in (decoded, start))
    np.testing.assert_array_equal(scorer.score(x, decoded)["strict"], whole - given)
    assert (whole - given)[:, 2].tolist() == [len(a.encode()) - len(b.encode()) for a, b in zip(decoded, start)]
    assert scorer.main == "perplexity_strict" and scorer.instrument().detail["protocols"] == ["strict"]


def test_strict_score_tokenises_again_and_counts_bytes(judge: CausalJudge) -> None:
    text = "the answer is – no"
    ids = judge.tokenizer(text)["input_ids"]
    score = strict_scores(judge, [text])[0]
    assert (score.tokens, score.bytes) == (len(ids), len(text.encode()))
    whole = torch.tensor([[judge.tokenizer.bos_token_id, *ids]])
    assert score.nats / score.tokens == pytest.approx(_loss(judge.network, whole), rel=1e-5)


def test_judge_encodes_a_long_text_in_pieces_and_only_as_much_as_it_needs(
    judge: CausalJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, given = "the answer is no. " * 150_000, []
    library = judge.tokenizer

    def count(part: str, **options: Any) -> Any:
        given.append(len(part))
        return library(part, **options)

    monkeypatch.setattr(judge, "tokenizer", count)
    start = judge.encode(text, judge.window)
    assert len(given) == 1 and given[0] <= PIECE_CHARACTERS < len(text)
    whole = judge.encode(text)
    assert max(given) <= PIECE_CHARACTERS and sum(given[1:]) == len(text)
    assert whole[: judge.window] == start and len(whole) == len(library(text)["input_ids"])


def test_strict_score_stops_after_the_first_end_of_text(judge: CausalJudge) -> None:
    before, after = "one two", " three four five"
    cut = strict_scores(judge, [before + "<|endoftext|>" + after])[0]
    assert cut == strict_scores(judge, [before + "<|endoftext|>"])[0]
    plain = strict_scores(judge, [before])[0]
    assert cut.tokens == plain.tokens + 1 and cut.bytes == plain.bytes and cut.nats > plain.nats


def test_strict_score_of_an_empty_text_is_zero(judge: CausalJudge) -> None:
    assert strict_scores(judge, [""])[0].tokens == 0


def test_strict_score_cuts_a_text_to_the_window(judge: CausalJudge) -> None:
    score = strict_scores(judge, ["word " * 200])[0]
    assert score.tokens == judge.window - 1


def test_losses_do_not_depend_on_the_chunk(judge: CausalJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(0, 600, (7, 12), generator=torch.Generator().manual_seed(3))
    whole = judge.losses(ids)
    monkeypatch.setattr("di4c_cli.metric.judge.MAX_LOGITS", 2 * 12 * 601)
    torch.testing.assert_close(judge.losses(ids), whole, rtol=1e-5, atol=1e-6)


def test_losses_reject_foreign_ids_and_long_rows(judge: CausalJudge) -> None:
    with pytest.raises(UserError, match="outside the judge's vocabulary"):
        judge.losses(torch.tensor([[0, 5000]]))
    with pytest.raises(UserError, match="window"):
        judge.losses(torch.zeros(1, 65, dtype=torch.long))


def test_same_tokens_compares_vocabularies(judge: CausalJudge) -> None:
    from tokenizers import Tokenizer, models

    from di4c_cli.codec.text import gpt2_tokenizer

    assert judge.same_tokens(gpt2_tokenizer(600))
    assert not judge.same_tokens(Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))


def test_load_judge_rejects_a_folder_without_tokenizer(judge_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(judge_folder, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(UserError, match="has no tokenizer") as error:
        load_judge(str(folder))
    assert error.value.exit_code == 2


def test_load_judge_rejects_remote_code_without_a_question(
    judge_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "judge"
    shutil.copytree(judge_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": classes}))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "y")
    with pytest.raises(UserError, match="judge"):
        load_judge(str(folder))
    assert not asked and not (tmp_path / "ran").exists()


def test_load_judge_names_a_missing_judge(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed (extra `text`)")
    for ref in (str(tmp_path / "nothing"), str(tmp_path / "nothing.gguf")):
        with pytest.raises(UserError, match="There is no judge"):
            load_judge(ref)


def test_strict_scores_of_texts_of_different_lengths_are_those_of_each_alone(judge: CausalJudge) -> None:
    texts = ["A long text with many words, " * 3, "", "Short.", "Another one."]
    together = strict_scores(judge, texts)
    for score, text in zip(together, texts):
        (alone,) = strict_scores(judge, [text])
        assert score[1:] == alone[1:]
        assert score.nats == pytest.approx(alone.nats, rel=1e-5)


def test_a_judge_in_bf16_is_another_instrument_with_nearly_the_same_losses(judge: CausalJudge) -> None:
    half = CausalJudge(judge.name, judge.network, judge.tokenizer, half=True)
    (exact,), (rounded,) = (strict_scores(one, ["A text that both of them read."]) for one in (judge, half))
    assert half.digest != judge.digest
    assert rounded.nats == pytest.approx(exact.nats, rel=0.02)
    assert rounded.nats != exact.nats
