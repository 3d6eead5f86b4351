"""A small OpenAI-compatible server on 127.0.0.1 whose failures a test chooses.

It continues a prompt with words that depend on the seed, and gives every token a few log-probabilities.
"""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = (" one", " two", " three", " é", " \\boxed{4}")
Failure = tuple[int, dict[str, str], str]
"""Status, headers and the error's message."""


@dataclass
class Fake:
    """How the server behaves, and what it saw."""

    model: str = "served"
    allowed: int = 20
    """Log-probabilities a token: more are refused with 400 ..."""
    strict: bool = True
    """... or, when not strict, silently cut."""
    logprobs: bool = True
    extras: bool = True
    """Whether options beyond OpenAI's are known; else they are refused."""
    key: str | None = None
    tokens: int = 4
    context: int | None = None
    """Positions of the model; None for a server that does not say how long prompts are."""
    fail: Callable[[int, dict[str, Any]], Failure | str | None] = lambda number, body: None
    """Asked before every completion with its number from 0; "drop" breaks the connection."""
    delay: Callable[[dict[str, Any]], float] = lambda body: 0.0
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    together: int = 0
    most_together: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def drawn(body: dict[str, Any]) -> list[tuple[str, float, list[float]]]:
    """The tokens of a reply: text, log-probability, the top log-probabilities (as many as there are)."""
    generator = random.Random(body["seed"])
    tokens = []
    for _ in range(min(body.get("max_tokens", 16), body["tokens"])):
        top = sorted((-generator.expovariate(0.5) - 0.01 for _ in range(30)), reverse=True)
        tokens.append((generator.choice(WORDS), top[1], top))
    return tokens


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": self.fake.model}, {"id": "other"}]})
        else:
            self._error(404, "Not Found")

    def do_POST(self) -> None:
        fake = self.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with fake.lock:
            number = len(fake.requests)
            fake.requests.append(body)
            fake.headers.append(dict(self.headers.items()))
            fake.together += self.path != "/tokenize"
            fake.most_together = max(fake.most_together, fake.together)
        if self.path == "/tokenize" and fake.context is not None:
            text = body.get("prompt") or body["messages"][-1]["content"]
            self._send(200, {"tokens": list(text.encode()), "max_model_len": fake.context})
            return
        try:
            time.sleep(fake.delay(body))
            failure = fake.fail(number, body) or self._refusal(body)
        finally:
            with fake.lock:
                fake.together -= 1
        if failure == "drop":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif isinstance(failure, tuple):
            self._error(failure[0], failure[2], failure[1])
        else:
            self._send(200, self._reply(body))

    def _refusal(self, body: dict[str, Any]) -> Failure | None:
        fake = self.fake
        given = self.headers.get("Authorization", "")
        if fake.key is not None and given != f"Bearer {fake.key}":
            return 401, {}, f"Incorrect API key provided: {given.removeprefix('Bearer ')}"
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            return 404, {}, "Not Found"
        if body["model"] != fake.model:
            return 404, {}, f"The model `{body['model']}` does not exist."
        if not fake.extras and "top_k" in body:
            return 400, {}, "Unrecognized request argument supplied: top_k"
        asked = self._asked(body)
        if fake.strict and asked > fake.allowed:
            return (
                400,
                {},
                f"Requested logprobs of {asked}, which is greater than max allowed: {fake.allowed}",
            )
        return None

    def _asked(self, body: dict[str, Any]) -> int:
        return int(body["top_logprobs"] if self.path.endswith("chat/completions") else body["logprobs"])

    def _reply(self, body: dict[str, Any]) -> dict[str, Any]:
        fake = self.fake
        tokens = drawn({**body, "tokens": fake.tokens})
        k = min(self._asked(body), fake.allowed)
        text = "".join(token for token, _, _ in tokens)
        finish = "length" if len(tokens) == body["max_tokens"] else "stop"
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
        if self.path.endswith("chat/completions"):
            content = [
                {
                    "token": token, "bytes": list(token.encode()), "logprob": logprob,
                    "top_logprobs": [{"token": str(i), "logprob": value} for i, value in enumerate(top[:k])],
                }
                for token, logprob, top in tokens
            ]  # fmt: skip
            choice["message"] = {"role": "assistant", "content": text}
            choice["logprobs"] = {"content": content} if fake.logprobs else None
        else:
            choice["text"] = text
            choice["logprobs"] = {
                "tokens": [token for token, _, _ in tokens],
                "token_logprobs": [logprob for _, logprob, _ in tokens],
                "top_logprobs": [{str(i): v for i, v in enumerate(top[:k])} for _, _, top in tokens],
            } if fake.logprobs else None  # fmt: skip
        return {"object": "completion", "model": fake.model, "choices": [choice]}

    def _error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, {"error": {"message": message, "code": status}}, headers)

    def _send(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that a test breaks are no errors."""


@contextmanager
def served(fake: Fake) -> Iterator[Fake]:
    """Serve ``fake`` within the block; its ``url`` ends in /v1."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    fake.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
