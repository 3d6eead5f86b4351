"""From a run's configuration and questions to what OpenRLHF (0.11) is started with: flags and prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dttrl.data.questions import Question
from dttrl.errors import InputError
from dttrl.settings.commands import ScaleConfig
from dttrl.training.run_folder import replace_text

INPUT_KEY, LABEL_KEY = "input", "label"
EXECUTOR = Path(__file__).with_name("executor.py")
MAX_K = 20
"""Entries that OpenRLHF's vLLM engines give: vLLM's own default, which OpenRLHF does not change."""

_SCHEDULES = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}


@dataclass(frozen=True, slots=True)
class Places:
    """Where the model comes from and what OpenRLHF reads and writes; ``longest`` prompt in tokens."""

    model: str
    dataset: Path
    checkpoints: Path
    output: Path
    longest: int


class Flag(NamedTuple):
    """One of our fields as OpenRLHF's flags: a value, None for a flag alone, or False to leave it out."""

    ours: str
    theirs: str
    value: Callable[[ScaleConfig, Places], object]
    paper: str = ""


def micro_batch(config: ScaleConfig) -> int:
    """Return the largest micro-batch up to the configured one that fits a GPU's share of a mini-batch."""
    share = config.signal.train_samples * config.update.questions_per_update // config.engine.world
    return next(size for size in range(min(config.engine.micro_batch, share), 0, -1) if share % size == 0)


_alone = None

TABLE: tuple[Flag, ...] = (
    Flag("model", "--actor.model_name_or_path", lambda c, p: p.model),
    Flag("questions", "--data.prompt_dataset", lambda c, p: p.dataset),
    Flag("", "--data.input_key", lambda c, p: INPUT_KEY),
    Flag("", "--data.label_key", lambda c, p: LABEL_KEY),
    Flag("max_new_tokens", "--rollout.max_new_tokens", lambda c, p: c.sampling.max_new_tokens, "3072"),
    Flag("max_new_tokens", "--data.max_len", lambda c, p: p.longest + c.sampling.max_new_tokens),
    Flag("votes", "--rollout.n_samples_per_prompt", lambda c, p: c.signal.votes, "64"),
    Flag("questions_per_step", "--rollout.batch_size", lambda c, p: c.update.questions_per_step, "8"),
    Flag("micro_batch", "--rollout.micro_batch_size", lambda c, p: micro_batch(c)),
    Flag("temperature", "--rollout.temperature", lambda c, p: c.sampling.temperature, "1.0 or 0.6"),
    Flag("top_p", "--rollout.top_p", lambda c, p: c.sampling.top_p),
    Flag(
        "train_samples, questions_per_update",
        "--train.batch_size",
        lambda c, p: c.signal.train_samples * c.update.questions_per_update,
        "32",
    ),
    Flag("micro_batch", "--train.micro_batch_size", lambda c, p: micro_batch(c)),
    Flag("steps, episodes", "--train.num_episodes", lambda c, p: 1),
    Flag("", "--train.max_epochs", lambda c, p: 1, "1"),
    Flag("seed", "--train.seed", lambda c, p: c.sampling.seed),
    Flag("", "--train.agent_func_path", lambda c, p: EXECUTOR),
    Flag("learning_rate", "--actor.adam.lr", lambda c, p: c.update.learning_rate, "5e-7"),
    Flag("weight_decay", "--actor.adam.weight_decay", lambda c, p: c.update.weight_decay),
    Flag("schedule", "--actor.lr_scheduler", lambda c, p: _SCHEDULES[c.update.schedule], "cosine"),
    Flag("warmup", "--actor.lr_warmup_ratio", lambda c, p: c.update.warmup, "0.03"),
    Flag("max_grad_norm", "--actor.max_norm", lambda c, p: c.update.max_grad_norm),
    Flag("clip_epsilon", "--actor.eps_clip", lambda c, p: c.update.clip_epsilon, "0.2"),
    Flag(
        "", "--actor.loss_agg_mode", lambda c, p: "seq-mean-token-mean", "mean over rollouts of token means"
    ),
    Flag("method", "--algo.advantage.estimator", lambda c, p: "group_norm", "advantages are set by dttrl"),
    Flag("beta", "--algo.kl.init_coef", lambda c, p: c.update.beta, "0.001"),
    Flag("beta", "--algo.kl.estimator", lambda c, p: "k3" if c.update.beta else False, "k3"),
    Flag("beta", "--algo.kl.use_loss", lambda c, p: _alone if c.update.beta else False, "in the loss"),
    Flag("gpus", "--actor.num_gpus_per_node", lambda c, p: c.engine.gpus),
    Flag("nodes", "--actor.num_nodes", lambda c, p: c.engine.nodes),
    Flag("gpus", "--ref.num_gpus_per_node", lambda c, p: c.engine.gpus),
    Flag("nodes", "--ref.num_nodes", lambda c, p: c.engine.nodes),
    Flag("gpus, nodes", "--vllm.num_engines", lambda c, p: c.engine.world // c.engine.tensor_parallel),
    Flag("tensor_parallel", "--vllm.tensor_parallel_size", lambda c, p: c.engine.tensor_parallel),
    Flag(
        "gpu_memory_utilization",
        "--vllm.gpu_memory_utilization",
        lambda c, p: c.engine.gpu_memory_utilization,
    ),
    Flag("", "--vllm.sync_backend", lambda c, p: "nccl"),
    Flag("", "--vllm.enable_sleep", lambda c, p: _alone),
    Flag("", "--train.colocate_all", lambda c, p: _alone),
    Flag("", "--ds.enable_sleep", lambda c, p: _alone),
    Flag("zero_stage", "--ds.zero_stage", lambda c, p: c.engine.zero_stage),
    Flag("dtype", "--ds.param_dtype", lambda c, p: {"float16": "fp16"}.get(c.model.dtype, "bf16")),
    Flag("", "--ds.attn_implementation", lambda c, p: "sdpa"),
    Flag("checkpoint_every", "--ckpt.save_steps", lambda c, p: c.keeping.checkpoint_every or -1),
    Flag("run", "--ckpt.path", lambda c, p: p.checkpoints),
    Flag("run", "--ckpt.output_dir", lambda c, p: p.output),
    Flag("", "--ckpt.load_enable", lambda c, p: _alone),
)
"""Our fields, their flags and the paper's values; docs/openrlhf.md shows the same table."""

# May be given after ``--`` although they stand in the table: choices of the machine, not of the method.
_FREE = frozenset({"--ds.attn_implementation", "--vllm.sync_backend"})


def openrlhf_flags(config: ScaleConfig, places: Places, extra: Sequence[str] = ()) -> list[str]:
    """Return OpenRLHF's command-line arguments; ``extra`` follows at the end.

    InputError for settings that OpenRLHF cannot follow, and for an extra flag that the table sets already.
    """
    _check(config, places.model)
    given = {argument.split("=", 1)[0] for argument in extra if argument.startswith("--")}
    flags: list[str] = []
    for flag in TABLE:
        if flag.theirs in given and flag.theirs in _FREE:
            continue
        if flag.theirs in given:
            instead = (
                f"set it with --{flag.ours.split(',')[0].replace('_', '-')}" if flag.ours else "leave it out"
            )
            raise InputError(f"{flag.theirs} after -- is already set by dttrl; {instead}")
        value = flag.value(config, places)
        if value is not False:
            flags += [flag.theirs] if value is _alone else [flag.theirs, str(value)]
    return flags + list(extra)


def _check(config: ScaleConfig, model: str) -> None:
    """Raise for what OpenRLHF cannot follow, or would follow less safely than asked."""
    _check_code(config, Path(model))
    sampling, engine = config.sampling, config.engine
    share = config.signal.train_samples * config.update.questions_per_update
    problems = {
        f"--k {sampling.k}: OpenRLHF's vLLM engines give at most {MAX_K} log-probabilities": (
            sampling.k > MAX_K
        ),
        "--top-k: OpenRLHF samples from all tokens; leave it at 0": sampling.top_k > 0,
        "--stop: OpenRLHF has no stop strings; leave it out": bool(sampling.stop),
        f"--tensor-parallel {engine.tensor_parallel}: must divide the {engine.world} GPUs": bool(
            engine.world % engine.tensor_parallel
        ),
        f"--gpus {engine.gpus} x --nodes {engine.nodes}: must divide the {share} rollouts of a mini-batch "
        "(--train-samples x --questions-per-update)": bool(share % engine.world),
        "--measure self-certainty: needs the whole vocabulary, OpenRLHF's engines give the k likeliest": (
            config.scoring.measure == "self-certainty"
        ),
    }
    for problem, wrong in problems.items():
        if wrong:
            raise InputError(problem)


def _check_code(config: ScaleConfig, model: Path) -> None:
    """Raise for a model that may bring code: OpenRLHF loads every model with trust_remote_code on."""
    if config.model.trust_remote_code:
        return
    if not model.is_dir():
        raise InputError(
            f"{config.model.name}: OpenRLHF runs code that a hub repository ships; add --trust-remote-code, "
            "or download the model and give its folder"
        )
    for name in ("config.json", "tokenizer_config.json"):
        if (path := model / name).is_file() and "auto_map" in json.loads(path.read_text(encoding="utf-8")):
            raise InputError(
                f"{path}: names code in auto_map, which OpenRLHF would run; add --trust-remote-code"
            )


def prompt_row(question: Question, prompt_ids: Sequence[int], k: int) -> tuple[str, str]:
    """Return what OpenRLHF carries through a rollout: the question's text, and a label that names it.

    The label is JSON: OpenRLHF passes it to the executor and gives it back with the rollout, unread. Gold
    answers are not in it.
    """
    return question.prompt, json.dumps({"id": question.id, "prompt_ids": list(prompt_ids), "k": k})


def write_prompts(
    path: Path, questions: Sequence[Question], encode: Callable[[Question], Sequence[int]], k: int
) -> None:
    """Write the dataset of a run."""
    lines = []
    for question in questions:
        text, label = prompt_row(question, encode(question), k)
        lines.append(json.dumps({INPUT_KEY: text, LABEL_KEY: label}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(lines))


def question_id(label: str) -> str:
    """Return the id of the question that a label names."""
    return str(json.loads(label)["id"])
