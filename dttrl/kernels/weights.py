"""The weights of a model as the kernels want them: bfloat16, matrices that share an input side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dttrl.kernels.architecture import Architecture


@dataclass(slots=True)
class LayerWeights:
    """One layer: matrices bfloat16 (out, in), norms float32."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: tuple[Tensor, Tensor] | None
    out: Tensor
    middle_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Weights:
    """Copies of a model's weights that keep their addresses; ``refresh`` takes the model's present values."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self.layers = [self._layer(layer) for layer in architecture.layers]
        self.norm = self._copy([architecture.norm.weight], torch.float32)
        self.head = self._copy([architecture.head.weight])
        self.embedding = architecture.embedding.weight
        self.refresh()

    @property
    def bytes(self) -> int:
        """Memory of the copies."""
        return sum(target.numel() * target.element_size() for target, _ in self._pairs)

    def refresh(self) -> None:
        """Copy all weights again (a cast and a copy, no allocation)."""
        torch._foreach_copy_([target for target, _ in self._pairs], [source for _, source in self._pairs])

    def stale(self) -> bool:
        """Say whether the model's parameters have been replaced or moved, not only changed."""
        return any(
            source.data_ptr() != parameter.data_ptr()
            for (_, source), parameter in zip(self._pairs, self._parameters(), strict=True)
        ) or (self.embedding.data_ptr() != self._architecture.embedding.weight.data_ptr())

    def _parameters(self) -> list[Tensor]:
        parameters: list[Tensor] = []
        for layer in self._architecture.layers:
            parameters += [tensor for group in parameter_groups(layer) for tensor in group]
        return [*parameters, self._architecture.norm.weight, self._architecture.head.weight]

    def _layer(self, layer: object) -> LayerWeights:
        norm, qkv, bias, heads, out, middle, gate_up, down = parameter_groups(layer)
        return LayerWeights(
            input_norm=self._copy(norm, torch.float32),
            qkv=self._copy(qkv),
            qkv_bias=self._copy(bias) if bias else None,
            head_norm=(self._copy(heads[:1], torch.float32), self._copy(heads[1:], torch.float32))
            if heads
            else None,
            out=self._copy(out),
            middle_norm=self._copy(middle, torch.float32),
            gate_up=self._copy(gate_up),
            down=self._copy(down),
        )

    def _copy(self, sources: list[Tensor], dtype: torch.dtype = torch.bfloat16) -> Tensor:
        first = sources[0].detach()
        rows = sum(source.shape[0] for source in sources)
        target = torch.empty(rows, *first.shape[1:], dtype=dtype, device=first.device)
        self._pairs += zip(
            target.split([source.shape[0] for source in sources]),
            [source.detach() for source in sources],
            strict=True,
        )
        return target


def parameter_groups(layer: object) -> list[list[Tensor]]:
    """Return the parameters of a layer, those that share a matrix together, in the order of the pairs."""
    attention, mlp = layer.self_attn, layer.mlp  # type: ignore[attr-defined]
    inputs = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [
        [layer.input_layernorm.weight],  # type: ignore[attr-defined]
        [linear.weight for linear in inputs],
        [linear.bias for linear in inputs if linear.bias is not None],
        [attention.q_norm.weight, attention.k_norm.weight] if hasattr(attention, "q_norm") else [],
        [attention.o_proj.weight],
        [layer.post_attention_layernorm.weight],  # type: ignore[attr-defined]
        [mlp.gate_proj.weight, mlp.up_proj.weight],
        [mlp.down_proj.weight],
    ]
