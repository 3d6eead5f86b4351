"""OpenRLHF's trainer with the method in it: subclasses of its generator, experience maker and trainer.

Imports OpenRLHF, so nothing imports this module but :mod:`dttrl.training.openrlhf.main`, in OpenRLHF's own
process. Its trainer runs the steps; ours gives it the questions of each step, votes over all their rollouts,
hands on those that are trained, and writes the run folder.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_trainer import PPOTrainer
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

from dttrl.training.evaluation import graded_questions
from dttrl.training.openrlhf.controller import Controller, Response
from dttrl.training.schedule import batch_indices

ADVANTAGE = "dttrl_advantage"
"""Key of ``Experience.info`` under which a rollout's advantage travels: it survives every regrouping."""

_STATUS = {
    "policy_loss": "loss",
    "kl": "kl",
    "ppo_clip_ratio": "clip_fraction",
    "actor_grad_norm": "grad_norm",
    "actor_lr": "learning_rate",
    "timing/make_experience": "seconds_experience",
    "timing/ppo_train": "seconds_update",
    "timing/broadcast": "seconds_broadcast",
}
"""OpenRLHF's name of a measurement, and the one that ``metrics.jsonl`` has for it."""


class StepGenerator(SamplesGenerator):
    """Samples the questions of each step in the order of the in-process engine.

    The order is a function of seed and step, so a resumed run needs no state of a data loader.
    """

    def attach(self, controller: Controller) -> None:
        """Take questions from ``controller``, from its first step on; :attr:`step` is the last one drawn."""
        self.controller = controller
        self.step = 0
        self.seconds = 0.0

    @torch.no_grad()
    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Any], None, int, bool]:
        """Return the next step's experiences, no pass rate, its questions, and whether it is the last."""
        if self.step >= self.controller.total:
            return [], None, 0, True
        self.step += 1
        config, questions = self.controller.config, self.controller.splits["train"]
        chosen = batch_indices(
            self.step, len(questions), config.update.questions_per_step, seed=config.sampling.seed
        )
        texts, labels = self.controller.rows([questions[i] for i in chosen])
        started = time.perf_counter()
        groups = self.responses(texts, labels, **generate_kwargs)
        self.seconds = time.perf_counter() - started
        experiences = []
        for response in (each for group in groups for each in group):
            experience = self._process_response_into_experience(response, **generate_kwargs)
            experience.response = response
            experiences.append(experience)
        return experiences, None, len(chosen), self.step >= self.controller.total

    def responses(
        self, prompts: Sequence[str], labels: Sequence[str], **generate_kwargs: Any
    ) -> list[list[Response]]:
        """Return what the executor returned for each prompt, in the order of the prompts."""
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        try:
            refs = self._dispatch_prompts_to_vllm(list(prompts), list(labels), **generate_kwargs)
            found: list[list[Response]] = ray.get(refs)
        finally:
            if self.args.vllm.enable_sleep:
                batch_vllm_engine_call(self.vllm_engines, "sleep")
        return found


class SignalExperienceMaker(RemoteExperienceMaker):
    """Takes advantages as they come with the rollouts, where OpenRLHF would compute them from rewards.

    Its ``group_norm`` divides by an unbiased deviation without a guard for equal rewards; the paper's
    population deviation, the guard and the diversity weight are in :mod:`dttrl.method.advantages`.
    """

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Spread each rollout's advantage over its tokens (eq:weighted-advantage)."""
        for experience in experiences:
            advantage_N = experience.info[ADVANTAGE].to(torch.float32)
            mask_NT = experience.action_mask.to(torch.float32)
            experience.advantages = advantage_N[:, None] * mask_NT
            experience.returns = experience.advantages.clone()
            experience.info["return"] = advantage_N
            experience.kl = None
        return experiences


class SignalTrainer(PPOTrainer.__ray_metadata__.modified_class):
    """OpenRLHF's PPO trainer, whose steps go through the controller of the run folder ``run``.

    ``run`` is set by a subclass (Ray hands the class itself to the trainer's process).
    """

    run: str
    version: str

    def __init__(self, pretrain: str, strategy: Any, *groups: Any, **generate_kwargs: Any) -> None:
        super().__init__(pretrain, strategy, *groups, **generate_kwargs)
        self.controller = Controller(Path(self.run), backend_version=self.version)
        self.samples_generator = StepGenerator(
            strategy=strategy,
            prompts_dataloader=self.prompts_dataloader,
            eval_dataloader=None,
            tokenizer=self.tokenizer,
            vllm_engines=self.vllm_engines,
        )
        self.samples_generator.attach(self.controller)
        self.experience_maker = SignalExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            strategy,
            self.tokenizer,
        )
        # Theirs counts all rollouts that vote; the learning rate must follow the updates that are made.
        update = self.controller.config.update
        updates = update.questions_per_step // update.questions_per_update
        self.max_steps = self.controller.total * updates

    def init_checkpoint_states(self) -> dict[str, Any]:
        """Return OpenRLHF's states, with the run folder cut back to their step."""
        states: dict[str, Any] = super().init_checkpoint_states()
        step = int(states["global_step"])
        self.controller.start(step)
        self.samples_generator.step = step
        if not step:
            self.assess(0)
        return states | {"data_loader_state_dict": {}}

    def fit(self, global_step: int = 0) -> None:
        """Run all steps."""
        try:
            super().fit(global_step)
        finally:
            self.controller.close()

    def train_step(self, rollout_samples: list[Any], global_step: int) -> tuple[dict[str, Any], int]:
        """Vote over all rollouts of the step, then let OpenRLHF train on the selected ones."""
        trained = self.controller.label(
            global_step + 1,
            [sample.labels[0] for sample in rollout_samples],
            [sample.response for sample in rollout_samples],
        )
        status, step = super().train_step(trained_experiences(rollout_samples, trained), global_step)
        named = {ours: float(status[theirs]) for theirs, ours in _STATUS.items() if theirs in status}
        self.controller.finish({**named, "seconds_sample": self.samples_generator.seconds})
        return status, step

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: Any = None, client_states: Any = None
    ) -> None:
        """Evaluate and save the records first, so that no checkpoint knows of a step that they lack."""
        if self.controller.config.evaluation.due(global_step, self.controller.total):
            self.assess(global_step)
        if global_step % self.args.ckpt.save_steps == 0:
            self.controller.save(global_step)
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)

    def assess(self, step: int) -> None:
        """Evaluate the policy on every split that has gold answers: avg@n and maj@n."""
        evaluation = self.controller.config.evaluation
        settings = {
            **self.generate_kwargs,
            "temperature": evaluation.temperature,
            "top_p": evaluation.top_p,
            "n_samples_per_prompt": evaluation.samples,
        }
        for split, questions in graded_questions(self.controller.splits).items():
            groups = self.samples_generator.responses(*self.controller.rows(questions), **settings)
            self.controller.evaluated(step, split, questions, groups)


def trained_experiences(rollout_samples: Sequence[Any], trained: Sequence[Any]) -> list[Experience]:
    """Return the selected experiences with their rewards, and their advantages in ``info``."""
    chosen = []
    for place, reward, advantage in trained:
        experience = rollout_samples[place]
        experience.rewards = torch.tensor([reward], dtype=torch.float32)
        experience.scores = experience.rewards
        experience.info["reward"] = experience.info["score"] = experience.rewards
        experience.info[ADVANTAGE] = torch.tensor([advantage], dtype=torch.float64)
        chosen.append(experience)
    return chosen


def trainer_for(run: Path, version: str) -> Any:
    """Return the Ray actor class that trains the run in ``run``."""
    bound = type("BoundSignalTrainer", (SignalTrainer,), {"run": str(run), "version": version})
    return ray.remote(bound)
