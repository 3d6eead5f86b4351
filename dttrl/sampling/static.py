"""Decoding steps whose tensors keep their addresses, so that a CUDA graph can replay them.

For small models on a GPU launching the kernels of a step takes several times as long as running them; a graph
launches them all at once. Attention then runs over the whole buffer, with a mask for what is not there yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dttrl.sampling.cache import GrowingLayer

# Given token ids (R, 1), positions and mask: logits (R, V).
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


class StaticSteps:
    """Steps for a fixed set of rows, until ``capacity`` tokens are in the cache.

    ``position_R1`` is advanced in place by every step. ``seen_RL`` says which of the ``length`` tokens in
    the cache are padding; it has one row if none are. The first step runs as usual (it warms everything
    up); the second is recorded; with ``graph`` False, as on a CPU, all run as usual.
    """

    def __init__(
        self,
        call: Call,
        layers: Sequence[GrowingLayer],
        position_R1: Tensor,
        seen_RL: Tensor,
        rows: int,
        length: int,
        capacity: int,
        *,
        graph: bool,
    ) -> None:
        device = position_R1.device
        self._call, self._layers, self._position_R1 = call, layers, position_R1
        self._place = torch.tensor([length], device=device)
        for layer in layers:
            layer.fix_place(self._place, capacity)
        self.capacity = layers[0].capacity
        self._mask_R11C = torch.zeros(seen_RL.shape[0], 1, 1, self.capacity, dtype=torch.bool, device=device)
        self._mask_R11C[:, 0, 0, :length] = True
        self._mask_R11C[:, 0, 0, : seen_RL.shape[1]] = seen_RL
        self._token_R1 = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._wanted, self._warm = graph, False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits_RV = self._token_R1

    def step(self, token_R: Tensor) -> Tensor:
        """Feed one token a row; the returned logits (R, V) are overwritten by the next step."""
        self._token_R1[:, 0] = token_R
        if not self._wanted or not self._warm:
            self._warm = True
            return self._body()
        if self._graph is None:
            self._graph = self._record()
        if self._graph is None:
            return self._body()
        self._graph.replay()
        return self._logits_RV

    def end(self, length: int) -> None:
        """Give the cache back, with ``length`` tokens in it."""
        for layer in self._layers:
            layer.free_place(length)

    def _record(self) -> torch.cuda.CUDAGraph | None:
        """Record one step without running it; None for a model that waits for the device within a step."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._logits_RV = self._body()
        except RuntimeError:
            self._wanted = False
            torch.cuda.synchronize()
            return None
        return graph

    def _body(self) -> Tensor:
        self._position_R1.add_(1)
        self._mask_R11C.index_fill_(3, self._place, True)
        logits_RV = self._call(self._token_R1, self._position_R1, self._mask_R11C)
        self._place.add_(1)
        return logits_RV
