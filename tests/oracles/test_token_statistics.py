"""Token statistics against float64 formulas written out with a sort, and against scipy's entropy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy

from dttrl.kernels.token_statistics import token_statistics
from dttrl.method.confidence import token_confidence


def computed(logits_BV: np.ndarray, token_B: np.ndarray, k: int) -> np.ndarray:
    out_4B = torch.empty(4, len(token_B))
    logprob_BV = torch.log_softmax(torch.from_numpy(logits_BV).float(), -1)
    token_statistics(logprob_BV, logprob_BV.exp(), torch.from_numpy(token_B), k, out_4B)
    return out_4B.numpy()


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([2, 19, 20, 21, 300, 5000]),
    k=st.sampled_from([1, 5, 20, 64]),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
    offset=st.sampled_from([0.0, -80.0, 300.0]),
)
def test_against_float64(seed: int, size: int, k: int, scale: float, offset: float) -> None:
    generator = np.random.default_rng(seed)
    logits_BV = (generator.normal(size=(4, size)) * scale + offset).astype(np.float32)
    token_B = generator.integers(0, size, 4)
    logprob_BV = log_softmax(logits_BV.astype(np.float64), axis=-1)
    confidence_B = -np.sort(logprob_BV, axis=-1)[:, -min(k, size) :].mean(-1)
    uniform_BV = np.full((4, size), 1 / size)
    certainty_B = (uniform_BV * (np.log(uniform_BV) - logprob_BV)).sum(-1)
    expected = np.stack(
        [confidence_B, logprob_BV[np.arange(4), token_B], entropy(np.exp(logprob_BV), axis=-1), certainty_B]
    )
    np.testing.assert_allclose(computed(logits_BV, token_B, k), expected, rtol=2e-4, atol=2e-4)


def test_agrees_with_the_confidence_of_imported_top_k_entries() -> None:
    logits_TV = np.random.default_rng(0).normal(size=(50, 100)).astype(np.float32) * 4
    logprob_TV = log_softmax(logits_TV.astype(np.float64), axis=-1)
    top_TK = -np.sort(-logprob_TV, axis=-1)[:, :20]
    found = computed(logits_TV, np.zeros(50, dtype=np.int64), 20)[0]
    np.testing.assert_allclose(found, token_confidence(top_TK, k=20), rtol=1e-5)


def test_the_chosen_token_does_not_enter_the_confidence_unless_it_is_among_the_top() -> None:
    logits_BV = np.array([[5.0, 4.0, 0.0, -9.0]] * 2, dtype=np.float32)
    likely, unlikely = computed(logits_BV, np.array([0, 3]), k=2).T
    assert likely[0] == unlikely[0]
    assert likely[1] > unlikely[1]


@pytest.mark.parametrize("k", [3, 20])
def test_masked_tokens_are_missing_not_infinite(k: int) -> None:
    logits_BV = np.array([[1.0, 2.0, -np.inf, -np.inf]], dtype=np.float32)
    found = computed(logits_BV, np.array([1]), k)[:, 0]
    logprob = log_softmax(np.array([1.0, 2.0]))
    np.testing.assert_allclose(found[:3], [-logprob.mean(), logprob[1], entropy(np.exp(logprob))], rtol=1e-6)
    assert found[3] == np.inf


def test_a_certain_model_has_zero_entropy() -> None:
    logits_BV = np.array([[200.0, 0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(computed(logits_BV, np.array([0]), 1)[:3, 0], 0, atol=1e-30)
