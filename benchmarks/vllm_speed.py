"""vLLM with and without token statistics, in one run and with one engine.

    python benchmarks/vllm_speed.py --model PATH [--sequences 512] [--tokens 512] [--max-model-len 1024]
    python benchmarks/vllm_speed.py --model PATH --replicas 1,2,4 [--sequences 512]
    python benchmarks/vllm_speed.py --model tiny --long 64x32768

The first compares, with the end of text ignored so that every sequence has exactly ``--tokens`` tokens:

    none      no statistics, vLLM's own draw without seeds: the fastest that this vLLM is
    seeds     no statistics, a seed a request, as repeatable rollouts need it
    flat      logprobs=k as flat lists, reduced when a sequence ends
    dicts     logprobs=k as a dict a token, reduced when a sequence ends
    engine    statistics and seeded draws inside the engine (what dttrl does)

"none" and "engine" are interleaved ``--repeats`` times and the best of each counts; the others run once, on
as many sequences with fewer tokens if ``--slow-tokens`` says so. Memory is the peak of the resident memory of
this process and its children above what it was before, by the tokens of the run; the engine's own memory is
allocated earlier.
The second form measures N engines on N times the work, for every N. The third measures host memory for one
question with many long rollouts; a model whose context is too short is told otherwise, which makes its text
nonsense and its speed and memory real. ``--model tiny`` is a random one-layer Llama. One JSON object is
printed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dttrl.kernels.token_statistics import STATISTICS
from dttrl.sampling.vllm.engine import VllmEngine, require_vllm, row_statistics
from dttrl.sampling.vllm.jobs import EngineStart, Job, Stream
from dttrl.settings.choices import Vllm
from dttrl.settings.sections import Model, Sampling

PROMPT = 32


class DictEngine(VllmEngine):
    """The engine whose statistics can be changed, also to those from a dict of log-probabilities a token."""

    dicts = False
    seeded = False

    def use(self, statistics: Any, *, seeded: bool) -> None:
        """Take statistics from elsewhere from now on; no sample may be in hand."""
        before, self.seeded = self._start.vllm.statistics, seeded
        self._start = replace(self._start, vllm=taking(self._start.vllm, statistics))
        if before != statistics == "engine":
            self._install()
        if before == "engine" != statistics:
            self._rpc("dttrl_remove")

    def _parameters(self, job: Job, settings: Sampling) -> Any:
        parameters = super()._parameters(job, settings)
        if not self.seeded:
            parameters.seed = None
        if self._start.vllm.statistics == "none":
            parameters.logprobs = None
        if self.dicts:
            parameters.flat_logprobs = False
        return parameters

    def _statistics(self) -> Iterator[Any]:
        if self._start.vllm.statistics == "none":
            yield from (np.empty((STATISTICS, 0), np.float32) for _ in self._ended)
            return
        if not self.dicts:
            yield from super()._statistics()
            return
        for _, _, ids, _, entries in self._ended:
            chosen = [entry[int(token)].logprob for entry, token in zip(entries, ids, strict=True)]
            top = [sorted((e.logprob for e in entry.values()), reverse=True)[:20] for entry in entries]
            yield row_statistics(np.array(chosen, np.float32), np.array(top, np.float32))


def taking(vllm: Vllm, statistics: str) -> Vllm:
    """Settings with statistics from elsewhere, also from nowhere ("none"), which no user can choose."""
    return vllm.model_copy(update={"statistics": statistics})


class Peak:
    """The largest resident memory of this process and its children while it is open, in bytes."""

    def __enter__(self) -> Peak:
        self.start = self.peak = resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, resident())

    @property
    def extra(self) -> int:
        """What was added while it was open."""
        return self.peak - self.start

    def _watch(self) -> None:
        while not self._stop.wait(1.0):
            self.peak = max(self.peak, resident())


def resident() -> int:
    """Anonymous resident memory of this process and all that descend from it."""
    parents, sizes = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                fields = (entry / "statm").read_text().split()
            except (OSError, IndexError):
                continue
            sizes[int(entry.name)] = (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    total, family = 0, {os.getpid()}
    while family:
        total += sum(sizes.get(process, 0) for process in family)
        family = {child for child, parent in parents.items() if parent in family}
    return total


def main() -> None:
    arguments = parse()
    if find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model == "tiny":
            arguments.model = tiny(Path(folder) / "tiny", max(arguments.max_model_len, needed(arguments)))
        if arguments.long:
            result = long_question(arguments)
        elif arguments.replicas:
            result = scaling(arguments)
        else:
            result = compare(arguments)
    print(json.dumps(result))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--slow-tokens", type=int, help="tokens a sequence of seeds, flat and dicts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--modes", default="none,engine,seeds,flat,dicts")
    parser.add_argument("--max-model-len", type=int, default=1024)
    parser.add_argument("--max-num-seqs", type=int, default=512)
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.5)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--eager", action="store_true", help="no compilation and no CUDA graphs")
    parser.add_argument("--graphs", action="store_true", help="CUDA graphs, no compilation: starts sooner")
    parser.add_argument("--in-process", action="store_true", help="the engine in this process")
    parser.add_argument("--own-process", action="store_true", help="the engine in a process of its own")
    parser.add_argument("--replicas", metavar="N,N", help="compare so many engines; the first is the measure")
    parser.add_argument("--long", metavar="NxT", help="N rollouts of T tokens of one question")
    return parser.parse_args()


def needed(arguments: argparse.Namespace) -> int:
    tokens = int(arguments.long.split("x")[1]) if arguments.long else arguments.tokens
    return PROMPT + tokens


def engine_start(arguments: argparse.Namespace, statistics: str, *, replicas: int = 1) -> EngineStart:
    length = max(needed(arguments), 0 if arguments.long else arguments.max_model_len)
    positions = json.loads((Path(arguments.model) / "config.json").read_text())["max_position_embeddings"]
    extra: dict[str, object] = {}
    if positions < length:
        extra["hf_overrides"] = {"max_position_embeddings": length}
    if arguments.graphs:
        extra["compilation_config"] = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
    vllm = Vllm(
        max_model_len=length,
        max_num_seqs=arguments.max_num_seqs,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        enforce_eager=arguments.eager,
        replicas=replicas,
    )
    in_process = True if arguments.in_process else False if arguments.own_process else None
    return EngineStart(
        Model(name=arguments.model, dtype=arguments.dtype),
        taking(vllm, statistics),
        in_process=in_process,
        extra=extra,
    )


def jobs_of(sequences: int, *, questions: int = 8, vocabulary: int) -> list[Job]:
    """Jobs of a few questions with the prompts of random tokens."""
    random = np.random.default_rng(0)
    low = min(10, vocabulary // 2)
    prompts = [tuple(map(int, random.integers(low, vocabulary, PROMPT))) for _ in range(questions)]
    each = -(-sequences // questions)
    return [
        Job(number, prompts[number // each], Stream(0, 0, f"q{number // each}", f"sample:{number % each}"))
        for number in range(sequences)
    ]


def vocabulary_of(arguments: argparse.Namespace) -> int:
    return int(json.loads((Path(arguments.model) / "config.json").read_text())["vocab_size"])


def draw(engine: VllmEngine, jobs: Sequence[Job], settings: Sampling) -> dict[str, float]:
    """Draw the jobs; tokens a second, and memory a token."""
    queue, running, tokens = list(jobs), 0, 0
    kept = []
    with Peak() as peak:
        began = time.perf_counter()
        while queue or running:
            more, queue = queue[: engine.capacity - running], queue[engine.capacity - running :]
            running += len(more)
            done = engine.advance(more, settings)
            running -= len(done)
            tokens += sum(len(each.token_ids) for each in done)
            kept += done
        seconds = time.perf_counter() - began
    assert all(each.statistics.shape[1] in (0, len(each.token_ids)) for each in kept)
    return {
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "bytes_per_token": round(peak.extra / tokens, 1),
    }


def compare(arguments: argparse.Namespace) -> dict[str, object]:
    began = time.perf_counter()
    engine = DictEngine(engine_start(arguments, "none"))
    report: dict[str, object] = {
        "benchmark": "statistics",
        "start_seconds": round(time.perf_counter() - began, 1),
        **setting(arguments),
    }
    print(f"engine up after {report['start_seconds']} s", flush=True)
    vocabulary = vocabulary_of(arguments)
    few = arguments.slow_tokens or arguments.tokens
    results: dict[str, dict[str, float]] = {}
    wanted = arguments.modes.split(",")
    for repeat in range(arguments.repeats):
        for mode in (mode for mode in ("none", "engine") if mode in wanted):
            measure(engine, mode, arguments, arguments.tokens, vocabulary, results, warm=repeat == 0)
    for mode in (mode for mode in ("seeds", "flat", "dicts") if mode in wanted):
        measure(engine, mode, arguments, few, vocabulary, results, warm=True)
    engine.close()
    report["modes"] = results
    if {"none", "engine"} <= set(results):
        ratio = results["engine"]["tokens_per_second"] / results["none"]["tokens_per_second"]
        report["engine_over_none"] = round(ratio, 3)
    return report


def measure(
    engine: DictEngine,
    mode: str,
    arguments: argparse.Namespace,
    tokens: int,
    vocabulary: int,
    results: dict[str, dict[str, float]],
    *,
    warm: bool,
) -> None:
    """Run one mode and keep the better of this result and an earlier one."""
    statistics: Any = {"engine": "engine", "flat": "logprobs", "dicts": "logprobs"}.get(mode, "none")
    engine.use(statistics, seeded=mode == "seeds")
    engine.dicts = mode == "dicts"
    jobs = jobs_of(arguments.sequences, vocabulary=vocabulary)
    settings = Sampling(max_new_tokens=tokens, top_p=arguments.top_p)
    if warm:
        short = Sampling(max_new_tokens=min(8, tokens), top_p=arguments.top_p)
        draw(engine, jobs, short)
    found = draw(engine, jobs, settings)
    print(f"{mode:7} {arguments.sequences} x {tokens}: {found}", flush=True)
    if mode not in results or found["tokens_per_second"] > results[mode]["tokens_per_second"]:
        results[mode] = found


def scaling(arguments: argparse.Namespace) -> dict[str, object]:
    """N engines on N times the work, all of them Ray actors, for several N."""
    from dttrl.sampling.vllm.replicas import Replicas

    _, on_cpu = require_vllm()
    vocabulary = vocabulary_of(arguments)
    counts = [int(count) for count in arguments.replicas.split(",")]
    speeds: dict[int, float] = {}
    for count in counts:
        began = time.perf_counter()
        fleet = Replicas(engine_start(arguments, "engine", replicas=count), gpus=not on_cpu)
        started = time.perf_counter() - began
        jobs = jobs_of(arguments.sequences * count, questions=8 * count, vocabulary=vocabulary)
        warm = Sampling(max_new_tokens=min(8, arguments.tokens), top_p=arguments.top_p)
        for _ in fleet.run(jobs, warm):
            pass
        best = 0.0
        for _ in range(arguments.repeats):
            settings = Sampling(max_new_tokens=arguments.tokens, top_p=arguments.top_p)
            began, tokens = time.perf_counter(), 0
            for done in fleet.run(jobs, settings):
                tokens += sum(len(each.token_ids) for each in done)
            best = max(best, tokens / (time.perf_counter() - began))
            print(f"{count} engines (up after {started:.0f} s): {best:.0f} tokens/s", flush=True)
        speeds[count] = round(best, 1)
        fleet.close()
        time.sleep(5)  # until the memory of the killed processes is free
    return {
        "benchmark": "replicas",
        **setting(arguments),
        "tokens_per_second": speeds,
        "scaling": {count: round(speeds[count] / speeds[counts[0]], 3) for count in counts},
    }


def long_question(arguments: argparse.Namespace) -> dict[str, object]:
    """N rollouts of T tokens of one question through the sampler, as ``dttrl generate`` draws them."""
    from dttrl.sampling.base import SampleRequest
    from dttrl.sampling.models import load_tokenizer
    from dttrl.sampling.vllm.sampler import OneEngine, VllmSampler

    samples, tokens = map(int, arguments.long.split("x"))
    arguments.max_num_seqs = min(arguments.max_num_seqs, samples)
    engine = VllmEngine(engine_start(arguments, "engine"))
    files = load_tokenizer(Model(name=arguments.model))
    sampler = VllmSampler(lambda: OneEngine(engine), files.tokenizer, ())
    prompt = jobs_of(1, questions=1, vocabulary=vocabulary_of(arguments))[0].prompt_ids
    request = SampleRequest("long", prompt, tuple(range(samples)))
    with Peak() as peak:
        began = time.perf_counter()
        (rollouts,) = sampler.sample([request], Sampling(max_new_tokens=tokens))
        seconds = time.perf_counter() - began
    assert [rollout.num_tokens for rollout in rollouts] == [tokens] * samples
    engine.close()
    total = samples * tokens
    return {
        "benchmark": "long",
        **setting(arguments),
        "rollouts": samples,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(total / seconds, 1),
        "host_bytes_before": peak.start,
        "host_bytes_peak": peak.peak,
        "host_bytes_extra": peak.extra,
        "bytes_per_token": round(peak.extra / total, 1),
    }


def setting(arguments: argparse.Namespace) -> dict[str, object]:
    import torch
    import vllm

    names = ("model", "sequences", "tokens", "max_num_seqs", "top_p", "eager", "graphs", "in_process")
    return {
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        **{name: getattr(arguments, name) for name in names},
    }


def tiny(folder: Path, positions: int) -> str:
    """Write a random one-layer Llama whose tokens are characters, with room for ``positions`` tokens."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = ["<pad>", "<eos>", *map(chr, range(33, 125))]
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    core.decoder = decoders.Fuse()
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=positions,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>").save_pretrained(
        folder
    )
    return str(folder)


if __name__ == "__main__":
    main()
