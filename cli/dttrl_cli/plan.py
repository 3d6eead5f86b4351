"""``dttrl train --dry-run``: what a run would do, without writing anything."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dttrl.settings.choices import OpenRLHF
from dttrl.settings.commands import ScaleConfig, TrainConfig
from dttrl.settings.files import dump_config, load_config, read_fields
from dttrl_cli import options
from dttrl_cli.console import Console

Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        rich_help_panel=options.COMMON,
        help="Settings of one of the paper's experiments, as paper/qwen2.5-7b/aime2024; a configuration file "
        "and options win over it. It does not name the questions.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        rich_help_panel=options.COMMON,
        help="With --engine openrlhf: print the resolved settings, OpenRLHF's command and an estimate of "
        "memory and rollouts; write and start nothing.",
    ),
]
_GIB = 2**30


def resolve(config: Path | None, preset: str | None, given: Mapping[str, Any]) -> TrainConfig:
    """Return the settings: a preset, the file over it, the given options over both."""
    from dttrl.training.openrlhf.presets import preset as settings_of

    if preset is None:
        return load_config(TrainConfig, config, given)
    in_file = read_fields(config) if config is not None else {}
    beneath = {name: value for name, value in settings_of(preset).items() if name not in in_file}
    return load_config(TrainConfig, config, beneath | dict(given))


def show_plan(console: Console, config: TrainConfig, extra: Sequence[str]) -> None:
    """Print settings, command and estimate of a run with OpenRLHF.

    InputError for whatever would be refused when it is started.
    """
    from dttrl.errors import InputError
    from dttrl.training.openrlhf.launch import plan_run
    from dttrl.training.openrlhf.needs import count_parameters, needs
    from dttrl.training.setup import absolute, read_splits

    if not isinstance(config.engine, OpenRLHF):
        raise InputError("--dry-run shows the command of OpenRLHF; add --engine openrlhf, or leave it out")
    scale = ScaleConfig.model_validate(absolute(config).sections())
    splits = read_splits(scale)
    plan = plan_run(scale, extra, splits["train"])
    parameters = count_parameters(
        plan.places.model, revision=scale.model.revision, trust_remote_code=scale.model.trust_remote_code
    )
    answered = sum(question.answer is not None for split in splits.values() for question in split)
    found = needs(scale, parameters, len(splits["train"]), answered)
    console.result(dump_config(scale).rstrip())
    console.result("\n" + shlex.join(plan.command) + "\n")
    parts = (
        ("weights", found.weights),
        ("gradients", found.gradients),
        ("Adam states", found.adam),
        ("reference weights", found.reference),
        ("training in all", found.training),
        ("vLLM's weights", found.vllm_weights),
    )
    where = f"ZeRO stage {scale.engine.zero_stage}, {scale.engine.nodes} x {scale.engine.gpus} GPUs"
    console.table(
        f"Memory of a GPU, {parameters:,} parameters, {where}; activations come on top",
        ["", "GiB"],
        [[name, _gib(size)] for name, size in parts],
    )
    console.result(f"vLLM takes {found.vllm_share:.0%} of the GPU while it samples, its weights included.")
    console.result(
        f"{found.steps:,} steps: {found.rollouts:,} rollouts ({found.trained:,} trained on) and "
        f"{found.evaluation_rollouts:,} in evaluations; at most {found.most_tokens:,} tokens."
    )
    console.data(
        {
            "config": scale.flat(),
            "command": plan.command,
            "estimate": {**asdict(found), "training": found.training},
        }
    )


def _gib(size: float) -> str:
    gib = size / _GIB
    return f"{gib:.1f}" if gib >= 1 else f"{gib:.2g}"
