"""The published starts of the reference runs, and the plans that begin from them."""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from pathlib import Path

import pytest
import torch

from dttrl.data.questions import read_questions
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.models import load_model
from dttrl.sampling.transformers import TransformersSampler
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl.settings.sections import Model, Sampling

ROOT = Path(__file__).resolve().parents[2]
FINDINGS, RECIPE = ROOT / "benchmarks" / "findings", ROOT / "data" / "recipes" / "arithmetic"
sys.path[:0] = [str(FINDINGS), str(RECIPE)]

import plan  # noqa: E402
import starts  # noqa: E402
import write_questions  # noqa: E402

sys.path.remove(str(FINDINGS))
sys.path.remove(str(RECIPE))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starts")
    starts.gather(starts.ARCHIVE, folder)
    return folder


def test_the_archive_has_the_starts_of_the_plan_and_is_small(unpacked: Path) -> None:
    assert sorted(path.name for path in unpacked.iterdir()) == sorted(plan.STARTS)
    for name in plan.STARTS:
        assert sorted(path.name for path in (unpacked / name).iterdir()) == sorted(starts.FILES)
    assert starts.ARCHIVE.stat().st_size < 6e6


@pytest.mark.parametrize("name", plan.STARTS)
def test_a_start_is_of_its_family_at_its_level(unpacked: Path, name: str, tmp_path: Path) -> None:
    recipe = json.loads((unpacked / name / "recipe.json").read_text("utf-8"))
    operation, level = plan.STARTS[name]
    assert recipe["family"]["operation"] == operation
    assert recipe["options"]["save_dtype"] == "bfloat16"
    assert recipe["figures"]["avg"] == pytest.approx(level, abs=0.1)
    write_questions.write_questions(unpacked / name / "recipe.json", tmp_path)
    for file in ("questions.jsonl", "heldout.jsonl"):
        assert (tmp_path / file).read_bytes() == (unpacked / name / file).read_bytes()


@pytest.mark.parametrize("name", plan.STARTS)
def test_a_start_samples_worked_answers(unpacked: Path, name: str) -> None:
    folder = unpacked / name
    loaded = load_model(Model(name=str(folder)), device=torch.device("cpu"), dtype=torch.float32)
    questions = read_questions(folder / "questions.jsonl")[:2]
    requests = [
        SampleRequest(question.id, loaded.encode(question.prompt, chat=False), tuple(range(4)))
        for question in questions
    ]
    sampler = TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids)
    drawn = sampler.sample(requests, Sampling(temperature=1.0, max_new_tokens=56, batch_size=8, seed=0))
    texts = [rollout.text for rollouts in drawn for rollout in rollouts]
    assert len(texts) == 8
    assert sum("\\boxed{" in text for text in texts) >= 4


def test_what_is_packed_again_is_the_same_to_the_byte(unpacked: Path, tmp_path: Path) -> None:
    starts.pack(unpacked, tmp_path / "again.tar.xz")
    # Unpacked bytes: those of the archive depend on the version of liblzma.
    again, published = (
        lzma.decompress(path.read_bytes()) for path in (tmp_path / "again.tar.xz", starts.ARCHIVE)
    )
    assert again == published


def test_a_folder_of_starts_is_taken_as_well_as_the_archive(unpacked: Path, tmp_path: Path) -> None:
    shutil.copytree(unpacked / "sums-right", tmp_path / "from" / "sums-right")
    starts.gather(tmp_path / "from", tmp_path / "to")
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["sums-right"]


@pytest.mark.parametrize("name", plan.PLANS)
def test_no_two_runs_of_a_plan_have_the_same_name(name: str) -> None:
    runs = [run.name for run in plan.runs(name, steps=60, eval_every=20)]
    assert len(set(runs)) == len(runs)


@pytest.mark.parametrize("name", ["latent", "latent-smollm2"])
def test_a_plan_of_the_latent_vote_goes_seed_by_seed(name: str) -> None:
    runs = plan.runs(name, steps=60, eval_every=20)
    smaller = plan.runs(name, steps=60, eval_every=20, seeds=1)
    assert runs[: len(smaller)] == smaller
    assert {run.start for run in runs[: len(plan.starts(name))]} == set(plan.starts(name))
    assert [run.name for run in runs if run.keep_rollouts] == [
        f"{start}.{variant}.0" for variant in ("ttrl", "latent") for start in plan.starts(name)
    ]


@pytest.mark.parametrize("name", plan.PLANS)
def test_every_planned_run_has_settings_that_train_takes(name: str, tmp_path: Path) -> None:
    for run in plan.runs(name, steps=60, eval_every=20, seeds=1):
        named: dict[str, object] = {"model": "model", "questions": str(tmp_path / "questions.jsonl")}
        for option, value in run.options.items():
            key = option.replace("-", "_")
            named[key.removeprefix("no_")] = value or not key.startswith("no_")
        config = load_config(TrainConfig, None, named)
        assert config.signal.method == run.options["method"]
