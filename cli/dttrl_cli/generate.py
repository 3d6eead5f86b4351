"""``dttrl generate``: questions -> rollouts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dttrl.settings.commands import GenerateConfig
from dttrl.settings.files import load_config
from dttrl_cli import options
from dttrl_cli.console import Console, clock, number, resumable
from dttrl_cli.fields import settings

EXAMPLES = (
    "dttrl generate smollm2 questions.jsonl -o rollouts.parquet --samples 64",
    "dttrl generate smollm2 questions.jsonl -o rollouts.parquet --samples 8..64",
    "dttrl generate Qwen/Qwen2.5-0.5B-Instruct amc.jsonl -o amc.parquet --temperature 0.6",
    "dttrl generate my-model amc.jsonl -o amc.parquet --base-url http://localhost:8000/v1",
)


@settings(GenerateConfig, leave_out=("model", "questions"))
def generate(
    given: dict[str, Any],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Rollouts to write.", show_default=False)
    ],
    model: options.Model = None,
    questions: options.Questions = None,
    config: options.Config = None,
    overwrite: options.Overwrite = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Sample rollouts of every question, with the confidence of every token.

    With --samples LOW..HIGH a question draws blocks of LOW rollouts until it stays sure of its answer.
    The scoring options then say how answers and confidences are found.

    Interrupted work goes on when the same command is run again.
    Finished questions go into OUTPUT.parts about every 30 seconds and on Ctrl-C or SIGTERM;
    a killed process loses those that finished since.
    """
    from dttrl.data.outputs import check_new_file
    from dttrl.sampling.generation import generate as sample
    from dttrl.sampling.parts import parts_folder

    named = {"model": model, "questions": questions}
    chosen = load_config(GenerateConfig, config, given | {k: v for k, v in named.items() if v is not None})
    check_new_file(output, overwrite=overwrite)
    console = Console(quiet=quiet, json_output=json_output)
    hint = f"finished questions are kept in {parts_folder(output)}, run the same command again to go on"
    with resumable(hint), console.progress("generate", "rollouts") as progress:
        first = True

        def show(done: int, total: int) -> None:
            nonlocal first
            if first:
                progress.restart(done, total)
                first = False
            else:
                progress.update(done, total)

        summary = sample(chosen, output, overwrite=overwrite, progress=show, note=console.note)
    rows = [
        ["questions", str(summary.questions)],
        ["rollouts", str(summary.rollouts)],
        ["sampled now", str(summary.sampled)],
        ["mean tokens", number(summary.tokens / summary.rollouts, 1)],
        ["cut at the length limit", str(summary.truncated)],
        ["time", clock(summary.seconds)],
    ]
    if summary.skipped:
        rows.insert(1, ["left out (too long)", ", ".join(summary.skipped)])
    data = asdict(summary)
    if summary.unspent is None:
        del data["unspent"]
    else:
        rows.insert(-1, ["stopped when sure", f"{summary.unspent.stopped} of {summary.questions} questions"])
        rows.insert(-1, ["unspent", str(summary.unspent)])
    console.table(f"Sampled {output}", ["", "value"], rows)
    console.data(data)
