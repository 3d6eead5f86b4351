"""Decode one batch of rows: prefill once a question, then block by block, dropping rows that have finished.

Nothing here runs in Python for every row and token: within a block all is done by tensors on the device, and
the host looks at the result once a block. The general path steps through transformers' model; the fused one
lets it fill the cache and choose the first tokens, and leaves the rest to the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dttrl.data.rollouts import FinishReason
from dttrl.kernels.token_statistics import STATISTICS, choose_observed
from dttrl.rng import derive
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.forward import Forward
from dttrl.settings.sections import Sampling

if TYPE_CHECKING:
    from dttrl.kernels.decode_forward import FusedForward

# Uniform numbers are drawn this many a row at a time.
UNIFORMS = 64
# Finished rows are dropped once they are this share of the batch (the second where that means a new CUDA
# graph): a copy of the cache costs about one token's attention.
_DROP_SHARE, _DROP_SHARE_STATIC = 0.125, 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """One sample to draw: which question of the batch it belongs to, and its place in the output."""

    question: int
    request: SampleRequest
    sample_id: int


@dataclass(slots=True)
class Finished:
    """A decoded row: ids up to and with the end token, statistics (4, T) or (4, 0), and why it ended."""

    token_ids: NDArray[np.int32]
    statistics: NDArray[np.float32]
    finish_reason: FinishReason


# Given a row's ids so far and how many were looked at before: the index of the first token that completes a
# stop string, or -1.
StopCheck = Callable[[NDArray[np.int32], int], int]


class _Store:
    """What the rows have produced so far, on the host; it grows a block at a time."""

    def __init__(self, rows: int, limit: int) -> None:
        self._limit = limit
        self.token_RT = np.empty((rows, 0), dtype=np.int32)
        self.statistics_4RT = np.empty((STATISTICS, rows, 0), dtype=np.float32)

    def put(
        self, rows: NDArray[np.int64], start: int, tokens: NDArray[np.int64], numbers: NDArray[np.float32]
    ) -> None:
        end = start + tokens.shape[1]
        if end > self.token_RT.shape[1]:
            # Half again as much: rewriting stays linear in the length, and short outputs stay small.
            extra = min(max(end, end * 3 // 2), self._limit) - self.token_RT.shape[1]
            self.token_RT = np.pad(self.token_RT, ((0, 0), (0, extra)))
            if numbers.shape[2]:
                self.statistics_4RT = np.pad(self.statistics_4RT, ((0, 0), (0, 0), (0, extra)))
        self.token_RT[rows, start:end] = tokens
        if numbers.shape[2]:
            self.statistics_4RT[:, rows, start:end] = numbers


class Batch:
    """The rows of one batch and what they have produced."""

    def __init__(
        self,
        forward: Forward,
        rows: Sequence[Row],
        settings: Sampling,
        eos_ids: Sequence[int],
        stop_check: StopCheck | None,
    ) -> None:
        self._forward, self._rows, self._settings, self._stop_check = forward, rows, settings, stop_check
        self._eos = np.array(sorted(eos_ids), dtype=np.int64)
        # On the CPU a look costs nothing and a finished row costs its compute; on a device a look stalls
        # the queue.
        self._block = 4 if forward.device.type == "cpu" and stop_check is None else 16
        self._alive = np.arange(len(rows))
        self._done = np.zeros(len(rows), dtype=bool)
        self._length = np.full(len(rows), settings.max_new_tokens)
        self._store = _Store(len(rows), settings.max_new_tokens)
        # Every row has a stream of uniform numbers of its own.
        self._generators = [
            derive(
                settings.seed,
                step=row.request.step or 0,
                query=row.request.query_id,
                purpose=f"sample:{row.sample_id}",
            )
            for row in rows
        ]
        self._prompts = {row.question: row.request.prompt_ids for row in rows}

    def decode(self, fused: FusedForward | None = None) -> list[Finished]:
        """Decode until every row has ended or is at its limit; call it without gradients."""
        if fused is None:
            self._run()
        else:
            self._run_fused(fused)
        tokens, numbers = self._store.token_RT, self._store.statistics_4RT
        return [
            Finished(
                token_ids=tokens[row, :length].copy(),
                statistics=numbers[:, row, :length].copy(),
                finish_reason="stop" if self._done[row] else "length",
            )
            for row, length in enumerate(self._length)
        ]

    def _run(self) -> None:
        limit = self._settings.max_new_tokens
        share = _DROP_SHARE_STATIC if self._forward.static else _DROP_SHARE
        logits_RV, question_R = self._prefill()
        self._forward.select(question_R)
        uniform_RT = logits_RV[:, :0]
        start = 0
        while True:
            if start % UNIFORMS == 0:
                uniform_RT = self._uniforms()
            size = min(self._block, limit - start)
            token_RT, numbers_4RT = self._decode_block(logits_RV, uniform_RT[:, start % UNIFORMS :], size)
            last_R = token_RT[:, -1]
            self._record(start, token_RT, numbers_4RT)
            start += size
            if start == limit or self._done.all():
                return
            if self._done[self._alive].sum() >= share * len(self._alive):
                keep = self._keep_running()
                self._forward.select(keep)
                uniform_RT, last_R = uniform_RT[keep], last_R[keep]
            logits_RV = self._forward.step(last_R)

    def _run_fused(self, fused: FusedForward) -> None:
        """Do so with the fused kernels; rows are dropped where a smaller graph serves the rest."""
        from dttrl.kernels.decode_forward import BLOCK, padded_rows

        limit = self._settings.max_new_tokens
        logits_RV, question_R = self._prefill()
        uniform_RT = self._uniforms()
        token_RT, numbers_4RT = self._decode_block(logits_RV, uniform_RT, 1)
        # The general path's cache stays one row a question; the fused one copies from it.
        layers, lengths = self._forward.keys_and_values(), [len(prompt) for prompt in self._prompts.values()]
        fused.begin(layers, lengths, question_R, token_RT[:, 0], limit, self._settings)
        self._record(0, token_RT, numbers_4RT)
        start = 1
        with torch.autocast(self._forward.device.type, enabled=False):
            while start < limit and not self._done.all():
                rows = len(self._alive)
                if padded_rows(rows - int(self._done[self._alive].sum())) != padded_rows(rows):
                    keep = self._keep_running()
                    fused.keep(keep)
                    uniform_RT = uniform_RT[keep]
                if start % UNIFORMS == 0:
                    uniform_RT = self._uniforms()
                # Blocks end where the uniform numbers do.
                size = min(BLOCK - start % BLOCK, limit - start)
                self._record(start, *fused.block(uniform_RT[:, start % UNIFORMS :], size))
                start += size
        fused.end()

    def _prefill(self) -> tuple[Tensor, Tensor]:
        """Prefill every question once; return each row's logits, and which question it continues."""
        place = {question: index for index, question in enumerate(self._prompts)}
        logits_QV = self._forward.prefill(list(self._prompts.values()), self._settings.max_new_tokens)
        question_R = torch.tensor([place[row.question] for row in self._rows], device=self._forward.device)
        return logits_QV.index_select(0, question_R), question_R

    def _uniforms(self) -> Tensor:
        """Return the next ``UNIFORMS`` numbers of each running row, on the device."""
        block = np.stack([self._generators[row].random(UNIFORMS, dtype=np.float32) for row in self._alive])
        return torch.from_numpy(block).to(self._forward.device)

    def _decode_block(self, logits_RV: Tensor, uniform_RT: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Choose ``size`` tokens a row, feeding each but the last; return tokens and statistics."""
        rows, settings = logits_RV.shape[0], self._settings
        token_TR = torch.empty(size, rows, dtype=torch.long, device=logits_RV.device)
        numbers_T4R = torch.empty(
            size if settings.statistics else 0, STATISTICS, rows, device=logits_RV.device
        )
        for t in range(size):
            if t > 0:
                logits_RV = self._forward.step(token_TR[t - 1])
            out_4R = numbers_T4R[t] if settings.statistics else None
            # Under autocast even a dot product would come out in bfloat16.
            with torch.autocast(logits_RV.device.type, enabled=False):
                token_TR[t] = choose_observed(logits_RV, uniform_RT[:, t], settings, out_4R)
        return token_TR.T, numbers_T4R.permute(1, 2, 0)

    def _record(self, start: int, token_RT: Tensor, numbers_4RT: Tensor) -> None:
        """Keep a block on the host (the one wait for the device), and mark the rows that ended in it."""
        tokens = token_RT.cpu().numpy()
        self._store.put(self._alive, start, tokens, numbers_4RT.cpu().numpy())
        ended = np.isin(tokens, self._eos)
        for place in np.flatnonzero(ended.any(1) & ~self._done[self._alive]):
            self._finish(self._alive[place], start + int(ended[place].argmax()) + 1)
        if self._stop_check is None:
            return
        end = start + tokens.shape[1]
        for row in self._alive[self._length[self._alive] > start]:
            last = self._stop_check(self._store.token_RT[row, : min(end, self._length[row])], start)
            if last >= 0:
                self._finish(row, last + 1)

    def _finish(self, row: int, length: int) -> None:
        self._done[row] = True
        self._length[row] = length

    def _keep_running(self) -> Tensor:
        """Go on with the rows that have not finished; return their places among those that went on so far."""
        running = ~self._done[self._alive]
        self._alive = self._alive[running]
        return torch.from_numpy(np.flatnonzero(running)).to(self._forward.device)
