"""The update: what moves the weights, what does not, and that cutting it into pieces changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dttrl.errors import WorkError
from dttrl.sampling.models import load_model
from dttrl.settings.sections import Model, Update
from dttrl.training.policy import Policy, TrainingRow


def load(folder: Path) -> Any:
    return load_model(Model(name=str(folder)), device=torch.device("cpu"), dtype=torch.float32).model


def policy(folder: Path, **settings: Any) -> Policy:
    temperature = settings.pop("temperature", 1.0)
    chosen = Update(**{"beta": 0.0, "weight_decay": 0.0, **settings})
    reference = load(folder) if chosen.beta > 0 else None
    return Policy(load(folder), chosen, temperature=temperature, pad_id=0, reference=reference)


def row(prompt: int, tokens: int, advantage: float, seed: int = 0) -> TrainingRow:
    rng = np.random.default_rng(seed)
    prompt_ids = tuple(int(token) for token in rng.integers(2, 20, prompt))
    return TrainingRow(prompt_ids, rng.integers(2, 20, tokens).astype(np.int32), advantage)


def weights(part: Policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in part.model.state_dict().items()}


def log_prob(model: Any, example: TrainingRow) -> float:
    ids = torch.tensor([[*example.prompt_ids, *example.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(example.prompt_ids) - 1 : -1].float()
    chosen = torch.from_numpy(example.token_ids.astype(np.int64))[:, None]
    return float(logits.log_softmax(-1).gather(1, chosen).sum())


def test_rewarded_tokens_become_likelier_and_unrewarded_ones_less(tiny_model: Path) -> None:
    part = policy(tiny_model)
    good, bad = row(5, 6, 1.0, seed=1), row(5, 6, -1.0, seed=2)
    before = log_prob(part.model, good), log_prob(part.model, bad)
    statistics = part.update([[good, bad]], learning_rate=1e-3)
    assert log_prob(part.model, good) > before[0]
    assert log_prob(part.model, bad) < before[1]
    assert statistics.n_updates == 1
    assert statistics.n_rollouts == 2
    assert statistics.clip_fraction == 0.0  # the first mini-batch is on policy
    assert statistics.loss == pytest.approx(0.0, abs=1e-6)  # ratios are 1 and the advantages cancel


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_questions_without_advantage_move_nothing(tiny_model: Path, beta: float) -> None:
    part = policy(tiny_model, beta=beta, weight_decay=0.1)
    # Momentum from an earlier step must not carry the policy on either.
    part.update([[row(5, 6, 1.0, seed=1), row(5, 6, -1.0, seed=2)]], learning_rate=1e-3)
    before = weights(part)
    statistics = part.update([[row(5, 6, 0.0, seed=3), row(4, 2, 0.0, seed=4)]], learning_rate=1e-3)
    assert statistics.n_updates == 0
    assert statistics.n_rollouts == 0
    for name, value in part.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_micro_batches_and_padding_do_not_change_the_update(tiny_model: Path) -> None:
    rows = [row(3 + i % 3, 2 + i, (-1.0) ** i, seed=i) for i in range(6)]
    results = []
    for tokens in (16, 10_000):
        part = policy(tiny_model, micro_batch_tokens=tokens, beta=0.05)
        results.append((part.update([rows], learning_rate=1e-3), weights(part)))
    (small, small_weights), (large, large_weights) = results
    assert small.loss == pytest.approx(large.loss, abs=1e-6)
    assert small.grad_norm == pytest.approx(large.grad_norm, rel=1e-4)
    for name, value in small_weights.items():
        # Adam's first step is the sign of the gradient times the rate: rounding may flip a zero gradient.
        assert (value - large_weights[name]).abs().max() < 2e-3, name
        assert (value - large_weights[name]).abs().mean() < 1e-5, name


def test_log_probs_under_padding_are_those_of_the_row_alone(tiny_model: Path) -> None:
    part = policy(tiny_model)
    rows = [row(2, 7, 1.0, seed=5), row(6, 3, 1.0, seed=6), row(4, 1, 1.0, seed=7)]
    (batch,) = part._pack(rows)
    found = part._frozen_log_probs(part.model, batch)
    sums = {float((found[i] * batch.mask_NT[i]).sum()) for i in range(3)}
    assert sorted(sums) == pytest.approx(sorted(log_prob(part.model, example) for example in rows), abs=1e-4)


def test_later_mini_batches_are_off_policy(tiny_model: Path) -> None:
    same = [row(5, 6, 1.0, seed=1), row(5, 6, -1.0, seed=2)]
    one_by_one = policy(tiny_model, questions_per_update=1, clip_epsilon=0.01)
    statistics = one_by_one.update([same, same, same], learning_rate=1e-2)
    assert statistics.n_updates == 3
    # The second and third see ratios beyond the clip, measured against the policy that sampled.
    assert statistics.clip_fraction > 0.2
    together = policy(tiny_model, questions_per_update=3, questions_per_step=3, clip_epsilon=0.01)
    assert together.update([same, same, same], learning_rate=1e-2).n_updates == 1


def test_kl_is_to_the_starting_model(tiny_model: Path) -> None:
    part = policy(tiny_model, beta=0.001)
    rows = [row(5, 6, 1.0, seed=1), row(5, 6, -1.0, seed=2)]
    assert part.update([rows], learning_rate=1e-2).kl == pytest.approx(0.0, abs=1e-9)
    assert part.update([rows], learning_rate=1e-2).kl > 1e-4


def test_a_gradient_that_is_not_finite_stops_with_advice(tiny_model: Path) -> None:
    part = policy(tiny_model)
    before = weights(part)
    with pytest.raises(WorkError, match="--learning-rate") as caught:
        part.update([[row(5, 6, float("inf"), seed=1), row(5, 6, -1.0, seed=2)]], learning_rate=1e-3)
    assert "\n" not in str(caught.value)
    for name, value in part.model.state_dict().items():
        assert torch.equal(value, before[name])


def test_temperature_scales_the_policy(tiny_model: Path) -> None:
    hot, cold = policy(tiny_model, temperature=2.0), policy(tiny_model, temperature=1.0)
    example = row(5, 6, 1.0, seed=1)
    (batch,) = hot._pack([example])
    with torch.no_grad():
        logits = cold.model(input_ids=batch.ids_NL).logits[0, 4:-1].float()
    expected = (logits / 2).log_softmax(-1).gather(1, batch.token_NT[0][:, None])[:, 0]
    assert torch.allclose(hot._frozen_log_probs(hot.model, batch)[0], expected, atol=1e-5)
