"""The fused model: its weights, its cache, and one CUDA graph for every batch size it has been asked for.

Rows name their slot in the cache, so that dropping finished rows copies nothing. Batches are rounded up to a
few sizes, each recorded once; the rows added point to a spare slot.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dttrl.kernels.architecture import Architecture
from dttrl.kernels.decode_kernels import add_norm, attend, gate
from dttrl.kernels.logit_kernels import choose_in_place
from dttrl.kernels.row_kernels import Summary
from dttrl.kernels.token_statistics import STATISTICS, choose_observed
from dttrl.kernels.weights import Weights
from dttrl.settings.sections import Sampling

# Tokens decoded between two looks of the host.
BLOCK = 16
_FIRST_ROOM = 512
# Between calls weights, cache and graphs are kept while they take at most this share of the device.
_KEPT_SHARE = 0.1


def padded_rows(rows: int) -> int:
    """Return the batch size that ``rows`` rows run at: a power of two, or one and a half times one."""
    size = 8
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 and size >= 16 else 1 << size.bit_length()
    return size


def fits_choice(settings: Sampling) -> bool:
    """Say whether the kernels choose tokens this way; truncated sampling takes the general functions."""
    return settings.temperature == 0 or (settings.top_k == 0 and settings.top_p == 1)


class _Buffers:
    """What a graph of one batch size reads and writes."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.token_R = torch.zeros(rows, dtype=torch.long, device=device)
        self.position_R = torch.zeros(rows, dtype=torch.int32, device=device)
        self.slot_R = torch.zeros(rows, dtype=torch.int32, device=device)
        self.uniform_TR = torch.zeros(BLOCK, rows, device=device)
        self.tokens_TR = torch.zeros(BLOCK, rows, dtype=torch.long, device=device)
        self.numbers_T4R = torch.zeros(BLOCK, STATISTICS, rows, device=device)
        self.step = torch.zeros(1, dtype=torch.int32, device=device)
        self.summary = Summary(rows, vocabulary, device)
        self.logits_RV: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = False


class FusedForward:
    """Decodes rows in blocks: ``begin`` a batch, then ``block``, ``keep`` and again, and ``end``."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self.device: torch.device = architecture.embedding.weight.device
        self._weights: Weights | None = None
        self._key: tuple[int, float, bool, bool] | None = None
        self._forget()

    def refresh(self) -> None:
        """Take the model's present weights; call it before the first batch after they may have changed."""
        if self._weights is None or self._weights.stale():
            self._forget()
            self._weights = Weights(self._architecture)
        else:
            self._weights.refresh()

    def begin(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        length_Q: Sequence[int],
        question_R: Tensor,
        token_R: Tensor,
        room: int,
        settings: Sampling,
    ) -> None:
        """Start rows from the keys and values of their questions (a layer: (Q, heads, L, D), padded left).

        ``token_R`` are the first tokens, not fed yet; ``room`` is how many tokens may be fed to a row.
        """
        rows, longest = len(token_R), max(length_Q)
        self._most = longest + room
        capacity = min(self._most, longest + _FIRST_ROOM)
        if self._slots < padded_rows(rows) + 1 or self._capacity < capacity:
            self._allocate(padded_rows(rows) + 1, capacity)
        key = (settings.k, settings.temperature, settings.statistics, fits_choice(settings))
        if key != self._key:
            self._buffers.clear()
            self._key = key
        self._settings, self._longest = settings, longest
        length = torch.tensor(length_Q, dtype=torch.int32, device=self.device)
        # Padding on the left is left out: row by row, token p of the prompt goes to place p.
        place_QL = torch.arange(longest, device=self.device) + (longest - length)[:, None]
        place_QL.clamp_(max=longest - 1)
        for cache, parts in zip(self._cache, layers, strict=True):
            for side, part in zip(cache, parts, strict=True):
                index = place_QL[:, None, :, None].expand(part.shape)
                side[:rows, :, :longest] = part.gather(2, index)[question_R].to(side.dtype)
        self._token_R, self._position_R = token_R, length[question_R]
        self._slot_R = torch.arange(rows, dtype=torch.int32, device=self.device)
        self._fed = 0

    def keep(self, index: Tensor) -> None:
        """Continue with these rows."""
        self._token_R = self._token_R[index]
        self._position_R, self._slot_R = self._position_R[index], self._slot_R[index]

    def block(self, uniform_RT: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Feed and choose ``size`` tokens a row (at most ``BLOCK``); return them and their statistics."""
        if self._longest + self._fed + size > self._capacity:
            self._grow(size)
        rows = len(self._token_R)
        padded = padded_rows(rows)
        if padded not in self._buffers:
            vocabulary = self._architecture.head.weight.shape[0]
            self._buffers[padded] = _Buffers(padded, vocabulary, self.device)
        buffers = self._buffers[padded]
        buffers.token_R[:rows], buffers.position_R[:rows] = self._token_R, self._position_R
        buffers.slot_R[:rows] = self._slot_R
        buffers.token_R[rows:] = 0
        buffers.position_R[rows:] = 0
        buffers.slot_R[rows:] = self._slots - 1
        buffers.uniform_TR[:size, :rows] = uniform_RT[:, :size].T
        buffers.step.zero_()
        for t in range(size):
            self._run(buffers)
            if not fits_choice(self._settings):
                self._choose_generally(buffers, t)
        self._fed += size
        self._token_R, self._position_R = buffers.token_R[:rows].clone(), buffers.position_R[:rows].clone()
        share = slice(0, size if self._settings.statistics else 0)
        return buffers.tokens_TR[:size, :rows].T, buffers.numbers_T4R[share, :, :rows].permute(1, 2, 0)

    def end(self) -> None:
        """After a batch: give back memory, unless there is so little of it that keeping it is cheap."""
        assert self._weights is not None
        held = self._weights.bytes + sum(c.numel() * c.element_size() for c in self._cache)
        if self.device.type != "cuda":
            return
        if held > _KEPT_SHARE * torch.cuda.get_device_properties(self.device).total_memory:
            self._weights = None
            self._forget()

    def _forget(self) -> None:
        self._cache: list[Tensor] = []
        self._slots = self._capacity = 0
        self._buffers: dict[int, _Buffers] = {}
        self._key = None

    def _allocate(self, slots: int, capacity: int) -> None:
        self._resize(slots, capacity)
        self._cache = []
        self._cache = [self._new_layer() for _ in self._architecture.layers]

    def _grow(self, size: int) -> None:
        """Twice the capacity, one layer at a time; only running rows come along."""
        need = self._longest + self._fed + size
        old, kept, filled = self._cache, self._slot_R.long(), self._longest + self._fed
        self._cache = []
        self._resize(padded_rows(len(kept)) + 1, max(need, min(self._most, 2 * self._capacity)))
        while old:
            layer, new = old.pop(0), self._new_layer()
            for side in range(2):
                new[side, : len(kept), :, :filled] = layer[side, :, :, :filled].index_select(0, kept)
            self._cache.append(new)
        self._slot_R = torch.arange(len(kept), dtype=torch.int32, device=self.device)

    def _resize(self, slots: int, capacity: int) -> None:
        self._buffers.clear()
        self._slots, self._capacity = slots, -(-capacity // 64) * 64
        self._rotary = self._architecture.rotary_table(self._capacity, self.device)

    def _new_layer(self) -> Tensor:
        part = self._architecture
        shape = (2, self._slots, part.kv_heads, self._capacity, part.width)
        # Not zeros: the kernel never looks beyond a row's length.
        return torch.empty(shape, dtype=torch.bfloat16, device=self.device)

    def _run(self, buffers: _Buffers) -> None:
        """One step: as usual the first time, to warm everything up; recorded and replayed from then on."""
        if not buffers.warm or self.device.type != "cuda":
            buffers.warm = True
            self._body(buffers)
            return
        if buffers.graph is None:
            buffers.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(buffers.graph):
                self._body(buffers)
        buffers.graph.replay()

    def _body(self, buffers: _Buffers) -> None:
        weights, part = self._weights, self._architecture
        assert weights is not None
        stream_RH = F.embedding(buffers.token_R, weights.embedding).float()
        delta_RH = None
        for layer, cache in zip(weights.layers, self._cache, strict=True):
            x_RH = add_norm(stream_RH, delta_RH, layer.input_norm, part.eps)
            qkv_RW = F.linear(x_RH, layer.qkv, layer.qkv_bias)
            mixed_RW = attend(
                qkv_RW, cache, buffers.slot_R, buffers.position_R, self._rotary, layer.head_norm, part.eps
            )
            x_RH = add_norm(stream_RH, F.linear(mixed_RW, layer.out), layer.middle_norm, part.eps)
            delta_RH = F.linear(gate(F.linear(x_RH, layer.gate_up)), layer.down)
        logits_RV = F.linear(add_norm(stream_RH, delta_RH, weights.norm, part.eps), weights.head)
        buffers.logits_RV = logits_RV
        if fits_choice(self._settings):
            choose_in_place(
                buffers.summary,
                logits_RV,
                buffers.uniform_TR,
                buffers.step,
                buffers.token_R,
                buffers.position_R,
                buffers.tokens_TR,
                buffers.numbers_T4R if self._settings.statistics else None,
                k=self._settings.k,
                temperature=self._settings.temperature,
            )
            buffers.step.add_(1)
        else:
            buffers.position_R.add_(1)

    def _choose_generally(self, buffers: _Buffers, t: int) -> None:
        assert buffers.logits_RV is not None
        out_4R = buffers.numbers_T4R[t] if self._settings.statistics else None
        token_R = choose_observed(buffers.logits_RV.float(), buffers.uniform_TR[t], self._settings, out_4R)
        buffers.token_R.copy_(token_R)
        buffers.tokens_TR[t] = token_R
