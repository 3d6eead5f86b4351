from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dttrl.errors import InputError, OutputExistsError
from dttrl.questions import Question
from dttrl.rng import derive
from dttrl.rollouts import Rollout
from dttrl.sampling import generation, parts
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.generation import generate_rollouts
from dttrl.sampling.parts import parts_folder
from dttrl.sampling.settings import SamplingSettings
from dttrl.schemas import ROLLOUTS
from dttrl.tables import RolloutFiles, read_metadata, read_table

QUESTIONS = [Question(f"q{i}", f"What is {i}?", answer=str(i), source="test") for i in (2, 0, 1)]


class FakeSampler:
    """Rollouts that depend on (seed, question, sample) alone; may be stopped after some questions."""

    def __init__(self, stop_after: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.asked: list[SampleRequest] = []
        self._stop_after = stop_after
        self._error = error

    def sample(
        self, requests: Sequence[SampleRequest], settings: SamplingSettings
    ) -> Iterator[list[Rollout]]:
        for number, request in enumerate(requests):
            if number == self._stop_after:
                raise self._error
            self.asked.append(request)
            yield [rollout(request.query_id, sample, settings.seed) for sample in request.sample_ids]


def rollout(query_id: str, sample_id: int, seed: int) -> Rollout:
    rng = derive(seed, query=query_id, purpose=f"sample:{sample_id}")
    values = rng.normal(size=3).astype(np.float32)
    offsets = np.arange(3, dtype=np.int32)
    reason = "length" if sample_id == 0 else "stop"
    return Rollout(query_id, sample_id, f"{values[0]:.6f}", reason, offsets, offsets, values, values, values)  # type: ignore[arg-type]


def make(output: Path, sampler: FakeSampler, **changes: Any) -> generation.GenerationSummary:
    options: dict[str, Any] = {"samples": 4, "seed": 7, "questions": QUESTIONS} | changes
    return generate_rollouts(
        options.pop("questions"),
        output,
        samples=options.pop("samples"),
        sampler=sampler,
        settings=SamplingSettings(seed=options.pop("seed"), temperature=options.pop("temperature", 1.0)),
        encode=lambda question: list(question.prompt.encode()),
        metadata={"model": options.pop("model", "fake"), "backend": "fake"},
        **options,
    )


def test_rollouts_come_out_sorted_with_their_settings(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    seen: list[tuple[int, int]] = []
    summary = make(output, FakeSampler(), progress=lambda done, total: seen.append((done, total)))
    assert (summary.questions, summary.rollouts, summary.sampled) == (3, 12, 12)
    assert (summary.tokens, summary.truncated) == (36, 3)
    table = read_table(output, ROLLOUTS)
    keys = list(zip(table["query_id"].to_pylist(), table["sample_id"].to_pylist(), strict=True))
    assert keys == [(f"q{i}", j) for i in range(3) for j in range(4)]
    assert table["gold"].to_pylist() == [str(i) for i in range(3) for _ in range(4)]
    assert "token_ids" not in table.column_names
    metadata = read_metadata(output)
    assert (metadata["model"], metadata["seed"], metadata["temperature"], metadata["k"]) == (
        "fake",
        7,
        1.0,
        20,
    )
    assert seen == [(0, 12), (4, 12), (8, 12), (12, 12)]
    assert not parts_folder(output).exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("stop", [0, 1, 2])
def test_interrupted_work_goes_on_and_ends_in_the_same_bytes(
    tmp_path: Path, stop: int, error: type[BaseException]
) -> None:
    whole, output = tmp_path / "whole.parquet", tmp_path / "rollouts.parquet"
    make(whole, FakeSampler())
    with pytest.raises(error):
        make(output, FakeSampler(stop_after=stop, error=error))
    assert not output.exists()
    again = FakeSampler()
    summary = make(output, again)
    assert summary.sampled == (3 - stop) * 4
    assert [request.query_id for request in again.asked] == ["q0", "q1", "q2"][stop:]
    assert output.read_bytes() == whole.read_bytes()


def test_more_samples_draw_only_what_is_missing(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=2), samples=3)
    sampler = FakeSampler()
    make(output, sampler, samples=5)
    assert [request.sample_ids for request in sampler.asked] == [(3, 4), (3, 4), (0, 1, 2, 3, 4)]
    groups = list(RolloutFiles([output]).groups())
    assert [group.table["sample_id"].to_pylist() for group in groups] == [[0, 1, 2, 3, 4]] * 3


def test_fewer_samples_or_questions_leave_the_others_out(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=2))
    summary = make(output, FakeSampler(), samples=2, questions=QUESTIONS[1:2])
    assert (summary.rollouts, summary.sampled) == (2, 0)
    assert read_table(output, ROLLOUTS)["query_id"].to_pylist() == ["q0", "q0"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 8}, "seed"),
        ({"temperature": 0.5}, "temperature"),
        ({"model": "other"}, "model"),
        ({"keep_tokens": True}, "keep_tokens"),
        ({"questions": [Question("q0", "Another text?")]}, "another text"),
    ],
)
def test_parts_of_other_settings_are_refused_and_discarded_only_on_request(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=1))
    before = {path: path.read_bytes() for path in parts_folder(output).iterdir()}
    with pytest.raises(InputError, match=named) as caught:
        make(output, FakeSampler(), **change)
    assert "--overwrite" in str(caught.value)
    assert {path: path.read_bytes() for path in parts_folder(output).iterdir()} == before
    summary = make(output, FakeSampler(), overwrite=True, **change)
    assert summary.sampled == summary.rollouts


def test_an_output_that_exists_is_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    output.write_text("mine")
    sampler = FakeSampler()
    with pytest.raises(OutputExistsError, match="--overwrite"):
        make(output, sampler)
    assert sampler.asked == []
    assert output.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [output]
    make(output, sampler, overwrite=True)
    assert RolloutFiles([output]).num_rows == 12


def test_overwriting_and_interrupted_keeps_the_old_output(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    make(output, FakeSampler())
    old = output.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=1), overwrite=True, seed=8)
    assert output.read_bytes() == old


def test_many_small_parts_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "FLUSH_TOKENS", 1)
    questions = [Question(f"q{i:02d}", "?") for i in range(12)]
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=7), questions=questions)
    assert len(list(parts_folder(output).iterdir())) == 7
    make(output, FakeSampler(), questions=questions)
    assert RolloutFiles([output]).num_rows == 48


def test_a_sample_that_two_processes_drew_is_kept_once(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=2))
    folder = parts_folder(output)
    (part,) = folder.iterdir()
    (folder / "part-000001.parquet").write_bytes(part.read_bytes())
    make(output, FakeSampler())
    assert RolloutFiles([output]).num_rows == 12


def test_a_folder_that_does_not_exist_and_no_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        make(tmp_path / "absent" / "rollouts.parquet", FakeSampler())
    with pytest.raises(InputError, match="--samples"):
        make(tmp_path / "rollouts.parquet", FakeSampler(), samples=0)
    assert list(tmp_path.iterdir()) == []


def test_metadata_is_json(tmp_path: Path) -> None:
    make(tmp_path / "rollouts.parquet", FakeSampler())
    assert json.dumps(read_metadata(tmp_path / "rollouts.parquet"))
