"""Questions to rollouts through engines that only pretend: what is asked for, what comes back."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from dttrl.data.rollouts import Rollout
from dttrl.errors import InputError
from dttrl.sampling.base import SampleRequest
from dttrl.sampling.models import LoadedTokenizer, load_tokenizer
from dttrl.sampling.vllm.engine import row_statistics
from dttrl.sampling.vllm.jobs import Done, EngineStart, Fleet, Job, Stream
from dttrl.sampling.vllm.replicas import Replicas, questions, share_of
from dttrl.sampling.vllm.sampler import OneEngine, VllmSampler
from dttrl.settings.choices import Vllm
from dttrl.settings.sections import Model, Sampling
from tests.tiny import CHARACTERS, write_model

END = 1
A = 2 + CHARACTERS.index("1")


class FakeEngine:
    """Decodes ``room`` samples at a time, a token an ``advance``; sample s of a question has s + 1 tokens."""

    def __init__(self, room: int = 3, *, fail_after: int | None = None) -> None:
        self.capacity = room
        self.hand: list[tuple[Job, int]] = []
        self.most = 0
        self.cleared = 0
        self.advanced = 0
        self.fail_after = fail_after

    def advance(self, jobs: Sequence[Job], settings: Sampling) -> list[Done]:
        self.advanced += 1
        if self.fail_after is not None and self.advanced > self.fail_after:
            raise RuntimeError("died")
        self.hand += [(job, int(job.stream.purpose.split(":")[1]) + 1) for job in jobs]
        self.most = max(self.most, len(self.hand))
        self.hand = [(job, left - 1) for job, left in self.hand]
        finished = [job for job, left in self.hand if left == 0]
        self.hand = [(job, left) for job, left in self.hand if left > 0]
        return [self._done(job) for job in finished]

    def clear(self) -> None:
        self.hand = []
        self.cleared += 1

    def _done(self, job: Job) -> Done:
        size = int(job.stream.purpose.split(":")[1]) + 1
        ids = np.array([A] * size + [END], dtype=np.int32)
        return Done(job.key, ids, np.arange(4 * (size + 1), dtype=np.float32).reshape(4, -1), "stop")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    return load_tokenizer(Model(name=str(write_model(tmp_path_factory.mktemp("model") / "tiny"))))


def request(name: str, samples: int = 4, *, first: int = 0, held: bool = False) -> SampleRequest:
    return SampleRequest(name, (3, 4, 5), tuple(range(first, samples)), held=held)


def run(files: LoadedTokenizer, fleet: Fleet, requests: list[SampleRequest]) -> Iterator[list[Rollout]]:
    sampler = VllmSampler(lambda: fleet, files.tokenizer, files.eos_ids, max_model_len=100)
    return sampler.sample(requests, Sampling(max_new_tokens=50))


def test_a_tokenizer_without_its_model_knows_what_ends_a_rollout(files: LoadedTokenizer) -> None:
    assert files.eos_ids == (END,)
    assert files.config.max_position_embeddings == 128


def test_questions_are_yielded_whole_and_the_engine_never_holds_more_than_its_room(
    files: LoadedTokenizer,
) -> None:
    engine = FakeEngine()
    wanted = [request("a"), request("b", first=2), request("c"), request("d", held=True)]
    found = list(run(files, OneEngine(engine), wanted))
    assert sorted((rollouts[0].query_id, [r.sample_id for r in rollouts]) for rollouts in found) == [
        ("a", [0, 1, 2, 3]),
        ("b", [2, 3]),
        ("c", [0, 1, 2, 3]),
    ]
    assert engine.most == 3
    for rollouts in found:
        for rollout in rollouts:
            size = rollout.sample_id + 1
            assert rollout.text == "1" * size
            assert rollout.token_ids.tolist() == [A] * size + [END]
            assert rollout.token_offset.tolist() == [*range(size), size]
            assert rollout.token_logprob.tolist() == [*range(size + 1, 2 * size + 2)]
            assert rollout.finish_reason == "stop"


def test_a_question_is_yielded_before_later_ones_are_begun(files: LoadedTokenizer) -> None:
    engine = FakeEngine(room=2)
    rollouts = run(files, OneEngine(engine), [request("a", 2), request("b", 2), request("c", 2)])
    assert next(rollouts)[0].query_id == "a"
    assert {job.stream.query for job, _ in engine.hand} <= {"b"}


def test_the_engine_stays_open_for_further_samples_of_the_same_questions(files: LoadedTokenizer) -> None:
    engine, opened = FakeEngine(), []

    def start() -> Fleet:
        opened.append(engine)
        return OneEngine(engine)

    sampler = VllmSampler(start, files.tokenizer, files.eos_ids, max_model_len=100)
    blocks = [[request("a", 2), request("b", 2)], [request("b", 4, first=2)]]
    found = [list(sampler.sample(block, Sampling(max_new_tokens=50))) for block in blocks]
    assert len(opened) == 1
    assert [(group[0].query_id, [r.sample_id for r in group]) for group in found[1]] == [("b", [2, 3])]
    (whole,) = run(files, OneEngine(FakeEngine()), [request("b")])
    assert [*found[0][1], *found[1][0]] == whole


def test_what_is_in_the_engine_is_forgotten_when_nobody_wants_it(files: LoadedTokenizer) -> None:
    engine = FakeEngine(room=2)
    rollouts = run(files, OneEngine(engine), [request("a", 2), request("b", 9, first=7)])
    next(rollouts)
    rollouts.close()  # type: ignore[attr-defined]
    assert engine.cleared == 1


def test_finished_questions_are_there_when_an_engine_fails(files: LoadedTokenizer) -> None:
    rollouts = run(files, OneEngine(FakeEngine(room=2, fail_after=3)), [request("a", 2), request("b", 9)])
    assert next(rollouts)[0].query_id == "a"
    with pytest.raises(RuntimeError, match="died"):
        next(rollouts)


def test_a_prompt_without_room_for_its_completion_is_named_before_anything_starts(
    files: LoadedTokenizer,
) -> None:
    def start() -> Fleet:
        raise AssertionError("an engine was started")

    sampler = VllmSampler(start, files.tokenizer, files.eos_ids, max_model_len=52)
    with pytest.raises(InputError, match=r"question 'long': 3 prompt tokens .* context of 52; .*--skip-long"):
        sampler.sample([request("long")], Sampling(max_new_tokens=50))
    with pytest.raises(InputError, match="no tokens"):
        sampler.sample([SampleRequest("x", (), (0,))], Sampling(max_new_tokens=50))


def test_statistics_from_returned_logprobs_leave_missing_entries_out() -> None:
    top = np.log(np.array([[0.5, 0.25], [1.0, 0.0]], dtype=np.float32).clip(1e-45))
    top[1, 1] = -np.inf
    found = row_statistics(np.array([-1.0, -2.0], dtype=np.float32), top)
    np.testing.assert_allclose(found[0], [-(np.log(0.5) + np.log(0.25)) / 2, 0], atol=1e-6)
    assert found[1].tolist() == [-1, -2]
    np.testing.assert_allclose(found[2], [0.5 * np.log(2) + 2 * 0.25 * np.log(4), 0], atol=1e-6)
    assert np.isnan(found[3]).all()


class FakeRay:
    """Actors that answer at once, in the order in which they were asked."""

    exceptions = SimpleNamespace(RayTaskError=LookupError, RayError=ArithmeticError)

    def __init__(self, room: int) -> None:
        self.engines: list[FakeEngine] = []
        self.given: list[list[int]] = []
        self.starting = 0
        self.started_together = 0
        self._room = room

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": 8.0}

    def remote(self, actor: type) -> FakeRay:
        return self

    def options(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(remote=self._start)

    def _start(self, start: EngineStart) -> SimpleNamespace:
        engine, number = FakeEngine(self._room), len(self.engines)
        self.engines.append(engine)
        self.given.append([])

        def advance(jobs: list[Job], settings: Sampling) -> list[list[Done]]:
            self.given[number].append(len(jobs))
            return [engine.advance(jobs, settings)]

        return SimpleNamespace(
            advance=SimpleNamespace(remote=lambda *a: Call(advance(*a)[0])),
            capacity=SimpleNamespace(remote=lambda: self._capacity(engine)),
            clear=SimpleNamespace(remote=lambda: None),
        )

    def _capacity(self, engine: FakeEngine) -> Call:
        self.starting += 1
        return Call(engine.capacity)

    def get(self, call: Call) -> object:
        self.started_together = self.started_together or self.starting
        return call.value

    def wait(self, calls: list[Call], num_returns: int) -> tuple[list[Call], list[Call]]:
        return calls[:1], calls[1:]


@dataclass(eq=False)
class Call:
    value: object


@pytest.mark.parametrize(
    ("jobs", "room", "first"), [(32, 100, [8] * 4), (10, 100, [3, 3, 2, 2]), (32, 5, [5] * 4)]
)
def test_engines_begin_with_equal_shares(
    monkeypatch: pytest.MonkeyPatch, jobs: int, room: int, first: list[int]
) -> None:
    ray = FakeRay(room)
    monkeypatch.setitem(sys.modules, "ray", ray)
    fleet = Replicas(EngineStart(Model(name="model"), Vllm(replicas=4)))
    assert ray.started_together == 4
    work = [Job(i, (1,), Stream(0, 0, "q", "sample:1")) for i in range(jobs)]
    done = [each.key for part in fleet.run(work, Sampling()) for each in part]
    assert sorted(done) == list(range(jobs))
    assert [given[0] for given in ray.given] == first


def test_engines_share_what_waits_and_lost_questions_are_named() -> None:
    assert [share_of(n, 4) for n in (0, 1, 8, 9)] == [0, 1, 2, 3]
    jobs = [Job(i, (1,), Stream(0, 0, f"q{i // 2}", "sample:0")) for i in range(14)]
    assert questions(jobs) == "q0, q1, q2, q3, q4 and 2 more"
    assert questions([]) == "nothing"
