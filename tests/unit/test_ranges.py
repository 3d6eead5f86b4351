"""A number of rollouts or a range of them, as a setting."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.errors import InputError
from dttrl.ranges import SURE, SampleRange
from dttrl.settings.commands import CommandSettings, GenerateConfig, ScaleConfig, TrainConfig
from dttrl.settings.files import dump_config, load_config

NEEDED = {"model": "m", "questions": "q.jsonl"}


def chosen(of: type[CommandSettings], **changes: Any) -> Any:
    return load_config(of, None, NEEDED | changes)


@given(st.integers(1, 99), st.integers(33, 99))
def test_a_range_prints_as_it_is_parsed_and_its_blocks_are_all_of_it(least: int, more: int) -> None:
    asked = SampleRange(least, 2 * least + more)
    assert SampleRange.parse(str(asked)) == asked
    blocks = list(asked.blocks())
    assert [sample for block in blocks for sample in block] == list(range(asked.most))
    assert {len(block) for block in blocks[:-1]} == {least}
    assert 1 <= len(blocks[-1]) <= least


def test_a_range_in_which_no_question_can_stop_is_refused() -> None:
    """A question is sure over 16 rollouts, and the last block is drawn anyhow."""
    for text, earliest in (("8..24", 24), ("16..32", 32), ("32..64", 64), ("3..20", 21)):
        with pytest.raises(InputError, match="no question can stop") as caught:
            chosen(GenerateConfig, samples=text)
        assert f"in {text} " in str(caught.value)
        assert f"go beyond {earliest} " in str(caught.value)
        least = text.split("..")[0]
        assert chosen(GenerateConfig, samples=f"{least}..{earliest + 1}").generation.samples == earliest + 1


@pytest.mark.parametrize(
    "text", ["8..", "..8", "8..8", "9..8", "0..8", "8...9", "8-64", "eight", "", "8..64.5"]
)
def test_what_is_no_range_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match="range") as caught:
        chosen(GenerateConfig, samples=text)
    assert "\n" not in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "said"), [(0, "greater than or equal to 1"), ("-3", "equal to 1"), (2.5, "")]
)
def test_numbers_are_checked_as_ever(value: object, said: str) -> None:
    with pytest.raises(InputError, match=f"samples: .*{said}"):
        chosen(GenerateConfig, samples=value)


def test_a_number_means_what_it_did() -> None:
    for given_as in (40, "40"):
        config = chosen(TrainConfig, votes=given_as)
        assert (config.signal.votes, config.signal.count, config.signal.until) == (40, 40, None)
        assert "until" not in config.flat()
        assert config.flat()["votes"] == 40
    generated = chosen(GenerateConfig)
    assert (generated.generation.samples, generated.generation.count) == (64, 64)
    assert not {"until", "region", "measure", "kind", "last_number"} & generated.flat().keys()


@pytest.mark.parametrize(
    ("of", "name", "more"), [(GenerateConfig, "samples", {}), (TrainConfig, "votes", {"train_samples": 16})]
)
def test_a_range_goes_through_a_file_and_has_a_threshold(
    tmp_path: Any, of: type[CommandSettings], name: str, more: dict[str, Any]
) -> None:
    for until, expected in ((None, SURE), (0.8, 0.8), ("0.8", 0.8)):
        config = chosen(of, **{name: "16..64"}, **({} if until is None else {"until": until}), **more)
        flat = config.flat(changed_only=True)
        assert (flat[name], flat["until"]) == ("16..64", expected)
        path = tmp_path / "config.yaml"
        path.write_text(dump_config(config))
        assert load_config(of, path) == config


def test_a_threshold_without_a_range_is_refused() -> None:
    for of, name in ((GenerateConfig, "samples"), (TrainConfig, "votes")):
        with pytest.raises(InputError, match=rf"--until does nothing .* a range, as --{name} 8\.\.64"):
            chosen(of, until=SURE)
    with pytest.raises(InputError, match=r"--measure does nothing .* a range, as --samples 8\.\.64"):
        chosen(GenerateConfig, measure="perplexity")
    assert chosen(GenerateConfig, samples="8..64", measure="perplexity").scoring.measure == "perplexity"
    for until in (0, 1, 1.5):
        with pytest.raises(InputError, match="until"):
            chosen(GenerateConfig, samples="8..64", until=until)


def test_what_is_trained_on_must_be_there_whenever_a_question_stops() -> None:
    with pytest.raises(
        InputError, match=r"train-samples \(32\) must be at most votes \(16, the least of 16..64\)"
    ):
        chosen(TrainConfig, votes="16..64")
    assert chosen(TrainConfig, votes="16..64", train_samples=16).signal.votes == 64


def test_openrlhf_takes_one_number() -> None:
    with pytest.raises(
        InputError, match=r"--votes 32\.\.96 does nothing with --engine openrlhf.*give one number"
    ):
        chosen(ScaleConfig, engine="openrlhf", votes="32..96")
