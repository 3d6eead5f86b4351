r"""Pre-train a small Llama on the question family and keep it at chosen levels of competence.

    python data/recipes/arithmetic/pretrain.py --out /tmp/arith --stop-accuracy 0.55
    python data/recipes/arithmetic/pretrain.py --out /tmp/arith --size 1.4M --digits 2,3,4 \
        --last-step places --stop-accuracy 0.45 0.55 0.65 0.75 --device cuda

Every ``--eval-every`` steps the averaged weights are tried on reserved questions; the first time that the
accuracy of samples at temperature 1 reaches a level of ``--stop-accuracy`` they are saved as ``OUT/at-0.55``
(a Hugging Face folder: safetensors, tokenizer, ``recipe.json`` with options and figures). Training ends with
the highest level, with ``--steps`` or with ``--max-seconds``; then what is there is saved as ``OUT/last``.
The options and their seed fix the corpus, the questions, the first weights and the order of the batches; on
a CPU with one thread they fix the trained weights as well, to the bit.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch
import transformers
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as Tokenizer

import gauge
from family import Family, LastStep, Operation, Sum, draw, question, question_sets, worked
from tokenizer import EOS, build_tokenizer

SIZES = {"0.3M": (3, 96), "0.8M": (4, 128), "1.4M": (4, 168), "2.6M": (6, 192)}
"""Layers and width; four heads, and an MLP 8/3 as wide."""
QUESTION_SEED = 2026
"""Of the test, held-out and watched questions (``family.question_sets``), the same for every model."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Encoded examples: padding on the right, ``target`` −100 outside the completion."""

    token_NT: torch.Tensor
    target_NT: torch.Tensor


def build_model(size: str, tokenizer: Tokenizer, seed: int) -> LlamaForCausalLM:
    """Return a randomly initialised Llama; the same for the same seed."""
    layers, width = SIZES[size]
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 8 * 8,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def encode(family: Family, tokenizer: Tokenizer, sums: list[Sum], rng: random.Random | None) -> Corpus:
    """Write out worked sums and encode them; with ``rng``, slips happen at the family's rate."""
    texts = [question(numbers) + worked(family, numbers, rng) + EOS for numbers in sums]
    encoded = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    token_NT = encoded["input_ids"].to(torch.uint8)
    prompt = torch.tensor([[1 + len(question(numbers))] for numbers in sums])
    position_T = torch.arange(token_NT.shape[1])
    inside = (position_T >= prompt) & (encoded["attention_mask"] == 1)
    return Corpus(token_NT, token_NT.to(torch.int16).masked_fill(~inside, -100))


def batches(corpus: Corpus, size: int, device: torch.device, seed: int) -> Iterator[Corpus]:
    """Yield batches for ever, drawn with replacement; ``target`` is already shifted by one."""
    generator = torch.Generator().manual_seed(seed)
    token_NT, target_NT = corpus.token_NT.to(device), corpus.target_NT.to(device)
    while True:
        index = torch.randint(len(token_NT), (size,), generator=generator).to(device)
        yield Corpus(token_NT[index][:, :-1].long(), target_NT[index][:, 1:].long())


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: Corpus) -> torch.Tensor:
    """Do one step of next-token prediction on the completions; return the mean loss in nats, detached."""
    logits = model(input_ids=batch.token_NT, use_cache=False).logits
    loss = cross_entropy(logits.flatten(0, 1), batch.target_NT.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def build_optimizer(
    model: LlamaForCausalLM, lr: float
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Return AdamW and a warm-up of 100 steps to a constant rate (training may stop anywhere)."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    return optimizer, warm_up


def save(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    folder: Path,
    options: argparse.Namespace,
    made: dict[str, str | float],
) -> None:
    """Save a Hugging Face folder, then load it again and measure it on the test questions."""
    dtype = getattr(torch, options.save_dtype)
    copy = LlamaForCausalLM(model.config).to(dtype)
    copy.load_state_dict(model.state_dict())
    copy.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(options.device).eval()
    family = family_of(options)
    tests = question_sets(family, QUESTION_SEED).test
    figures = gauge.report(loaded, AutoTokenizer.from_pretrained(folder), tests, options.seed)
    written = {
        "family": asdict(family),
        "question_seed": QUESTION_SEED,
        "options": {name: value for name, value in vars(options).items() if name not in ("out", "device")},
        "made": made,
        "parameters": sum(p.numel() for p in loaded.parameters()),
        "bytes": sum(file.stat().st_size for file in folder.glob("*.safetensors")),
        "example": question(tests[0]) + worked(family, tests[0]),
        "figures": figures,
    }
    (folder / "recipe.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    shown = " ".join(f"{name}={value:.3f}" for name, value in figures.items())
    print(f"saved {folder}: {shown}", flush=True)


def made_by(device: torch.device, step: int, seconds: float) -> dict[str, str | float]:
    """Return what a saved model came from: steps, seconds, kind of device, versions."""
    return {
        "step": step,
        "seconds": round(seconds, 1),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def family_of(options: argparse.Namespace) -> Family:
    """Return the question family that the options describe."""
    return Family(
        digits=options.digits,
        last_step=options.last_step,
        slip_rate=options.slip_rate,
        operation=options.operation,
    )


def pretrain(options: argparse.Namespace) -> None:
    """Train, watch, and save at the levels asked for."""
    device, family, tokenizer = torch.device(options.device), family_of(options), build_tokenizer()
    torch.set_float32_matmul_precision("high")
    started = time.monotonic()
    rng = random.Random(options.seed)
    sums = [draw(family, rng, reserved=False) for _ in range(options.corpus)]
    corpus = encode(family, tokenizer, sums, rng)
    model = build_model(options.size, tokenizer, options.seed).to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(options.average))
    optimizer, warm_up = build_optimizer(model, options.lr)
    watched, levels = question_sets(family, QUESTION_SEED).watched, sorted(options.stop_accuracy)
    known = encode(family, tokenizer, watched, rng=None)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    for step, batch in enumerate(batches(corpus, options.batch, device, options.seed), start=1):
        loss = train_step(model.train(), optimizer, batch)
        warm_up.step()
        average.update_parameters(model)
        seconds = time.monotonic() - started
        names = [f"step-{step:06d}"] if options.save_every and step % options.save_every == 0 else []
        if step % options.eval_every == 0:
            likely = worked_probability(average.module.eval(), known)
            print(f"step {step} loss {loss:.4f} P(worked) {likely:.3f} {seconds:.0f} s", flush=True)
            # Sampling costs seconds on a CPU, so it waits until the level can be near.
            if levels and likely >= 0.7 * levels[0]:
                reached = watch(average.module, tokenizer, watched, step)
                names += [f"at-{level:.2f}" for level in levels[:1] if reached >= level]
                levels = [level for level in levels if level > reached]
        done = bool(options.stop_accuracy) and not levels
        if not done and (step >= options.steps or seconds > options.max_seconds):
            names, done = [*names, "last"], True
        for name in names:
            save(average.module, tokenizer, options.out / name, options, made_by(device, step, seconds))
        if done:
            return


def watch(model: LlamaForCausalLM, tokenizer: Tokenizer, watched: list[Sum], step: int) -> float:
    """Return avg@16 on the watched questions."""
    samples = gauge.sample(model, tokenizer, watched, count=16, temperature=1.0, top_p=1.0, seed=step)
    reached, votes = gauge.accuracy(samples, watched), gauge.majority_accuracy(samples, watched, 16)
    print(f"step {step} avg@16 {reached:.3f} maj@16 {votes:.3f}", flush=True)
    return reached


def worked_probability(model: LlamaForCausalLM, examples: Corpus) -> float:
    """Return the mean probability of the worked completions: nearly the accuracy, and far cheaper."""
    token_NT, target_NT = examples.token_NT.to(model.device), examples.target_NT.to(model.device)
    with torch.no_grad():
        logits = model(input_ids=token_NT[:, :-1].long(), use_cache=False).logits
        loss_NT = cross_entropy(logits.float().transpose(1, 2), target_NT[:, 1:].long(), reduction="none")
    return float((-loss_NT.sum(1)).exp().mean())


def lengths(text: str) -> tuple[int, ...]:
    """Read the lengths of the numbers; longer ones would not fit into ``gauge.sample``'s completions."""
    parts = text.split(",")
    if not set(parts) <= {"1", "2", "3", "4"} or not {"3", "4"} & set(parts):
        raise argparse.ArgumentTypeError(f"{text!r}: lengths of 1 to 4 with a comma between, and a 3 or a 4")
    return tuple(map(int, parts))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the model folders")
    parser.add_argument("--size", choices=sorted(SIZES), default="0.8M", help="parameters")
    parser.add_argument("--digits", type=lengths, default="3", help="lengths of the numbers, as 2,3,4")
    parser.add_argument("--last-step", choices=get_args(LastStep), default="again", help="see family.py")
    parser.add_argument("--operation", choices=get_args(Operation), default="+", help="sums or products")
    parser.add_argument("--slip-rate", type=float, default=0.0, help="slips a column in the corpus")
    parser.add_argument("--stop-accuracy", type=float, nargs="*", default=[], help="levels to save at")
    parser.add_argument("--steps", type=int, default=4000, help="most steps")
    parser.add_argument("--max-seconds", type=float, default=1e9, help="most seconds")
    parser.add_argument("--eval-every", type=int, default=25, help="steps between looks at the accuracy")
    parser.add_argument("--save-every", type=int, default=0, help="steps between folders; 0: none")
    parser.add_argument("--batch", type=int, default=256, help="examples a step")
    parser.add_argument("--corpus", type=int, default=120_000, help="examples in all")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--average", type=float, default=0.98, help="decay of the average of the weights")
    parser.add_argument("--seed", type=int, default=0, help="of weights, corpus and order")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps")
    parser.add_argument("--save-dtype", choices=["float32", "bfloat16"], default="float32", help="of weights")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    pretrain(parse(sys.argv[1:]))
