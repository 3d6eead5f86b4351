"""What tells a local model from the one that lay in its place before: a hash over its files."""

from __future__ import annotations

import hashlib
from pathlib import Path

_WEIGHTS = (".safetensors", ".bin", ".gguf")
_SETTINGS = (".json", ".jinja", ".model")  # configuration, chat template, tokenizer


def model_files(name: str) -> str | None:
    """Return a hash over the files of a model folder or file, None for a name that is no path (a hub id).

    Weights enter with size and modification time, since reading them takes as long as loading them;
    configuration, chat template and tokenizer with their content.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _WEIGHTS + _SETTINGS)
    elif path.is_file():
        files = [path]
    else:
        return None
    total = hashlib.sha256()
    for file in files:
        if file.suffix in _SETTINGS:
            state = hashlib.sha256(file.read_bytes()).hexdigest()
        else:
            status = file.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        total.update(f"{file.name}\0{state}\n".encode(errors="surrogateescape"))
    return total.hexdigest()[:16]
