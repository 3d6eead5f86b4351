"""The policy: a causal language model that is sampled from and updated in process, on one device.

Weights are float32; on a GPU the arithmetic runs under autocast in bfloat16. The model stays in evaluation
mode throughout: dropout would make the probability ratio of an unchanged policy differ from 1.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dttrl.errors import WorkError
from dttrl.kernels.architecture import Architecture, fusable
from dttrl.kernels.log_probs import selected_log_probs_chunked
from dttrl.method.objective import grpo_loss, selected_log_probs
from dttrl.settings.sections import Update
from dttrl.training.micro_batches import MicroBatch, TrainingRow, pack

if TYPE_CHECKING:
    from dttrl.kernels.shadow import Shadow

__all__ = ["Policy", "TrainingRow", "UpdateStatistics"]


class UpdateStatistics(NamedTuple):
    """Means over the rollouts (loss, kl, clip_fraction) and mini-batches (grad_norm) of one step."""

    loss: float
    kl: float
    clip_fraction: float
    grad_norm: float
    n_updates: int
    """Optimizer steps; a mini-batch whose advantages are all zero makes none."""
    n_rollouts: int


class Policy:
    """A model, its optimizer and (for a KL penalty) the frozen model it started from.

    ``temperature`` is that of the sampling, whose probabilities the update compares with.

    ``fused`` says whether kernels of our own may compute the log-probabilities: on CUDA with Triton, in
    bfloat16, for the models they know.
    """

    def __init__(
        self,
        model: Any,
        settings: Update,
        *,
        temperature: float,
        pad_id: int,
        reference: Any | None = None,
        autocast_dtype: torch.dtype | None = None,
        fused: bool = True,
    ) -> None:
        self.model = model.eval()
        self.reference = None if reference is None else reference.eval().requires_grad_(False)
        self.settings = settings
        self.temperature = temperature
        self.device = next(model.parameters()).device
        self.autocast_dtype = autocast_dtype
        self._pad_id = pad_id
        self._architectures: dict[int, Architecture] = {}
        self._shadows: dict[int, Shadow] = {}
        if fused and self.device.type == "cuda":
            self._take_apart()
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=0.0,
            weight_decay=settings.weight_decay,
            fused=self.device.type == "cuda",
        )

    def update(
        self,
        questions: Sequence[Sequence[TrainingRow]],
        *,
        learning_rate: float,
        progress: Callable[[int, int], None] | None = None,
    ) -> UpdateStatistics:
        """Take one optimizer step per mini-batch of questions (eq:igrpo-objective).

        The old log-probabilities are those of the policy that sampled, so they are taken before the first
        step. A mini-batch in which every advantage is zero is skipped: its gradient is zero, and neither
        the optimizer's momentum nor the KL term should move the policy on a question that taught nothing.
        """
        # An update that was interrupted leaves copies of weights that may have changed since.
        self._shadows.clear()
        size = self.settings.questions_per_update
        mini_batches = [
            [row for rows in questions[i : i + size] for row in rows] for i in range(0, len(questions), size)
        ]
        mini_batches = [rows for rows in mini_batches if any(row.advantage != 0 for row in rows)]
        packed = [self._pack(rows) for rows in mini_batches]
        old: list[Sequence[Tensor | None]] = [
            # Before the first step the policy is the one that sampled: its own serve as the old ones.
            [None] * len(batches)
            if self._architectures and index == 0
            else [self._frozen_log_probs(self.model, batch) for batch in batches]
            for index, batches in enumerate(packed)
        ]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        totals = np.zeros(3)
        norms = []
        for index, (rows, batches, old_log_probs) in enumerate(
            zip(mini_batches, packed, old, strict=True), start=1
        ):
            sums, norm = self._step(batches, old_log_probs, n_rollouts=len(rows))
            totals += sums
            norms.append(norm)
            if progress is not None:
                progress(index, len(mini_batches))
        # Copies of the weights take memory that sampling needs, and are made anew in milliseconds.
        self._shadows.clear()
        n_rollouts = sum(len(rows) for rows in mini_batches)
        loss = totals[0] / max(len(mini_batches), 1)
        kl, clipped = totals[1:] / max(n_rollouts, 1)
        norm = float(np.mean(norms)) if norms else 0.0
        return UpdateStatistics(float(loss), float(kl), float(clipped), norm, len(norms), n_rollouts)

    def _step(
        self, batches: Sequence[MicroBatch], old: Sequence[Tensor | None], *, n_rollouts: int
    ) -> tuple[NDArray[np.float64], float]:
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for batch, old_NT in zip(batches, old, strict=True):
            reference_NT = None
            if self.reference is not None:
                reference_NT = self._frozen_log_probs(self.reference, batch)
            logp_NT = self._log_probs(self.model, batch)
            result = grpo_loss(
                logp_NT,
                logp_NT.detach() if old_NT is None else old_NT,
                batch.advantage_N,
                batch.mask_NT,
                n_rollouts=n_rollouts,
                clip_epsilon=self.settings.clip_epsilon,
                ref_logp_NT=reference_NT,
                beta=self.settings.beta,
            )
            result.loss.backward()
            sums += torch.stack([result.loss.detach(), result.kl_sum, result.clip_sum]).double()
        shadow = self._shadows.get(id(self.model))
        if shadow is not None:
            shadow.deliver()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
        if not math.isfinite(norm):
            raise WorkError(
                f"the gradient is {norm}: start another run with a lower --learning-rate, "
                "or with --dtype float32"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if shadow is not None:
            shadow.weights.refresh()
        return sums.cpu().numpy(), norm

    def _frozen_log_probs(self, model: Any, batch: MicroBatch) -> Tensor:
        with torch.no_grad():
            return self._log_probs(model, batch)

    def _log_probs(self, model: Any, batch: MicroBatch) -> Tensor:
        """Log-probabilities of the completion's tokens at the sampling temperature, float32 (N, T)."""
        if batch.state_M is not None:
            return self._fused_log_probs(model, batch)
        cast = self.autocast_dtype
        with torch.autocast(self.device.type, dtype=cast) if cast else contextlib.nullcontext():
            logits_NTV = model(
                input_ids=batch.ids_NL,
                attention_mask=batch.attention_NL,
                position_ids=batch.position_NL,
                use_cache=False,
                logits_to_keep=batch.token_NT.shape[1] + 1,
            ).logits[:, :-1]
        return selected_log_probs(logits_NTV, batch.token_NT, temperature=self.temperature)

    def _fused_log_probs(self, model: Any, batch: MicroBatch) -> Tensor:
        from dttrl.kernels.update_forward import hidden_states

        shadow = self._shadow(model)
        # Triton launches on the current device, whatever device the tensors are on.
        with torch.cuda.device(self.device):
            states_MH = hidden_states(shadow, batch.ids_NL).index_select(0, batch.state_M)
            logp_M = selected_log_probs_chunked(
                states_MH,
                shadow.architecture.head.weight,
                batch.token_NT.reshape(-1)[batch.cell_M],
                temperature=self.temperature,
            )
        flat = logp_M.new_zeros(batch.token_NT.numel()).index_copy(0, batch.cell_M, logp_M)
        return flat.view(batch.token_NT.shape)

    def _shadow(self, model: Any) -> Shadow:
        from dttrl.kernels.shadow import Shadow

        if id(model) not in self._shadows:
            self._shadows[id(model)] = Shadow(self._architectures[id(model)])
        return self._shadows[id(model)]

    def _take_apart(self) -> None:
        """Find the parts of the policy and its reference, if the kernels can compute both."""
        models = [model for model in (self.model, self.reference) if model is not None]
        found = {id(model): fusable(model, self.autocast_dtype) for model in models}
        known = {key: part for key, part in found.items() if part is not None and not part.head_norm}
        if len(known) == len(models):
            self._architectures = known

    def _pack(self, rows: Sequence[TrainingRow]) -> list[MicroBatch]:
        return pack(
            rows,
            most_tokens=self.settings.micro_batch_tokens,
            pad_id=self._pad_id,
            device=self.device,
            right=bool(self._architectures),
        )
