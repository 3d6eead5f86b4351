"""Log-probabilities of chosen tokens from hidden states, a chunk of tokens at a time.

The logits of a step (tokens times vocabulary) are the largest tensor of an update by far; here a chunk of
them stands at a time, and the backward pass computes each chunk again: one more product with the output
matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dttrl.kernels.architecture import triton_installed

# Logits that stand at a time: 512 MiB in bfloat16.
_LOGITS = 2**28


def selected_log_probs_chunked(
    hidden_MH: Tensor, weight_VH: Tensor, token_M: Tensor, *, temperature: float, chunk: int | None = None
) -> Tensor:
    """Return log p of ``token_M`` under ``softmax(hidden @ weight.T / temperature)``, with a graph.

    ``weight_VH`` is cast to the dtype of ``hidden_MH`` for the products; its gradient has its own dtype and
    is summed over chunks in at least float32. Returns float32 (M,), or float64 for float64 states.
    """
    if chunk is None:
        chunk = max(_LOGITS // weight_VH.shape[0], 1)
    return _Selected.apply(hidden_MH, weight_VH, token_M, 1.0 / temperature, chunk)


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_MH: Tensor, weight_VH: Tensor, token_M: Tensor, inverse: float, chunk: int
    ) -> Tensor:
        cast_VH = weight_VH.to(hidden_MH.dtype)
        kind = torch.promote_types(hidden_MH.dtype, torch.float32)
        chosen_M = torch.empty(len(token_M), dtype=kind, device=hidden_MH.device)
        log_sum_M = torch.empty_like(chosen_M)
        for start in range(0, len(token_M), chunk):
            part = slice(start, start + chunk)
            logits_CV = hidden_MH[part] @ cast_VH.T
            _select(logits_CV, token_M[part], chosen_M[part], log_sum_M[part], inverse)
        ctx.save_for_backward(hidden_MH, weight_VH, token_M, log_sum_M)
        ctx.inverse, ctx.chunk = inverse, chunk
        return chosen_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        hidden_MH, weight_VH, token_M, log_sum_M = ctx.saved_tensors
        cast_VH = weight_VH.to(hidden_MH.dtype)
        grad_M = grads[0].contiguous()
        grad_hidden = torch.empty_like(hidden_MH)
        kind = torch.promote_types(weight_VH.dtype, torch.float32)
        grad_weight = torch.zeros(weight_VH.shape, dtype=kind, device=weight_VH.device)
        for start in range(0, len(token_M), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits_CV = hidden_MH[part] @ cast_VH.T
            grad_CV = _unselect(logits_CV, token_M[part], log_sum_M[part], grad_M[part], ctx.inverse)
            torch.mm(grad_CV, cast_VH, out=grad_hidden[part])
            grad_weight += wide_product(grad_CV.T, hidden_MH[part], kind)
        return grad_hidden, grad_weight.to(weight_VH.dtype), None, None, None


def wide_product(a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    """Return ``a @ b`` in ``kind``, without rounding to the factors' dtype on the way where that can be."""
    if a.dtype == torch.bfloat16 and a.is_cuda:
        return torch.mm(a, b, out_dtype=kind)
    return (a @ b).to(kind)


def _select(logits_CV: Tensor, token_C: Tensor, chosen_C: Tensor, log_sum_C: Tensor, inverse: float) -> None:
    """Write the log-probabilities of the tokens and the log-sum-exp of the scaled logits."""
    if logits_CV.is_cuda and triton_installed():
        from dttrl.kernels.update_kernels import select_forward

        size = logits_CV.shape[1]
        select_forward[(len(token_C),)](
            logits_CV, token_C, chosen_C, log_sum_C, size, inverse, BLOCK=2048, num_warps=4
        )
        return
    scaled_CV = logits_CV.to(chosen_C.dtype) * inverse
    log_sum_C.copy_(scaled_CV.logsumexp(-1))
    chosen_C.copy_(scaled_CV.gather(-1, token_C[:, None])[:, 0] - log_sum_C)


def _unselect(
    logits_CV: Tensor, token_C: Tensor, log_sum_C: Tensor, grad_C: Tensor, inverse: float
) -> Tensor:
    """Return the gradient with respect to the logits; it may take their memory."""
    if logits_CV.is_cuda and triton_installed():
        from dttrl.kernels.update_kernels import select_backward

        rows, size = logits_CV.shape
        select_backward[(rows, -(-size // 4096))](
            logits_CV, token_C, log_sum_C, grad_C, size, inverse, BLOCK=4096, num_warps=4
        )
        return logits_CV
    grad_CV = (logits_CV.to(log_sum_C.dtype) * inverse - log_sum_C[:, None]).exp_().neg_()
    grad_CV.scatter_add_(1, token_C[:, None], torch.ones_like(grad_C)[:, None])
    return (grad_CV * (grad_C * inverse)[:, None]).to(logits_CV.dtype)
