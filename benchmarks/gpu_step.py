"""One training step on a CUDA device: ours, our general path, and transformers, in one run.

    python benchmarks/gpu_step.py --model-config CONFIG.json [--llama-1b] [--json OUT]

8 questions x 64 samples x 128 tokens, all trained, random weights in float32 under bfloat16 autocast.
"general" is what runs where the kernels do not apply; "transformers" is ``model.generate`` without
statistics, and a plain backward over whole logits. Each time is the smallest of the repeats after one to
warm up. Updates take one optimizer step over all rows unless a line says otherwise. Model FLOP count 6 a
parameter and token (the embedding table only where it is the output matrix too), nothing for attention or
for what is computed twice.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sampling import tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from dttrl.sampling.base import SampleRequest
from dttrl.sampling.transformers import TransformersSampler
from dttrl.settings.sections import Sampling, Update
from dttrl.training.policy import Policy, TrainingRow

QUESTIONS, SAMPLES, TOKENS = 8, 64, 128
BF16 = torch.bfloat16
Results = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-config", type=Path, required=True, help="a Llama's config.json")
    parser.add_argument("--llama-1b", action="store_true", help="also the update of a 1.2 B Llama")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skip-others", action="store_true", help="only ours")
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    results: Results = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    report(results, "matrix rate, TFLOP/s", round(matrix_rate() / 1e12))
    fields = json.loads(arguments.model_config.read_text())
    model = build({key: value for key, value in fields.items() if key not in ("architectures", "dtype")})
    report(results, "parameters", sum(p.numel() for p in model.parameters()))
    sampling(model, results, arguments)
    updates(model, results, arguments)
    whole_step(model, results, arguments)
    del model
    if arguments.llama_1b:
        torch.cuda.empty_cache()
        one_billion(results, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


def report(results: Results, name: str, value: Any) -> None:
    results[name] = value
    print(f"{name}: {value}", flush=True)


def best(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the shortest time, s, and the peak memory, GiB; the first run warms up."""
    times = []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:]), torch.cuda.max_memory_allocated() / 2**30


def matrix_rate(size: int = 8192) -> float:
    """FLOP/s of one large bfloat16 product of random matrices."""
    a, b = (torch.randn(size, size, device="cuda", dtype=BF16) for _ in range(2))
    for _ in range(3):
        a @ b
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        a @ b
    end.record()
    torch.cuda.synchronize()
    return float(20 * 2 * size**3 / (start.elapsed_time(end) / 1e3))


def build(fields: dict[str, Any]) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with torch.device("cuda"):
        return LlamaForCausalLM(LlamaConfig(**fields)).float().eval()


def requests() -> list[SampleRequest]:
    return [
        SampleRequest(
            f"q{number}",
            tuple(5 + (7 * number + place) % 1000 for place in range(18 + number % 4)),
            tuple(range(SAMPLES)),
        )
        for number in range(QUESTIONS)
    ]


def sampler(model: LlamaForCausalLM, fused: bool) -> TransformersSampler:
    return TransformersSampler(
        model, tokenizer(model.config.vocab_size), (), autocast_dtype=BF16, fused=fused
    )


def sample(source: TransformersSampler, **changes: Any) -> list[Any]:
    settings = Sampling(max_new_tokens=TOKENS, batch_size=QUESTIONS * SAMPLES).model_copy(update=changes)
    return list(source.sample(requests(), settings))


def generate(model: LlamaForCausalLM, warm: list[bool]) -> None:
    tokens = TOKENS if warm else 8
    warm.append(True)
    prompts = [request.prompt_ids for request in requests() for _ in request.sample_ids]
    longest = max(map(len, prompts))
    gap = [longest - len(prompt) for prompt in prompts]
    ids = torch.tensor(
        [[0] * gap + list(prompt) for gap, prompt in zip(gap, prompts, strict=True)], device="cuda"
    )
    mask = torch.tensor([[0] * size + [1] * (longest - size) for size in gap], device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=BF16):
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )


def sampling(model: LlamaForCausalLM, results: Results, arguments: argparse.Namespace) -> None:
    tokens, ours, general = QUESTIONS * SAMPLES * TOKENS, sampler(model, True), sampler(model, False)
    runs: list[tuple[str, Callable[[], object], int]] = [
        ("ours, statistics on", lambda: sample(ours), arguments.repeats),
        ("ours, statistics off", lambda: sample(ours, k=0), arguments.repeats),
        ("ours, statistics on, top_p 0.95", lambda: sample(ours, top_p=0.95), 1),
    ]
    if not arguments.skip_others:
        runs += [
            ("general, statistics on", lambda: sample(general), 1),
            ("transformers, statistics off", lambda warm=[]: generate(model, warm), 1),
        ]
    for name, run, repeats in runs:
        seconds, memory = best(run, repeats)
        entry = {"s": round(seconds, 3), "tokens/s": round(tokens / seconds), "peak GiB": round(memory, 1)}
        report(results, f"sampling, {name}", entry)


def rows(questions: int, samples: int, tokens: int, vocabulary: int) -> list[list[TrainingRow]]:
    random = np.random.default_rng(0)
    return [
        [
            TrainingRow(
                prompt_ids=tuple(range(5, 23 + number % 4)),
                token_ids=random.integers(3, vocabulary, tokens).astype(np.int32),
                advantage=float(random.normal()),
            )
            for _ in range(samples)
        ]
        for number in range(questions)
    ]


def policy(model: LlamaForCausalLM, fused: bool, **settings: Any) -> Policy:
    update = Update(beta=0.0, questions_per_step=settings.get("questions_per_update", 1), **settings)
    return Policy(model, update, temperature=1.0, pad_id=0, autocast_dtype=BF16, fused=fused)


def plain_backward(model: LlamaForCausalLM, data: list[list[TrainingRow]]) -> None:
    """What one would write first: 64 rows at a time, cross-entropy over whole logits, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    for question in data:
        ids = torch.tensor(np.array([[*row.prompt_ids, *row.token_ids] for row in question]), device="cuda")
        with torch.autocast("cuda", dtype=BF16):
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def counted(model: LlamaForCausalLM) -> int:
    """Parameters that take part in a product for every token."""
    embedding = model.model.embed_tokens.weight
    tied = model.lm_head.weight is embedding
    return sum(p.numel() for p in model.parameters()) - (0 if tied else embedding.numel())


def update_entry(
    model: LlamaForCausalLM, data: list[list[TrainingRow]], seconds: float, memory: float, results: Results
) -> Results:
    tokens = sum(len(row.prompt_ids) + len(row.token_ids) for question in data for row in question)
    rate = 6 * counted(model) * tokens / seconds / 1e12
    return {
        "s": round(seconds, 3),
        "tokens/s": round(tokens / seconds),
        "model TFLOP/s": round(rate),
        "share of matrix rate": round(rate / results["matrix rate, TFLOP/s"], 3),
        "peak GiB": round(memory, 1),
    }


def updates(model: LlamaForCausalLM, results: Results, arguments: argparse.Namespace) -> None:
    data = rows(QUESTIONS, SAMPLES, TOKENS, model.config.vocab_size)
    cases: list[tuple[str, Callable[[], object], int]] = []
    for name, fused in (("ours", True), ("general", False))[: 1 if arguments.skip_others else 2]:
        for step in (QUESTIONS, 1) if fused else (QUESTIONS,):
            one = policy(model, fused, questions_per_update=step)
            label = f"{name}, {step} questions an optimizer step, old log-probabilities included"
            cases.append(
                (
                    label,
                    lambda one=one: one.update(data, learning_rate=1e-6),
                    arguments.repeats if fused else 1,
                )
            )
    if not arguments.skip_others:
        cases.append(("transformers, plain backward", lambda: plain_backward(model, data), 1))
    for label, run, repeats in cases:
        seconds, memory = best(run, repeats)
        report(results, f"update, {label}", update_entry(model, data, seconds, memory, results))


def whole_step(model: LlamaForCausalLM, results: Results, arguments: argparse.Namespace) -> None:
    for name, fused in (("ours", True), ("general", False))[: 1 if arguments.skip_others else 2]:
        source, one = sampler(model, fused), policy(model, fused, questions_per_update=QUESTIONS)
        parts: list[tuple[float, float]] = []

        def step(source: Any = source, one: Policy = one, parts: list[Any] = parts) -> None:
            start = time.perf_counter()
            sampled = sample(source)
            torch.cuda.synchronize()
            middle = time.perf_counter()
            data = [
                [TrainingRow(request.prompt_ids, r.token_ids, float(r.sample_id % 7 - 3)) for r in rollouts]
                for request, rollouts in zip(requests(), sampled, strict=True)
            ]
            one.update(data, learning_rate=1e-6)
            torch.cuda.synchronize()
            parts.append((middle - start, time.perf_counter() - middle))

        seconds, memory = best(step, arguments.repeats if fused else 1)
        shortest = min(parts[1:], key=sum)
        entry = {
            "s": round(seconds, 3),
            "sampling s": round(shortest[0], 3),
            "update s": round(shortest[1], 3),
            "peak GiB": round(memory, 1),
        }
        report(results, f"step, {name}", entry)


def one_billion(results: Results, arguments: argparse.Namespace) -> None:
    model = build(
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "tie_word_embeddings": True,
        }
    )
    report(results, "1B parameters", sum(p.numel() for p in model.parameters()))
    data = rows(QUESTIONS, 16, 490, model.config.vocab_size)
    for step in (QUESTIONS, 1):
        one = policy(model, True, questions_per_update=step)
        seconds, memory = best(lambda one=one: one.update(data, learning_rate=1e-6), 1)
        del one
        name = f"1B update, ours, {step} questions an optimizer step, old log-probabilities included"
        report(results, name, update_entry(model, data, seconds, memory, results))


if __name__ == "__main__":
    main()
