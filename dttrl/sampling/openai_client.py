"""Requests to an OpenAI-compatible server: retried with back-off, bounded, without ever showing the key."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from dttrl.errors import InputError, MissingDependencyError, WorkError
from dttrl.rng import derive
from dttrl.settings.choices import OpenAI

FIRST_DELAY_S = 0.5
"""Pause before the first retry; it doubles with each, up to ``LONGEST_DELAY_S``."""
LONGEST_DELAY_S = 60.0
LONGEST_RETRY_AFTER_S = 600.0
CONNECT_TIMEOUT_S = 30.0
_SHOWN = 300
_RETRIED = (408, 425, 429)
_Item = TypeVar("_Item")


class Refused(Exception):
    """The server answered that it will not do this; asking again would not help."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True)
class Server:
    """An address and how to talk to it; the secrets are left out of its repr."""

    url: str
    """Without credentials, query and trailing slash."""
    asked: OpenAI = field(repr=False)
    key: str | None = field(default=None, repr=False)
    login: tuple[str, str] | None = field(default=None, repr=False)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """Open connections that belong to the running event loop."""
        import httpx2

        most = self.asked.concurrency
        client = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            auth=httpx2.BasicAuth(*self.login) if self.login else None,
            timeout=httpx2.Timeout(self.asked.timeout, connect=CONNECT_TIMEOUT_S, pool=None),
            limits=httpx2.Limits(max_connections=most, max_keepalive_connections=most),
        )
        async with client:
            yield Session(self, client)

    def hidden(self, text: str) -> str:
        """Return ``text`` as one line of bounded length, without the secrets."""
        for secret in (self.key, *(self.login or ())):
            if secret:
                text = text.replace(secret, "***")
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."


class Session:
    """Open connections to a server."""

    def __init__(self, server: Server, client: Any) -> None:
        self.server, self._client = server, client

    async def ask(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        what: str,
        patient: bool = True,
        beside: bool = False,
    ) -> Any:
        """Post ``body`` as JSON (without one: get ``path``, once) and return the JSON of the answer.

        Busy servers (429), failing ones (5xx), broken connections and timeouts are tried again; ``what``
        names the request in errors. Unless ``patient`` a server that cannot be reached is not waited for.
        With ``beside`` the path is not below the interface's (``/v1``) but beside it.
        Raises :class:`Refused` for any other answer and WorkError when no retry is left.
        """
        import httpx2

        method, retries = ("GET", 0) if body is None else ("POST", self.server.asked.retries)
        address = f"{self.server.url.removesuffix('/v1') if beside else self.server.url}{path}"
        attempt = 0
        while True:
            after = None
            try:
                response = await self._client.request(method, address, json=body)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                reason = f"cannot connect ({self.server.hidden(str(error)) or 'no answer'})"
                if not patient:
                    raise WorkError(
                        f"{self.server.url}: {reason}; is the server running, and is --base-url right?"
                    ) from None
            except httpx2.TimeoutException:
                reason = f"no answer within {self.server.asked.timeout:g} s (--timeout)"
            except httpx2.RequestError as error:
                reason = f"connection lost ({self.server.hidden(str(error)) or type(error).__name__})"
            else:
                if response.status_code == 200:
                    with contextlib.suppress(ValueError):
                        return response.json()
                    reason = "the answer is not JSON"
                else:
                    message = self._message(response)
                    if not _worth_retrying(response.status_code, message):
                        raise Refused(response.status_code, message)
                    reason = f"{response.status_code}: {message}"
                    after = _retry_after(response.headers.get("retry-after"))
            if attempt >= retries:
                times = "" if attempt == 0 else f" after {attempt + 1} attempts"
                raise WorkError(f"{self.server.url}: {what} failed{times}: {reason}")
            await asyncio.sleep(_delay(attempt, what) if after is None else after)
            attempt += 1

    def _message(self, response: Any) -> str:
        text = str(response.text)
        with contextlib.suppress(ValueError, AttributeError):
            body = response.json()
            found = body.get("error", body.get("message", body.get("detail")))
            found = found.get("message", found) if isinstance(found, dict) else found
            text = found if isinstance(found, str) else text
        return self.server.hidden(text) or response.reason_phrase or "no reason given"


@dataclass(frozen=True)
class Tokenized:
    """The token ids of prompts by question, and the positions of the model; empty where nobody asked."""

    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    context: int | None = None


async def tokenized(
    session: Session, model: str, prompts: Mapping[str, str | list[dict[str, str]]]
) -> Tokenized:
    """Return how long prompts are to the server that has the tokenizer; InputError where it does not say.

    OpenAI's interface has no such question; vLLM answers it at ``/tokenize``, beside the interface's path.
    """
    ids: dict[str, tuple[int, ...]] = {}
    context = None
    for query_id, prompt in prompts.items():
        form: dict[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
        what = f"the length of question {query_id!r}"
        try:
            body = await session.ask("/tokenize", {"model": model, **form}, what=what, beside=True)
            ids[query_id] = tuple(int(token) for token in body["tokens"])
            context = int(body["max_model_len"])
        except (Refused, KeyError, TypeError, ValueError):
            raise InputError(
                f"{session.server.url} does not say how long prompts are (vLLM's /tokenize does); "
                "leave out --skip-long"
            ) from None
    return Tokenized(ids, context)


def open_server(asked: OpenAI) -> Server:
    """Return the server at the address with the key of the environment variable, if that is set.

    InputError for an address that is none and for a key that no header can hold (the key is not shown);
    MissingDependencyError without httpx2.
    """
    try:
        import httpx2  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "--backend openai needs the package httpx2; install it with: pip install 'dttrl[openai]'"
        ) from None
    if not asked.base_url:
        raise InputError("--backend openai needs --base-url, for example http://localhost:8000/v1")
    try:
        parts = urlsplit(asked.base_url.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            "--base-url must be an address such as http://localhost:8000/v1, with http:// or https://"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    url = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
    login = (unquote(parts.username), unquote(parts.password or "")) if parts.username else None
    key = os.environ.get(asked.api_key_env, "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError(
            f"the key in the environment variable {asked.api_key_env} has characters that no key has; "
            "set it again"
        )
    return Server(url, asked, key, login)


def _worth_retrying(status: int, message: str) -> bool:
    if status == 429:  # what OpenAI answers, also for ever, to an account without credit
        return "quota" not in message.lower()
    return status in _RETRIED or status >= 500


def _retry_after(value: str | None) -> float | None:
    """Return the seconds that the header asks to wait, as a number or a date; None where it says nothing."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S) if seconds == seconds else None


def _delay(attempt: int, what: str) -> float:
    """Half to all of the doubling pause, so that requests that failed together do not come back together."""
    pause = min(FIRST_DELAY_S * 2.0**attempt, LONGEST_DELAY_S)
    return float(pause * derive(0, step=attempt, query=what, purpose="retry").uniform(0.5, 1.0))


class _End:
    pass


def streamed(produce: Callable[[Callable[[_Item], None]], Awaitable[None]]) -> Iterator[_Item]:
    """Yield what ``produce(put)`` puts, from an event loop in a thread of its own.

    The loop goes on while the caller works, and the caller may have an event loop itself (a notebook). An
    exception of ``produce`` is raised here. When the iteration ends early (Ctrl-C) ``produce`` is cancelled,
    which closes its connections.
    """
    results: queue.SimpleQueue[_Item | BaseException | _End] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    async def work() -> None:
        await produce(results.put)

    task = loop.create_task(work())

    def run() -> None:
        try:
            loop.run_until_complete(task)
            results.put(_End())
        except BaseException as error:  # handed to the caller, who waits for something
            results.put(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="dttrl-openai", daemon=True)
    thread.start()
    try:
        while not isinstance(item := results.get(), _End):
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        with contextlib.suppress(RuntimeError):  # the loop is closed: all is done
            loop.call_soon_threadsafe(task.cancel)
        thread.join(timeout=5.0)
