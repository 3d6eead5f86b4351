"""``dttrl train``: questions -> a trained policy, without labels."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dttrl.settings.commands import TrainConfig
from dttrl.training.observer import Observer
from dttrl_cli import options
from dttrl_cli.console import Console, Progress, clock, number, resumable
from dttrl_cli.fields import settings
from dttrl_cli.passing import AFTER_DASHES
from dttrl_cli.plan import DryRun, Preset, resolve, show_plan

if TYPE_CHECKING:
    from dttrl.analysis.accuracy import Accuracy
    from dttrl.analysis.run_summary import RunSummary, SavedModel

EXAMPLES = (
    "dttrl train smollm2 questions.jsonl --method distri-gmm --run runs/first",
    "dttrl train --config runs/first/config.yaml --seed 1 --run runs/second",
    "dttrl train --resume runs/first",
)
STEP_METRICS = ("majority_ratio", "label_accuracy", "diversity_weight")


@settings(TrainConfig, leave_out=("model", "questions", "run"))
def train(
    given: dict[str, Any],
    context: typer.Context,
    model: options.Model = None,
    questions: options.Questions = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            "-o",
            metavar="FOLDER",
            help="Run folder to make. (default: runs/run)",
            show_default=False,
        ),
    ] = None,
    config: options.Config = None,
    preset: Preset = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            rich_help_panel=options.COMMON,
            help="Go on with an interrupted run from its last checkpoint; only --device and --threads may "
            "change.",
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            rich_help_panel=options.COMMON,
            help="If the run folder exists, delete the old one with all its checkpoints and start again.",
        ),
    ] = False,
    dry_run: DryRun = False,
    quiet: options.Quiet = False,
    json_output: options.Json = False,
) -> None:
    """Train a model on its own votes: test-time reinforcement learning without labels.

    Gold answers, where the questions have them, are used for evaluation, which chooses the checkpoint that
    is kept as the best, and by the method ttrl-gt; they never make the labels of the other methods. Without
    any, the best is judged at the same steps by the votes: see dttrl analyze checkpoints.

    --json prints run, report, method, label (null: the method's), steps, seconds (training steps),
    wall_seconds (first to last step), splits (of each: before and after, with step, questions, n, avg, maj
    and their intervals, majority_ratio, pass), means of the metrics over the first_steps, last_steps (window
    of each) and all_steps, checkpoints (best, last and without_gold: step, path, score, gain) and notes.
    """  # fmt: skip
    from dttrl.errors import InputError

    console = Console(quiet=quiet, json_output=json_output)
    positions = (("model", model), ("questions", questions), ("run", run))
    named = {name: value for name, value in positions if value is not None}
    if resume is not None:
        if overwrite:
            raise InputError("--resume goes on with a run and --overwrite deletes it; leave one of them out")
        if dry_run:
            raise InputError("--dry-run shows a run before its start; leave out --resume or --dry-run")
        if named or config is not None or preset is not None:
            raise InputError("--resume takes model, questions and folder from the run; leave the others out")
        finished = _resume(console, resume, given)
    else:
        chosen = resolve(config, preset, given | named)
        extra = list(context.meta.get(AFTER_DASHES, ()))
        if extra and chosen.engine.engine != "openrlhf":
            raise InputError(f"{extra[0]} after -- is for OpenRLHF; add --engine openrlhf, or leave it out")
        if dry_run:
            return show_plan(console, chosen, extra)
        finished = _train(console, chosen, extra, overwrite=overwrite)
    _finish(console, finished)


class ConsoleObserver(Observer):
    """Shows a training run while it goes on."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._note = ""
        self.started = False
        self._began = False
        self._done = 0
        self._total: int | None = None

    def start(self, config: TrainConfig, run: Path) -> None:
        """Say that the run begins or goes on."""
        self.started = True
        self._total = config.update.steps
        self._console.note(f"dttrl: {config.signal.title} on {config.model.name}, run folder {run}")

    def phase(self, name: str, done: int, total: int) -> None:
        """Show how far a part of a step is: sampling, scoring, update, evaluation."""
        note = f"{name} {done}/{total}"
        self._progress.update(self._done, self._total, note=f"{note}  {self._note}".rstrip())

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show a finished step."""
        if not self._began:  # loading, the first step and those before a resume do not enter the rate
            self._progress.restart(step, self._total)
            self._began = True
        self._done = step
        shown = [
            f"{name.replace('_', ' ')} {number(float(value))}"
            for name in STEP_METRICS[:2]
            if (value := metrics.get(name)) is not None
        ]
        self._note = ", ".join(shown)
        self._progress.update(self._done, self._total, note=self._note)

    def evaluation(self, step: int, split: str, summary: Mapping[str, Any]) -> None:
        """Say how a split was evaluated."""
        shown = [
            f"{name} {number(float(value))}" for name, value in summary.items() if isinstance(value, float)
        ]
        self._console.note(f"step {step}, {split}: {', '.join(shown)}")


def _train(console: Console, config: TrainConfig, extra: Sequence[str], *, overwrite: bool) -> Path:
    from dttrl.training.loop import train as train_run
    from dttrl.training.openrlhf.launch import launch

    with console.progress("train", "steps") as progress:
        observer = ConsoleObserver(console, progress)

        def hint() -> str:  # before its start a run has no folder, or still an old one
            return _resume_hint(config.keeping.run) if observer.started else "run the same command again"

        with resumable(hint):
            if config.engine.engine == "openrlhf":
                return launch(config, extra, observer=observer, overwrite=overwrite)
            return train_run(config, observer=observer, overwrite=overwrite)


def _resume(console: Console, run: Path, given: Mapping[str, Any]) -> Path:
    from dttrl.errors import InputError
    from dttrl.training.loop import resume as resume_run
    from dttrl.training.openrlhf import launch

    engine = launch.engine_of(run)
    if engine == "openrlhf" and given:
        raise InputError("a run of --engine openrlhf is resumed as it was started; leave the options out")
    with resumable(lambda: _resume_hint(run)), console.progress("train", "steps") as progress:
        observer = ConsoleObserver(console, progress)
        if engine == "openrlhf":
            return launch.resume(run, observer=observer)
        return resume_run(run, observer=observer, overrides=dict(given))


def _resume_hint(run: Path) -> str:
    command = f"dttrl train --resume {shlex.quote(str(run))}"
    if any((run / "checkpoints").glob("**/*step*")):
        return f"go on from the last checkpoint with: {command}"
    return f"there is no checkpoint yet; start this run again with: {command}"


def _finish(console: Console, run: Path) -> None:
    from dttrl.analysis.report import FIGURE, write_report
    from dttrl.analysis.run_summary import summarize_run

    report = write_report(run)
    summary = summarize_run(run)
    for text in summary.notes:
        console.note(f"dttrl: {text}")
    _show(console, summary)
    figure = run / f"{FIGURE}.svg"
    if figure.is_file():
        console.result(f"Figure: {figure}")
    console.result(f"Report: {report}")
    console.result(f"Run:    {run}")
    console.data(_data(summary, report))


def _show(console: Console, summary: RunSummary) -> None:
    rows = [row for change in summary.splits for row in change.rows(passes=False)]
    for name in STEP_METRICS:
        if name in summary.first and name in summary.last:
            first, last = summary.first[name], summary.last[name]
            label = f"training, {summary.window_label}: {name.replace('_', ' ')}"
            several = summary.steps > 1
            tail = [number(last), f"{last - first:+.3f}"] if several else ["-", "-"]
            rows.append([label, number(first), *tail])
    seconds = f"; training steps took {clock(summary.seconds)}" if summary.seconds else ""
    title = f"{summary.method}, {summary.steps_label}{seconds} (95 % interval over questions)"
    console.table(title, ["", "before", "after", "change"], rows)
    if "label_accuracy" in summary.overall and summary.steps > 1:
        label_accuracy = number(summary.overall["label_accuracy"])
        console.result(f"Label accuracy over all {summary.steps_label}: {label_accuracy}")
    for title, saved in (("Best checkpoint:", summary.best), ("Last checkpoint:", summary.final)):
        if saved is not None:
            console.result(f"{title} step {saved.step}{saved.worth}, {saved.path}")
    if summary.unaided is not None and (summary.splits or summary.best is None):
        console.result(f"Chosen without gold answers: step {summary.unaided.step}{summary.unaided.worth}")


def _data(summary: RunSummary, report: Path) -> dict[str, Any]:
    return {
        "run": summary.run,
        "report": report,
        "method": summary.settings["method"],
        "label": summary.settings.get("label"),
        "steps": summary.steps,
        "seconds": summary.seconds,
        "wall_seconds": summary.wall_seconds,
        "splits": {
            change.split: {
                "before": _accuracy(change.first_step, change.first),
                "after": _accuracy(change.last_step, change.last),
            }
            for change in summary.splits
        },
        "window": summary.window,
        "first_steps": summary.first,
        "last_steps": summary.last,
        "all_steps": summary.overall,
        "checkpoints": {
            "best": _saved(summary.best),
            "last": _saved(summary.final),
            "without_gold": _saved(summary.unaided),
        },
        "notes": summary.notes,
    }


def _accuracy(step: int, accuracy: Accuracy) -> dict[str, Any]:
    return {
        "step": step,
        "questions": accuracy.questions,
        "n": accuracy.n_high,
        "avg": accuracy.average.value,
        "avg_low": accuracy.average.low,
        "avg_high": accuracy.average.high,
        "maj": accuracy.majority.value,
        "maj_low": accuracy.majority.low,
        "maj_high": accuracy.majority.high,
        "majority_ratio": accuracy.majority_ratio,
        "pass": {str(k): estimate.value for k, estimate in accuracy.pass_at.items()},
    }


def _saved(saved: SavedModel | None) -> dict[str, Any] | None:
    if saved is None:
        return None
    return {"step": saved.step, "path": saved.path, "score": saved.score, "gain": saved.gain}
