from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dttrl.sampling.opening import model_files


def folder(path: Path) -> Path:
    path.mkdir()
    for name in ("model.safetensors", "config.json", "README.md"):
        (path / name).write_text("{}")
        os.utime(path / name, ns=(10**18, 10**18))
    return path


def touch(model: Path) -> None:
    os.utime(model / "model.safetensors", ns=(10**18, 10**18 + 1))


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "weights of the same size": (touch, True),
    "another size": (lambda model: (model / "model.safetensors").write_text("{ }"), True),
    "another configuration": (lambda model: (model / "config.json").write_text("[]"), True),
    "more weights": (lambda model: (model / "more.bin").write_text(""), True),
    "a template": (lambda model: (model / "chat_template.jinja").write_text(""), True),
    "the same configuration": (lambda model: (model / "config.json").write_text("{}"), False),
    "words": (lambda model: (model / "README.md").write_text("words"), False),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_changed_files_are_seen(tmp_path: Path, change: str) -> None:
    model = folder(tmp_path / "model")
    before = model_files(str(model))
    make, differs = CHANGES[change]
    make(model)
    assert before is not None
    assert (model_files(str(model)) != before) is differs


def test_a_file_has_one_and_a_hub_id_none(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    before = model_files(str(path))
    assert before is not None
    path.write_bytes(b"GGUF2")
    assert model_files(str(path)) != before
    assert model_files("owner/name") is None
