"""Log-probabilities in chunks against whole logits, in float64."""

from __future__ import annotations

import pytest
import torch

from dttrl.kernels.log_probs import selected_log_probs_chunked
from dttrl.method.objective import selected_log_probs


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk", [1, 4, None])
def test_values_and_gradients_are_those_of_whole_logits(temperature: float, chunk: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(11, 6, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(30, 6, dtype=torch.float64, generator=generator).requires_grad_()
    token = torch.randint(30, (11,), generator=generator)
    grad = torch.randn(11, dtype=torch.float64, generator=generator)
    scaled = hidden @ weight.T / temperature
    expected = scaled.log_softmax(-1).gather(-1, token[:, None])[:, 0]
    result = selected_log_probs_chunked(hidden, weight, token, temperature=temperature, chunk=chunk)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    rounded = selected_log_probs((hidden @ weight.T)[None], token[None], temperature=temperature)[0]
    torch.testing.assert_close(result.float(), rounded, rtol=0, atol=1e-5)
    plain = torch.autograd.grad(expected, (hidden, weight), grad)
    ours = torch.autograd.grad(result, (hidden, weight), grad)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_repeated_token_and_no_tokens() -> None:
    hidden = torch.ones(0, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    nothing = selected_log_probs_chunked(hidden, weight, torch.zeros(0, dtype=torch.long), temperature=1.0)
    nothing.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
