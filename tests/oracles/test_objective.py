"""The GRPO objective against finite differences, the plain policy gradient and exact enumeration."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from dttrl.method.objective import grpo_loss, kl_k3, selected_log_probs

N, T, V, STATES = 4, 5, 6, 3
LENGTHS = (5, 3, 1, 4)


class Tiny:
    """A softmax policy over a table of states, float64; rollout n is in state (n + t) % STATES at token t."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.table = draw(STATES, V)
        self.old_table = self.table + 0.3 * draw(STATES, V)
        self.ref_table = self.table + 0.5 * draw(STATES, V)
        self.token_NT = torch.randint(V, (N, T), generator=generator)
        self.state_NT = (torch.arange(N)[:, None] + torch.arange(T)[None, :]) % STATES
        self.mask_NT = (torch.arange(T)[None, :] < torch.tensor(LENGTHS)[:, None]).double()
        self.advantage_N = draw(N)

    def logp(self, table: Tensor) -> Tensor:
        logits = table[self.state_NT]
        return torch.log_softmax(logits, -1).gather(-1, self.token_NT[..., None])[..., 0]

    def loss(self, table: Tensor, *, beta: float, old: Tensor | None = None, epsilon: float = 0.2) -> Tensor:
        return grpo_loss(
            self.logp(table),
            self.logp(self.old_table if old is None else old),
            self.advantage_N,
            self.mask_NT,
            n_rollouts=N,
            clip_epsilon=epsilon,
            ref_logp_NT=self.logp(self.ref_table) if beta else None,
            beta=beta,
        ).loss


@pytest.mark.parametrize("beta", [0.0, 0.001, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_is_that_of_finite_differences(seed: int, beta: float) -> None:
    tiny = Tiny(seed)
    table = tiny.table.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(tiny.loss(table, beta=beta), table)
    step = 1e-6
    for s, v in product(range(STATES), range(V)):
        moved = []
        for sign in (1, -1):
            shifted = tiny.table.clone()
            shifted[s, v] += sign * step
            moved.append(float(tiny.loss(shifted, beta=beta)))
        assert float(gradient[s, v]) == pytest.approx((moved[0] - moved[1]) / (2 * step), abs=1e-8)
    assert float(gradient.abs().max()) > 1e-3


def test_some_tokens_are_clipped_in_that_comparison() -> None:
    tiny = Tiny(0)
    ratio_NT = (tiny.logp(tiny.table) - tiny.logp(tiny.old_table)).exp()
    outside_NT = ((ratio_NT - 1).abs() > 0.2) & (tiny.mask_NT > 0)
    assert 0 < int(outside_NT.sum()) < int(tiny.mask_NT.sum())


def test_at_ratio_one_it_is_the_policy_gradient() -> None:
    """grad = - mean over rollouts of A / |o| * sum over tokens of grad log p, written out for a softmax."""
    tiny = Tiny(4)
    table = tiny.table.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(tiny.loss(table, beta=0.0, old=tiny.table), table)
    expected = np.zeros((STATES, V))
    probability = torch.softmax(tiny.table, -1).numpy()
    for n, length in enumerate(LENGTHS):
        for t in range(length):
            state = (n + t) % STATES
            score = -probability[state].copy()
            score[tiny.token_NT[n, t]] += 1.0
            expected[state] -= float(tiny.advantage_N[n]) / length * score / N
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-12, atol=1e-15)


def test_value_at_ratio_one_is_minus_the_mean_advantage() -> None:
    tiny = Tiny(5)
    assert float(tiny.loss(tiny.table, beta=0.0, old=tiny.table)) == pytest.approx(
        -float(tiny.advantage_N.mean())
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "term", "clipped", "slope"),
    [
        (1.5, 2.0, 2.4, 1.0, 0.0),  # better and already likelier than 1 + eps: no more
        (1.1, 2.0, 2.2, 0.0, 2.2),
        (0.5, 2.0, 1.0, 0.0, 1.0),  # better but less likely: the full pull back
        (0.5, -2.0, -1.6, 1.0, 0.0),  # worse and already less likely than 1 - eps: no more
        (0.9, -2.0, -1.8, 0.0, -1.8),
        (1.5, -2.0, -3.0, 0.0, -3.0),  # worse but likelier: the full push down
        (1.2, 2.0, 2.4, 0.0, None),  # on the edge
        (7.0, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_clipping_by_hand(
    ratio: float, advantage: float, term: float, clipped: float, slope: float | None
) -> None:
    logp = torch.tensor([[np.log(ratio)]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    result = grpo_loss(logp, torch.zeros_like(one), torch.tensor([advantage]), one, n_rollouts=1)
    result.loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
    assert result.loss.item() == pytest.approx(-term, abs=1e-12)
    if slope is not None:
        assert float(result.clip_sum) == clipped
        assert logp.grad is not None
        assert float(logp.grad) == pytest.approx(-slope, abs=1e-12)


def test_it_is_a_mean_over_sequences_not_over_tokens() -> None:
    """Rollouts of 1 and 4 tokens with advantages 1 and -1 at ratio 1 cancel; a token mean would give 0.6."""
    logp_NT = torch.zeros(2, 4, dtype=torch.float64)
    mask_NT = torch.tensor([[1.0, 0, 0, 0], [1.0, 1, 1, 1]])
    advantage_N = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert float(grpo_loss(logp_NT, logp_NT, advantage_N, mask_NT, n_rollouts=2).loss) == 0.0


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1), (2, 2), (1, 3), (3, 1)])
def test_micro_batches_sum_to_the_mini_batch(cuts: tuple[int, ...]) -> None:
    tiny = Tiny(7)
    table = tiny.table.clone().requires_grad_()
    (whole,) = torch.autograd.grad(tiny.loss(table, beta=0.3), table)
    total, gradient, kl_sum, clip_sum = 0.0, torch.zeros_like(whole), 0.0, 0.0
    parts = torch.split(torch.arange(N), list(cuts))
    for rows in parts:
        part = grpo_loss(
            tiny.logp(table)[rows],
            tiny.logp(tiny.old_table)[rows],
            tiny.advantage_N[rows],
            tiny.mask_NT[rows],
            n_rollouts=N,
            ref_logp_NT=tiny.logp(tiny.ref_table)[rows],
            beta=0.3,
        )
        total += part.loss.item()
        kl_sum, clip_sum = kl_sum + float(part.kl_sum), clip_sum + float(part.clip_sum)
        gradient += torch.autograd.grad(part.loss, table)[0]
    assert total == pytest.approx(float(tiny.loss(tiny.table, beta=0.3)), abs=1e-14)
    torch.testing.assert_close(gradient, whole, rtol=1e-12, atol=1e-15)
    everything = grpo_loss(
        tiny.logp(tiny.table),
        tiny.logp(tiny.old_table),
        tiny.advantage_N,
        tiny.mask_NT,
        n_rollouts=N,
        ref_logp_NT=tiny.logp(tiny.ref_table),
    )
    assert kl_sum == pytest.approx(float(everything.kl_sum))
    assert clip_sum == pytest.approx(float(everything.clip_sum))
    assert clip_sum > 0


@pytest.mark.parametrize("rubbish", [float("inf"), float("-inf"), float("nan")])
def test_padding_may_hold_anything(rubbish: float) -> None:
    tiny = Tiny(8)
    table = tiny.table.clone().requires_grad_()
    outside_NT = tiny.mask_NT == 0
    old_NT, ref_NT = tiny.logp(tiny.old_table), tiny.logp(tiny.ref_table)
    old_NT[outside_NT], ref_NT[outside_NT] = rubbish, rubbish
    loss = grpo_loss(
        tiny.logp(table), old_NT, tiny.advantage_N, tiny.mask_NT, n_rollouts=N, ref_logp_NT=ref_NT, beta=0.5
    ).loss
    assert loss.item() == pytest.approx(float(tiny.loss(tiny.table, beta=0.5)), abs=1e-14)
    (gradient,) = torch.autograd.grad(loss, table)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_a_huge_ratio_leaves_loss_and_gradient_finite(advantage: float) -> None:
    logp = torch.zeros(1, 1, requires_grad=True)
    old, one = torch.full((1, 1), -100.0), torch.ones(1, 1)
    loss = grpo_loss(logp, old, torch.tensor([advantage]), one, n_rollouts=1).loss
    (gradient,) = torch.autograd.grad(loss, logp)
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(gradient).all())


def test_a_rollout_without_a_token_counts_zero() -> None:
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    mask_NT = torch.tensor([[0.0, 0, 0], [1.0, 1, 1]])
    loss = grpo_loss(
        zeros, zeros, torch.tensor([5.0, 3.0]), mask_NT, n_rollouts=2, ref_logp_NT=zeros, beta=1.0
    ).loss
    assert float(loss) == -1.5


def test_k3_is_not_negative_and_zero_where_equal() -> None:
    logp = torch.linspace(-15.0, 0.0, 61, dtype=torch.float64)
    kl = kl_k3(logp[:, None], logp[None, :])
    assert float(kl.min()) >= 0.0
    assert bool((kl.diagonal() == 0).all())
    assert bool((kl[logp[:, None] != logp[None, :]] > 0).all())


def test_k3_is_not_negative_in_float32() -> None:
    d = torch.linspace(-3e-3, 3e-3, 10001)
    kl = kl_k3(torch.zeros_like(d), d)
    assert float(kl.min()) >= 0.0
    torch.testing.assert_close(kl, d**2 / 2, rtol=1e-2, atol=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_k3_expectation_is_the_kl(seed: int) -> None:
    """Exact enumeration of a categorical: the mean of k3 under the policy is KL(policy || reference)."""
    generator = torch.Generator().manual_seed(seed)
    logp, ref = torch.log_softmax(2 * torch.randn(2, 7, generator=generator, dtype=torch.float64), -1)
    exact = float((logp.exp() * (logp - ref)).sum())
    assert float((logp.exp() * kl_k3(logp, ref)).sum()) == pytest.approx(exact, abs=1e-12)
    assert exact > 0.01


def test_k3_stays_finite_for_an_impossible_token() -> None:
    kl = kl_k3(torch.tensor([-1e4, 0.0]), torch.tensor([0.0, -1e4]))
    assert bool(torch.isfinite(kl).all())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_selected_log_probs(temperature: float) -> None:
    generator = torch.Generator().manual_seed(1)
    logits_NTV = 10 * torch.randn(2, 3, 11, generator=generator)
    token_NT = torch.randint(11, (2, 3), generator=generator)
    expected = torch.log_softmax(logits_NTV.double() / temperature, -1).gather(-1, token_NT[..., None])[
        ..., 0
    ]
    found = selected_log_probs(logits_NTV, token_NT, temperature=temperature)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    lower = selected_log_probs(logits_NTV.bfloat16(), token_NT, temperature=temperature)
    assert lower.dtype == torch.float32
