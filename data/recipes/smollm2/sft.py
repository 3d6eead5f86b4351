r"""Fine-tune SmolLM2-135M-Instruct on worked problems until it is right now and then, and keep it there.

    python data/recipes/smollm2/sft.py --out OUT --device cuda --stop-accuracy 0.35 0.6

Supervised fine-tuning on ``problems.py``: bfloat16 arithmetic on float32 weights, loss on the completions
only. Every ``--eval-every`` steps the probability of the right completions of reserved problems is looked
at, and once that is near a level of ``--stop-accuracy`` the share of right samples at temperature 1; the
first time that it reaches the level, over both families, the model is saved as ``OUT/at-0.35``, with
``recipe.json`` and the question files. Training ends with the highest level, ``--steps`` or
``--max-seconds``; then what is there is saved as ``OUT/last``.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from dttrl.answers.extraction import extract
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.models import LoadedModel, load_model, resolve_device, save_model
from dttrl.sampling.transformers import TransformersSampler
from dttrl.settings.sections import Model, Sampling
from problems import FAMILIES, Problem, answer, draw, problem_sets, question, worked

LONGEST = 120
"""Tokens of a sampled completion; the longest right one has fewer."""


def prompt_ids(loaded: LoadedModel, problem: Problem) -> tuple[int, ...]:
    """Return the prompt as ``dttrl --template chat`` makes it."""
    if loaded.chat is None:
        raise SystemExit("the model has no chat template")
    return loaded.encode(loaded.chat([{"role": "user", "content": question(problem)}]), chat=True)


def batch(loaded: LoadedModel, problems: Sequence[Problem]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return padded token ids and, shifted by one, the targets (−100 outside the completions)."""
    rows, prompts = [], []
    for problem in problems:
        prompt = list(prompt_ids(loaded, problem))
        completion = loaded.tokenizer(worked(problem), add_special_tokens=False)["input_ids"]
        rows.append([*prompt, *completion, loaded.tokenizer.eos_token_id])
        prompts.append(len(prompt))
    width = max(map(len, rows))
    token_NT = torch.zeros((len(rows), width), dtype=torch.long)
    target_NT = torch.full((len(rows), width), -100)
    for index, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        token_NT[index, : len(row)] = torch.tensor(row)
        target_NT[index, prompt - 1 : len(row) - 1] = torch.tensor(row[prompt:])
    return token_NT, target_NT


def batches(loaded: LoadedModel, options: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield training batches for ever, half from each family, never a reserved problem."""
    rng = random.Random(options.seed)
    while True:
        kinds = [FAMILIES[index % len(FAMILIES)] for index in range(options.batch)]
        yield batch(loaded, [draw(kind, rng, reserved=False) for kind in kinds])


def losses(model: Any, token_NT: torch.Tensor, target_NT: torch.Tensor) -> torch.Tensor:
    """Return −log p of every target token, flat; logits exist at those positions only."""
    hidden = model.model(input_ids=token_NT).last_hidden_state
    wanted = target_NT >= 0
    logits = model.lm_head(hidden[wanted])
    return cross_entropy(logits.float(), target_NT[wanted], reduction="none")


def arithmetic(device: torch.device) -> AbstractContextManager[Any]:
    """Return bfloat16 autocast on a GPU, nothing elsewhere."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def likely(loaded: LoadedModel, examples: tuple[torch.Tensor, torch.Tensor], device: torch.device) -> float:
    """Return the mean probability of the worked completions: a cheap lower bound of the accuracy."""
    token_NT, target_NT = (part.to(device) for part in examples)
    with torch.no_grad(), arithmetic(device):
        loss = losses(loaded.model, token_NT, target_NT)
    row = (target_NT >= 0).nonzero()[:, 0]
    total = torch.zeros(len(token_NT), device=device).index_add(0, row, loss.float())
    return float((-total).exp().mean())


def accuracy(loaded: LoadedModel, problems: Sequence[Problem], samples: int, seed: int) -> dict[str, float]:
    """Return avg@samples and the accuracy of the majority vote at temperature 1."""
    sampler = TransformersSampler(loaded.model, loaded.tokenizer, loaded.eos_ids)
    requests = [
        SampleRequest(str(index), prompt_ids(loaded, problem), tuple(range(samples)))
        for index, problem in enumerate(problems)
    ]
    settings = Sampling(temperature=1.0, max_new_tokens=LONGEST, batch_size=1024, seed=seed)
    right, votes = 0, 0
    for rollouts in sampler.sample(requests, settings):
        gold = answer(problems[int(rollouts[0].query_id)])
        answers = [extract(rollout.text).answer for rollout in rollouts]
        right += sum(given == gold for given in answers)
        known = [given for given in answers if given is not None]
        votes += bool(known) and max(sorted(set(known)), key=known.count) == gold
    return {f"avg@{samples}": right / samples / len(problems), f"maj@{samples}": votes / len(problems)}


def save(loaded: LoadedModel, folder: Path, options: argparse.Namespace, made: dict[str, Any]) -> None:
    """Save the model in bfloat16 with its questions and ``recipe.json``."""
    # A copy: training goes on from the float32 weights.
    loaded = replace(loaded, model=copy.deepcopy(loaded.model).to(torch.bfloat16))
    save_model(loaded, folder, overwrite=True)
    figures = {}
    for family in FAMILIES:
        sets = problem_sets(family)
        for name, problems in (("questions", sets.test), ("heldout", sets.heldout)):
            text = "".join(
                json.dumps(record(problem, index)) + "\n" for index, problem in enumerate(problems)
            )
            (folder / f"{family}.{name}.jsonl").write_text(text, encoding="utf-8")
        if options.samples:
            figures[family] = accuracy(loaded, sets.test, options.samples, options.seed)
    kept = {name: value for name, value in vars(options).items() if name not in ("out", "device", "model")}
    text = json.dumps({"options": kept, "made": made, "figures": figures}, indent=1)
    (folder / "recipe.json").write_text(text + "\n", encoding="utf-8")
    print(f"saved {folder}: {figures}", flush=True)


def record(problem: Problem, index: int) -> dict[str, str]:
    """Return a line of a question file."""
    return {
        "id": f"{problem.family}-{index:03d}",
        "prompt": question(problem),
        "answer": answer(problem),
        "source": problem.family,
    }


def train(options: argparse.Namespace) -> None:
    """Train, watch, and save at the levels asked for."""
    device = resolve_device(options.device)
    torch.set_float32_matmul_precision("high")
    loaded = load_model(Model(name=options.model), device=device, dtype=torch.float32)
    watched = [problem for family in FAMILIES for problem in problem_sets(family).watched]
    known = batch(loaded, watched)
    optimizer = torch.optim.AdamW(
        loaded.model.parameters(), lr=options.lr, betas=(0.9, 0.98), weight_decay=0.0,
        fused=device.type == "cuda",
    )  # fmt: skip
    levels, began = sorted(options.stop_accuracy), time.monotonic()
    for step, (token_NT, target_NT) in enumerate(batches(loaded, options), start=1):
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, step / 20)
        with arithmetic(device):
            loss = losses(loaded.model.train(), token_NT.to(device), target_NT.to(device)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loaded.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds, names = time.monotonic() - began, []
        if step % options.eval_every == 0:
            chance = likely(loaded, known, device)
            print(f"step {step} loss {loss.item():.4f} P(worked) {chance:.3f} {seconds:.0f} s", flush=True)
            if levels and chance >= 0.5 * levels[0]:
                figures = accuracy(loaded, watched, 8, step)
                print(f"step {step} {figures}", flush=True)
                reached = figures["avg@8"]
                names += [f"at-{level:.2f}" for level in levels[:1] if reached >= level]
                levels = [level for level in levels if level > reached]
        done = bool(options.stop_accuracy) and not levels
        if not done and (step >= options.steps or seconds > options.max_seconds):
            names, done = [*names, "last"], True
        for name in names:
            save(loaded, options.out / name, options, {"step": step, "seconds": round(seconds, 1)})
        if done:
            return


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Fine-tune SmolLM2 on worked problems.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model folders")
    parser.add_argument("--model", default="smollm2", help="as dttrl names models: smollm2 or a folder")
    parser.add_argument("--stop-accuracy", type=float, nargs="*", default=[], help="levels to save at")
    parser.add_argument("--steps", type=int, default=2000, help="most steps")
    parser.add_argument("--max-seconds", type=float, default=90, help="most seconds of training")
    parser.add_argument("--eval-every", type=int, default=10, help="steps between looks at the accuracy")
    parser.add_argument("--batch", type=int, default=256, help="problems a step")
    parser.add_argument("--lr", type=float, default=3e-4, help="learning rate")
    parser.add_argument("--samples", type=int, default=16, help="rollouts a problem in the figures; 0: none")
    parser.add_argument("--seed", type=int, default=0, help="of the problems and the samples")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    return parser.parse_args()


if __name__ == "__main__":
    train(parse())
