from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dttrl.data.rollouts import Rollout
from dttrl.errors import InputError
from dttrl.method.confidence import (
    MEASURES,
    Region,
    positive_weights,
    region_values,
    step_start,
    token_confidence,
    token_entropy,
    trajectory_confidence,
)
from dttrl.sampling.openai_replies import read_reply, to_rollout
from dttrl.sampling.vllm.engine import flat_statistics


def make_rollout(tokens: list[str], values: list[float], **columns: list[float]) -> Rollout:
    starts = np.cumsum([0, *[len(token) for token in tokens]])[:-1]
    zeros = np.zeros(len(values), np.float32)
    arrays: dict[str, Any] = {"token_logprob": zeros, "token_entropy": zeros}
    arrays |= {name: np.array(value, np.float32) for name, value in columns.items()}
    return Rollout(
        query_id="q",
        sample_id=0,
        text="".join(tokens),
        finish_reason="stop",
        token_ids=np.zeros(len(values), np.int32),
        token_offset=starts.astype(np.int32),
        token_confidence=np.array(values, np.float32),
        **arrays,
    )


def test_one_entry_more_than_k_is_dropped() -> None:
    with_sampled = np.array([[-9.0, -0.5, -1.5, -2.5]])  # the sampled token first, outside the top 3
    assert token_confidence(with_sampled, k=3).tolist() == [1.5]
    assert token_confidence(with_sampled[:, 1:], k=3).tolist() == [1.5]


@pytest.mark.parametrize("missing", [-np.inf, np.nan, -9999.0])
def test_missing_entries_do_not_count(missing: float) -> None:
    rows = np.array([[-1.0, missing, -3.0], [missing, missing, missing], [missing, -2.0, missing]])
    np.testing.assert_array_equal(token_confidence(rows, k=20), np.array([2.0, np.nan, 2.0], np.float32))


def test_fewer_entries_than_k_are_averaged() -> None:
    assert token_confidence([[-1.0, -2.0]], k=20).tolist() == [1.5]


def test_the_entropy_counts_the_rest_as_one_outcome_and_missing_entries_not_at_all() -> None:
    top = np.log([[0.5, 0.25, 0.125], [1.0, 1e-300, 1e-300], [0.5, 0.25, 0.125]])
    top[1, 1:], top[2] = -np.inf, np.nan
    expected = 0.5 * np.log(2) + 2 * 0.25 * np.log(4)
    np.testing.assert_allclose(token_entropy(top, k=2), np.float32([expected, 0, np.nan]), rtol=1e-6)
    assert token_entropy(np.empty((0, 3)), k=2).shape == (0,)


@given(hnp.arrays(np.float64, (6, 12), elements=st.floats(-8, 8)), st.integers(1, 12))
def test_an_engine_and_a_server_say_the_same_of_the_same_entries(logit_TV: Any, k: int) -> None:
    logprob_TV = logit_TV - np.log(np.exp(logit_TV).sum(axis=1, keepdims=True))
    flat, content = [], []
    for values in np.float32(-np.sort(-logprob_TV, axis=1)).tolist():
        flat += [values[0], *values[:k]]  # the sampled token first, as vLLM gives them
        content.append(
            {"token": "a", "logprob": values[0], "top_logprobs": [{"logprob": v} for v in values[:k]]}
        )
    choice = {"message": {"content": "aaaaaa"}, "finish_reason": "stop", "logprobs": {"content": content}}
    served = to_rollout(read_reply({"choices": [choice]}), k=k, query_id="q", sample_id=0)
    confidence_T, logprob_T, entropy_T, certainty_T = flat_statistics(SimpleNamespace(logprobs=flat), 6)
    np.testing.assert_array_equal(served.token_confidence, confidence_T)
    np.testing.assert_array_equal(served.token_logprob, logprob_T)
    np.testing.assert_array_equal(served.token_entropy, entropy_T)
    assert np.isnan(certainty_T).all()
    full_T = -(np.exp(logprob_TV) * logprob_TV).sum(axis=1)
    assert np.all(entropy_T <= full_T + 1e-5)
    if k == logprob_TV.shape[1]:
        np.testing.assert_allclose(entropy_T, full_T, atol=1e-5)


def test_one_token_may_be_a_flat_list() -> None:
    assert token_confidence([-1.0, -2.0, -9.0], k=2).tolist() == [1.5]


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(0, 6), st.integers(1, 8)),
        elements=st.one_of(st.floats(-50, 0), st.sampled_from([-np.inf, -9999.0, np.nan])),
    ),
    st.integers(1, 8),
)
def test_token_confidence_is_minus_the_mean_of_the_largest(rows: Any, k: int) -> None:
    found = token_confidence(rows, k=k)
    assert found.dtype == np.float32
    expected = []
    for row in rows.tolist():
        kept = sorted((x for x in row if x > -9999.0), reverse=True)[:k]
        expected.append(-sum(kept) / len(kept) if kept else float("nan"))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("k", [0, -1])
def test_k_must_be_positive(k: int) -> None:
    with pytest.raises(InputError, match="k must be at least 1"):
        token_confidence([[-1.0]], k=k)


# Regions


@pytest.mark.parametrize(
    "text", ["last-step", "all", "tail:2048", "tail:1", "bottom:0.1:2048", "bottom:1:3", "lowest:16"]
)
def test_region_round_trips(text: str) -> None:
    assert str(Region.parse(text)) == text
    assert Region.parse(str(Region.parse(text))) == Region.parse(text)


def test_region_keeps_every_digit_of_its_share() -> None:
    region = Region.parse("bottom:0.12345678:16")
    assert Region.parse(str(region)) == region


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tail",
        "tail:0",
        "tail:-3",
        "tail:x",
        "tail:1:2",
        "bottom:0.1",
        "bottom:0:5",
        "bottom:1.5:5",
        "bottom:nan:5",
        "bottom:0.1:0",
        "lowest",
        "lowest:2.5",
        "last-step:3",
        "all:1",
        "Tail:5",
        "head:3",
    ],
)
def test_a_bad_region_names_the_forms(text: str) -> None:
    with pytest.raises(
        InputError, match=r"region .* is not one of: last-step, all, tail:N.*bottom:0\.1:2048"
    ) as error:
        Region.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "answer", "start"),
    [
        ("a\n\nb\n\n\\boxed{1}", "\\boxed", 6),
        ("a\n\nb \\boxed{1}\n\nc", "\\boxed", 3),  # a blank line after the answer does not count
        ("no blank line \\boxed{1}", "\\boxed", 0),
        ("a\n \t\nb \\boxed{1}", "\\boxed", 5),
        ("a\r\n\r\nb \\boxed{1}", "\\boxed", 5),
        ("a\n\n\n\n  b \\boxed{1}", "\\boxed", 7),  # indentation belongs to no step
        ("a\nb \\boxed{1}", "\\boxed", 0),
        ("a\n\nb", None, 3),
        ("a\n\nb\n\n  \n", None, 3),  # trailing blank lines are not a step
        ("", None, 0),
        ("\n\n", None, 0),
    ],
)
def test_step_start(text: str, answer: str | None, start: int) -> None:
    assert step_start(text, None if answer is None else text.index(answer)) == start


def test_last_step_with_a_blank_line() -> None:
    rollout = make_rollout(["think", "\n\n", "so ", "\\boxed{", "4", "}"], [9.0, 9.0, 1.0, 2.0, 3.0, 6.0])
    found = trajectory_confidence(
        rollout, region=Region("last-step"), answer_start=rollout.text.index("\\boxed")
    )
    assert found == 3.0


def test_last_step_without_a_blank_line_is_everything() -> None:
    rollout = make_rollout(["so ", "\\boxed{4}"], [1.0, 2.0])
    assert trajectory_confidence(rollout, region=Region("last-step"), answer_start=3) == 1.5


def test_last_step_without_an_answer_is_the_last_paragraph() -> None:
    rollout = make_rollout(["a", "\n\n", "b", "\n\n"], [1.0, 2.0, 4.0, 8.0])
    assert trajectory_confidence(rollout, region=Region("last-step"), answer_start=None) == 6.0


def test_last_step_includes_the_end_token() -> None:
    rollout = make_rollout(["a", "\n\n", "b", ""], [1.0, 2.0, 4.0, 8.0])
    assert trajectory_confidence(rollout, region=Region("last-step"), answer_start=3) == 6.0


def test_last_step_inside_one_token_falls_back_to_everything() -> None:
    rollout = make_rollout(["a ", "b\n\n\\boxed{4}"], [1.0, 3.0])
    assert trajectory_confidence(rollout, region=Region("last-step"), answer_start=5) == 2.0


def test_without_offsets_every_token_counts() -> None:
    rollout = make_rollout(["a", "\n\n", "b"], [1.0, 2.0, 6.0])
    bare = replace(rollout, token_offset=np.zeros(0, np.int32))
    assert trajectory_confidence(bare, region=Region("last-step"), answer_start=3) == 3.0


def windows(values: list[float], size: int) -> list[float]:
    if len(values) <= size:
        return [sum(values) / len(values)]
    return [sum(values[i : i + size]) / size for i in range(len(values) - size + 1)]


@given(
    st.lists(st.floats(0, 30, width=32), min_size=1, max_size=40),
    st.integers(1, 45),
    st.sampled_from([0.1, 0.25, 0.5, 1.0]),
)
def test_windows_against_a_naive_reference(values: list[float], size: int, share: float) -> None:
    rollout = make_rollout(["x"] * len(values), values)

    def found(region: Region) -> float:
        return trajectory_confidence(rollout, region=region, answer_start=None)

    means = sorted(windows(values, size))
    bottom = means[: max(1, int(len(means) * share))]
    assert found(Region("all")) == pytest.approx(sum(values) / len(values))
    assert found(Region("tail", size)) == pytest.approx(sum(values[-size:]) / len(values[-size:]))
    assert found(Region("lowest", size)) == pytest.approx(means[0])
    assert found(Region("bottom", size, share)) == pytest.approx(sum(bottom) / len(bottom))


def test_bottom_keeps_the_lowest_tenth_of_the_windows() -> None:
    values, offsets = np.arange(21.0)[::-1].copy(), np.arange(21, dtype=np.int32)
    kept = region_values(values, offsets, Region("bottom", 2, 0.1), start=0)
    assert sorted(kept.tolist()) == [0.5, 1.5]


# Measures


def test_measures_and_their_orientation() -> None:
    columns = {"token_logprob": [-1.0, -3.0], "token_entropy": [0.5, 1.5]}
    rollout = make_rollout(["a", "b"], [4.0, 6.0], **columns)

    def found(measure: Any) -> float:
        return trajectory_confidence(rollout, region=Region("all"), measure=measure, answer_start=None)

    assert found("topk") == 5.0
    assert found("logprob") == -2.0
    assert found("perplexity") == pytest.approx(np.exp(-2.0))
    assert found("entropy") == -1.0


def test_missing_token_values_are_left_out_and_no_value_is_nan() -> None:
    rollout = make_rollout(
        ["a", "b", "c", "d"], [np.nan, 2.0, np.inf, 4.0], token_logprob=[-9999.0, -1.0, -np.inf, -3.0]
    )
    assert trajectory_confidence(rollout, region=Region("all"), answer_start=None) == 3.0
    assert trajectory_confidence(rollout, region=Region("all"), measure="logprob", answer_start=None) == -2.0
    empty = make_rollout(["a"], [np.nan])
    assert np.isnan(trajectory_confidence(empty, region=Region("last-step"), answer_start=None))


def test_unknown_measure() -> None:
    measure: Any = "mean"
    with pytest.raises(InputError, match="measure 'mean' is not one of: topk"):
        trajectory_confidence(
            make_rollout(["a"], [1.0]), region=Region("all"), measure=measure, answer_start=None
        )


def test_self_certainty_does_not_crash() -> None:
    rollout = make_rollout(["a"], [1.0])
    found = trajectory_confidence(rollout, region=Region("all"), measure="self-certainty", answer_start=None)
    assert np.isnan(found)


# Vote weights


@pytest.mark.parametrize("measure", MEASURES)
def test_positive_weights_never_return_a_negative(measure: Any) -> None:
    confidence = np.array([[-2.0, -0.5, np.nan]])
    if measure in ("logprob", "entropy"):
        np.testing.assert_array_equal(positive_weights(confidence, measure), np.exp(confidence))
    else:
        with pytest.raises(InputError, match="negative"):
            positive_weights(confidence, measure)
    assert np.isnan(positive_weights(np.array([[np.nan]]), measure)).all()
    assert (positive_weights(np.array([[0.0, 2.0]]), measure) >= 0).all()


def test_weights_keep_the_order_of_the_confidences() -> None:
    confidence = np.array([-3.0, -0.1, -1.0])
    assert np.argsort(positive_weights(confidence, "logprob")).tolist() == np.argsort(confidence).tolist()
