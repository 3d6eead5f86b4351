"""Our trainer's parts on real OpenRLHF objects: the signal of the in-process engine, in any split."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dttrl.method.training_signal import training_signal
from dttrl.training.openrlhf.controller import Controller
from dttrl.training.step import score_questions
from tests.scale_run import drawn, make_run

pytestmark = pytest.mark.slow
pytest.importorskip("openrlhf", reason="needs openrlhf 0.11 and vLLM (nox -s openrlhf-cpu)")
pytest.importorskip("vllm", reason="needs openrlhf 0.11 and vLLM (nox -s openrlhf-cpu)")

QUICKSTART = Path(__file__).resolve().parents[2] / "data/quickstart"


@pytest.fixture(autouse=True)
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRLHF imports flash-attn at module level; nothing here calls it."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "openrlhf_on_cpu"))


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    config = make_run(tmp_path / "run")
    opened = Controller(config.keeping.run, backend_version="test")
    opened.start(0)
    yield opened
    opened.close()


@pytest.mark.parametrize("dynamic", [False, True])
def test_signal_is_the_local_engines_in_any_split(controller: Controller, dynamic: bool) -> None:
    from dttrl.training.openrlhf import trainer

    config = controller.config
    responses = drawn(controller, np.random.default_rng(0))
    generator = object.__new__(trainer.StepGenerator)
    samples = []
    for response in responses:
        sample = generator._process_response_into_experience(response, max_len=128)
        sample.response = response
        samples.append(sample)

    trained = controller.label(1, [s.labels[0] for s in samples], [s.response for s in samples])
    step = controller._step
    assert step is not None
    again = score_questions(step.questions, step.rollouts, config.scoring, controller._grader)
    expected, _ = training_signal(again, None, config.signal)
    assert np.abs(expected.advantage_BM).max() > 0
    wanted = {}
    for b, question in enumerate(step.questions):
        first = next(i for i, s in enumerate(samples) if f'"{question.id}"' in s.labels[0])
        for m, g in enumerate(expected.trained_BM[b]):
            wanted[first + int(g)] = (expected.reward_BG[b, g], expected.advantage_BM[b, m])
    assert {t.place for t in trained} == set(wanted)
    for place, reward, advantage in trained:
        assert (reward, advantage) == pytest.approx(wanted[place], abs=1e-12)

    chosen = trainer.trained_experiences(samples, trained)
    ids = [sample.sequences[0].tolist() for sample in chosen]
    maker = object.__new__(trainer.SignalExperienceMaker)
    maker.tokenizer = controller._loaded.tokenizer
    maker.args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=dynamic),
        rollout=SimpleNamespace(micro_batch_size=5, max_tokens_per_gpu=60),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
    )
    batches = maker.compute_advantages_and_returns(maker.split_rollout_samples(chosen))
    assert len(batches) > 1
    seen = []
    for batch in batches:
        for row, index in enumerate(batch.index):
            seen.append(index)
            length = int(batch.attention_mask[row].sum())
            assert batch.sequences[row][-length:].tolist() == ids[index] or (
                batch.sequences[row][:length].tolist() == ids[index]
            )
            mask = batch.action_mask[row].bool()
            assert batch.rewards[row] == trained[index].reward
            assert batch.advantages[row][mask].numpy() == pytest.approx(trained[index].advantage, abs=1e-6)
            assert not batch.advantages[row][~mask].any()
    assert sorted(seen) == list(range(len(chosen)))


def test_the_run_folder_can_be_replayed_and_resumed(controller: Controller) -> None:
    from dttrl.training.run_folder import METRICS

    random = np.random.default_rng(1)
    for step in (1, 2):
        responses = drawn(controller, random)
        controller.label(step, [r["label"] for r in responses], responses)
        controller.finish({"loss": 0.5})
        controller.save(step)
    run = controller.folder.path
    assert len((run / METRICS).read_text().splitlines()) == 2
    assert len(controller._history.pool.votes) == 2 * 3

    resumed = Controller(run, backend_version="test")
    resumed.start(1)
    try:
        assert len((run / METRICS).read_text().splitlines()) == 1
        assert len(resumed._history.pool.votes) == 3
    finally:
        resumed.close()


def test_the_executor_is_found_by_openrlhf_and_reduces_log_probabilities() -> None:
    from openrlhf.trainer.ray.vllm_engine import _load_agent_executor

    from dttrl.training.openrlhf.flags import EXECUTOR

    asked: list[Any] = []

    class Engine:
        async def generate(self, ids: list[int], params: Any) -> Any:
            asked.append((ids, params))
            flat = SimpleNamespace(logprobs=[-1.0, -0.5, -1.5, -2.0, -1.0, -3.0])
            output = SimpleNamespace(token_ids=[7, 8], finish_reason="length", logprobs=flat)
            return SimpleNamespace(outputs=[output])

    label = '{"id": "q", "prompt_ids": [1, 2], "k": 2}'
    params = SimpleNamespace(logprobs=None, max_tokens=50)
    agent = _load_agent_executor(str(EXECUTOR))
    result = asyncio.run(agent.execute("text", label, params, 9, None, Engine()))
    ids, used = asked[0]
    assert ids == [1, 2]
    assert (used.logprobs, used.max_tokens) == (2, 7)
    assert result["observation_tokens"] == [1, 2, 7, 8]
    assert result["action_ranges"] == [(2, 4)]
    assert result["truncated"]
    assert result["label"] == label
    assert result["dttrl"]["statistics"][0] == pytest.approx([1.0, 2.0])
    assert result["dttrl"]["statistics"][1] == pytest.approx([-1.0, -2.0])
