"""Generation that stops a question when it is sure: prefixes of a full run, resumed work, the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dttrl.data.questions import Question
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.rollouts import Rollout, table_to_rollouts
from dttrl.data.tables import read_metadata
from dttrl.rng import derive
from dttrl.sampling import parts
from dttrl.sampling.base import OpenedBackend, Sampler, SampleRequest
from dttrl.sampling.generation import GenerationSummary, generate_rollouts
from dttrl.sampling.parts import parts_folder
from dttrl.settings.sections import Generation, Model, Sampling, Scoring
from tests.rollout_groups import read_groups

QUESTIONS = [Question(f"q{i}", f"What is {i}?", answer="7", source="test") for i in range(6)]
RANGE = "8..36"


def rollout(query_id: str, sample_id: int, seed: int) -> Rollout:
    """Questions of an even number always get one answer, the others mostly different ones."""
    rng = derive(seed, query=query_id, purpose=f"sample:{sample_id}")
    answer = 7 if int(query_id[1:]) % 2 == 0 else rng.integers(100)
    values = rng.normal(5, 1, size=3 + int(query_id[1:])).astype(np.float32)
    offsets = np.arange(len(values), dtype=np.int32)
    text = rf"So \boxed{{{answer}}}"
    return Rollout(query_id, sample_id, text, "stop", offsets, offsets, values, -values, values)


class FakeSampler:
    """Answers from (question, sample) alone; ``stop_after`` counts questions of all blocks."""

    def __init__(self, stop_after: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.calls = 0
        self._stop_after, self._error = stop_after, error

    def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        self.calls += 1
        for request in requests:
            if request.held:
                continue
            if len(self.asked) == self._stop_after:
                raise self._error
            self.asked.append((request.query_id, request.sample_ids))
            yield [rollout(request.query_id, sample, settings.seed) for sample in request.sample_ids]


def make(output: Path, sampler: Sampler, samples: object = RANGE, **changes: Any) -> GenerationSummary:
    opened = OpenedBackend(sampler, lambda question: list(question.prompt.encode()), {"model": "fake"})
    generation = Generation.model_validate({"samples": samples} | changes.pop("generation", {}))
    settings = Sampling(seed=7)
    return generate_rollouts(QUESTIONS, output, opened, generation, settings, **changes)


def sizes(path: Path) -> dict[str, int]:
    return {group.query_id: group.table.num_rows for group in read_groups(RolloutFiles([path]))}


def test_sure_questions_have_the_first_rollouts_of_a_full_run(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.parquet", tmp_path / "rollouts.parquet"
    make(whole, FakeSampler(), samples=36)
    sampler = FakeSampler()
    make(output, sampler, generation={"until": 0.8})
    assert sizes(output) == {"q0": 24, "q1": 36, "q2": 24, "q3": 36, "q4": 24, "q5": 36}
    assert sampler.calls == 5
    assert sampler.asked[18:21] == [(name, tuple(range(24, 32))) for name in ("q1", "q3", "q5")]
    full = {group.query_id: table_to_rollouts(group.table) for group in read_groups(RolloutFiles([whole]))}
    for group in read_groups(RolloutFiles([output])):
        assert table_to_rollouts(group.table) == full[group.query_id][: group.table.num_rows]


def test_what_was_left_over_is_reported(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    seen: list[tuple[int, int]] = []
    summary = make(
        output,
        FakeSampler(),
        generation={"until": 0.8},
        progress=lambda done, total: seen.append((done, total)),
    )
    assert summary.unspent is not None
    assert (summary.questions, summary.rollouts, summary.sampled) == (6, 180, 180)
    # Twelve rollouts each of 3, 5 and 7 tokens were not drawn.
    assert asdict(summary.unspent) == {
        "stopped": 3, "questions": 6, "rollouts": 36, "budget": 216, "tokens": 180,
    }  # fmt: skip
    assert seen[0] == (0, 216)
    assert seen[-1] == (180, 180)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    stopping = read_metadata(output)["stopping"]
    assert stopping["samples"] == RANGE
    assert (stopping["until"], stopping["region"]) == (0.8, "last-step")


def test_one_number_of_samples_says_nothing_of_stopping(tmp_path: Path) -> None:
    summary = make(tmp_path / "rollouts.parquet", FakeSampler(), samples=4)
    assert summary.unspent is None
    assert "stopping" not in read_metadata(tmp_path / "rollouts.parquet")


@pytest.mark.parametrize("flush_tokens", [1, 10**9])
@pytest.mark.parametrize("stop", [0, 1, 6, 7, 13, 18, 20, 23])
def test_killed_within_or_between_blocks_it_goes_on_to_the_same_bytes(
    tmp_path: Path, stop: int, flush_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "FLUSH_TOKENS", flush_tokens)
    whole, output = tmp_path / "whole.parquet", tmp_path / "rollouts.parquet"
    first = FakeSampler()
    make(whole, first, generation={"until": 0.8})
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=stop), generation={"until": 0.8})
    assert not output.exists()
    again = FakeSampler()
    summary = make(output, again, generation={"until": 0.8})
    assert again.asked == first.asked[stop:]
    assert summary.sampled == sum(len(samples) for _, samples in again.asked)
    assert output.read_bytes() == whole.read_bytes()
    assert not parts_folder(output).exists()


def test_a_full_run_that_was_interrupted_can_be_stopped_when_sure(tmp_path: Path) -> None:
    """Rollouts that a part holds beyond those that a question needs are left out."""
    whole, output = tmp_path / "whole.parquet", tmp_path / "rollouts.parquet"
    make(whole, FakeSampler(), generation={"until": 0.8})
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=4), samples=36)
    again = FakeSampler()
    make(output, again, generation={"until": 0.8})
    assert {name for name, _ in again.asked} == {"q4", "q5"}
    assert sizes(output) == sizes(whole)
    assert output.read_bytes() == whole.read_bytes()


def test_another_threshold_or_range_goes_on_from_the_same_parts(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=19), generation={"until": 0.8})
    again = FakeSampler()
    make(output, again, samples="10..36", generation={"until": 0.8})
    assert again.asked[0] == ("q0", (24, 25, 26, 27, 28, 29))
    assert set(sizes(output).values()) <= {30, 36}


def test_answers_are_found_as_the_scoring_says(tmp_path: Path) -> None:
    """Without a box or phrase an answer must be asked for; else nobody is ever sure."""

    class Bare(FakeSampler):
        def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
            for group in super().sample(requests, settings):
                yield [replace(each, text=each.text[len("So \\boxed{") : -1]) for each in group]

    make(tmp_path / "a.parquet", Bare(), generation={"until": 0.8})
    assert set(sizes(tmp_path / "a.parquet").values()) == {36}
    make(tmp_path / "b.parquet", Bare(), generation={"until": 0.8}, scoring=Scoring(last_number=True))
    assert set(sizes(tmp_path / "b.parquet").values()) == {24, 36}


def test_the_model_of_the_quickstart_draws_the_tokens_of_a_full_run(tmp_path: Path) -> None:
    """Token for token, killed between two blocks and resumed, with batches that mix the questions."""
    torch = pytest.importorskip("torch")
    from dttrl.sampling.models import load_model
    from dttrl.sampling.transformers import TransformersSampler

    data = Path(__file__).resolve().parents[3] / "data" / "quickstart"
    lines = (data / "questions.jsonl").read_text("utf-8").splitlines()[:8]
    questions = [Question(row["id"], row["prompt"]) for row in map(json.loads, lines)]
    loaded = load_model(Model(name=str(data / "model")), device=torch.device("cpu"), dtype=torch.float32)

    def work(name: str, samples: object, calls: int | None = None) -> Path:
        """``calls``: how many blocks are drawn before the work is interrupted."""
        plain = TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids)

        class Stopping:
            count = 0

            def sample(
                self, requests: Sequence[SampleRequest], settings: Sampling
            ) -> Iterator[list[Rollout]]:
                if self.count == calls:
                    raise KeyboardInterrupt
                self.count += 1
                yield from plain.sample(requests, settings)

        opened = OpenedBackend(Stopping(), lambda question: loaded.encode(question.prompt, chat=False), {})
        generation = Generation.model_validate({"samples": samples, "keep_tokens": True})
        generate_rollouts(
            questions, tmp_path / name, opened, generation,
            Sampling(seed=1, max_new_tokens=44, batch_size=24), scoring=Scoring(region="all"),
        )  # fmt: skip
        return tmp_path / name

    def tokens(path: Path) -> dict[tuple[str, int], list[int]]:
        table = pq_rows(path)
        return {(row["query_id"], row["sample_id"]): row["token_ids"] for row in table}

    full, stopped = tokens(work("full.parquet", 40)), work("stopped.parquet", "8..40")
    drawn = tokens(stopped)
    assert 8 * 24 <= len(drawn) < 8 * 40
    assert len(set(sizes(stopped).values())) > 1
    assert drawn == {key: full[key] for key in drawn}
    for calls in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            work(f"resumed{calls}.parquet", "8..40", calls)
        assert work(f"resumed{calls}.parquet", "8..40").read_bytes() == stopped.read_bytes()


def pq_rows(path: Path) -> list[dict[str, Any]]:
    return [row for group in read_groups(RolloutFiles([path])) for row in group.table.to_pylist()]
