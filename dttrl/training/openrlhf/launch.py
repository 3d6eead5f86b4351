"""Start OpenRLHF on a run folder, follow it, and say how to go on when it dies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc

import dttrl
from dttrl.data.outputs import locked
from dttrl.data.questions import Question
from dttrl.data.schemas import EVALUATIONS
from dttrl.data.tables import read_table
from dttrl.errors import InputError, MissingDependencyError, WorkError
from dttrl.sampling.backends import KNOWN
from dttrl.sampling.models import load_tokenizer
from dttrl.sampling.prompts import prompt_encoder
from dttrl.settings.commands import ScaleConfig, TrainConfig
from dttrl.settings.files import dump_config, load_config, read_fields
from dttrl.training.evaluation import evaluation_summary
from dttrl.training.observer import Observer
from dttrl.training.openrlhf.flags import Places, openrlhf_flags, write_prompts
from dttrl.training.run_folder import (
    CONFIG,
    LOCK,
    METRICS,
    create_run,
    find_config,
    read_metrics,
    read_questions_of,
    replace_text,
)
from dttrl.training.schedule import total_steps
from dttrl.training.setup import prepare_run

TESTED = str(KNOWN["openrlhf"][0])
"""Series of OpenRLHF that was run; later ones rename flags and fields."""
LOG = "openrlhf.log"
_FOLDER, _EXTRA = "openrlhf", "extra.json"
_EVALUATIONS = "evaluations.parquet"
_POLL_SECONDS = 1.0


def launch(
    config: TrainConfig,
    extra: Sequence[str] = (),
    *,
    observer: Observer | None = None,
    overwrite: bool = False,
) -> Path:
    """Make the run folder, train with OpenRLHF to the end, and return the folder.

    ``extra`` are OpenRLHF's own flags. InputError for anything wrong before it starts, WorkError when
    OpenRLHF ends before its last step.
    """
    check_openrlhf()
    prepared, splits = prepare_run(config, overwrite=overwrite)
    scale = ScaleConfig.model_validate(prepared.sections())
    plan = plan_run(scale, extra, splits["train"])  # refuses what cannot be run while nothing is written
    create_run(scale.keeping.run, dump_config(scale), splits, overwrite=overwrite)
    folder = scale.keeping.run / _FOLDER
    folder.mkdir()
    replace_text(folder / _EXTRA, json.dumps(list(extra)) + "\n")
    return _run(scale, plan, splits["train"], observer or Observer())


def resume(run: Path, *, observer: Observer | None = None) -> Path:
    """Continue an interrupted run from OpenRLHF's last checkpoint; a finished one is left as it is."""
    config = load_config(ScaleConfig, find_config(run), {"run": run}, lenient=True)
    check_openrlhf()
    questions = read_questions_of(run)["train"]
    if last_step(run) >= total_steps(config.update, len(questions)) and (run / "model").is_dir():
        return run
    extra = [str(flag) for flag in json.loads((run / _FOLDER / _EXTRA).read_text(encoding="utf-8"))]
    return _run(config, plan_run(config, extra, questions), questions, observer or Observer())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run starts, and what it was worked out from."""

    command: list[str]
    """The exact command."""
    places: Places
    encode: Callable[[Question], Sequence[int]]
    """From a question to the token ids of its prompt."""


def plan_run(config: ScaleConfig, extra: Sequence[str], questions: Sequence[Question]) -> Plan:
    """Return what a run of these questions starts; writes nothing."""
    loaded = load_tokenizer(config.model)
    encode = prompt_encoder(config.questions, loaded)
    run = config.keeping.run.resolve()
    places = Places(
        model=loaded.place,
        dataset=run / _FOLDER / "prompts.jsonl",
        checkpoints=run / "checkpoints" / _FOLDER,
        output=run / "model",
        longest=max(len(encode(question)) for question in questions),
    )
    flags = openrlhf_flags(config, places, extra)
    command = [sys.executable, "-m", "dttrl.training.openrlhf.main", str(run), *flags]
    return Plan(command, places, encode)


def check_openrlhf() -> str:
    """Return the version of OpenRLHF; raises where it is absent or not one that this was tested with."""
    missing = [
        name for name in ("openrlhf", "ray", "vllm", "deepspeed") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise MissingDependencyError(
            f"--engine openrlhf needs {', '.join(missing)}; pip install 'dttrl[openrlhf]', or "
            "use --engine local"
        )
    version = openrlhf_version()
    if not version.startswith(f"{TESTED}."):
        raise InputError(
            f"--engine openrlhf was tested with OpenRLHF {TESTED}.x, and {version} is installed; "
            f"pip install 'openrlhf=={TESTED}.2'"
        )
    return version


def openrlhf_version() -> str:
    """Return the installed version; where the package was copied and has no metadata, the tested series."""
    try:
        return importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        return f"{TESTED}.?"


def engine_of(run: Path) -> str:
    """Return the engine of a run; ``local`` where the folder does not say."""
    path = run / CONFIG
    return str(read_fields(path).get("engine", "local")) if path.is_file() else "local"


def last_step(run: Path) -> int:
    """Return the last step with metrics, 0 where there is none."""
    return max((int(metrics["step"]) for metrics in read_metrics(run / METRICS)), default=0)


def _run(config: ScaleConfig, plan: Plan, questions: Sequence[Question], observer: Observer) -> Path:
    run = config.keeping.run
    write_prompts(plan.places.dataset, questions, plan.encode, config.sampling.k)
    total = total_steps(config.update, len(questions))
    observer.start(config.but(steps=total), run)
    with locked(run / LOCK, str(run)), (run / LOG).open("ab") as log:
        process = subprocess.Popen(
            plan.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(config),
        )
        try:
            _follow(process, run, observer, last_step(run))
        finally:
            if process.poll() is None:  # interrupted
                process.terminate()
                process.wait()
    step = last_step(run)
    if process.returncode != 0 or step < total:
        raise WorkError(
            f"{run}: OpenRLHF ended after step {step} of {total} (exit code {process.returncode}); its "
            f"output is in {run / LOG}. Go on from the last checkpoint with: dttrl train --resume {run}"
        )
    observer.end(run)
    return run


def _follow(process: subprocess.Popen[bytes], run: Path, observer: Observer, step: int) -> None:
    """Tell the observer of steps and evaluations as they are written, until the process ends."""
    evaluated = _evaluations(run)
    stamps: dict[Path, tuple[int, int] | None] = {}
    while True:
        ended = process.poll() is not None
        if _changed(run / METRICS, stamps):
            for metrics in read_metrics(run / METRICS):
                if int(metrics["step"]) > step:
                    step = int(metrics["step"])
                    observer.step(step, metrics)
        if _changed(run / _EVALUATIONS, stamps):
            now = _evaluations(run)
            for (at, split), summary in now.items():
                if (at, split) not in evaluated:
                    observer.evaluation(at, split, summary)
            evaluated = now
        if ended:
            return
        time.sleep(_POLL_SECONDS)


def _changed(path: Path, stamps: dict[Path, tuple[int, int] | None]) -> bool:
    """Whether a file is another than at the last call, or gone; ``stamps`` remembers. Read it afterwards."""
    try:
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
    except FileNotFoundError:
        stamp = None
    changed = path not in stamps or stamps[path] != stamp
    stamps[path] = stamp
    return changed


def _evaluations(run: Path) -> dict[tuple[int, str], dict[str, float | int]]:
    path = run / _EVALUATIONS
    if not path.exists():
        return {}
    table = read_table(path, EVALUATIONS)
    # Evaluations are written in their order.
    places = dict.fromkeys(zip(table["step"].to_pylist(), table["split"].to_pylist(), strict=True))
    step, split = pc.field("step"), pc.field("split")
    return {
        place: evaluation_summary(table.filter((step == place[0]) & (split == place[1]))) for place in places
    }


def _environment(config: ScaleConfig) -> dict[str, str]:
    """Return the environment of OpenRLHF's process; what the user has set stays."""
    environment = {
        "TOKENIZERS_PARALLELISM": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
        **os.environ,
    }
    if config.engine.ray_address is not None:
        environment["RAY_ADDRESS"] = config.engine.ray_address
    roots = [str(Path(dttrl.__file__).resolve().parents[1]), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(root for root in roots if root)}
