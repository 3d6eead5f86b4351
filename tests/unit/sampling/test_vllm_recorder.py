"""Rows of decoding steps, told apart by request and place, against statistics of each sequence alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dttrl.kernels.token_statistics import observe, token_statistics
from dttrl.rng import derive
from dttrl.sampling.vllm.recorder import Recorder, tokens_of
from dttrl.sampling.vllm.uniforms import Uniforms

VOCABULARY, K = 11, 3


class Sequences:
    """Requests with made-up logits for every place, so that what a row should hold is known."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.randn(4, 40, VOCABULARY, generator=generator)
        self.tokens = torch.randint(0, VOCABULARY, (4, 40), generator=generator, dtype=torch.int32)

    def step(self, recorder: Recorder, rows: list[tuple[int, int, bool]]) -> None:
        """Record one step; a row is (sequence, place, whether it sampled a token of the sequence)."""
        pairs = [(sequence, place) for sequence, place, _ in rows]
        recorder.record(
            torch.stack([self.logits[pair] for pair in pairs]),
            torch.stack([self.tokens[pair] for pair in pairs]),
            [f"r{sequence}" for sequence, _ in pairs],
            np.array([place for _, place in pairs], dtype=np.int32),
            np.array([keep for *_, keep in rows]),
        )

    def check(self, recorder: Recorder, sequence: int, tokens: int) -> None:
        (table,) = recorder.take([f"r{sequence}"])
        table = table[:tokens]
        assert tokens_of(table).tolist() == self.tokens[sequence, :tokens].tolist()
        logprob = torch.log_softmax(self.logits[sequence, :tokens], -1)
        expected = torch.empty(4, tokens)
        token_statistics(logprob, logprob.exp(), self.tokens[sequence, :tokens].long(), K, expected)
        np.testing.assert_array_equal(table[:, :4].T, expected.numpy())


@pytest.fixture
def sequences() -> Sequences:
    return Sequences()


@pytest.mark.parametrize("block_rows", [1, 5, 10**6])
def test_each_request_gets_its_rows_whatever_the_batches_were(sequences: Sequences, block_rows: int) -> None:
    recorder = Recorder(K, block_rows=block_rows)
    for place in range(20):  # r1 joins late, in front of r0
        sequences.step(recorder, [*([(1, place - 7, True)] if place >= 7 else []), (0, place, True)])
    sequences.check(recorder, 1, 13)
    sequences.check(recorder, 0, 20)


def test_a_piece_of_a_prompt_and_a_token_computed_twice_move_nothing(sequences: Sequences) -> None:
    recorder = Recorder(K, block_rows=4)
    sequences.step(recorder, [(0, 0, True), (1, 0, False)])
    sequences.step(recorder, [(0, 1, True), (1, 0, True)])
    # r0 is preempted: its prompt comes in pieces again, and the engine threw its last token away.
    sequences.step(recorder, [(1, 1, True), (0, 1, False)])
    sequences.step(recorder, [(1, 2, True), (0, 1, True)])
    sequences.step(recorder, [(1, 3, True), (0, 2, True)])
    sequences.check(recorder, 0, 3)
    sequences.check(recorder, 1, 4)


def test_rows_after_the_last_token_stay_behind_it_and_missing_ones_are_seen(sequences: Sequences) -> None:
    recorder = Recorder(K)
    for place in (0, 1, 3):
        sequences.step(recorder, [(2, place, True)])
    (table,) = recorder.take(["r2"])
    assert tokens_of(table)[[0, 1, 3]].tolist() == sequences.tokens[2, [0, 1, 3]].tolist()
    assert tokens_of(table)[2] == -1


def test_a_request_is_forgotten_when_it_has_been_handed_over(sequences: Sequences) -> None:
    recorder = Recorder(K)
    sequences.step(recorder, [(0, 0, True), (1, 0, True)])
    assert [len(table) for table in recorder.take(["r0"])] == [1]
    assert [len(table) for table in recorder.take(["r0", "r1"])] == [0, 1]
    sequences.step(recorder, [(2, 0, True)])
    recorder.clear()
    assert [len(table) for table in recorder.take(["r2"])] == [0]


def test_what_is_sampled_after_the_hand_over_is_not_kept(sequences: Sequences) -> None:
    recorder = Recorder(K, block_rows=1)
    sequences.step(recorder, [(0, 0, True), (1, 0, True)])
    recorder.take(["r0"])
    sequences.step(recorder, [(0, 1, True), (1, 1, True)])
    sequences.step(recorder, [(1, 2, True)])
    assert [len(table) for table in recorder.take(["r1", "r0"])] == [3, 0]


def test_rows_are_computed_in_pieces_where_the_vocabulary_is_large() -> None:
    logits, token = torch.randn(7, VOCABULARY), torch.arange(7)
    whole, pieces = torch.empty(4, 7), torch.empty(4, 7)
    observe(logits, token, K, whole)
    observe(logits, token, K, pieces, chunk_entries=2 * VOCABULARY)
    torch.testing.assert_close(pieces, whole)


def at(uniforms: Uniforms, names: list[str], places: list[int]) -> NDArray[np.float32]:
    return uniforms.at(names, uniforms.slots(names), np.array(places, dtype=np.int32))


def test_uniform_numbers_are_those_of_the_stream_at_any_place() -> None:
    streams = {f"r{i}": (7, i, f"q{i}", f"sample:{i}") for i in range(3)}
    expected = {
        name: derive(seed, step=step, query=query, purpose=purpose).random(200, dtype=np.float32)
        for name, (seed, step, query, purpose) in streams.items()
    }
    uniforms = Uniforms()
    for name, stream in streams.items():
        uniforms.add(name, stream)
    # Forwards, over a block's end, back (a preempted request), and far ahead.
    for places in ([0, 1, 2], [63, 64, 65], [10, 130, 199], [190, 5, 0]):
        found = at(uniforms, list(streams), places)
        assert found.tolist() == [expected[name][place] for name, place in zip(streams, places, strict=True)]


def test_forgotten_requests_are_introduced_again_with_the_same_numbers() -> None:
    uniforms = Uniforms()
    for number in range(5000):
        uniforms.add(f"r{number}", (0, 0, "q", f"sample:{number}"))
    first = at(uniforms, ["r0", "r4999"], [70, 3])
    uniforms.keep(["r4999"])
    assert not uniforms.knows("r0")
    uniforms.add("r0", (0, 0, "q", "sample:0"))
    assert at(uniforms, ["r0", "r4999"], [70, 3]).tolist() == first.tolist()
