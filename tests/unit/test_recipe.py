"""The arithmetic recipe, and what it made: the model and the questions of the quickstart."""

from __future__ import annotations

import argparse
import doctest
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dttrl.data.questions import read_questions
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "data" / "recipes" / "arithmetic"
QUICKSTART = ROOT / "data" / "quickstart"
sys.path.insert(0, str(RECIPE))

import family  # noqa: E402
import gauge  # noqa: E402
import pretrain  # noqa: E402
import tokenizer as tokenizer_module  # noqa: E402
import write_questions  # noqa: E402
from family import Family, LastStep, Sum  # noqa: E402

sys.path.remove(str(RECIPE))

LAST_STEPS = get_args(LastStep)
BOX = re.compile(r"\\boxed\{(\d+)\}")
TINY = ["--size", "0.3M", "--corpus", "300", "--batch", "16", "--steps", "20"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@pytest.mark.parametrize("module", [family, tokenizer_module, write_questions], ids=lambda m: m.__name__)
def test_the_examples_in_the_docstrings(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0


# The family


def pairs(sums: list[Sum]) -> set[tuple[int, int]]:
    return {(min(s.first, s.second), max(s.first, s.second)) for s in sums}


@pytest.mark.parametrize("last_step", LAST_STEPS)
def test_every_working_ends_with_the_right_answer(last_step: LastStep) -> None:
    sums = family.draw_questions(Family(digits=(2, 3, 4), last_step=last_step), 5, 200)
    for numbers in [*sums, Sum(999, 999), Sum(100, 100), Sum(5, 5), Sum(901, 109)]:
        text = family.worked(Family(last_step=last_step), numbers)
        assert BOX.findall(text) == [str(numbers.first + numbers.second)] == [family.answer(numbers)]
        assert text.count("\n\n") == 1
        assert gauge.read_answer(text) == family.answer(numbers)


@pytest.mark.parametrize(
    ("last_step", "expected"),
    [
        ("copy", "2+3=5\n9+7=16\n5+4+1=10\n\n\\boxed{1065}"),
        ("again", "2+3=5\n9+7=16\n5+4+1=10\n\n592+473=\\boxed{1065}"),
        ("check", "2+3=5\n9+7=16\n5+4+1=10\n\n\\boxed{1065}-473=592"),
        ("places", "5+4=9\n9+7=16\n2+3=5\n\n9,16,5=\\boxed{1065}"),
    ],
)
def test_the_four_last_steps(last_step: LastStep, expected: str) -> None:
    assert family.worked(Family(last_step=last_step), Sum(592, 473)) == expected


@pytest.mark.parametrize("last_step", LAST_STEPS)
def test_slips_come_at_their_rate_and_half_of_them_reach_the_answer(last_step: LastStep) -> None:
    rng = random.Random(0)
    slipping, careful = Family(last_step=last_step, slip_rate=0.1), Family(last_step=last_step)
    sums = [family.draw(careful, rng, reserved=False) for _ in range(3000)]
    texts = [family.worked(slipping, numbers, rng) for numbers in sums]
    changed = [
        text.split("\n\n")[0] != family.worked(careful, s).split("\n\n")[0]
        for text, s in zip(texts, sums, strict=True)
    ]
    wrong = [gauge.read_answer(text) != family.answer(s) for text, s in zip(texts, sums, strict=True)]
    assert np.mean(changed) == pytest.approx(1 - 0.9**3, abs=0.03)
    assert np.mean(wrong) == pytest.approx((1 - 0.9**3) / 2, abs=0.03)
    assert all(c for c, w in zip(changed, wrong, strict=True) if w)
    assert family.worked(slipping, sums[0]) == family.worked(careful, sums[0])


def test_sets_are_disjoint_from_each_other_and_from_every_corpus() -> None:
    for digits in ((3,), (2, 3, 4)):
        kind = Family(digits=digits)
        test, heldout, watched = map(pairs, family.question_sets(kind, pretrain.QUESTION_SEED))
        assert (len(test), len(heldout), len(watched)) == (64, 64, 96)
        assert len(test | heldout | watched) == 64 + 64 + 96
        for seed in range(3):
            rng = random.Random(seed)
            corpus = pairs([family.draw(kind, rng, reserved=False) for _ in range(10_000)])
            assert not corpus & (test | heldout | watched)


def test_a_sum_is_reserved_in_both_orders_and_one_in_fifty_is() -> None:
    rng = random.Random(1)
    sums = [Sum(rng.randint(100, 999), rng.randint(100, 999)) for _ in range(20_000)]
    reserved = [family.is_reserved(numbers) for numbers in sums]
    assert reserved == [family.is_reserved(Sum(numbers.second, numbers.first)) for numbers in sums]
    assert np.mean(reserved) == pytest.approx(1 / 50, abs=0.004)


def test_questions_follow_from_the_seed_and_fewer_are_a_prefix() -> None:
    many = family.draw_questions(Family(), 7, 100)
    assert family.draw_questions(Family(), 7, 40) == many[:40]
    assert family.draw_questions(Family(), 8, 40) != many[:40]
    assert all(100 <= n <= 999 for numbers in many for n in (numbers.first, numbers.second))


def test_a_family_with_too_few_reserved_sums_is_refused() -> None:
    with pytest.raises(ValueError, match="three digits or more"):
        family.draw_questions(Family(digits=(1, 2)), 0, 224)


@pytest.mark.parametrize("text", ["", "2", "5", "3,x", "33"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="1 to 4"):
        pretrain.lengths(text)
    assert pretrain.lengths("2,3") == (2, 3)


# The tokenizer


def test_the_tokenizer_gives_texts_back() -> None:
    tokenizer = tokenizer_module.build_tokenizer()
    for last_step in LAST_STEPS:
        text = "592+473?" + family.worked(Family(last_step=last_step), Sum(592, 473))
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert ids[0] == tokenizer.bos_token_id
        assert len(ids) == 1 + len(text) - len("\\boxed{") + 1
    printable = "".join(map(chr, range(32, 127))) + "\n"
    assert tokenizer.decode(tokenizer(printable).input_ids, skip_special_tokens=True) == printable
    assert tokenizer.decode(tokenizer("1é2").input_ids, skip_special_tokens=True) == "1?2"
    assert tokenizer("1<eos>").input_ids[-1] == tokenizer.eos_token_id


# What lies in data/quickstart


def test_the_question_files_are_what_the_generator_gives(tmp_path: Path) -> None:
    write_questions.write_questions(QUICKSTART / "model" / "recipe.json", tmp_path)
    for name in ("questions.jsonl", "heldout.jsonl"):
        assert (QUICKSTART / name).read_bytes() == (tmp_path / name).read_bytes()


def test_the_library_reads_the_question_files() -> None:
    questions = read_questions(QUICKSTART / "questions.jsonl")
    heldout = read_questions(QUICKSTART / "heldout.jsonl")
    assert (questions[0].id, questions[63].id, heldout[63].id) == ("sums-000", "sums-063", "heldout-063")
    assert len(questions) == len(heldout) == 64
    for question in [*questions, *heldout]:
        first, second = question.prompt.removesuffix("?").split("+")
        assert question.answer == str(int(first) + int(second))


def test_the_committed_model_loads_and_is_small() -> None:
    folder = QUICKSTART / "model"
    recipe = json.loads((folder / "recipe.json").read_text("utf-8"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == recipe["parameters"] == 792_192
    assert sum(file.stat().st_size for file in folder.iterdir()) < 6e6
    assert tokenizer.get_vocab() == tokenizer_module.build_tokenizer().get_vocab()
    assert tokenizer.padding_side == "left"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id

    questions = family.question_sets(family.family_from(recipe), recipe["question_seed"]).test[:24]
    samples = gauge.sample(model, tokenizer, questions, count=8, temperature=0.6, top_p=0.95, seed=0)
    assert gauge.accuracy(samples, questions) == pytest.approx(recipe["figures"]["cold_avg"], abs=0.1)


def test_the_quickstart_configuration_loads_and_leaves_room_for_every_right_working(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config(TrainConfig, Path("data/quickstart/train.yaml"))
    assert config.evaluation.heldout is not None
    assert config.questions.path.is_file()
    assert config.evaluation.heldout.is_file()
    assert Path(config.model.name, "model.safetensors").is_file()
    longest = family.worked(Family(), Sum(999, 999)) + tokenizer_module.EOS
    tokens = len(AutoTokenizer.from_pretrained(config.model.name)(longest).input_ids) - 1
    assert tokens == 41
    assert tokens <= config.sampling.max_new_tokens


# Pre-training and its gauge


def test_twenty_steps_reduce_the_loss() -> None:
    options = pretrain.parse(["--out", "unused", *TINY])
    tokenizer = tokenizer_module.build_tokenizer()
    rng = random.Random(0)
    sums = [family.draw(Family(), rng, reserved=False) for _ in range(options.corpus)]
    corpus = pretrain.encode(Family(), tokenizer, sums, rng)
    model = pretrain.build_model(options.size, tokenizer, 0)
    optimizer, warm_up = pretrain.build_optimizer(model, options.lr)
    losses = []
    for _, batch in zip(
        range(20), pretrain.batches(corpus, options.batch, torch.device("cpu"), 0), strict=False
    ):
        losses.append(float(pretrain.train_step(model, optimizer, batch)))
        warm_up.step()
    assert losses[0] == pytest.approx(np.log(len(tokenizer)), abs=0.3)
    assert np.mean(losses[-3:]) < losses[0] - 0.15


def test_only_the_completion_is_learnt() -> None:
    tokenizer, kind = tokenizer_module.build_tokenizer(), Family(last_step="copy")
    sums = [Sum(123, 456), Sum(999, 999)]  # of different lengths, so that one is padded
    corpus = pretrain.encode(kind, tokenizer, sums, None)
    learnt = [tokenizer.decode(target_T[target_T >= 0].long()) for target_T in corpus.target_NT]
    assert learnt == [family.worked(kind, numbers) + tokenizer_module.EOS for numbers in sums]


def test_the_same_options_give_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauge, "report", lambda *_: {"avg": 0.0})
    for name in ("one", "two"):
        pretrain.pretrain(pretrain.parse(["--out", str(tmp_path / name), *TINY, "--seed", "3"]))
        torch.rand(5)  # the state of the global generator must not matter
    one, two = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    tokenizer = tokenizer_module.build_tokenizer()
    first, other = (pretrain.build_model("0.3M", tokenizer, seed).state_dict() for seed in (3, 4))
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    recipe = json.loads((tmp_path / "one" / "last" / "recipe.json").read_text("utf-8"))
    assert recipe["made"]["step"] == 20
    assert recipe["made"]["device"] == "cpu"
    assert str(tmp_path) not in json.dumps(recipe)
    assert family.family_from(recipe) == Family()


def test_a_level_is_saved_when_it_is_reached_and_ends_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = iter([0.1, 0.35, 0.7, 0.9])
    monkeypatch.setattr(gauge, "report", lambda *_: {})
    monkeypatch.setattr(pretrain, "worked_probability", lambda *_: 1.0)
    monkeypatch.setattr(pretrain, "watch", lambda *_: next(reached))
    levels = ["--stop-accuracy", "0.65", "0.3", "0.5", "--eval-every", "2", "--save-every", "5"]
    pretrain.pretrain(pretrain.parse(["--out", str(tmp_path), *TINY, *levels]))
    steps = {
        folder.name: json.loads((folder / "recipe.json").read_text("utf-8"))["made"]["step"]
        for folder in tmp_path.iterdir()
    }
    assert steps == {"at-0.30": 4, "step-000005": 5, "at-0.50": 6}


def test_the_gauge_counts_by_hand() -> None:
    questions = [Sum(1, 2), Sum(2, 3)]
    given = ["3", "3", "4", None, "6", "5", "6", "5"]
    samples = gauge.Samples(
        token_RT=np.zeros((8, 3), dtype=np.int64),
        confidence_RT=np.array([[1, 2, 3]] * 4 + [[4, 5, np.nan]] * 4, dtype=np.float32),
        answer_R=given,
        last_step_R=np.array([1] * 4 + [0] * 4),
        length_R=np.array([3] * 4 + [2] * 4),
    )
    assert gauge.accuracy(samples, questions) == 4 / 8
    # Groups of two: 3 is right; 4 is wrong; in the two ties the first, 6, is taken and wrong.
    assert gauge.majority_accuracy(samples, questions, 2) == 1 / 4
    assert gauge.mean_confidence(samples, last_step=False).tolist() == [2.0] * 4 + [4.5] * 4
    assert gauge.mean_confidence(samples, last_step=True).tolist() == [2.5] * 4 + [4.5] * 4
    assert gauge.auroc(np.array([1.0, 2, 2, 3]), np.array([False, True, False, True])) == 3.5 / 4
    assert np.isnan(gauge.auroc(np.array([1.0, 2]), np.array([True, True])))
    assert gauge._last_step_start(np.array([[5, 9, 9, 7], [9, 5, 9, 5]]), 9).tolist() == [3, 0]


@pytest.mark.parametrize("last_step", get_args(LastStep))
def test_products_are_worked_to_the_right_answer(last_step: LastStep) -> None:
    kind = Family(digits=(3, 4), last_step=last_step, operation="*")
    drawn = family.draw_questions(kind, 5, 100)
    assert all(2 <= numbers.second <= 9 and family.is_reserved(numbers) for numbers in drawn)
    for numbers in [*drawn, Sum(9999, 9, "*"), Sum(1000, 2, "*")]:
        text = family.worked(kind, numbers)
        assert gauge.read_answer(text) == family.answer(numbers) == str(numbers.first * numbers.second)
        assert family.question(numbers) == f"{numbers.first}*{numbers.second}?"
        for line in text.split("\n\n")[0].splitlines():
            left, right = line.split("=")
            product, _, carry = left.partition("+")
            one, two = product.split("*")
            assert int(one) * int(two) + int(carry or 0) == int(right)


def test_products_of_short_numbers_are_too_few() -> None:
    with pytest.raises(ValueError, match="four digits"):
        family.draw_questions(Family(digits=(3,), operation="*"), 0, 224)


def test_question_files_name_the_family() -> None:
    line = json.loads(write_questions.lines([Sum(347, 6, "*")], "products"))
    assert (line["source"], line["answer"]) == ("products", "2082")
