from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dttrl.data.rollouts import Rollout
from dttrl.data.served_logprobs import ReplyError
from dttrl.sampling.openai_replies import read_reply, to_rollout


def chat(
    content: str, tokens: list[dict[str, Any]], reason: str | None = "stop", **message: Any
) -> dict[str, Any]:
    choice = {
        "message": {"content": content, **message}, "finish_reason": reason, "logprobs": {"content": tokens}
    }  # fmt: skip
    return {"choices": [choice]}


def token(
    piece: str, top: list[float | None], *, raw: bytes | None = None, own: float = -1.0
) -> dict[str, Any]:
    data = None if raw is None else list(raw)
    return {
        "token": piece, "bytes": data, "logprob": own, "top_logprobs": [{"logprob": value} for value in top]
    }  # fmt: skip


def completion(text: str, tokens: list[str], top: list[dict[str, float | None] | None]) -> dict[str, Any]:
    logprobs = {"tokens": tokens, "token_logprobs": [-0.5] * len(tokens), "top_logprobs": top}
    return {"choices": [{"text": text, "finish_reason": "length", "logprobs": logprobs}]}


def rollout(body: dict[str, Any], k: int) -> Rollout:
    return to_rollout(read_reply(body), k=k, query_id="q", sample_id=3)


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ([-1.0, -2.0, -6.0], 3.0),
        ([-20.0, -1.0, -2.0, -6.0], 3.0),  # the sampled token first, as one too many
        ([-1.0, -2.0, -6.0, -20.0], 3.0),  # and last
        ([-20.0, -1.0, -2.0], 1.5),  # the sampled token in the place of the third
        ([-2.0, -1.0, -6.0], 3.0),  # the sampled token first, but among the three
        ([-1.0, -2.0, -9999.0], 1.5),
        ([-1.0, -2.0, None], 1.5),
        ([-1.0, -2.0, -math.inf], 1.5),
        ([-9.0, -8.0, -1.0, -2.0, -6.0], 3.0),  # more entries than anybody asked for
        ([], math.nan),
    ],
)
def test_confidence_of_a_chat_token(top: list[float | None], expected: float) -> None:
    found = rollout(chat("ab", [token("a", [-1.0, -1.0, -1.0]), token("b", top)]), k=3)
    np.testing.assert_allclose(found.token_confidence, np.float32([1.0, expected]))


def test_confidence_of_a_completion_token() -> None:
    entries: list[dict[str, float | None] | None] = [
        {"a": -1.0, "b": -2.0, "c": -6.0},
        {"z": -20.0, "a": -1.0, "b": -2.0, "c": -6.0},
        {"c": -6.0, "a": -1.0, "b": -2.0},  # here the sampled token is the third, not one too many
        None,
    ]
    found = rollout(completion("abcd", list("abcd"), entries), k=3)
    np.testing.assert_allclose(found.token_confidence, np.float32([3.0, 3.0, 3.0, np.nan]))
    assert found.finish_reason == "length"
    assert found.token_logprob.tolist() == [-0.5] * 4


def test_entropy_counts_the_rest_as_one_outcome() -> None:
    top: list[float | None] = [math.log(0.5), math.log(0.25), math.log(0.125)]
    found = rollout(chat("ab", [token("a", top), token("b", [])]), k=2)
    expected = 0.5 * math.log(2) + 2 * 0.25 * math.log(4)
    np.testing.assert_allclose(found.token_entropy, np.float32([expected, np.nan]), rtol=1e-6)
    np.testing.assert_allclose(rollout(chat("a", [token("a", [0.0])]), k=1).token_entropy, [0.0])


def test_offsets_from_bytes_of_split_characters() -> None:
    cake = "🍰".encode()
    tokens = [
        token("a", [-1.0], raw=b"a"), token("\ufffd", [-1.0], raw=cake[:2]),
        token("\ufffd", [-1.0], raw=cake[2:] + b"b"), token("<end>", [-1.0], raw=b"<end>"),
    ]  # fmt: skip
    found = rollout(chat("a🍰b", tokens), k=1)
    assert (found.text, found.token_offset.tolist()) == ("a🍰b", [0, 1, 1, 3])


def test_offsets_without_bytes_of_split_characters() -> None:
    names = ["a", "\ufffd", "\ufffd", " b", "", " b", "<end>"]
    found = rollout(completion("a🍰 b b", names, [{"x": -1.0}] * len(names)), k=1)
    assert found.token_offset.tolist() == [0, 1, 1, 2, 4, 4, 6]


def test_an_empty_text_and_a_repeated_one() -> None:
    assert rollout(chat("", [token("<end>", [-1.0])]), k=1).text == ""
    found = rollout(
        chat("\n", [token("\n", [-1.0]), token("\n\n", [-1.0])]), k=1
    )  # the last is a stop string
    assert (found.text, found.token_offset.tolist()) == ("\n", [0, 1])


def test_reasoning_that_is_kept_apart_comes_back() -> None:
    tokens = [token("<think>", [-1.0]), token("so", [-1.0]), token("</think>", [-1.0]), token("4", [-1.0])]
    found = rollout(chat("4", tokens, reasoning_content="so"), k=1)
    assert found.text == "<think>so</think>4"
    assert found.token_offset.tolist() == [0, 7, 9, 17]


@pytest.mark.parametrize(
    ("reason", "expected"), [("stop", "stop"), ("length", "length"), (None, "abort"), ("x", "abort")]
)
def test_finish_reasons(reason: str | None, expected: str) -> None:
    assert rollout(chat("a", [token("a", [-1.0])], reason), k=1).finish_reason == expected


def test_token_ids_where_the_server_gives_them() -> None:
    body = chat("ab", [token("a", [-1.0]), token("b", [-1.0])])
    body["choices"][0]["token_ids"] = [5, 6]
    assert rollout(body, k=1).token_ids.tolist() == [5, 6]
    body["choices"][0]["token_ids"] = [5]
    assert rollout(body, k=1).token_ids.tolist() == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "the reply has no 'choices'"),
        ([], "the reply has no 'choices'"),
        ({"choices": []}, "choices has no 0"),
        ({"choices": [{"message": 3}]}, "'message' is not a dict"),
        ({"choices": [{"message": {"content": 3}}]}, "content is not text"),
        ({"choices": [{"text": None}]}, "'text' is not a str"),
        (chat("a", [{"logprob": -1.0}]), "content.0.token' is null, expected text"),
        (chat("a", [{"token": "a", "logprob": "x"}]), "content.0.logprob' is 'x', expected a number"),
        (
            chat("a", [{"token": "a", "logprob": -1.0, "bytes": [300]}]),
            "content.0.bytes' is not a list of bytes",
        ),
        (
            chat("a", [{"token": "a", "logprob": -1.0, "top_logprobs": [3]}]),
            "top_logprobs' is a number, expected an object",
        ),
        (completion("a", ["a", "b"], [{}]), "different lengths"),
    ],
)
def test_what_is_no_reply(body: Any, message: str) -> None:
    with pytest.raises(ReplyError, match=message):
        read_reply(body)
