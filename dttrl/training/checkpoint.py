"""Checkpoints: everything that a run needs to go on to the same bits.

A checkpoint is a folder ``step-NNNNNN`` with the model (an ordinary Hugging Face folder), the optimizer, the
confidence history and ``state.json``. All randomness and the order of the data are functions of the seed and
the step, so no generator state is needed. The folder is built under another name and renamed when complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError

from dttrl.data.outputs import sync_folder
from dttrl.data.validation import one_line
from dttrl.errors import InputError, WorkError
from dttrl.method.measure_choice import Past
from dttrl.method.methods import Signal

SaveModel = Callable[[Path], None]

MODEL = "model"
# What json, numpy and torch raise for files that are damaged or not theirs.
_UNREADABLE = (OSError, ValueError, TypeError, KeyError, RuntimeError, EOFError, BadZipFile, UnpicklingError)
_OPTIMIZER, _HISTORY, _STATE = "optimizer.pt", "history.npz", "state.json"


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run is: the last finished step, and the step that was best so far of those that were judged."""

    step: int
    settings: str = ""
    """Digest of the settings that the run was trained with."""
    best_step: int | None = None
    best_score: float | None = None
    """avg@n on the held-out questions, else on the training ones; where no question has a gold answer, what
    the votes gained on the first ones (:mod:`dttrl.method.first_votes`)."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint after ``step``."""
    return folder / f"step-{step:06d}"


def save_checkpoint(
    folder: Path,
    state: RunState,
    *,
    save_model: SaveModel,
    optimizer: torch.optim.Optimizer,
    history: Past,
) -> Path:
    """Write a checkpoint; replaces one of the same step; returns its folder.

    Raises :class:`WorkError` where the disk refuses; nothing half-written is left.
    """
    target = checkpoint_path(folder, state.step)
    building = folder / f".building-{target.name}-{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir(parents=True)
        save_model(building / MODEL)
        torch.save(optimizer.state_dict(), building / _OPTIMIZER)
        np.savez(building / _HISTORY, allow_pickle=False, **history.to_arrays())
        (building / _STATE).write_text(json.dumps(asdict(state)) + "\n", encoding="utf-8")
        _sync(building)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(building, target)
        sync_folder(folder)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own
        shutil.rmtree(building, ignore_errors=True)
        reason = one_line(error)
        raise WorkError(
            f"{target}: the checkpoint cannot be written ({reason}); make room and resume the run"
        ) from None
    return target


def load_checkpoint(path: Path, optimizer: torch.optim.Optimizer, signal: Signal) -> tuple[RunState, Past]:
    """Restore the optimizer in place; return state and history (the model lies in ``path/model``)."""
    try:
        state = RunState(**json.loads((path / _STATE).read_text(encoding="utf-8")))
        device = optimizer.param_groups[0]["params"][0].device
        optimizer.load_state_dict(torch.load(path / _OPTIMIZER, map_location=device, weights_only=True))
        with np.load(path / _HISTORY, allow_pickle=False) as arrays:
            history = signal.history(dict(arrays))
    except _UNREADABLE as error:
        raise InputError(f"{path}: the checkpoint cannot be read ({one_line(error)})") from None
    return state, history


def list_checkpoints(folder: Path) -> list[int]:
    """Return the steps that have a complete checkpoint, ascending."""
    names = [path.parent.name.removeprefix("step-") for path in folder.glob(f"step-*/{_STATE}")]
    return sorted(int(name) for name in names if name.isdigit())


def prune_checkpoints(folder: Path, state: RunState) -> None:
    """Keep the last and the best checkpoint, and remove the others and unfinished ones."""
    for step in list_checkpoints(folder):
        if step not in (state.step, state.best_step):
            shutil.rmtree(checkpoint_path(folder, step), ignore_errors=True)
    for left in folder.glob(".building-*"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Flush a checkpoint to the disk before it gets its name, so that a crash cannot leave a hollow one."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
