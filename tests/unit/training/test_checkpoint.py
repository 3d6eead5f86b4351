"""Checkpoints come back bit for bit, and a damaged one is one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dttrl.errors import InputError, WorkError
from dttrl.method.history import History
from dttrl.method.methods import Signal
from dttrl.training.checkpoint import (
    RunState,
    checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)


def trained() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(6.0).reshape(2, 3))
        layer.bias.zero_()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return layer, optimizer


def past(steps: int = 3) -> History:
    rng = np.random.default_rng(0)
    history = History(window=5)
    for step in range(1, steps + 1):
        values = np.concatenate([rng.normal(5, 1, 40), rng.normal(9, 1, 60)])
        _, history = history.advance(step, values)
    return history


def save(folder: Path, state: RunState, optimizer: torch.optim.Optimizer, history: History) -> Path:
    return save_checkpoint(
        folder, state, save_model=lambda path: path.mkdir(), optimizer=optimizer, history=history
    )


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    _, optimizer = trained()
    history, state = past(), RunState(12, best_step=10, best_score=0.1 + 0.2)
    path = save(tmp_path, state, optimizer, history)
    _, fresh = trained()
    fresh.load_state_dict(torch.optim.AdamW(fresh.param_groups[0]["params"], lr=0.1).state_dict())
    found, again = load_checkpoint(path, fresh, Signal(label="progressive:window=5"))
    assert found == state
    assert again.centred_mixture == history.centred_mixture
    assert [(p.step, p.midpoint) for p in again.steps] == [(p.step, p.midpoint) for p in history.steps]
    assert np.array_equal(again.pool, history.pool)
    for one, two in zip(optimizer.state.values(), fresh.state.values(), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in ("exp_avg", "exp_avg_sq", "step"))


def test_last_and_best_are_kept(tmp_path: Path) -> None:
    _, optimizer = trained()
    for step in (2, 4, 6):
        save(tmp_path, RunState(step), optimizer, past())
    (tmp_path / ".building-step-000008-1").mkdir()
    prune_checkpoints(tmp_path, RunState(6, best_step=2))
    assert list_checkpoints(tmp_path) == [2, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000006"]


def test_an_unfinished_checkpoint_does_not_count(tmp_path: Path) -> None:
    _, optimizer = trained()
    save(tmp_path, RunState(2), optimizer, past())
    checkpoint_path(tmp_path, 4).mkdir()
    assert list_checkpoints(tmp_path) == [2]
    assert list_checkpoints(tmp_path / "absent") == []


@pytest.mark.parametrize("name", ["optimizer.pt", "history.npz", "state.json"])
def test_a_damaged_checkpoint_is_one_line(tmp_path: Path, name: str) -> None:
    _, optimizer = trained()
    path = save(tmp_path, RunState(2), optimizer, past())
    (path / name).write_bytes(b"damaged")
    with pytest.raises(InputError, match="step-000002") as caught:
        load_checkpoint(path, optimizer, Signal())
    assert "\n" not in str(caught.value)


def test_a_pickle_in_place_of_the_optimizer_is_not_run(tmp_path: Path) -> None:
    import pickle

    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "harm",))  # type: ignore[return-value]

    _, optimizer = trained()
    path = save(tmp_path, RunState(2), optimizer, past())
    (path / "optimizer.pt").write_bytes(pickle.dumps(Harm(), protocol=2))
    with pytest.raises(InputError):
        load_checkpoint(path, optimizer, Signal())
    assert not (tmp_path / "harm").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    _, optimizer = trained()
    with pytest.raises(WorkError, match="No space left"):
        save_checkpoint(tmp_path, RunState(2), save_model=full, optimizer=optimizer, history=past())
    assert list(tmp_path.iterdir()) == []


def test_an_error_without_a_message_is_named(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError

    _, optimizer = trained()
    with pytest.raises(WorkError, match="OSError"):
        save_checkpoint(tmp_path, RunState(2), save_model=fail, optimizer=optimizer, history=past())
