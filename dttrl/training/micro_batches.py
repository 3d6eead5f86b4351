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
            batches.append(_pad(waiting, pad_id, device, right=right))
            waiting = []
        waiting.append(row)
    if waiting:
        batches.append(_pad(waiting, pad_id, device, right=right))
    return batches


def _pad(rows: Sequence[TrainingRow], pad_id: int, device: torch.device, *, right: bool) -> MicroBatch:
    prompt_N = np.array([len(row.prompt_ids) for row in rows])
    token_N = np.array([len(row.token_ids) for row in rows])
    token_len = max(int(token_N.max()), 1)
    gap_N = np.zeros_like(prompt_N) if right else prompt_N.max() - prompt_N
    start_N = gap_N + prompt_N
    length = int((start_N + token_N).max() if right else start_N.max() + token_len)
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    tokens = np.full((len(rows), token_len), pad_id, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, gap_N[i] : start_N[i]] = row.prompt_ids
        ids[i, start_N[i] : start_N[i] + token_N[i]] = row.token_ids
        tokens[i, : token_N[i]] = row.token_ids
    mask = np.arange(token_len) < token_N[:, None]

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    attention_NL = position_NL = state_M = cell_M = None
    if right:
        row_M, place_M = np.nonzero(mask)
        state_M = tensor(row_M * length + prompt_N[row_M] + place_M - 1)
        cell_M = tensor(row_M * token_len + place_M)
    elif gap_N.any():
        # Padding on the right needs no mask under causal attention; only the left does.
        attention_NL = tensor((np.arange(length) >= gap_N[:, None]).astype(np.int64))
        position_NL = (attention_NL.cumsum(1) - 1).clamp(min=0)
    return MicroBatch(
        ids_NL=tensor(ids),
        attention_NL=attention_NL,
        position_NL=position_NL,
        token_NT=tensor(tokens),
        mask_NT=tensor(mask.astype(np.float32)),
        advantage_N=torch.tensor([row.advantage for row in rows], device=device),
        state_M=state_M,
        cell_M=cell_M,
    )
