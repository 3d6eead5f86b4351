"""Real vLLM, on a CPU: the same samples and statistics as the transformers sampler, and work that goes on.

Run it with ``nox -s vllm-cpu``, or ``pytest -m slow tests/integration/test_vllm.py`` where vLLM is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dttrl.data.tables import read_metadata

ROOT = Path(__file__).resolve().parents[2]
MODEL, QUESTIONS = ROOT / "data" / "quickstart" / "model", ROOT / "data" / "quickstart" / "questions.jsonl"
EXACT = ("token_confidence", "token_logprob", "token_entropy", "token_self_certainty")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }


def command(output: Path, backend: str, *options: object) -> list[str]:
    own = {"vllm": ["--enforce-eager"], "transformers": ["--threads", "1"]}[backend]
    return [
        sys.executable, "-c", "import sys; from dttrl_cli.app import main; sys.exit(main())",
        "generate", str(MODEL), str(QUESTIONS), "-o", str(output), "--backend", backend,
        "--template", "raw", "--keep-tokens", *own, *map(str, options),
    ]  # fmt: skip


def generate(output: Path, backend: str, *options: object) -> list[dict[str, Any]]:
    done = subprocess.run(
        command(output, backend, *options), env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows: list[dict[str, Any]] = pq.read_table(output).to_pylist()
    return rows


def descendants(process: int) -> list[int]:
    """The ids of all processes under this one."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found, latest = [], [process]
    while latest:
        latest = [child for child, parent in parents.items() if parent in latest]
        found += latest
    return found


def close(a: list[dict[str, Any]], b: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """The same tokens, texts and ends, and statistics within 2e-2 (relative) at every position."""
    assert [(row["query_id"], row["sample_id"]) for row in a] == [(r["query_id"], r["sample_id"]) for r in b]
    for one, two in zip(a, b, strict=True):
        for name in ("token_ids", "text", "finish_reason", "token_offset"):
            assert one[name] == two[name], (one["query_id"], one["sample_id"], name)
        for name in names:
            np.testing.assert_allclose(one[name], two[name], rtol=2e-2, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    "settings",
    [
        ["--temperature", 0],
        ["--temperature", 1],
        ["--temperature", 0.8, "--top-p", 0.9, "--top-k", 30],
        ["--temperature", 1, "--stop", "\n"],
    ],
    ids=["greedy", "sampled", "truncated", "stop"],
)
def test_both_samplers_draw_the_same_rollouts(tmp_path: Path, settings: list[object]) -> None:
    options = [*settings, "--limit", 6, "--samples", 4, "--max-new-tokens", 30]
    ours = generate(tmp_path / "vllm.parquet", "vllm", *options)
    theirs = generate(tmp_path / "transformers.parquet", "transformers", *options)
    assert sum(row["num_tokens"] for row in ours) > 24
    close(ours, theirs, EXACT)


def test_an_open_engine_draws_further_blocks_until_questions_are_sure(tmp_path: Path) -> None:
    options = ["--limit", 8, "--max-new-tokens", 44, "--region", "all", "--measure", "perplexity"]
    sparing = ["--samples", "8..40", "--until", 0.8]
    ours = generate(tmp_path / "vllm.parquet", "vllm", *options, *sparing)
    theirs = generate(tmp_path / "transformers.parquet", "transformers", *options, *sparing)
    close(ours, theirs, EXACT)
    sizes = [sum(row["query_id"] == name for row in ours) for name in {row["query_id"] for row in ours}]
    assert len(sizes) == 8
    assert min(sizes) < 40


def test_statistics_from_the_engine_are_those_of_its_logprobs(tmp_path: Path) -> None:
    # With k as large as the vocabulary the entropy of the k is the entropy.
    options = ["--temperature", 0, "--limit", 4, "--samples", 2, "--max-new-tokens", 44, "--k", 100]
    engine = generate(tmp_path / "engine.parquet", "vllm", *options)
    reduced = generate(tmp_path / "logprobs.parquet", "vllm", *options, "--statistics", "logprobs")
    close(engine, reduced, EXACT[:3])
    assert read_metadata(tmp_path / "engine.parquet")["entropy"] == "full"
    assert read_metadata(tmp_path / "logprobs.parquet")["entropy"] == "topk"


def test_preemption_and_prompts_in_pieces_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dttrl.sampling.vllm.engine import VllmEngine
    from dttrl.sampling.vllm.jobs import Done, EngineStart, Job, Stream
    from dttrl.settings.choices import Vllm
    from dttrl.settings.sections import Model, Sampling

    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    jobs = [
        Job(i, tuple(5 + (i * 7 + j) % 60 for j in range(30)), Stream(0, 0, f"q{i}", "sample:0"))
        for i in range(12)
    ]

    def draw(**extra: object) -> tuple[dict[int, Done], int]:
        start = EngineStart(
            Model(name=str(MODEL), dtype="float32"),
            Vllm(max_model_len=128, max_num_seqs=12, enforce_eager=True),
            in_process=True,
            extra={"block_size": 32, **extra},
        )
        engine = VllmEngine(start)
        scheduler = engine._engine.engine_core.engine_core.scheduler
        preempt, preempted = scheduler._preempt_request, []

        def counted(*arguments: Any, **options: Any) -> Any:
            preempted.append(1)
            return preempt(*arguments, **options)

        monkeypatch.setattr(scheduler, "_preempt_request", counted)
        done = engine.advance(jobs, Sampling(max_new_tokens=90))
        while len(done) < len(jobs):
            done += engine.advance([], Sampling(max_new_tokens=90))
        engine.close()
        return {each.key: each for each in done}, len(preempted)

    ample, none = draw()
    # 14 blocks for 12 sequences of 4; 16 tokens a step, so that prompts of 30 come in pieces.
    tight, some = draw(num_gpu_blocks_override=14, max_num_batched_tokens=16, enable_prefix_caching=False)
    assert none == 0 < some
    for key, one in ample.items():
        assert one.token_ids.tolist() == tight[key].token_ids.tolist()
        np.testing.assert_allclose(one.statistics, tight[key].statistics, rtol=2e-2, atol=1e-4)


def test_few_places_change_nothing(tmp_path: Path) -> None:
    options = ["--temperature", 1, "--limit", 6, "--samples", 8, "--max-new-tokens", 44]
    few = generate(tmp_path / "few.parquet", "vllm", *options, "--max-num-seqs", 5)
    close(few, generate(tmp_path / "many.parquet", "vllm", *options), EXACT)


def test_a_killed_command_goes_on_and_ends_with_the_same_rollouts(tmp_path: Path) -> None:
    options = ["--temperature", 1, "--samples", 64, "--max-new-tokens", 44, "--max-num-seqs", 64]
    output = tmp_path / "killed.parquet"
    parts = Path(f"{output}.parts")
    # A part is written at every hand-over instead of every 30 seconds.
    code = (
        "import dttrl.sampling.parts as parts; parts.FLUSH_SECONDS = 0.0; "
        "import sys; from dttrl_cli.app import main; sys.exit(main())"
    )
    arguments = command(output, "vllm", *options)
    process = subprocess.Popen(
        [arguments[0], "-c", code, *arguments[3:]],
        env={**environment(), "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 180
    while process.poll() is None and not list(parts.glob("part-*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.02)
    engines = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{engine}").exists() for engine in engines) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert engines, "the engine was to have a process of its own"
    assert [engine for engine in engines if Path(f"/proc/{engine}").exists()] == []
    assert list(parts.glob("part-*.parquet")), "killed before anything was finished, or after everything was"
    assert not output.exists()
    continued = generate(output, "vllm", *options)
    close(continued, generate(tmp_path / "whole.parquet", "vllm", *options), EXACT)


def test_long_prompts_are_named_and_left_out_when_asked(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    prompts = ["1+2?", "1+" * 40 + "2?"]
    questions.write_text("".join(f'{{"id": "q{i}", "prompt": "{p}"}}\n' for i, p in enumerate(prompts)))
    arguments = command(tmp_path / "out.parquet", "vllm", "--max-new-tokens", 60, "--samples", 1)
    arguments[5] = str(questions)
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "question 'q1'" in done.stderr
    assert "--skip-long" in done.stderr
    done = subprocess.run(
        [*arguments, "--skip-long"], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert pq.read_table(tmp_path / "out.parquet").column("query_id").to_pylist() == ["q0"]
    assert read_metadata(tmp_path / "out.parquet")["skipped_long"] == ["q1"]


def test_two_replicas_draw_what_one_engine_draws(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    options = ["--temperature", 1, "--limit", 6, "--samples", 4, "--max-new-tokens", 44]
    two = generate(tmp_path / "two.parquet", "vllm", *options, "--replicas", 2)
    close(two, generate(tmp_path / "one.parquet", "vllm", *options), EXACT)


def test_a_replica_that_dies_is_named_with_its_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from dttrl.errors import WorkError
    from dttrl.sampling.vllm.jobs import EngineStart, Job, Stream
    from dttrl.sampling.vllm.replicas import Replicas
    from dttrl.settings.choices import Vllm
    from dttrl.settings.sections import Model, Sampling

    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    start = EngineStart(
        Model(name=str(MODEL), dtype="float32"),
        Vllm(max_model_len=128, max_num_seqs=1, enforce_eager=True, replicas=2),
    )
    fleet = Replicas(start, gpus=False)
    jobs = [Job(i, (5, 6, 7), Stream(0, 0, f"q{i}", "sample:0")) for i in range(5000)]
    finished = fleet.run(jobs, Sampling(max_new_tokens=100))
    assert next(finished)
    ray.kill(fleet._actors[1])
    with pytest.raises(WorkError, match=r"replica 1 died .*in flight: q\d"):
        for _ in finished:
            pass
    fleet.close()
    ray.shutdown()
