"""Texts and token offsets for several kinds of tokenizers, against the decoding of prefixes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dttrl.sampling.text import _BYTE_OF, StopStrings, TextDecoder


def wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    backend.add_tokens([AddedToken("<think> x", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def byte_level() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "a"), ("a", "b"), ("ab", "c"), ("Ã", "©"), ("c", "Ã"), ("ð", "Ł")]
    tokens = [*alphabet, *dict.fromkeys("".join(pair) for pair in merges)]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return wrapped(backend)


def sentence_piece() -> PreTrainedTokenizerFast:
    tokens = [*(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdé", "▁a", "ab", "▁▁"]
    merges = [("▁", "a"), ("a", "b"), ("▁", "▁")]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(backend)


def words() -> PreTrainedTokenizerFast:
    """No decoder: the tokens are joined by spaces, which no table of bytes describes."""
    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["a", "bé", "ccc", "."])}, unk_token=".")
    )
    return wrapped(backend)


def word_pieces() -> PreTrainedTokenizerFast:
    backend = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(["a", "##b", "##cé", "d"])}, unk_token="a")
    )
    backend.decoder = decoders.WordPiece(cleanup=False)
    return wrapped(backend)


KINDS = {
    "byte_level": byte_level,
    "sentence_piece": sentence_piece,
    "words": words,
    "word_pieces": word_pieces,
}


def decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("text", ["abc é 😀a", "é", "a  ab\n\n\\boxed{é}", "日本 😀😀ab", "<think> x ab", ""])
def test_byte_level_offsets_are_exact_inside_characters(text: str) -> None:
    tokenizer = byte_level()
    ids = tokenizer(text)["input_ids"]
    eos = tokenizer.eos_token_id
    found, offsets = TextDecoder(tokenizer).decode(np.array([*ids, eos], dtype=np.int32))
    assert found == text
    expected, position = [], 0
    for token in ids:
        # The character that holds the token's first byte.
        expected.append(len(text.encode()[:position].decode(errors="ignore")))
        plain = tokenizer.convert_ids_to_tokens(token)
        position += len(plain.encode() if plain == "<think> x" else plain)
    assert offsets.tolist() == [*expected, len(text)]
    assert offsets.dtype == np.int32


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"a\xff\xc3b", [0, 1, 2, 3]), (b"\xe2\x82", [0, 0]), (b"\xc3\xa9\xe2\x82b\xff", [0, 0, 1, 1, 2, 3])],
)
def test_bytes_that_are_no_utf8_share_their_replacement_character(data: bytes, expected: list[int]) -> None:
    tokenizer = byte_level()
    spelling = {value: key for key, value in _BYTE_OF.items()}
    ids = tokenizer.convert_tokens_to_ids([spelling[byte] for byte in data])
    text, offsets = TextDecoder(tokenizer).decode(np.array(ids, dtype=np.int32))
    assert text == data.decode("utf-8", "replace") == decode(tokenizer, ids)
    assert offsets.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_ids_decode_to_the_tokenizers_text_with_offsets_that_agree_with_prefixes(
    kind: str, data: Any
) -> None:
    tokenizer = KINDS[kind]()
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
    text, offsets = TextDecoder(tokenizer).decode(np.array(ids, dtype=np.int32))
    assert text == decode(tokenizer, ids)
    assert len(offsets) == len(ids)
    assert (np.diff(offsets) >= 0).all()
    assert not ids or 0 <= offsets[0] <= offsets[-1] <= len(text)
    for place in range(len(ids)):
        prefix = decode(tokenizer, ids[:place])
        if "\ufffd" not in text and text.startswith(prefix) and kind != "words":
            assert offsets[place] == len(prefix)


def test_a_tokenizer_that_joins_by_spaces() -> None:
    text, offsets = TextDecoder(words()).decode(np.array([0, 1, 2, 4, 0], dtype=np.int32))
    assert text == "a bé ccc a"
    assert offsets.tolist() == [0, 1, 4, 8, 8]


@pytest.mark.parametrize("kind", ["byte_level", "words"])
def test_long_outputs_take_linear_time(kind: str) -> None:
    tokenizer = KINDS[kind]()
    decoder = TextDecoder(tokenizer)
    ids = np.random.default_rng(0).integers(0, 4, 20_000).astype(np.int32)
    decoder.decode(ids[:100])
    start = time.perf_counter()
    decoder.decode(ids[:2000])
    short = time.perf_counter() - start
    start = time.perf_counter()
    decoder.decode(ids)
    assert time.perf_counter() - start < 40 * short + 0.05


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
@given(data=st.data())
def test_stop_strings_are_found_at_the_first_token_that_completes_one_whatever_the_blocks(
    kind: str, data: Any
) -> None:
    tokenizer = KINDS[kind]()
    pool = tokenizer("ab é😀 abc\n")["input_ids"] + [tokenizer.eos_token_id]
    ids = np.array(data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=30)), dtype=np.int32)
    stops = tuple(
        data.draw(st.lists(st.sampled_from(["b", "é", "😀a", "ab ab", " ", "\n"]), min_size=1, max_size=2))
    )
    finder = StopStrings(TextDecoder(tokenizer), stops)
    expected = next(
        (
            end - 1
            for end in range(1, len(ids) + 1)
            if any(s in decode(tokenizer, ids[:end].tolist()) for s in stops)
        ),
        -1,
    )
    block = data.draw(st.integers(1, 8))
    found, checked = -1, 0
    while checked < len(ids) and found < 0:
        end = min(checked + block, len(ids))
        found = finder.find(ids[:end], checked)
        checked = end
    assert found == expected


def test_text_is_cut_before_the_earliest_stop_string() -> None:
    stops = StopStrings(TextDecoder(words()), ("##", "\n\n"))
    assert stops.cut("a\n\nb##") == "a"
    assert stops.cut("ab") == "ab"
