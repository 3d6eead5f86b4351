"""The hooks in a model runner that only pretends: draws by stream, statistics by request, step after step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dttrl.rng import derive
from dttrl.sampling.vllm import extension
from dttrl.sampling.vllm.extension import STREAM, Hooks
from dttrl.sampling.vllm.recorder import tokens_of

VOCABULARY = 12


class Runner:
    """Decodes the requests of ``plan``, a list of names a step; draws as vLLM's sampler asks for it."""

    def __init__(self) -> None:
        self.sampler = SimpleNamespace(topk_topp_sampler=SimpleNamespace(forward=self.own_draw))
        self.requests: dict[str, Any] = {}
        self.done: dict[str, list[int]] = {}
        self.discard_request_mask = SimpleNamespace(np=np.zeros(8, dtype=bool))
        self.input_batch: Any = None
        self.own_draws = 0

    def add(self, name: str, stream: list[Any] | None) -> None:
        extra = None if stream is None else {STREAM: stream}
        self.requests[name] = SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra))
        self.done[name] = []

    def own_draw(self, logits: Tensor, *_: Any) -> tuple[Tensor, None]:
        self.own_draws += 1
        return logits.argmax(-1), None

    def _sample(self, logits: Tensor, _: Any) -> Any:
        token_R, _ = self.sampler.topk_topp_sampler.forward(logits.float(), {}, None, None)
        return SimpleNamespace(sampled_token_ids=token_R[:, None].int())

    def step(self, names: list[str], logits: Tensor, *, greedy: bool = False) -> None:
        places = [len(self.done[name]) for name in names]
        self.input_batch = SimpleNamespace(
            num_reqs=len(names),
            req_ids=[*names, None],
            num_tokens_no_spec=np.array(places, dtype=np.int32) + 5,
            num_prompt_tokens=np.full(len(names), 5, dtype=np.int32),
            sampling_metadata=SimpleNamespace(all_greedy=greedy),
        )
        drawn = self._sample(logits, None).sampled_token_ids[:, 0].tolist()
        for name, token in zip(names, drawn, strict=True):
            self.done[name].append(token)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(extension, "_truncation", lambda: lambda logits, k, p: logits)
    return Runner()


def test_requests_that_stay_leave_and_come_draw_from_their_own_streams(runner: Runner) -> None:
    hooks = Hooks(runner, 3, keeps=True)
    random = torch.Generator().manual_seed(0)
    plan = [["a", "b"], ["a", "b"], ["b", "c"], ["b", "c"], ["b", "c"], ["a", "c"]]
    for name in "abc":
        runner.add(name, [1, 0, "question", f"sample:{name}"])
    expected: dict[str, list[int]] = {name: [] for name in "abc"}
    uniform = {
        name: derive(1, step=0, query="question", purpose=f"sample:{name}").random(9, dtype=np.float32)
        for name in "abc"
    }
    seen: dict[str, list[Tensor]] = {name: [] for name in "abc"}
    for names in plan:
        logits = torch.randn(2, VOCABULARY, generator=random)
        for row, name in enumerate(names):
            cumulative = logits[row].softmax(-1).cumsum(-1)
            number = float(uniform[name][len(expected[name])]) * float(cumulative[-1])
            expected[name].append(int((cumulative <= number).sum()))
            seen[name].append(logits[row].log_softmax(-1))
        runner.step(names, logits)
    assert runner.done == expected
    assert not runner.own_draws
    for name, table in zip("abc", hooks.recorder.take(list("abc")), strict=True):
        assert tokens_of(table).tolist() == expected[name]
        own = [logprob[token] for logprob, token in zip(seen[name], expected[name], strict=True)]
        np.testing.assert_allclose(table[:, 1], torch.stack(own).numpy(), rtol=1e-5)
        top = [-logprob.topk(3).values.mean() for logprob in seen[name]]
        np.testing.assert_allclose(table[:, 0], torch.stack(top).numpy(), rtol=1e-5)


def test_vllm_draws_itself_where_a_request_brings_no_stream_or_all_are_greedy(runner: Runner) -> None:
    hooks = Hooks(runner, 3, keeps=True)
    runner.add("a", [1, 0, "question", "sample:0"])
    runner.add("b", None)
    runner.step(["a", "b"], torch.randn(2, VOCABULARY))
    runner.step(["a"], torch.randn(1, VOCABULARY), greedy=True)
    assert runner.own_draws == 2
    runner.step(["a"], torch.randn(1, VOCABULARY))
    assert runner.own_draws == 2
    hooks.remove()
    runner.step(["a"], torch.randn(1, VOCABULARY))
    assert runner.own_draws == 3
    assert [len(table) for table in hooks.recorder.take(["a", "b"])] == [3, 1]
