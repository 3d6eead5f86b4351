from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dttrl.errors import InputError
from dttrl.locking import Lock

ROOT = Path(__file__).resolve().parents[2]
HOLD = (
    "import sys, pathlib; sys.path.insert(0, sys.argv[2])\n"
    "from dttrl.locking import Lock\n"
    "print(Lock(pathlib.Path(sys.argv[1])).take(), flush=True)\n"
    "sys.stdin.read()\n"
)


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    first, second = Lock(path), Lock(path)
    assert first.take()
    assert not second.take()
    second.release()
    assert not second.take()
    first.release()
    assert not path.exists()
    assert second.take()
    second.release()
    second.release()


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    command = [sys.executable, "-c", HOLD, str(path), str(ROOT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not Lock(path).take()
        other.kill()
    assert path.exists()
    mine = Lock(path)
    assert mine.take()
    mine.release()
    assert not path.exists()


def test_a_file_removed_while_it_is_taken_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "lock"
    tries: list[int] = []

    def late(handle: int) -> bool:
        tries.append(handle)
        if len(tries) == 1:  # the holder lets go between our opening and our locking, and tidies up
            path.unlink()
            path.parent.rmdir()
        return True

    monkeypatch.setattr("dttrl.locking._locked", late)
    assert Lock(path).take()
    assert len(tries) == 2
    assert path.exists()


def test_a_place_where_nothing_can_be_made_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does .*absent exist"):
        Lock(tmp_path / "absent" / "folder" / "lock").take()
    (tmp_path / "folder").touch()
    with pytest.raises(InputError, match="is not a folder"):
        Lock(tmp_path / "folder" / "lock").take()
    (tmp_path / "other" / "lock").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot be written to"):
        Lock(tmp_path / "other" / "lock").take()
