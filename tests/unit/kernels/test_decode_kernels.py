"""The decoding kernels against plain PyTorch in float32; interpreted where there is no CUDA device."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch

# Not importorskip: Triton must not be imported before its interpreter is chosen.
if find_spec("triton") is None:
    pytest.skip("needs Triton (nox -s kernels)", allow_module_level=True)

# isort: split
from dttrl.kernels.choice import choose
from dttrl.kernels.token_statistics import token_statistics
from dttrl.settings.sections import Sampling
from tests.triton_interpreter import DEVICE

# isort: split
from dttrl.kernels.decode_kernels import add_norm, attend, gate
from dttrl.kernels.logit_kernels import choose_in_place, draw, observe
from dttrl.kernels.row_kernels import Summary


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


@pytest.mark.parametrize("width", [96, 576])
@pytest.mark.parametrize("add", [False, True])
def test_the_norm_of_the_sum(width: int, add: bool) -> None:
    stream, weight = noise(5, width), noise(width, seed=1)
    delta = noise(5, width, dtype=torch.bfloat16, seed=2) if add else None
    total = stream + delta.float() if delta is not None else stream.clone()
    expected = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5) * weight
    result = add_norm(stream, delta, weight, 1e-5)
    torch.testing.assert_close(stream, total)
    torch.testing.assert_close(result.float(), expected, rtol=1e-2, atol=1e-3)


def test_the_gated_activation() -> None:
    both = noise(3, 2 * 1300, dtype=torch.bfloat16)
    first, second = both.float().chunk(2, -1)
    expected = torch.nn.functional.silu(first) * second
    torch.testing.assert_close(gate(both).float(), expected, rtol=1e-2, atol=1e-3)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(9, 3, 64), (4, 4, 32), (8, 1, 128)])
@pytest.mark.parametrize("head_norm", [False, True])
def test_attention_over_each_rows_own_length(heads: int, kv_heads: int, width: int, head_norm: bool) -> None:
    lengths, slots, capacity = [0, 1, 63, 64, 100], [3, 0, 5, 1, 2], 128
    cache = noise(2, 6, kv_heads, capacity, width, dtype=torch.bfloat16)
    qkv = noise(5, (heads + 2 * kv_heads) * width, dtype=torch.bfloat16, seed=1)
    angle = torch.arange(capacity)[:, None] / 10 ** torch.linspace(0, 2, width // 2)
    cos, sin = angle.cos().to(DEVICE), angle.sin().to(DEVICE)
    weights = (noise(width, seed=2), noise(width, seed=3)) if head_norm else None
    before = cache.clone()
    out = attend(
        qkv,
        cache,
        torch.tensor(slots, dtype=torch.int32, device=DEVICE),
        torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        (cos, sin),
        weights,
        1e-6,
    )
    for row, (length, slot) in enumerate(zip(lengths, slots, strict=True)):
        q, k, v = qkv[row].float().view(-1, width).split([heads, kv_heads, kv_heads])
        if weights is not None:
            q = torch.nn.functional.rms_norm(q, (width,), weights[0], 1e-6)
            k = torch.nn.functional.rms_norm(k, (width,), weights[1], 1e-6)
        q, k = (rotated(x, cos[length], sin[length]).bfloat16().float() for x in (q, k))
        torch.testing.assert_close(cache[0, slot, :, length].float(), k, rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(cache[1, slot, :, length].float(), v)
        keys = torch.cat([before[0, slot, :, :length].float(), k[:, None]], 1)
        values = torch.cat([before[1, slot, :, :length].float(), v[:, None]], 1)
        score = torch.einsum("kgd,kcd->kgc", q.view(kv_heads, -1, width), keys) / math.sqrt(width)
        expected = torch.einsum("kgc,kcd->kgd", score.softmax(-1), values).reshape(-1)
        assert (out[row].float() - expected).norm() < 1e-2 * expected.norm()
    untouched = torch.ones(6, capacity, dtype=torch.bool)
    untouched[slots, lengths] = False
    kept = (cache == before).all(-1).all(2).all(0).cpu()
    assert kept[untouched].all()


@pytest.mark.parametrize("size", [24, 4096, 9000])
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_tokens_and_statistics_are_those_of_the_plain_path(
    size: int, temperature: float, spread: float
) -> None:
    """The first row has many ties, in runs and between them; the last has masked tokens."""
    rows, k, t = 6, 20, 2
    logits = (noise(rows, size) * spread).bfloat16()
    logits[0] = logits[0].round()
    logits[-1, ::3] = -torch.inf
    uniform = torch.rand(4, rows, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    token = torch.full((rows,), -1, device=DEVICE)
    position = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    tokens_out = torch.full((4, rows), -7, device=DEVICE)
    numbers_out = torch.full((4, 4, rows), torch.nan, device=DEVICE)
    choose_in_place(
        Summary(rows, size, DEVICE),
        logits,
        uniform,
        torch.tensor([t], dtype=torch.int32, device=DEVICE),
        token,
        position,
        tokens_out,
        numbers_out,
        k=k,
        temperature=temperature,
    )
    settings = Sampling(temperature=temperature, k=k)
    logprob = logits.float().log_softmax(-1)
    expected_token = choose(logits.float(), logprob.exp(), uniform[t], settings)
    assert token.tolist() == expected_token.tolist() == tokens_out[t].tolist()
    assert position.tolist() == list(range(1, rows + 1))
    assert (tokens_out[[0, 1, 3]] == -7).all()
    assert numbers_out[[0, 1, 3]].isnan().all()
    expected = torch.empty(4, rows, device=DEVICE)
    token_statistics(logprob, logprob.exp(), expected_token, k, expected)
    torch.testing.assert_close(numbers_out[t], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [24, 4096, 9000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_tokens_and_statistics_of_another_engines_logits(size: int, dtype: torch.dtype) -> None:
    """The logits are the first columns of wider ones, as an engine leaves them that pads its vocabulary."""
    rows, k = 6, 20
    logits = (noise(rows, size + 40) * 5).to(dtype)
    logits[0] = logits[0].round()
    logits[-1, ::3] = -torch.inf
    logits = logits[:, :size]
    assert not logits.is_contiguous()
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    logprob = logits.float().log_softmax(-1)
    expected_token = choose(logits.float(), logprob.exp(), uniform, Sampling())
    token = draw(logits, uniform)
    assert token.tolist() == expected_token.tolist()
    expected, found = torch.empty(4, rows, device=DEVICE), torch.empty(4, rows, device=DEVICE)
    token_statistics(logprob, logprob.exp(), token, k, expected)
    observe(logits, token.int(), k, found)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_row_without_a_token_reads_nothing_outside() -> None:
    found = torch.empty(4, 2, device=DEVICE)
    observe(noise(2, 64), torch.tensor([-1, 2**30], dtype=torch.int32, device=DEVICE), 20, found)
    assert found.isfinite().all()
