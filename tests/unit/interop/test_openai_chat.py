from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.data.served_logprobs import chat_tokens
from dttrl.interop.fields import (
    Findings,
    Place,
    ReadOptions,
    Record,
    chat_text,
    finish,
    label,
    lookup,
    reference,
)
from dttrl.interop.openai_chat import put_tokens

HERE = Place(Path("r.jsonl"), 1, "line")


def token(
    piece: bytes, logprob: float | None = -1.0, top: list[float | None] | None = None
) -> dict[str, Any]:
    entries = None if top is None else [{"token": str(i), "logprob": value} for i, value in enumerate(top)]
    return {
        "token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece),
        "top_logprobs": entries,
    }  # fmt: skip


def record_of(tokens: list[dict[str, Any]], content: str, *, k: int | None = None) -> Record:
    record = Record(HERE, "q")
    assert put_tokens(record, {"content": tokens}, content, ReadOptions(k=k), Findings())
    return record


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        ([-1.0, -2.0, -6.0], 3.0),
        ([-1.0, -2.0], 1.5),  # fewer than asked for is allowed
        ([-20.0, -1.0, -2.0, -6.0], 3.0),  # vLLM: the sampled token first, as one too many
        ([-20.0, -1.0, -2.0], 1.5),  # vLLM: the sampled token first, in place of the third
        ([-2.0, -1.0, -6.0], 3.0),  # the sampled token first, but among the three: counts
        ([-1.0, -2.0, -9999.0], 1.5),
        ([-1.0, -2.0, None], 1.5),
        ([-1.0, -2.0, -math.inf], 1.5),
        ([], math.nan),
        ([-9999.0], math.nan),
    ],
)
def test_confidence_of_a_token(top: list[float | None], expected: float) -> None:
    tokens = [token(b"a", top=[-1.0, -1.0, -1.0]), token(b"b", top=top)]
    found = record_of(tokens, "ab", k=3)
    assert found.token_confidence is not None
    np.testing.assert_allclose(found.token_confidence, np.float32([1.0, expected]))


def test_k_is_what_most_tokens_have() -> None:
    tokens = [token(b"a", top=[-1.0] * n) for n in (5, 5, 6, 4, 5, 6)]
    assert chat_tokens({"content": tokens}).entries_asked() == 5
    two = [token(b"a", top=[-1.0] * n) for n in (6, 5)]
    assert chat_tokens({"content": two}).entries_asked() == 5
    none = [token(b"a"), token(b"a", top=[])]
    assert chat_tokens({"content": none}).entries_asked() is None


def test_without_entries_there_is_only_the_log_probability() -> None:
    found = record_of([token(b"a", -0.5), token(b"b", -9999.0)], "ab")
    assert found.token_confidence is None
    np.testing.assert_array_equal(found.token_logprob, np.float32([-0.5, np.nan]))


@given(st.text(min_size=1, max_size=20), st.data())
def test_offsets_are_those_of_the_characters_whatever_the_cut(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    text = raw.decode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=6)) | {0, len(raw)})
    pieces = [raw[a:b] for a, b in itertools.pairwise(cuts)]
    found = record_of([token(piece) for piece in pieces], text)
    assert found.text == text
    assert found.token_offset is not None
    # Literally: the character that holds the first byte of the token.
    owner = [index for index, character in enumerate(text) for _ in character.encode()]
    assert found.token_offset.tolist() == [owner[cut] for cut in cuts[:-1]]


def test_an_end_token_that_is_spelled_out_and_reasoning_before_the_content() -> None:
    pieces = [b"<think>", b"hm", b"</think>", b"4", b".", b"<|end|>"]
    found = record_of([token(piece) for piece in pieces], "4.")
    assert found.text == "<think>hm</think>4."
    assert found.token_offset is not None
    assert found.token_offset.tolist() == [0, 7, 9, 17, 18, 19]


def test_bytes_of_another_text_give_no_offsets() -> None:
    found = record_of([token(b"abc")], "xyz")
    assert (found.text, found.token_offset) == ("xyz", None)
    broken = record_of([token(b"ab\xff")], "ab")
    assert (broken.text, broken.token_offset) == ("ab", None)


def test_fields() -> None:
    assert lookup({"a": [{"b": 1}]}, "a.0.b") == 1
    assert lookup({"a": [{"b": 1}]}, "a.1.b") is None
    assert lookup([1], "x") is None
    assert chat_text([{"type": "text", "text": "x"}, {"type": "image", "image": "…"}], "f", HERE) == "x"
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    assert chat_text(chat, "f", HERE) == "x"
    assert (label([" 4 "], "f", HERE), label(4.0, "f", HERE), label("", "f", HERE)) == ("4", "4.0", None)
    assert label(math.nan, "f", HERE) is None
    assert [finish(name) for name in ("stop", "tool_calls", "length", "unknown", "")] == [
        "stop", "stop", "length", None, None,
    ]  # fmt: skip
    assert reference(r"So it is \boxed{3}.") == "3"
    assert reference("#### is no answer by itself") is not None
