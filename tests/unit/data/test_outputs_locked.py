from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dttrl.data.outputs import locked
from dttrl.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
HOLD = (
    "import sys, pathlib; sys.path.insert(0, sys.argv[2])\n"
    "from dttrl.data.outputs import locked\n"
    "with locked(pathlib.Path(sys.argv[1]), 'it'):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


def refused(path: Path) -> None:
    with (
        pytest.raises(InputError, match="the run: another process is working on it"),
        locked(path, "the run"),
    ):
        pass


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    with locked(path, "the run"):
        assert path.exists()
        refused(path)
        refused(path)
        assert path.exists()
    assert not path.exists()
    with locked(path, "the run"):
        pass


def test_a_failure_in_the_block_lets_go(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), locked(tmp_path / "lock", "the run"):
        raise RuntimeError("mine")
    with locked(tmp_path / "lock", "the run"):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    command = [sys.executable, "-c", HOLD, str(path), str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        refused(path)
        other.kill()
    assert path.exists()
    with locked(path, "the run"):
        pass
    assert not path.exists()


def test_the_file_is_gone_before_the_lock_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a process that opened it meanwhile would lock a file that nobody else finds."""
    from filelock import FileLock

    path = tmp_path / "lock"
    there: list[bool] = []
    release = FileLock.release
    monkeypatch.setattr(FileLock, "release", lambda self: (there.append(path.exists()), release(self)))
    with locked(path, "the run"):
        pass
    assert there == [False]


def test_a_place_where_nothing_can_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other" / "lock").mkdir(parents=True)
    for folder in ("absent/folder", "file", "other"):
        with (
            pytest.raises(InputError, match=rf"{folder}: cannot be written to \([^\n]+\)$"),
            locked(tmp_path / folder / "lock", "the run"),
        ):
            pass


def test_a_file_system_without_locks_lets_everyone_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    def without(self: FileLock) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", without)
    with locked(tmp_path / "lock", "the run"), locked(tmp_path / "lock", "the run"):
        pass
