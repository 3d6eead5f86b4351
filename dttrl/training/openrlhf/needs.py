"""What a run at scale needs: memory of a GPU, rollouts and tokens, from the configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from dttrl.settings.commands import ScaleConfig
from dttrl.training.schedule import total_steps

_HALF = 2
"""Bytes of a weight and of a gradient: OpenRLHF trains in bfloat16 or float16."""
_ADAM = 12
"""Bytes of DeepSpeed's Adam for a parameter: its float32 copy and two float32 moments."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on one GPU, and counts over the whole run.

    Activations, the logits of a micro-batch and the libraries' own buffers come on top of the bytes.
    """

    parameters: int
    weights: float
    gradients: float
    adam: float
    reference: float
    vllm_weights: float
    vllm_share: float
    steps: int
    rollouts: int
    trained: int
    evaluation_rollouts: int
    most_tokens: int

    @property
    def training(self) -> float:
        """Bytes that training holds on one GPU while vLLM sleeps."""
        return self.weights + self.gradients + self.adam + self.reference


def needs(config: ScaleConfig, parameters: int, questions: int, answered: int) -> Needs:
    """Return what a run of a model with ``parameters`` on ``questions`` needs.

    ZeRO divides over all GPUs the Adam states from stage 1, the gradients from stage 2, and the weights of
    the policy and the reference at stage 3. ``vllm_share`` is the share of a GPU that vLLM takes while
    training sleeps; ``vllm_weights`` lies within it. ``answered`` counts the questions of all splits with
    gold answers: those are evaluated. ``most_tokens`` has every rollout at full length.
    """
    gpus, stage = config.engine.world, config.engine.zero_stage
    weights = parameters * _HALF / (gpus if stage == 3 else 1)
    steps = total_steps(config.update, questions)
    batch = min(config.update.questions_per_step, questions)
    evaluations = sum(config.evaluation.due(step, steps) for step in range(steps + 1))
    evaluated = evaluations * answered * config.evaluation.samples
    rollouts = steps * batch * config.signal.votes
    return Needs(
        parameters=parameters,
        weights=weights,
        gradients=parameters * _HALF / (gpus if stage >= 2 else 1),
        adam=parameters * _ADAM / (gpus if stage >= 1 else 1),
        reference=weights if config.update.beta else 0.0,
        vllm_weights=parameters * _HALF / config.engine.tensor_parallel,
        vllm_share=config.engine.gpu_memory_utilization,
        steps=steps,
        rollouts=rollouts,
        trained=steps * batch * config.signal.train_samples,
        evaluation_rollouts=evaluated,
        most_tokens=(rollouts + evaluated) * config.sampling.max_new_tokens,
    )


def count_parameters(place: str, *, revision: str | None = None, trust_remote_code: bool = False) -> int:
    """Return how many parameters the model of a folder or hub id has, from its configuration alone.

    Tied weights count once. Nothing but the configuration is read: the model is built without memory.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {"trust_remote_code": trust_remote_code}
    config = AutoConfig.from_pretrained(place, revision=revision, **options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, **options)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())
