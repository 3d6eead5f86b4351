"""A key-value cache that grows in blocks instead of being copied for every token.

The cache of transformers appends by ``torch.cat``: a copy of the whole cache a layer and token, which for
small models costs more than the model. Here a layer owns a buffer with room to spare and hands out views;
or, with a fixed place to write to, the whole buffer, so that every tensor of a decoding step keeps its
address.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

GROWTH = 128


class GrowingLayer(DynamicLayer):
    """Keys and values (rows, heads, tokens, width) as views of larger buffers."""

    def __init__(self, room: int = GROWTH) -> None:
        super().__init__()
        self._room = room
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._place: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Tokens that fit without another buffer."""
        return 0 if self._buffers is None else self._buffers[0].shape[-2]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the new tokens and return all; with a fixed place, write there and return the buffers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            # The prompts are kept as they come; the buffers are made when the rows are known (reorder_cache).
            self.keys, self.values = key_states, value_states
            return self.keys, self.values
        if self._place is not None:
            assert self._buffers is not None
            for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
                buffer.index_copy_(2, self._place, states)
            return self._buffers
        old = self.keys.shape[-2]
        new = old + key_states.shape[-2]
        if self.capacity < new:
            self._rebuild(None, new + self._room)
        assert self._buffers is not None
        keys, values = self._buffers
        keys[:, :, old:new] = key_states
        values[:, :, old:new] = value_states
        self._view(new)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the given rows, in that order, repeats allowed; leave room for the tokens to come."""
        if self.is_initialized:
            self._rebuild(beam_idx, self.capacity or self.keys.shape[-2] + self._room)

    def fix_place(self, place: Tensor, capacity: int) -> None:
        """From now on write every token to ``place`` (int64, one entry, changed by the caller)."""
        if self.capacity < capacity:
            self._rebuild(None, capacity)
        self._place = place

    def free_place(self, length: int) -> None:
        """Go back to appending; ``length`` tokens are in the buffers."""
        self._place = None
        self._view(length)

    def _view(self, length: int) -> None:
        assert self._buffers is not None
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    def _rebuild(self, row_index: Tensor | None, capacity: int) -> None:
        length = self.keys.shape[-2]
        self._buffers = _enlarged(self.keys, row_index, capacity), _enlarged(self.values, row_index, capacity)
        self._view(length)


def _enlarged(part: Tensor, row_index: Tensor | None, capacity: int) -> Tensor:
    rows = part if row_index is None else part.index_select(0, row_index)
    # A multiple of 64 keeps attention masks aligned. Zeros, not empty: what is masked must still be finite.
    size = (*rows.shape[:2], -(-capacity // 64) * 64, rows.shape[3])
    buffer = torch.zeros(size, dtype=rows.dtype, device=rows.device)
    buffer[:, :, : rows.shape[2]] = rows
    return buffer


def new_cache(config: Any, room: int) -> tuple[DynamicCache, bool]:
    """Return an empty cache for a model, and whether all its layers attend to everything (no sliding window).

    Models with sliding windows or recurrent layers keep the layers that transformers gives them.
    """
    cache = DynamicCache(config=config)
    plain = len(cache.layers) > 0 and all(type(layer) is DynamicLayer for layer in cache.layers)
    if plain:
        cache.layers = [GrowingLayer(room) for _ in cache.layers]
    return cache, plain
