"""An update by the fused kernels against the general path, on a CUDA device; and its padding anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dttrl.settings.sections import Update
from dttrl.training.micro_batches import TrainingRow, pack
from dttrl.training.policy import Policy


def rows() -> list[list[TrainingRow]]:
    random = np.random.default_rng(0)
    return [
        [
            TrainingRow(
                prompt_ids=tuple(int(token) for token in random.integers(2, 40, 3 + 2 * question)),
                token_ids=random.integers(2, 40, length).astype(np.int32),
                advantage=float(random.normal()),
            )
            for length in (1, 4, 9, 17, 30, 0)
        ]
        for question in range(2)
    ]


@pytest.mark.parametrize("most_tokens", [1, 60, 10_000])
def test_padding_on_the_right_finds_every_completion_token(most_tokens: int) -> None:
    flat = [row for question in rows() for row in question]
    batches = pack(flat, most_tokens=most_tokens, pad_id=0, device=torch.device("cpu"), right=True)
    found = []
    for batch in batches:
        assert batch.state_M is not None
        assert batch.cell_M is not None
        # The state before a token is one place left of the token.
        after = batch.ids_NL.reshape(-1)[batch.state_M + 1]
        assert torch.equal(after, batch.token_NT.reshape(-1)[batch.cell_M])
        assert torch.equal(batch.mask_NT.reshape(-1).nonzero()[:, 0], batch.cell_M)
        for advantage, mask, token in zip(batch.advantage_N, batch.mask_NT, batch.token_NT, strict=True):
            found.append((round(float(advantage), 5), token[mask > 0].tolist()))
    assert sorted(found) == sorted((round(row.advantage, 5), row.token_ids.tolist()) for row in flat)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@pytest.mark.parametrize("questions_per_update", [1, 2])
def test_an_update_is_that_of_the_general_path(family: str, questions_per_update: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    import transformers

    def model(seed: int) -> Any:
        torch.manual_seed(seed)
        config = getattr(transformers, f"{family}Config")(
            vocab_size=40,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            initializer_range=0.1,
        )
        return getattr(transformers, f"{family}ForCausalLM")(config).cuda()

    settings = Update(
        beta=0.05, questions_per_update=questions_per_update, micro_batch_tokens=100, max_grad_norm=1e9
    )
    results, changes = [], []
    for fused, dtype in ((False, None), (True, torch.bfloat16)):
        policy = Policy(
            model(0),
            settings,
            temperature=1.0,
            pad_id=0,
            reference=model(1),
            autocast_dtype=dtype,
            fused=fused,
        )
        before = [p.detach().clone() for p in policy.model.parameters()]
        results.append(policy.update(rows(), learning_rate=1e-3))
        after = policy.model.parameters()
        changes.append(torch.cat([(b - a).flatten() for a, b in zip(after, before, strict=True)]))
    exact, ours = results
    assert ours.loss == pytest.approx(exact.loss, rel=0.05, abs=0.01)
    assert ours.kl == pytest.approx(exact.kl, rel=0.05)
    assert ours.grad_norm == pytest.approx(exact.grad_norm, rel=0.05)
    # Adam's first step is the gradient's sign: where the gradient is small, rounding decides.
    assert torch.cosine_similarity(changes[0], changes[1], dim=0) > 0.9
