"""The inverse-CDF choice: exact in the limit, truncation as documented, never a token of probability zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dttrl.kernels.choice import choose
from dttrl.settings.sections import Sampling


def chosen(logits: np.ndarray, uniforms: np.ndarray, **settings: Any) -> np.ndarray:
    """Choose for one row of logits with many uniform numbers."""
    logits_BV = torch.from_numpy(logits.astype(np.float32)).expand(len(uniforms), -1)
    probability_BV = torch.softmax(logits_BV, -1)
    uniform_B = torch.from_numpy(uniforms.astype(np.float32))
    with_known = choose(logits_BV, probability_BV, uniform_B, Sampling(**settings))
    without = choose(logits_BV, None, uniform_B, Sampling(**settings))
    assert (with_known == without).float().mean() > 0.999
    return with_known.numpy()


def allowed(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Probabilities after temperature, top-k and top-p, written out with a full sort."""
    p = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[(before >= top_p) & (np.arange(len(p)) > 0)]] = 0
    return p / p.sum()


@pytest.mark.parametrize("temperature", [1.0, 0.4, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 7, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.77, 0.01])
@pytest.mark.parametrize("size", [24, 3000])
def test_frequencies_over_evenly_spaced_uniforms_are_the_probabilities(
    temperature: float, top_k: int, top_p: float, size: int
) -> None:
    logits = np.random.default_rng(size).normal(size=size) * 2
    count = 2000
    uniforms = (np.arange(count) + 0.5) / count
    tokens = chosen(logits, uniforms, temperature=temperature, top_k=top_k, top_p=top_p)
    frequency = np.bincount(tokens, minlength=size) / count
    # Evenly spaced numbers hit every interval to within one of them at each end.
    np.testing.assert_allclose(frequency, allowed(logits, temperature, top_k, top_p), atol=2.1 / count)


def test_a_nucleus_wider_than_the_first_look() -> None:
    """With a flat distribution the nucleus holds thousands of tokens."""
    tokens = chosen(np.linspace(0, 0.01, 5000), np.linspace(0, 0.9999, 4001), top_p=0.5)
    assert 2480 <= len(set(tokens.tolist())) <= 2500
    assert tokens.min() >= 2500


def test_tokens_that_tie_with_the_last_one_kept_are_kept() -> None:
    """Otherwise which of them is kept would depend on the sort, and so on the company."""
    uniforms = np.linspace(0, 0.999, 100)
    for settings in ({"top_k": 2}, {"top_p": 0.5}):
        assert set(chosen(np.array([3.0, 1.0, 2.0, 2.0, 2.0, 0.0]), uniforms, temperature=2, **settings)) == {
            0,
            2,
            3,
            4,
        }


@given(seed=st.integers(0, 2**32 - 1), top_k=st.sampled_from([0, 3]), top_p=st.sampled_from([1.0, 0.9]))
def test_never_a_masked_token_even_at_the_ends(seed: int, top_k: int, top_p: float) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=40) * 3
    logits[generator.permutation(40)[: generator.integers(1, 37)]] = -np.inf
    ends = np.array([0.0, np.nextafter(np.float32(1), np.float32(0)), 0.5])
    assert np.isfinite(logits[chosen(logits, ends, top_k=top_k, top_p=top_p)]).all()


def test_temperature_zero_and_top_k_one_take_the_most_likely() -> None:
    logits = np.random.default_rng(1).normal(size=30)
    uniforms = np.linspace(0, 0.999, 9)
    assert set(chosen(logits, uniforms, temperature=0)) == {logits.argmax()}
    assert set(chosen(logits, uniforms, top_k=1)) == {logits.argmax()}


def test_a_row_ignores_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_BV = torch.randn(16, 50, generator=generator)
    uniform_B = torch.rand(16, generator=generator)
    settings = Sampling(top_p=0.9)
    together = choose(logits_BV, None, uniform_B, settings)
    alone = torch.cat([choose(logits_BV[i : i + 1], None, uniform_B[i : i + 1], settings) for i in range(16)])
    assert together.tolist() == alone.tolist()
