r"""The GRPO objective with a k3 KL penalty, as a loss over tensors (eq:igrpo-objective).

For a mini-batch of J rollouts, each a mean over its own tokens (sequence mean, not token mean):

.. math:: L = -\frac 1 J \sum_j \frac{1}{|o_j|} \sum_t \Big[ \min\big(r_{jt} A'_j,\;
          \mathrm{clip}(r_{jt}, 1 - \epsilon, 1 + \epsilon) A'_j\big) - \beta \, \hat D_{KL}^{jt} \Big]

A' already carries the diversity weight. As the number of trained rollouts is the same for each question,
the mean over rollouts is the objective's mean over questions of the mean over rollouts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class GrpoLoss(NamedTuple):
    """Loss (a scalar with a graph) and detached sums over the rollouts of the micro-batch."""

    loss: Tensor
    kl_sum: Tensor
    """Sum over rollouts of the token mean of the KL estimate, in nats a token."""
    clip_sum: Tensor
    """Sum over rollouts of the share of tokens whose ratio was clipped against the advantage's sign."""


def selected_log_probs(logits_NTV: Tensor, token_NT: Tensor, *, temperature: float) -> Tensor:
    """Return log p of the chosen tokens under the sampling temperature, float32 (N, T) with a graph.

    The policy that is optimised is the one that was sampled from, hence the temperature (as in TTRL's code).
    """
    scaled_NTV = logits_NTV.float() / temperature if temperature != 1.0 else logits_NTV.float()
    chosen_NT = scaled_NTV.gather(-1, token_NT.unsqueeze(-1)).squeeze(-1)
    return chosen_NT - scaled_NTV.logsumexp(-1)


def kl_k3(logp_NT: Tensor, ref_logp_NT: Tensor) -> Tensor:
    """Return the k3 estimate of KL(policy || reference) a token: ``exp(d) - 1 - d``, d = ref - policy.

    Never negative, unbiased under the policy's own samples (Schulman, "Approximating KL divergence").
    The exponent is bounded so that one impossible token cannot make the loss infinite.
    """
    d_NT = (ref_logp_NT - logp_NT).clamp(-20.0, 20.0)
    return d_NT.expm1() - d_NT


def grpo_loss(
    logp_NT: Tensor,
    old_logp_NT: Tensor,
    advantage_N: Tensor,
    mask_NT: Tensor,
    *,
    n_rollouts: int,
    clip_epsilon: float = 0.2,
    ref_logp_NT: Tensor | None = None,
    beta: float = 0.0,
) -> GrpoLoss:
    """Return the loss of a micro-batch whose mini-batch has ``n_rollouts`` rollouts in all.

    Summing the losses of the micro-batches gives the mini-batch's loss, however it was cut. ``mask_NT`` is 1
    on completion tokens (N rollouts, T positions); a rollout without a token counts zero.
    """
    mask_NT = mask_NT.to(logp_NT.dtype)
    advantage_N1 = advantage_N.to(logp_NT.dtype).unsqueeze(1)
    # The difference is masked before exp: padding positions may hold anything, inf included.
    # A ratio of e^20 is as clipped as an infinite one, and has a finite gradient.
    difference_NT = (logp_NT - old_logp_NT).masked_fill(mask_NT == 0, 0.0).clamp(-20.0, 20.0)
    ratio_NT = difference_NT.exp()
    free_NT = ratio_NT * advantage_N1
    clipped_NT = ratio_NT.clamp(1 - clip_epsilon, 1 + clip_epsilon) * advantage_N1
    term_NT = free_NT.minimum(clipped_NT)
    length_N = mask_NT.sum(1).clamp(min=1.0)
    kl_N = logp_NT.new_zeros(logp_NT.shape[0])
    if ref_logp_NT is not None:
        masked_ref_NT = ref_logp_NT.masked_fill(mask_NT == 0, 0.0)
        kl_NT = kl_k3(logp_NT.masked_fill(mask_NT == 0, 0.0), masked_ref_NT)
        kl_N = (kl_NT * mask_NT).sum(1) / length_N
    surrogate_N = (term_NT * mask_NT).sum(1) / length_N
    loss = -(surrogate_N - beta * kl_N).sum() / n_rollouts
    clip_N = ((clipped_NT < free_NT).to(mask_NT.dtype) * mask_NT).sum(1) / length_N
    return GrpoLoss(loss, kl_N.detach().sum(), clip_N.detach().sum())
