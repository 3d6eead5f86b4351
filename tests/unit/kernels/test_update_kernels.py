"""The differentiable kernels against plain PyTorch in float32; interpreted where there is no CUDA device."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

# Not importorskip: Triton must not be imported before its interpreter is chosen.
if find_spec("triton") is None:
    pytest.skip("needs Triton (nox -s kernels)", allow_module_level=True)

# isort: split
from tests.triton_interpreter import DEVICE

# isort: split
from dttrl.kernels import update_kernels as kernels
from dttrl.kernels.architecture import take_apart
from dttrl.kernels.log_probs import selected_log_probs_chunked
from dttrl.kernels.shadow import Shadow
from dttrl.kernels.update_forward import AddNorm, Gate, Rotate, hidden_states


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def near(result: Tensor | None, expected: Tensor | None) -> bool:
    assert result is not None
    assert expected is not None
    # The interpreter truncates to bfloat16, the device rounds.
    return bool((result.float() - expected.float()).norm() < 2e-2 * expected.float().norm())


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("carried", [False, True])
def test_the_norm_and_its_gradient(add: bool, carried: bool) -> None:
    rows, width = 700, 96
    stream, weight = noise(rows, width).requires_grad_(), noise(width, seed=1).requires_grad_()
    delta = noise(rows, width, dtype=torch.bfloat16, seed=2).requires_grad_() if add else None
    grads = noise(rows, width, seed=3), noise(rows, width, dtype=torch.bfloat16, seed=4)
    total = stream + delta.float() if delta is not None else stream
    out = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
    inputs = [stream, weight] if delta is None else [stream, weight, delta]
    scalar = (out * grads[1].float()).sum() + ((total * grads[0]).sum() if carried else 0)
    expected = torch.autograd.grad(scalar, inputs)
    result_total, result_out = AddNorm.apply(stream, delta, weight, 1e-5)
    assert near(result_total, total)
    assert near(result_out, out)
    scalar = (result_out.float() * grads[1].float()).sum()
    scalar = scalar + (result_total * grads[0]).sum() if carried else scalar
    for ours, plain in zip(torch.autograd.grad(scalar, inputs), expected, strict=True):
        assert near(ours, plain)


def test_the_rotary_embedding_and_its_gradient() -> None:
    rows, length, heads, kv_heads, width = 2, 5, 3, 1, 32
    qkv = noise(rows * length, (heads + 2 * kv_heads) * width, dtype=torch.bfloat16).requires_grad_()
    angle = torch.arange(length)[:, None] / 10 ** torch.linspace(0, 2, width // 2)
    cos, sin = angle.cos().to(DEVICE), angle.sin().to(DEVICE)
    first, second = qkv.float().view(rows, length, -1, width).chunk(2, -1)
    c, s = cos[None, :, None], sin[None, :, None]
    turned = torch.cat([first * c - second * s, second * c + first * s], -1)
    unturned = qkv.float().view(rows, length, -1, width)
    expected = torch.cat([turned[:, :, : heads + kv_heads], unturned[:, :, heads + kv_heads :]], 2)
    result = torch.cat(Rotate.apply(qkv, cos, sin, length, heads, kv_heads), 2)
    assert near(result, expected)
    grad = noise(*expected.shape, dtype=torch.bfloat16, seed=1)
    (plain,) = torch.autograd.grad(expected, qkv, grad.float())
    (ours,) = torch.autograd.grad(result, qkv, grad)
    assert near(ours, plain)


def test_the_gate_and_its_gradient() -> None:
    both = noise(3, 2 * 1100, dtype=torch.bfloat16).requires_grad_()
    grad = noise(3, 1100, dtype=torch.bfloat16, seed=1)
    first, second = both.float().chunk(2, -1)
    expected = torch.nn.functional.silu(first) * second
    (plain,) = torch.autograd.grad(expected, both, grad.float())
    result = Gate.apply(both)
    assert near(result, expected)
    assert near(torch.autograd.grad(result, both, grad)[0], plain)


@pytest.mark.parametrize("size", [50, 5000])
def test_selected_log_probabilities_and_their_gradient(size: int) -> None:
    logits = noise(4, size, dtype=torch.bfloat16) * 3
    token = torch.tensor([0, 3, size - 1, 7], device=DEVICE)
    plain = (logits.float() / 0.7).requires_grad_()
    expected = plain.log_softmax(-1).gather(-1, token[:, None])[:, 0]
    chosen, total = torch.full((2, 4), torch.nan, device=DEVICE).unbind()
    kernels.select_forward[(4,)](logits, token, chosen, total, size, 1 / 0.7, BLOCK=1024)
    torch.testing.assert_close(chosen, expected.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(total, plain.detach().logsumexp(-1), rtol=1e-4, atol=1e-4)
    grad = noise(4, seed=2)
    (expected_grad,) = torch.autograd.grad(expected, plain, grad)
    kernels.select_backward[(4, -(-size // 1024))](logits, token, total, grad, size, 1 / 0.7, BLOCK=1024)
    assert near(logits, expected_grad / 0.7)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_hidden_states_and_all_gradients_are_those_of_transformers(family: str) -> None:
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=40,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=True,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(DEVICE)
    architecture = take_apart(model)
    assert architecture is not None
    ids = torch.randint(40, (2, 6), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    token = ids[:, 1:].reshape(-1)
    weight = noise(len(token), seed=3)
    logits = model(input_ids=ids).logits[:, :-1].reshape(-1, 40)
    expected = logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]
    (expected * weight).sum().backward()
    plain = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    shadow = Shadow(architecture)
    states = hidden_states(shadow, ids).view(2, 6, -1)[:, :-1].reshape(-1, 64)
    result = selected_log_probs_chunked(states, model.lm_head.weight, token, temperature=1.0, chunk=4)
    (result * weight).sum().backward()
    shadow.deliver()
    assert (result - expected).abs().max() < 2e-2
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        error = (parameter.grad - plain[name]).norm() / plain[name].norm()
        # A key's bias hardly changes the scores: its gradient is a small difference of large numbers.
        assert error < (0.5 if name.endswith("k_proj.bias") else 0.05), (name, error)
