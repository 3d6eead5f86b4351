"""One question to a causal language model of transformers: the logits after the last token.

Hides what differs between versions and models: the name of the cache argument, which arguments ``forward``
knows, and which attention mask is cheapest.

For small models on a GPU launching the kernels of a step takes several times as long as running them; a graph
launches them all at once. Steps whose tensors keep their addresses allow it. Attention then runs over the
whole buffer, with a mask for what is not there yet.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from dttrl.sampling.cache import GROWTH, new_cache


class Forward:
    """Calls ``model`` for a batch of prompts, then token by token.

    ``prefill`` takes the questions' prompts once; ``select`` turns questions into rows (repeats allowed) and
    later drops rows; ``step`` feeds one token a row. Rows whose prompts were padded on the left keep their
    own positions. With ``static`` steps keep their tensors in place, where the model allows it (no sliding
    windows, PyTorch's attention), and on a CUDA device are replayed as a graph.
    """

    def __init__(self, model: Any, *, static: bool = False) -> None:
        self._model = model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._config = base.config
        known = inspect.signature(base.forward).parameters
        # Renamed in transformers 5.24; the old name stays accepted for a while, with a warning a call.
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        self._takes_positions = "position_ids" in known
        self._keep_last = {"logits_to_keep": 1} if "logits_to_keep" in known else {}
        self.device: torch.device = base.get_input_embeddings().weight.device
        self._own_mask = getattr(base.config.get_text_config(), "_attn_implementation", None) == "sdpa"
        self.static = static and self._own_mask and self._takes_positions
        self._steps: _StaticSteps | None = None

    def prefill(self, prompts: list[tuple[int, ...]], room: int) -> Tensor:
        """Return the float32 logits (questions, V) after each prompt, and remember the keys and values."""
        longest = max(map(len, prompts))
        self._cache, plain = new_cache(self._config, min(room, GROWTH))
        self._padded = any(len(prompt) != longest for prompt in prompts)
        self._own_mask, self.static = self._own_mask and plain, self.static and plain
        ids_QL = torch.zeros(len(prompts), longest, dtype=torch.long)
        seen_QL = torch.zeros(len(prompts), longest, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            ids_QL[row, longest - len(prompt) :] = torch.tensor(prompt)
            seen_QL[row, longest - len(prompt) :] = True
        if not self._padded:
            # One row of positions serves all, and no mask is needed at all.
            seen_QL = seen_QL[:1]
        self._length = longest
        self._seen_RC = seen_QL.to(self.device)
        position_QL = (self._seen_RC.cumsum(-1) - 1).clamp_(min=0)
        self._position_R1 = position_QL[:, -1:].clone()
        return self._call(ids_QL.to(self.device), position_QL, self._seen_RC if self._padded else None)

    def keys_and_values(self) -> list[tuple[Tensor, Tensor]]:
        """Return what prefill left: a layer (questions, heads, tokens, width) each, padded on the left."""
        return [(layer.keys, layer.values) for layer in self._cache.layers]

    def select(self, row_index: Tensor) -> None:
        """Continue with these rows of the batch, in this order."""
        self._end_static()
        self._cache.reorder_cache(row_index)
        if self._padded:
            self._position_R1 = self._position_R1.index_select(0, row_index)
            self._seen_RC = self._seen_RC.index_select(0, row_index)

    def step(self, token_R: Tensor) -> Tensor:
        """Feed one token a row; return the float32 logits (R, V) after it, good until the next step."""
        if self.static:
            if self._steps is None or self._length == self._steps.capacity:
                self._steps = self._new_steps(len(token_R))
            self._length += 1
            return self._steps.step(token_R)
        self._length += 1
        self._position_R1 = self._position_R1 + 1
        return self._call(token_R[:, None], self._position_R1, self._mask())

    def _new_steps(self, rows: int) -> _StaticSteps:
        self._end_static()
        capacity = max(self._cache.layers[0].capacity, self._length + 1)
        if capacity == self._length + 1:
            capacity = self._length + max(GROWTH, self._length // 4)
        return _StaticSteps(self, rows, capacity)

    def _end_static(self) -> None:
        if self._steps is not None:
            self._steps.end(self._length)
            self._steps = None

    def _mask(self) -> Tensor | None:
        if not self._padded:
            return None
        if self._seen_RC.shape[1] < self._length:
            more = torch.ones(self._seen_RC.shape[0], GROWTH, dtype=torch.bool, device=self.device)
            self._seen_RC = torch.cat([self._seen_RC, more], dim=1)
        mask = self._seen_RC[:, : self._length]
        # A mask of four axes is taken as it is; one of two axes is expanded by transformers, at a cost a
        # token.
        return mask[:, None, None, :] if self._own_mask else mask

    def _call(self, ids: Tensor, position: Tensor, mask: Tensor | None) -> Tensor:
        arguments: dict[str, Any] = {self._cache_name: self._cache, **self._keep_last}
        if self._takes_positions:
            arguments["position_ids"] = position
        output = self._model(
            input_ids=ids, attention_mask=mask, use_cache=True, return_dict=True, **arguments
        )
        logits: Tensor = output.logits[:, -1].float()
        return logits.to(self.device)


class _StaticSteps:
    """Steps of ``forward`` for a fixed set of rows, until ``capacity`` tokens are in the cache.

    The positions of ``forward`` are advanced in place by every step. The first step runs as usual (it warms
    everything up); the second is recorded, on a CUDA device; elsewhere all run as usual.
    """

    def __init__(self, forward: Forward, rows: int, capacity: int) -> None:
        device, length, seen_RL = forward.device, forward._length, forward._seen_RC
        self._call, self._layers = forward._call, forward._cache.layers
        self._position_R1 = forward._position_R1
        self._place = torch.tensor([length], device=device)
        for layer in self._layers:
            layer.fix_place(self._place, capacity)
        self.capacity: int = self._layers[0].capacity
        # Which of the tokens in the cache are padding; one row if none are.
        self._mask_R11C = torch.zeros(seen_RL.shape[0], 1, 1, self.capacity, dtype=torch.bool, device=device)
        self._mask_R11C[:, 0, 0, :length] = True
        self._mask_R11C[:, 0, 0, : seen_RL.shape[1]] = seen_RL
        self._token_R1 = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._wanted, self._warm = device.type == "cuda", False
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
