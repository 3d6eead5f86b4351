"""One batch decoded by the fused kernels: the general path fills the cache and chooses the first tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dttrl.sampling.decoding import UNIFORMS, Batch, Finished, Row, StopCheck
from dttrl.sampling.forward import Forward
from dttrl.sampling.fused.forward import BLOCK, FusedForward, padded_rows
from dttrl.settings.sections import Sampling


def decode_fused(
    forward: Forward,
    fused: FusedForward,
    rows: Sequence[Row],
    settings: Sampling,
    eos_ids: Sequence[int],
    stop_check: StopCheck | None,
) -> list[Finished]:
    """Decode the rows together and return them in the same order. Call it without gradients."""
    batch = _FusedBatch(forward, rows, settings, eos_ids, stop_check)
    batch.decode(fused)
    return batch.finished()


class _FusedBatch(Batch):
    def decode(self, fused: FusedForward) -> None:
        self._fused = fused
        limit = self._settings.max_new_tokens
        uniform_RT = self._uniforms.draw(self._alive)
        logits_RV = self._prefill()
        token_RT, numbers_4RT = self._decode_block(logits_RV, uniform_RT, 1)
        self._start(token_RT[:, 0])
        self._record(0, token_RT, numbers_4RT)
        start = 1
        with torch.autocast(self._forward.device.type, enabled=False):
            while start < limit and not self._done.all():
                keep = self._drop()
                if keep is not None:
                    uniform_RT = uniform_RT[keep]
                if start % UNIFORMS == 0:
                    uniform_RT = self._uniforms.draw(self._alive)
                offset = start % UNIFORMS
                # Blocks end where the uniform numbers do.
                size = min(BLOCK - start % BLOCK, limit - start)
                self._record(start, *fused.block(uniform_RT[:, offset:], size))
                start += size
        fused.end()

    def _start(self, token_R: Tensor) -> None:
        prompts = {row.question: row.request.prompt_ids for row in self._rows}
        self._fused.begin(
            self._forward.keys_and_values(),
            [len(prompt) for prompt in prompts.values()],
            self._question_R,
            token_R,
            self._settings.max_new_tokens,
            self._settings,
        )

    def _take_rows(self, question_R: Tensor) -> None:
        """The general path's cache stays one row a question; the fused one copies from it."""
        self._question_R = question_R

    def _drop(self) -> Tensor | None:
        """Drop the finished rows where a smaller graph serves the rest; return the places kept, or None."""
        running = ~self._done[self._alive]
        if padded_rows(int(running.sum())) == padded_rows(len(running)):
            return None
        keep = torch.from_numpy(np.flatnonzero(running)).to(self._forward.device)
        self._alive = self._alive[running]
        self._fused.keep(keep)
        return keep
