from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Callable
from typing import Any

import pytest

from dttrl.errors import InputError, WorkError
from dttrl.sampling.openai_client import Server, _delay, _retry_after, open_server, streamed
from dttrl.settings.choices import OpenAI

pytest.importorskip("httpx2")


def server(url: str | None, variable: str = "NO_SUCH_KEY") -> Server:
    return open_server(OpenAI(base_url=url, api_key_env=variable))


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://host/v1", "http://", "http://host:x/v1", "  "])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InputError, match="--base-url must be an address"):
        server(url)


def test_without_an_address() -> None:
    with pytest.raises(InputError, match="needs --base-url"):
        server(None)


def test_what_is_kept_of_an_address() -> None:
    found = server("https://ann:secret@Host.example:8443/v1/?a=b#c")
    assert found.url == "https://host.example:8443/v1"
    assert found.login == ("ann", "secret")
    assert "secret" not in repr(found)
    assert server("http://[::1]:8000/v1").url == "http://[::1]:8000/v1"


def test_texts_of_a_server_are_one_line_without_secrets() -> None:
    found = Server("http://h/v1", OpenAI(), key="sk-1", login=("ann", "pass"))
    assert found.hidden("bad\nkey sk-1\x1b[31m of ann/pass") == "bad key *** [31m of ***/***"
    assert len(found.hidden("x" * 1000)) < 310


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    found = Server("http://127.0.0.1:9/v1", OpenAI(retries=50))

    async def ask() -> None:
        async with found.session() as session:
            await session.ask("/completions", {}, what="it", patient=False)

    with pytest.raises(WorkError, match=r"http://127.0.0.1:9/v1: cannot connect .* is the server running"):
        asyncio.run(ask())


def test_how_long_a_server_asks_to_wait() -> None:
    assert _retry_after("2.5") == 2.5
    assert _retry_after("-1") == 0
    assert _retry_after("1e9") == 600
    assert _retry_after(None) is _retry_after("soon") is _retry_after("nan") is None
    date = email.utils.format_datetime(email.utils.localtime())
    assert _retry_after(date) == 0
    later = email.utils.formatdate(time.time() + 100, usegmt=True)
    waited = _retry_after(later)
    assert waited is not None
    assert 90 < waited <= 100


def test_pauses_grow_to_a_limit_and_differ() -> None:
    pauses = [_delay(attempt, "q") for attempt in range(12)]
    assert all(0.25 * 2**i <= pause <= 0.5 * 2**i for i, pause in enumerate(pauses[:7]))
    assert all(30 <= pause <= 60 for pause in pauses[7:])
    assert _delay(3, "a") != _delay(3, "b")


def test_a_stream_hands_over_values_and_errors() -> None:
    async def produce(put: Callable[[int], None]) -> None:
        put(1)
        await asyncio.sleep(0)
        put(2)
        raise ValueError("three")

    found = []
    with pytest.raises(ValueError, match="three"):  # noqa: PT012
        for value in streamed(produce):
            found.append(value)
    assert found == [1, 2]


def test_a_stream_that_is_left_early_is_cancelled() -> None:
    ended: list[str] = []

    async def produce(put: Callable[[int], None]) -> None:
        try:
            put(1)
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    values: Any = streamed(produce)
    assert next(values) == 1
    values.close()
    assert ended == ["cancelled"]


def test_a_stream_within_an_event_loop() -> None:
    async def produce(put: Callable[[int], None]) -> None:
        put(7)

    async def caller() -> list[int]:
        return list(streamed(produce))

    assert asyncio.run(caller()) == [7]
