"""A model's matrices in bfloat16 for a training pass, and the sums of their gradients in float32.

Casting the weights for every micro-batch and letting autograd cast each gradient back costs more launches
than the model itself. Here the cast is made once an optimizer step, matrices that share an input lie side by
side, and gradients are added up in float32 buffers of which each parameter's gradient is a part.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dttrl.kernels.architecture import Architecture
from dttrl.kernels.log_probs import wide_product
from dttrl.kernels.weights import Weights, parameter_groups


class Shadow:
    """The copies, and what the backward passes since the last ``deliver`` have added up."""

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.weights = Weights(architecture)
        self._sums: dict[int, Tensor] = {}

    def linear(self, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """Return the product with a matrix of ``weights``; its gradient goes to the sums."""
        return _Product.apply(x_TI, weight_OI, bias_O, self)

    def add(self, copy: Tensor, grad: Tensor) -> None:
        """Add the gradient (float32) of one copy; the first becomes the sum."""
        old = self._sums.get(id(copy))
        if old is None:
            self._sums[id(copy)] = grad
        else:
            old.add_(grad)

    def deliver(self) -> None:
        """Make the sums the gradients of the parameters, and start new ones."""
        for copies, layer in zip(self.weights.layers, self.architecture.layers, strict=True):
            _, qkv, bias, _, out, _, gate_up, down = parameter_groups(layer)
            for copy, parameters in (
                (copies.qkv, qkv),
                (copies.qkv_bias, bias),
                (copies.out, out),
                (copies.gate_up, gate_up),
                (copies.down, down),
            ):
                total = self._sums.pop(id(copy), None)
                if total is not None:
                    _give(parameters, total)


def _give(parameters: list[Tensor], total: Tensor) -> None:
    parts = total.split([parameter.shape[0] for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        if parameter.requires_grad:
            parameter.grad = part.to(parameter.dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, shadow: Shadow) -> Tensor:
        # Not save_for_backward for the matrix: after an optimizer step the copy changes in place.
        ctx.save_for_backward(x_TI)
        ctx.weight, ctx.bias, ctx.shadow = weight_OI, bias_O, shadow
        return F.linear(x_TI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (x_TI,) = ctx.saved_tensors
        grad_TO = grads[0].contiguous()
        ctx.shadow.add(ctx.weight, wide_product(grad_TO.T, x_TI, torch.float32))
        if ctx.bias is not None:
            ctx.shadow.add(ctx.bias, grad_TO.sum(0, dtype=torch.float32))
        return grad_TO @ ctx.weight, None, None, None
