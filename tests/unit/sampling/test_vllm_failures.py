"""What a user reads when vLLM is not there, does not start, or the context is too short."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dttrl.data.questions import Question
from dttrl.errors import DttrlError, InputError, MissingDependencyError, WorkError
from dttrl.sampling.base import fitting
from dttrl.sampling.opening import open_backend
from dttrl.sampling.vllm.failures import missing_hook, missing_vllm, start_failure
from dttrl.sampling.vllm.jobs import EngineStart
from dttrl.settings.choices import Vllm
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.sections import Model

START = EngineStart(Model(name="m/x"), Vllm(max_model_len=9000))


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ("Free memory on device (3/80 GiB) on startup is less than desired", WorkError, "--max-model-len"),
        ("CUDA out of memory. Tried to allocate 2 GiB", WorkError, "--gpu-memory-utilization"),
        (
            "To serve at least one request, 9 GiB KV cache is needed, which is larger than the available",
            WorkError,
            "--tensor-parallel",
        ),
        ("Engine core initialization failed. See root cause above.", WorkError, "its own message is above"),
        ("You are trying to access a gated repo.", InputError, "HF_TOKEN"),
        ("m/x is not a local folder and is not a valid model identifier", InputError, "no such folder"),
        (
            "User-specified max_model_len (9000) is greater than the derived max_model_len (8192)",
            InputError,
            "--max-model-len 9000",
        ),
        ("something\nelse entirely", WorkError, "something else entirely"),
    ],
)
def test_the_reason_that_vllm_did_not_start_is_one_line(
    message: str, kind: type[DttrlError], words: str
) -> None:
    inner = RuntimeError(message)
    outer = ValueError("wrapped")
    outer.__cause__ = inner
    for error in (inner, outer):
        found = start_failure(START, error)
        assert type(found) is kind
        assert "m/x" in str(found)
        assert "\n" not in str(found)
    assert words in str(start_failure(START, inner))


def test_what_is_missing_is_named() -> None:
    assert "pip install 'dttrl[vllm]'" in str(missing_vllm(ModuleNotFoundError("no", name="vllm")))
    assert "libcuda.so.1" in str(missing_vllm(ImportError("libcuda.so.1: cannot open")))
    assert "--statistics logprobs" in str(missing_hook("model_runner._sample", "9.9"))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_its_backend_says_what_to_install(tmp_path: Path) -> None:
    config = GenerateConfig(model="m/x", questions=tmp_path / "q.jsonl", backend="vllm")
    with pytest.raises(MissingDependencyError, match="pip install"):
        open_backend(config, [])


def test_questions_that_do_not_fit_are_told_from_those_that_do() -> None:
    questions = [Question("a", "123"), Question("b", "12345"), Question("c", "1")]
    encode = {question: list(map(ord, question.prompt)) for question in questions}.__getitem__
    kept, skipped = fitting(questions, encode, context=13, max_new_tokens=10)
    assert ([question.id for question in kept], skipped) == (["a", "c"], ["b"])
    assert fitting(questions, encode, context=None, max_new_tokens=10) == (questions, [])
    with pytest.raises(InputError, match=r"--skip-long leaves no question.*context of 5"):
        fitting(questions, encode, context=5, max_new_tokens=10)
