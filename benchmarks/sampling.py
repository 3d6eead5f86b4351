"""Sampling speed as ratios within one run: ours against ``model.generate``, and statistics on against off.

    python benchmarks/sampling.py [--device cuda] [--width 192] [--tokens 128] [--repeats 3]

A random Llama with a character vocabulary; 8 questions of unequal length, 64 samples each. "No end" decodes
every row to the last token; with an end token rows stop at random places, as they do in use. Times are the
smallest of the repeats, interleaved: processor seconds of one thread on the CPU, wall clock on a device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import cache, partial

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dttrl.sampling.base import SampleRequest
from dttrl.sampling.transformers import TransformersSampler
from dttrl.settings.sections import Sampling

END = 1
QUESTIONS, SAMPLES = 8, 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = build(arguments).to(arguments.device, getattr(torch, arguments.dtype)).eval()
    requests = [
        SampleRequest(
            f"q{number}",
            tuple(3 + (number + place) % 20 for place in range(9 + number % 3)),
            tuple(range(SAMPLES)),
        )
        for number in range(QUESTIONS)
    ]
    results = {}
    for name, ends in (("no end", ()), ("with end", (END,))):
        runs: dict[str, Callable[[], int]] = {
            "generate": partial(generate, model, requests, ends, arguments.tokens),
            "ours, statistics off": partial(ours, model, requests, ends, arguments.tokens, False),
            "ours, statistics on": partial(ours, model, requests, ends, arguments.tokens, True),
        }
        if arguments.device != "cpu":
            runs["ours, no CUDA graph"] = partial(ours, model, requests, ends, arguments.tokens, True, False)
        results[name] = measured(runs, arguments.repeats, arguments.device)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters()), **results}, indent=2))


def measured(runs: dict[str, Callable[[], int]], repeats: int, device: str) -> dict[str, float]:
    """Return kept tokens a second of each, and the ratios that the claims are about."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    rate = dict.fromkeys(runs, 0.0)
    for _ in range(repeats + 1):  # the first round warms up
        for name, run in runs.items():
            start = clock()
            tokens = run()
            rate[name] = max(rate[name], tokens / (clock() - start))
    generate_rate, off, on, *_ = rate.values()
    return {
        **{f"{name}, tokens/s": round(value) for name, value in rate.items()},
        "ours with statistics / generate": round(on / generate_rate, 2),
        "statistics on / off": round(on / off, 2),
    }


def build(arguments: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=arguments.vocabulary,
        hidden_size=arguments.width,
        intermediate_size=arguments.width * 8 // 3,
        num_hidden_layers=arguments.layers,
        num_attention_heads=max(arguments.width // 32, 2),
        num_key_value_heads=2,
        max_position_embeddings=4096,
        eos_token_id=END,
    )
    return LlamaForCausalLM(config)


@cache
def tokenizer(size: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({f"<{index}>": index for index in range(size)}))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def ours(
    model: LlamaForCausalLM,
    requests: list[SampleRequest],
    ends: tuple[int, ...],
    tokens: int,
    statistics: bool,
    static: bool | None = None,
) -> int:
    sampler = TransformersSampler(model, tokenizer(model.config.vocab_size), ends, static=static)
    settings = Sampling(max_new_tokens=tokens, batch_size=QUESTIONS * SAMPLES)
    if not statistics:
        settings = settings.model_copy(update={"k": 0})
    return sum(rollout.num_tokens for rollouts in sampler.sample(requests, settings) for rollout in rollouts)


def generate(
    model: LlamaForCausalLM, requests: list[SampleRequest], ends: tuple[int, ...], tokens: int
) -> int:
    longest = max(len(request.prompt_ids) for request in requests)
    rows = [request.prompt_ids for request in requests for _ in request.sample_ids]
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=model.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=model.device)
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=tokens,
            eos_token_id=list(ends) or None,
            min_new_tokens=None if ends else tokens,
            pad_token_id=0,
        )[:, longest:]
    if not ends:
        return int(output.numel())
    ended = (output == END).int().cumsum(1) - (output == END).int()
    return int((ended == 0).sum())


if __name__ == "__main__":
    main()
