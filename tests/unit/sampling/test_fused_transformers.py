"""Fused decoding against the general path: the same random numbers, up to rounding the same samples."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

# Not importorskip: Triton must not be imported before its interpreter is chosen.
if find_spec("triton") is None:
    pytest.skip("needs Triton (nox -s kernels)", allow_module_level=True)

# isort: split
from dttrl.data.rollouts import Rollout
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.transformers import TransformersSampler
from dttrl.settings.sections import Sampling
from tests.triton_interpreter import DEVICE

# isort: split
from dttrl.kernels import decode_forward

VOCABULARY = 40
FIELDS = ("token_confidence", "token_logprob", "token_entropy", "token_self_certainty")


class Tokens:
    """A tokenizer of letters, as far as the sampler needs one."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer, decoders, models
        from transformers import PreTrainedTokenizerFast

        backend = Tokenizer(models.WordLevel({f"<{index}>": index for index in range(VOCABULARY)}))
        backend.decoder = decoders.Fuse()
        self.plain = PreTrainedTokenizerFast(tokenizer_object=backend)


def build(family: str = "Llama", **changes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "initializer_range": 0.15,
        "max_position_embeddings": 512,
    }
    config = getattr(transformers, f"{family}Config")(**{**fields, **changes})
    return getattr(transformers, f"{family}ForCausalLM")(config).to(DEVICE).eval()


def sampled(
    model: Any, fused: bool, samples: int = 4, statistics: bool = True, **settings: Any
) -> list[Rollout]:
    sampler = TransformersSampler(
        model, Tokens().plain, (1,), autocast_dtype=torch.bfloat16 if fused else None, fused=fused
    )
    requests = [
        SampleRequest("a", (5, 6, 7), tuple(range(samples))),
        SampleRequest("b", (9, 8, 7, 8, 9), tuple(range(samples))),
    ]
    asked = Sampling(batch_size=64, **settings)
    if not statistics:
        asked = asked.model_copy(update={"k": 0})
    return [rollout for rollouts in sampler.sample(requests, asked) for rollout in rollouts]


def check(ours: list[Rollout], exact: list[Rollout], share: float) -> None:
    """Most rows have the same tokens; as long as they do, the statistics are within bfloat16's rounding."""
    same = 0
    for a, b in zip(ours, exact, strict=True):
        assert (a.query_id, a.sample_id) == (b.query_id, b.sample_id)
        length = min(a.num_tokens, b.num_tokens)
        differ = np.flatnonzero(a.token_ids[:length] != b.token_ids[:length])
        prefix = int(differ[0]) if len(differ) else length
        if prefix == length:
            same += 1
            assert a.finish_reason == b.finish_reason
            assert a.num_tokens == b.num_tokens
        for field in FIELDS:
            np.testing.assert_allclose(getattr(a, field)[:prefix], getattr(b, field)[:prefix], atol=0.1)
    assert same >= share * len(exact)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_samples_and_statistics_are_those_of_the_exact_model(family: str) -> None:
    model = build(family)
    check(sampled(model, True, max_new_tokens=8), sampled(model, False, max_new_tokens=8), 0.5)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}, {"k": 3}])
def test_other_settings(settings: dict[str, Any]) -> None:
    model = build()
    settings["max_new_tokens"] = 5
    check(sampled(model, True, **settings), sampled(model, False, **settings), 0.5)


@pytest.mark.gpu
def test_rows_dropped_and_a_cache_that_grows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type != "cuda":
        pytest.skip("takes minutes without a CUDA device")
    monkeypatch.setattr(decode_forward, "_FIRST_ROOM", 8)
    model = build()
    ours = sampled(model, True, samples=20, max_new_tokens=150)
    exact = sampled(model, False, samples=20, max_new_tokens=150)
    lengths = [rollout.num_tokens for rollout in exact]
    assert min(lengths) < 20
    assert max(lengths) > 64
    check(ours, exact, 0.3)


def test_changed_weights_are_seen_by_the_next_call() -> None:
    model = build()
    sampler = TransformersSampler(model, Tokens().plain, (), autocast_dtype=torch.bfloat16, fused=True)
    settings = Sampling(max_new_tokens=3, temperature=0)
    request = [SampleRequest("a", (5, 6, 7), (0,))]
    before = next(iter(sampler.sample(request, settings)))[0]
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(3)
    after = next(iter(sampler.sample(request, settings)))[0]
    fresh = TransformersSampler(model, Tokens().plain, (), autocast_dtype=torch.bfloat16, fused=True)
    expected = next(iter(fresh.sample(request, settings)))[0]
    np.testing.assert_array_equal(after.token_entropy, expected.token_entropy)
    assert not np.allclose(after.token_entropy, before.token_entropy)


def test_no_statistics_give_the_same_tokens() -> None:
    model = build()
    bare, full = (sampled(model, True, max_new_tokens=4, statistics=which) for which in (False, True))
    assert [r.token_ids.tolist() for r in bare] == [r.token_ids.tolist() for r in full]
    assert all(len(r.token_confidence) == 0 for r in bare)
