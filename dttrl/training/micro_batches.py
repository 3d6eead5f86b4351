"""Rows of similar length, cut into micro-batches and padded to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One trained rollout: prompt and completion as token ids, and its weighted advantage."""

    prompt_ids: tuple[int, ...]
    token_ids: NDArray[np.int32]
    advantage: float


class MicroBatch(NamedTuple):
    """N rows as ids (N, L); completions are in ``token_NT`` and ``mask_NT``, padded on the right."""

    ids_NL: Tensor
    attention_NL: Tensor | None
    position_NL: Tensor | None
    token_NT: Tensor
    mask_NT: Tensor
    advantage_N: Tensor
    state_M: Tensor | None = None
    """Of rows padded on the right: where in N * L the state before each completion token is,"""
    cell_M: Tensor | None = None
    """and where in N * T that token is."""


def pack(
    rows: Sequence[TrainingRow], *, most_tokens: int, pad_id: int, device: torch.device, right: bool
) -> list[MicroBatch]:
    """Cut rows of similar length into micro-batches of at most ``most_tokens`` padded tokens.

    ``right`` puts all padding on the right; otherwise prompts are padded on the left, so that completions
    align.
    """
    pad = _pad_right if right else _pad_prompts_left

    def sort_key(i: int) -> tuple[int, int, int]:
        completion, prompt = len(rows[i].token_ids), len(rows[i].prompt_ids)
        return (completion + prompt, prompt, i) if right else (completion, prompt, i)

    batches: list[MicroBatch] = []
    waiting: list[TrainingRow] = []
    for row in (rows[i] for i in sorted(range(len(rows)), key=sort_key)):
        if right:
            length = len(row.prompt_ids) + len(row.token_ids)
        else:
            prompt = max(len(other.prompt_ids) for other in [*waiting, row])
            length = prompt + max(len(row.token_ids), 1)
        if waiting and (len(waiting) + 1) * length > most_tokens:
            batches.append(pad(waiting, pad_id, device))
            waiting = []
        waiting.append(row)
    if waiting:
        batches.append(pad(waiting, pad_id, device))
    return batches


def _pad_prompts_left(rows: Sequence[TrainingRow], pad_id: int, device: torch.device) -> MicroBatch:
    prompt_len = max(len(row.prompt_ids) for row in rows)
    token_len = max(max(len(row.token_ids) for row in rows), 1)
    ids = np.full((len(rows), prompt_len + token_len), pad_id, dtype=np.int64)
    attention = np.ones_like(ids)
    mask = np.zeros((len(rows), token_len), dtype=np.float32)
    for i, row in enumerate(rows):
        gap = prompt_len - len(row.prompt_ids)
        ids[i, gap:prompt_len] = row.prompt_ids
        attention[i, :gap] = 0
        ids[i, prompt_len : prompt_len + len(row.token_ids)] = row.token_ids
        mask[i, : len(row.token_ids)] = 1
    ids_NL = torch.from_numpy(ids).to(device)
    attention_NL, position_NL = None, None
    # Padding on the right needs no mask under causal attention; only the left does.
    if not attention.all():
        attention_NL = torch.from_numpy(attention).to(device)
        position_NL = (attention_NL.cumsum(1) - 1).clamp(min=0)
    return MicroBatch(
        ids_NL=ids_NL,
        attention_NL=attention_NL,
        position_NL=position_NL,
        token_NT=ids_NL[:, prompt_len:],
        mask_NT=torch.from_numpy(mask).to(device),
        advantage_N=torch.tensor([row.advantage for row in rows], device=device),
    )


def _pad_right(rows: Sequence[TrainingRow], pad_id: int, device: torch.device) -> MicroBatch:
    prompt_N = np.array([len(row.prompt_ids) for row in rows])
    token_N = np.array([len(row.token_ids) for row in rows])
    length, token_len = int((prompt_N + token_N).max()), max(int(token_N.max()), 1)
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    tokens = np.full((len(rows), token_len), pad_id, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : prompt_N[i]] = row.prompt_ids
        ids[i, prompt_N[i] : prompt_N[i] + token_N[i]] = row.token_ids
        tokens[i, : token_N[i]] = row.token_ids
    mask = np.arange(token_len) < token_N[:, None]
    row_M, place_M = np.nonzero(mask)
    return MicroBatch(
        ids_NL=torch.from_numpy(ids).to(device),
        attention_NL=None,
        position_NL=None,
        token_NT=torch.from_numpy(tokens).to(device),
        mask_NT=torch.from_numpy(mask.astype(np.float32)).to(device),
        advantage_N=torch.tensor([row.advantage for row in rows], device=device),
        state_M=torch.from_numpy(row_M * length + prompt_N[row_M] + place_M - 1).to(device),
        cell_M=torch.from_numpy(row_M * token_len + place_M).to(device),
    )
