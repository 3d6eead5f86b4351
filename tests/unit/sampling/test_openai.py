from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dttrl.data.rollouts import Rollout
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table
from dttrl.errors import InputError, WorkError
from dttrl.sampling import openai_client
from dttrl.sampling.base import OpenedBackend, SampleRequest
from dttrl.sampling.generation import generate
from dttrl.sampling.openai import open_openai
from dttrl.sampling.opening import open_backend
from dttrl.sampling.prompts import load_questions
from dttrl.settings.choices import OpenAI
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.files import load_config
from tests.fake_server import Fake, drawn, served
from tests.tiny import write_questions

pytest.importorskip("httpx2")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "FIRST_DELAY_S", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def fake() -> Iterator[Fake]:
    with served(Fake()) as running:
        yield running


def configured(fake: Fake, tmp_path: Path, n: int = 3, **changes: Any) -> GenerateConfig:
    given = {
        "model": fake.model, "questions": write_questions(tmp_path / "q.jsonl", n), "backend": "openai",
        "base_url": fake.url, "samples": 2, "max_new_tokens": 8, "retries": 2, "timeout": 20.0,
    }  # fmt: skip
    return load_config(GenerateConfig, overrides=given | changes)


def opened(config: GenerateConfig) -> OpenedBackend:
    assert isinstance(config.backend, OpenAI)
    return open_openai(config, config.backend, load_questions(config.questions))


def sampled(config: GenerateConfig, *requests: SampleRequest) -> list[list[Rollout]]:
    found = opened(config)
    wanted = requests or (SampleRequest("q0", (), (0, 1)), SampleRequest("q1", (), (0, 1)))
    settings = config.sampling.model_copy(update={"k": found.k})
    return list(found.sampler.sample(wanted, settings))


@pytest.mark.parametrize("template", ["boxed", "chat-boxed"])
def test_a_reply_becomes_a_rollout_with_its_statistics(fake: Fake, tmp_path: Path, template: str) -> None:
    rollouts = {
        (r.query_id, r.sample_id): r
        for group in sampled(configured(fake, tmp_path, template=template, system=None))
        for r in group
    }
    assert set(rollouts) == {("q0", 0), ("q0", 1), ("q1", 0), ("q1", 1)}
    asked = [body for body in fake.requests if body.get("max_tokens") == 8]
    assert len({body["seed"] for body in asked}) == 4
    texts = {"".join(t for t, _, _ in drawn({**body, "tokens": fake.tokens})): body for body in asked}
    for rollout in rollouts.values():
        tokens = drawn({**texts[rollout.text], "tokens": fake.tokens})
        np.testing.assert_allclose(
            rollout.token_confidence, [-np.mean(top[:20]) for _, _, top in tokens], rtol=1e-6
        )
        np.testing.assert_allclose(rollout.token_logprob, [logprob for _, logprob, _ in tokens], rtol=1e-6)
        starts = np.cumsum([0, *(len(token) for token, _, _ in tokens)])[:-1]
        assert rollout.token_offset.tolist() == starts.tolist()
        assert rollout.finish_reason == "stop"
        assert rollout.num_tokens == 4
        assert np.all(rollout.token_entropy > 0)


def test_a_chat_goes_as_messages_and_a_text_as_a_prompt(fake: Fake, tmp_path: Path) -> None:
    sampled(configured(fake, tmp_path, template="chat", system="Be brief.", stop=("##",), top_p=0.9))
    body = fake.requests[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["messages"][1]["role"] == "user"
    assert (body["logprobs"], body["top_logprobs"], body["stop"]) == (True, 20, ["##"])
    # What a server takes from the model's own defaults otherwise:
    assert (body["temperature"], body["top_p"], body["top_k"], body["repetition_penalty"]) == (1, 0.9, -1, 1)
    sampled(configured(fake, tmp_path, template="raw", top_k=7))
    body = fake.requests[-1]
    assert body["prompt"] in ("0+1=?\\boxed{", "1+2=?\\boxed{")
    assert (body["logprobs"], body["top_k"]) == (20, 7)
    assert "messages" not in body


def test_a_seed_belongs_to_question_and_sample_whatever_else_is_asked(fake: Fake, tmp_path: Path) -> None:
    config = configured(fake, tmp_path)
    both = {(r.query_id, r.sample_id): r for group in sampled(config) for r in group}
    ((alone,),) = sampled(config, SampleRequest("q1", (), (1,)), SampleRequest("q0", (), (0,), held=True))
    assert alone == both["q1", 1]
    ((other,),) = sampled(configured(fake, tmp_path, seed=1), SampleRequest("q1", (), (1,)))
    assert other.token_logprob.tolist() != alone.token_logprob.tolist()


def test_busy_and_failing_servers_and_broken_connections_are_tried_again(fake: Fake, tmp_path: Path) -> None:
    failures: list[Any] = [
        None, (429, {"Retry-After": "0"}, "slow down"), (503, {}, "loading"), "drop", None, "drop"
    ]  # fmt: skip
    fake.fail = lambda number, body: failures[number] if number < len(failures) else None
    groups = sampled(configured(fake, tmp_path, concurrency=1, retries=3))
    assert sorted(len(group) for group in groups) == [2, 2]
    assert len(fake.requests) == 1 + 4 + 4


def test_a_pause_that_the_server_asks_for_is_kept(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    sleep = openai_client.asyncio.sleep

    async def recorded(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(openai_client.asyncio, "sleep", recorded)
    fake.fail = lambda number, body: (429, {"Retry-After": "7"}, "slow down") if number == 1 else None
    sampled(configured(fake, tmp_path, concurrency=1))
    assert pauses == [7.0]


def test_when_no_retry_is_left_the_reason_is_said(fake: Fake, tmp_path: Path) -> None:
    fake.fail = lambda number, body: (503, {}, "overloaded") if number else None
    with pytest.raises(WorkError, match=r"question 'q0', sample 0 failed after 3 attempts: 503: overloaded"):
        sampled(configured(fake, tmp_path, concurrency=1))
    assert len(fake.requests) == 1 + 3


def test_a_slow_server_is_a_timeout(fake: Fake, tmp_path: Path) -> None:
    fake.delay = lambda body: 5.0 if len(fake.requests) > 1 else 0.0
    with pytest.raises(WorkError, match=r"no answer within 0.2 s \(--timeout\)"):
        sampled(configured(fake, tmp_path, timeout=0.2, retries=0))


def test_an_account_without_credit_is_not_asked_again(fake: Fake, tmp_path: Path) -> None:
    fake.fail = lambda number, body: (429, {}, "You exceeded your current quota") if number else None
    with pytest.raises(WorkError, match="quota"):
        sampled(configured(fake, tmp_path, concurrency=1))
    assert len(fake.requests) == 2


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("template", ["raw", "chat"])
def test_a_server_that_gives_fewer_log_probabilities(
    fake: Fake, tmp_path: Path, strict: bool, template: str
) -> None:
    fake.allowed, fake.strict = 5, strict
    output = tmp_path / "r.parquet"
    notes: list[str] = []
    config = configured(fake, tmp_path, template=template)
    generate(config, output, note=notes.append)
    assert len(notes) == 1
    assert "gives 5 log-probabilities a token of 20" in notes[0]
    metadata = read_metadata(output)
    assert (metadata["k"], metadata["entropy"], metadata["backend"]) == (5, "topk", "openai")
    assert (
        sum(body["max_tokens"] == 8 for body in fake.requests) == 6
    )  # none was refused: asked for 5 at once


def test_a_server_that_names_no_limit_is_asked_for_less_and_less(fake: Fake, tmp_path: Path) -> None:
    fake.fail = lambda number, body: (
        (400, {}, "too many top_logprobs") if body.get("top_logprobs", 0) > 3 else None
    )
    assert opened(configured(fake, tmp_path, k=40)).k == 3


def test_a_server_without_log_probabilities_is_refused(fake: Fake, tmp_path: Path) -> None:
    fake.logprobs = False
    with pytest.raises(InputError, match=r"gives no log-probabilities.*--max-logprobs"):
        opened(configured(fake, tmp_path))
    fake.fail = lambda number, body: (400, {}, "logprobs are not supported")
    with pytest.raises(InputError, match="gives no log-probabilities"):
        opened(configured(fake, tmp_path))


def test_options_that_a_server_does_not_know_are_left_out(fake: Fake, tmp_path: Path) -> None:
    fake.extras = False
    sampled(configured(fake, tmp_path))
    assert "top_k" not in fake.requests[-1]
    with pytest.raises(InputError, match="does not know top_k"):
        opened(configured(fake, tmp_path, top_k=5))


def test_a_server_that_wants_another_name_for_the_length(fake: Fake, tmp_path: Path) -> None:
    fake.fail = lambda number, body: (
        (400, {}, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        if "max_tokens" in body
        else (400, {}, "fine")
    )
    with pytest.raises(InputError, match="refused the first request: 400, fine"):
        opened(configured(fake, tmp_path))
    assert fake.requests[-1]["max_completion_tokens"] == 4


def test_a_wrong_model_is_answered_with_those_that_there_are(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not have the model 'nope'; it offers: served, other"):
        opened(configured(fake, tmp_path, model="nope"))
    with pytest.raises(InputError, match="--base-url usually ends in /v1"):
        opened(configured(fake, tmp_path, base_url=fake.url.removesuffix("/v1")))


def test_a_rollout_that_does_not_fit_the_context_names_the_option(fake: Fake, tmp_path: Path) -> None:
    fake.fail = lambda number, body: (
        (400, {}, "This model's maximum context length is 6 tokens.") if body["max_tokens"] > 4 else None
    )
    with pytest.raises(
        InputError, match=r"refused question 'q0', sample 0: 400, .*; try a smaller --max-new"
    ):
        sampled(configured(fake, tmp_path, concurrency=1))


@pytest.mark.parametrize("template", ["raw", "chat"])
def test_questions_that_do_not_fit_are_left_out_on_request(fake: Fake, tmp_path: Path, template: str) -> None:
    fake.context = 20 + 8
    config = configured(fake, tmp_path, template=template, skip_long=True)
    with config.questions.path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": "long", "prompt": "x" * 21}) + "\n")
    summary = generate(config, tmp_path / "r.parquet")
    assert (summary.skipped, summary.questions) == (("long",), 3)
    fake.context = None
    with pytest.raises(InputError, match=r"does not say how long prompts are.*leave out --skip-long"):
        opened(config)


def test_token_ids_cannot_be_kept_where_there_are_none(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave out --keep-tokens"):
        opened(configured(fake, tmp_path, keep_tokens=True))


def test_the_server_has_the_revision(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--revision"):
        opened(configured(fake, tmp_path, revision="main"))


def test_no_more_requests_than_allowed_are_under_way(fake: Fake, tmp_path: Path) -> None:
    fake.delay = lambda body: 0.03
    sampled(configured(fake, tmp_path, concurrency=3), SampleRequest("q0", (), tuple(range(12))))
    assert fake.most_together == 3


def test_questions_come_as_they_finish_and_samples_in_order(fake: Fake, tmp_path: Path) -> None:
    """The first question is slow, and of every question the first sample."""

    def delay(body: dict[str, Any]) -> float:
        return 0.4 if body.get("prompt", "").startswith("0+1") else 0.02 * (body["seed"] % 3)

    fake.delay = delay
    config = configured(fake, tmp_path, template="raw", n=3)
    requests = [SampleRequest(f"q{i}", (), (0, 1, 2)) for i in range(3)]
    groups = sampled(config, *requests)
    assert groups[-1][0].query_id == "q0"
    assert [[r.sample_id for r in group] for group in groups] == [[0, 1, 2]] * 3


def test_what_finished_before_a_failure_is_kept_and_not_asked_again(fake: Fake, tmp_path: Path) -> None:
    config = configured(fake, tmp_path, template="raw", concurrency=1)
    fake.fail = lambda number, body: (400, {}, "no") if body["prompt"].startswith("2+3") else None
    output = tmp_path / "r.parquet"
    with pytest.raises(InputError, match="refused question 'q2', sample 0: 400, no"):
        generate(config, output)
    fake.fail = lambda number, body: None
    fake.requests.clear()
    assert generate(config, output).sampled == 2
    assert {body["prompt"] for body in fake.requests[1:]} == {"2+3=?\\boxed{"}
    table = read_table(output, ROLLOUTS, columns=["query_id", "sample_id"])
    assert table.to_pylist() == [{"query_id": f"q{i}", "sample_id": s} for i in range(3) for s in range(2)]


def test_interrupted_work_is_not_continued_with_another_backend(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(fake, tmp_path, template="raw", concurrency=1)
    fake.fail = lambda number, body: (400, {}, "no") if body["prompt"].startswith("2+3") else None
    with pytest.raises(InputError, match="refused question"):
        generate(config, tmp_path / "r.parquet")
    same = opened(config)

    def opener(config: GenerateConfig) -> OpenedBackend:
        return OpenedBackend(same.sampler, same.encode, {**same.metadata, "backend": "transformers"})

    monkeypatch.setitem(open_backend.__globals__, "_transformers", opener)
    read = ("questions", "samples", "max_new_tokens", "template")
    given = {"model": "smollm2"} | {name: config.flat()[name] for name in read}
    other = load_config(GenerateConfig, overrides=given)
    with pytest.raises(InputError, match=r"sampled with backend 'openai', now it is 'transformers'"):
        generate(other, tmp_path / "r.parquet")


def test_an_interrupt_keeps_what_finished(fake: Fake, tmp_path: Path) -> None:
    fake.delay = lambda body: 30.0 if body["prompt"].startswith("2+3") else 0.0
    output = tmp_path / "r.parquet"

    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(configured(fake, tmp_path, template="raw"), output, progress=interrupt)
    parts = list((tmp_path / "r.parquet.parts").glob("part-*.parquet"))
    assert sum(read_table(part, ROLLOUTS, columns=["query_id"]).num_rows for part in parts) == 4


def test_the_key_is_sent_and_shown_nowhere(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "sk-very-secret-123"
    fake.key = secret
    monkeypatch.setenv("MY_KEY", f"{secret}\n")
    output = tmp_path / "r.parquet"
    config = configured(fake, tmp_path, api_key_env="MY_KEY", base_url=fake.url + "/?token=querysecret")
    generate(config, output)
    assert fake.headers[-1]["Authorization"] == f"Bearer {secret}"
    assert read_metadata(output)["server"] == fake.url
    assert secret.encode() not in output.read_bytes()
    assert b"querysecret" not in output.read_bytes()
    assert secret not in repr(opened(config))
    fake.key = "another"
    with pytest.raises(InputError, match=r"refused the key of .* MY_KEY.*401.*\*\*\*") as caught:
        opened(config)
    assert secret not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "two words of a secret")
    with pytest.raises(InputError, match="variable MY_KEY has characters") as caught:
        opened(config)
    assert "secret" not in str(caught.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(InputError, match="wants a key, and none is in the environment variable MY_KEY"):
        opened(config)
    captured = capfd.readouterr()
    assert secret not in captured.out + captured.err


def test_a_login_in_the_address_is_used_and_not_stored(fake: Fake, tmp_path: Path) -> None:
    output = tmp_path / "r.parquet"
    url = fake.url.replace("//", "//ann:p%40ss@")
    generate(configured(fake, tmp_path, base_url=url), output)
    assert fake.headers[-1]["Authorization"] == "Basic YW5uOnBAc3M="
    assert json.dumps(read_metadata(output)).count("p@ss") == 0
    assert read_metadata(output)["server"] == fake.url
