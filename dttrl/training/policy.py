"""The policy: a causal language model that is sampled from and updated in process, on one device.

Weights are float32; on a GPU the arithmetic runs under autocast in bfloat16. The model stays in evaluation
mode throughout: dropout would make the probability ratio of an unchanged policy differ from 1.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dttrl.errors import WorkError
from dttrl.objective import grpo_loss, selected_log_probs


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One trained rollout: prompt and completion as token ids, and its weighted advantage."""

    prompt_ids: tuple[int, ...]
    token_ids: NDArray[np.int32]
    advantage: float


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """What an update needs to know; see the fields of the same names in ``TrainConfig``."""

    temperature: float = 1.0
    questions_per_update: int = 1
    micro_batch_tokens: int = 16384
    weight_decay: float = 0.01
    clip_epsilon: float = 0.2
    beta: float = 0.001
    max_grad_norm: float = 1.0


class UpdateStatistics(NamedTuple):
    """Means over the rollouts (loss, kl, clip_fraction) and mini-batches (grad_norm) of one step."""

    loss: float
    kl: float
    clip_fraction: float
    grad_norm: float
    n_updates: int
    """Optimizer steps; a mini-batch whose advantages are all zero makes none."""
    n_rollouts: int


class _MicroBatch(NamedTuple):
    ids_NL: Tensor
    attention_NL: Tensor | None
    position_NL: Tensor | None
    token_NT: Tensor
    mask_NT: Tensor
    advantage_N: Tensor


class Policy:
    """A model, its optimizer and (for a KL penalty) the frozen model it started from."""

    def __init__(
        self,
        model: Any,
        settings: UpdateSettings,
        *,
        pad_id: int,
        reference: Any | None = None,
        autocast_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model.eval()
        self.reference = None if reference is None else reference.eval().requires_grad_(False)
        self.settings = settings
        self.device = next(model.parameters()).device
        self.autocast_dtype = autocast_dtype
        self._pad_id = pad_id
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
        size = self.settings.questions_per_update
        mini_batches = [
            [row for rows in questions[i : i + size] for row in rows] for i in range(0, len(questions), size)
        ]
        mini_batches = [rows for rows in mini_batches if any(row.advantage != 0 for row in rows)]
        packed = [self._pack(rows) for rows in mini_batches]
        old = [[self._frozen_log_probs(self.model, batch) for batch in batches] for batches in packed]
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
        n_rollouts = sum(len(rows) for rows in mini_batches)
        loss = totals[0] / max(len(mini_batches), 1)
        kl, clipped = totals[1:] / max(n_rollouts, 1)
        norm = float(np.mean(norms)) if norms else 0.0
        return UpdateStatistics(float(loss), float(kl), float(clipped), norm, len(norms), n_rollouts)

    def _step(
        self, batches: Sequence[_MicroBatch], old: Sequence[Tensor], *, n_rollouts: int
    ) -> tuple[NDArray[np.float64], float]:
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for batch, old_NT in zip(batches, old, strict=True):
            reference_NT = None
            if self.reference is not None:
                reference_NT = self._frozen_log_probs(self.reference, batch)
            result = grpo_loss(
                self._log_probs(self.model, batch),
                old_NT,
                batch.advantage_N,
                batch.mask_NT,
                n_rollouts=n_rollouts,
                clip_epsilon=self.settings.clip_epsilon,
                ref_logp_NT=reference_NT,
                beta=self.settings.beta,
            )
            result.loss.backward()
            sums += torch.stack([result.loss.detach(), result.kl_sum, result.clip_sum]).double()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm))
        if not math.isfinite(norm):
            raise WorkError(
                f"the gradient is {norm}: start another run with a lower --learning-rate, "
                "or with --dtype float32"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sums.cpu().numpy(), norm

    def _frozen_log_probs(self, model: Any, batch: _MicroBatch) -> Tensor:
        with torch.no_grad():
            return self._log_probs(model, batch)

    def _log_probs(self, model: Any, batch: _MicroBatch) -> Tensor:
        """Log-probabilities of the completion's tokens at the sampling temperature, float32 (N, T)."""
        with self._autocast():
            logits_NTV = model(
                input_ids=batch.ids_NL,
                attention_mask=batch.attention_NL,
                position_ids=batch.position_NL,
                use_cache=False,
                logits_to_keep=batch.token_NT.shape[1] + 1,
            ).logits[:, :-1]
        return selected_log_probs(logits_NTV, batch.token_NT, temperature=self.settings.temperature)

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        if self.autocast_dtype is None:
            yield
        else:
            with torch.autocast(self.device.type, dtype=self.autocast_dtype):
                yield

    def _pack(self, rows: Sequence[TrainingRow]) -> list[_MicroBatch]:
        """Cut rows of similar length into micro-batches of at most ``micro_batch_tokens`` padded tokens."""
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i].token_ids), len(rows[i].prompt_ids), i))
        batches: list[_MicroBatch] = []
        waiting: list[TrainingRow] = []
        for row in (rows[i] for i in order):
            prompt = max(len(other.prompt_ids) for other in [*waiting, row])
            length = prompt + max(len(row.token_ids), 1)
            if waiting and (len(waiting) + 1) * length > self.settings.micro_batch_tokens:
                batches.append(self._pad(waiting))
                waiting = []
            waiting.append(row)
        if waiting:
            batches.append(self._pad(waiting))
        return batches

    def _pad(self, rows: Sequence[TrainingRow]) -> _MicroBatch:
        """Prompts are padded on the left and completions on the right, so that completions align."""
        prompt_len = max(len(row.prompt_ids) for row in rows)
        token_len = max(max(len(row.token_ids) for row in rows), 1)
        ids = np.full((len(rows), prompt_len + token_len), self._pad_id, dtype=np.int64)
        attention = np.ones_like(ids)
        mask = np.zeros((len(rows), token_len), dtype=np.float32)
        for i, row in enumerate(rows):
            gap = prompt_len - len(row.prompt_ids)
            ids[i, gap:prompt_len] = row.prompt_ids
            attention[i, :gap] = 0
            ids[i, prompt_len : prompt_len + len(row.token_ids)] = row.token_ids
            mask[i, : len(row.token_ids)] = 1
        ids_NL = torch.from_numpy(ids).to(self.device)
        attention_NL, position_NL = None, None
        # Padding on the right needs no mask under causal attention; only the left does.
        if not attention.all():
            attention_NL = torch.from_numpy(attention).to(self.device)
            position_NL = (attention_NL.cumsum(1) - 1).clamp(min=0)
        return _MicroBatch(
            ids_NL=ids_NL,
            attention_NL=attention_NL,
            position_NL=position_NL,
            token_NT=ids_NL[:, prompt_len:],
            mask_NT=torch.from_numpy(mask).to(self.device),
            advantage_N=torch.tensor([row.advantage for row in rows], device=self.device),
        )
