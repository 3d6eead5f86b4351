"""Outputs appear whole or not at all, and never in the place of something that is no file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dttrl.analysis.figures import check_figure
from dttrl.analysis.frames import frame, write_frame
from dttrl.data.outputs import check_new_file, replacing
from dttrl.errors import InputError, OutputExistsError


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["x.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_tables_and_figures_do_not_replace_pipes(tmp_path: Path) -> None:
    for name in ("table.csv", "figure.svg"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="not a regular file"):
        write_frame(tmp_path / "table.csv", frame([{"a": 1}]), overwrite=True)
    with pytest.raises(InputError, match="not a regular file"):
        check_figure(tmp_path / "figure.svg", overwrite=True)


def test_a_new_file_needs_its_folder_and_leave_to_overwrite(tmp_path: Path) -> None:
    check_new_file(tmp_path / "new", overwrite=False)
    with pytest.raises(InputError, match="create it first"):
        check_new_file(tmp_path / "absent" / "new", overwrite=True)
    (tmp_path / "old").touch()
    with pytest.raises(OutputExistsError, match="--overwrite"):
        check_new_file(tmp_path / "old", overwrite=False)
