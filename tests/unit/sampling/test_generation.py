from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dttrl.data.outputs import check_new_file
from dttrl.data.questions import Question
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.rollouts import Rollout
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table
from dttrl.errors import InputError, OutputExistsError
from dttrl.rng import derive
from dttrl.sampling import generation, parts
from dttrl.sampling.base import OpenedBackend, Sampler, SampleRequest
from dttrl.sampling.generation import generate_rollouts
from dttrl.sampling.parts import parts_folder
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.sections import Generation, Model, Sampling
from tests.rollout_groups import read_groups
from tests.tiny import write_questions

QUESTIONS = [Question(f"q{i}", f"What is {i}?", answer=str(i), source="test") for i in (2, 0, 1)]


class FakeSampler:
    """Rollouts that depend on (seed, question, sample) alone; may be stopped after some questions."""

    def __init__(self, stop_after: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.asked: list[SampleRequest] = []
        self._stop_after = stop_after
        self._error = error

    def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        for number, request in enumerate(request for request in requests if not request.held):
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
    opened = OpenedBackend(
        sampler,
        lambda question: list(question.prompt.encode()),
        {"model": options.pop("model", "fake"), "backend": "fake"},
        options.pop("files", None),
    )
    return generate_rollouts(
        options.pop("questions"),
        output,
        opened,
        Generation(samples=options.pop("samples"), keep_tokens=options.pop("keep_tokens", False)),
        Sampling(seed=options.pop("seed"), temperature=options.pop("temperature", 1.0)),
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
    groups = list(read_groups(RolloutFiles([output])))
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
    with pytest.raises(ValidationError, match="samples"):
        make(tmp_path / "rollouts.parquet", FakeSampler(), samples=0)
    assert list(tmp_path.iterdir()) == []


def test_answers_corrected_meanwhile_are_taken_and_nothing_is_resampled(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=2))
    corrected = [
        Question("q0", "What is 0?", answer="zero\0", source=None),
        Question("q1", "What is 1?", answer=None, source="other"),
        QUESTIONS[0],
    ]
    summary = make(output, FakeSampler(), questions=corrected)
    assert summary.sampled == 4
    table = read_table(output, ROLLOUTS)
    assert table["gold"].to_pylist() == ["zero\ufffd"] * 4 + [None] * 4 + ["2"] * 4
    assert table["source"].to_pylist() == [None] * 4 + ["other"] * 4 + ["test"] * 4
    whole = tmp_path / "whole.parquet"
    make(whole, FakeSampler(), questions=corrected)
    assert output.read_bytes() == whole.read_bytes()


def test_changed_files_of_a_model_are_not_mixed(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    with pytest.raises(KeyboardInterrupt):
        make(output, FakeSampler(stop_after=1), files="one")
    with pytest.raises(InputError, match=r"other files of the model 'fake', now they have changed"):
        make(output, FakeSampler(), files="two")
    assert make(output, FakeSampler(), files="one").sampled == 8
    assert "model_files" not in read_metadata(output)


def test_weights_that_changed_in_place_are_seen(tmp_path: Path, tiny_model: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    output = tmp_path / "rollouts.parquet"
    config = GenerateConfig(
        model=str(model), questions=write_questions(tmp_path / "q.jsonl"), samples=2, batch_size=4,
        max_new_tokens=4, template="raw", device="cpu", dtype="float32",
    )  # fmt: skip

    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generation.generate(config, output, progress=stop)
    status = (model / "model.safetensors").stat()
    os.utime(model / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(InputError, match="they have changed"):
        generation.generate(config, output)
    os.utime(model / "model.safetensors", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert generation.generate(config, output).sampled == 10


def test_a_second_process_on_the_same_output_is_refused_at_once(tmp_path: Path) -> None:
    output = tmp_path / "rollouts.parquet"
    second = FakeSampler()
    refused: list[str] = []

    def try_second(done: int, total: int) -> None:
        for overwrite in (False, True):
            with pytest.raises(InputError, match="another process") as caught:
                make(output, second, overwrite=overwrite)
            refused.append(str(caught.value))

    make(output, FakeSampler(), progress=try_second)
    assert len(refused) == 8
    assert second.asked == []
    assert RolloutFiles([output]).num_rows == 12
    assert list(tmp_path.iterdir()) == [output]


def test_refused_work_leaves_no_folder(tmp_path: Path) -> None:
    class Refusing:
        def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
            raise InputError("the prompt is too long")

    with pytest.raises(InputError, match="too long"):
        make(tmp_path / "rollouts.parquet", Refusing())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no question"):
        make(tmp_path / "rollouts.parquet", FakeSampler(), questions=[])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_output_that_is_no_regular_file_is_refused_before_anything_is_written(
    tmp_path: Path, overwrite: bool
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    for output in (tmp_path / "folder", tmp_path / "pipe", Path("/dev/null"), Path(".")):
        with pytest.raises(InputError, match="is not a regular file") as caught:
            check_new_file(output, overwrite=overwrite)
        assert "overwrite" not in str(caught.value)
        with pytest.raises(InputError, match="is not a regular file"):
            make(output, FakeSampler(), overwrite=overwrite)
    assert sorted(tmp_path.rglob("*")) == before


def interrupted(sampler: Sampler, after: int) -> Sampler:
    """The sampler, until it has finished some questions; then it is as if the process had been killed."""

    class Stopping:
        def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
            yield from itertools.islice(sampler.sample(requests, settings), after)
            raise KeyboardInterrupt

    return Stopping()


@pytest.mark.parametrize("after", [1, 3, 4])
def test_a_model_goes_on_to_the_same_bytes(tmp_path: Path, tiny_model: Path, after: int) -> None:
    torch = pytest.importorskip("torch")
    from dttrl.sampling.models import load_model
    from dttrl.sampling.transformers import TransformersSampler

    loaded = load_model(Model(name=str(tiny_model)), device=torch.device("cpu"), dtype=torch.float32)
    sampler = TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids)
    questions = [Question(f"q{i}", "1+" * (7 * i % 10) + "1=?") for i in range(8)]

    def work(output: Path, sampler: Sampler) -> int:
        opened = OpenedBackend(sampler, lambda question: loaded.encode(question.prompt, chat=False), {})
        settings = Sampling(seed=1, max_new_tokens=24, batch_size=7)
        return generate_rollouts(questions, output, opened, Generation(samples=3), settings).sampled

    whole, output = tmp_path / "whole.parquet", tmp_path / "rollouts.parquet"
    assert work(whole, sampler) == 24
    with pytest.raises(KeyboardInterrupt):
        work(output, interrupted(sampler, after))
    assert work(output, sampler) == 24 - 3 * after
    assert output.read_bytes() == whole.read_bytes()


def test_metadata_is_json(tmp_path: Path) -> None:
    make(tmp_path / "rollouts.parquet", FakeSampler())
    assert json.dumps(read_metadata(tmp_path / "rollouts.parquet"))
