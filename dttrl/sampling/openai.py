"""The sampler that asks an OpenAI-compatible server: one request a sample, many at a time.

What the server allows is found out with one short request before sampling: how many log-probabilities a
token it gives, and whether it knows the options with which a model's own defaults are turned off.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dttrl.data.questions import Question
from dttrl.data.rollouts import Rollout
from dttrl.data.served_logprobs import ReplyError
from dttrl.errors import DttrlError, InputError, WorkError
from dttrl.rng import derive_seed
from dttrl.sampling.base import OpenedBackend, SampleRequest
from dttrl.sampling.openai_client import Refused, Server, Session, Tokenized, open_server, streamed, tokenized
from dttrl.sampling.openai_replies import Reply, read_reply, to_rollout
from dttrl.sampling.prompts import prompt_metadata, prompt_text
from dttrl.settings.choices import OpenAI
from dttrl.settings.commands import GenerateConfig
from dttrl.settings.sections import Questions, Sampling

Prompt = str | list[dict[str, str]]
"""Text to continue, or the messages of a chat."""

_STEPS = (20, 10, 5, 3, 2, 1)
"""What is tried when a server refuses k and names no limit."""
_PROBE_TOKENS = 4
_TOO_LONG = re.compile("context length|max_model_len|context size|max_tokens", re.IGNORECASE)
_NO_LOGPROBS = (
    "it gives no log-probabilities, and the confidence is made of them; start vLLM with --max-logprobs 20, "
    "or use another server or model that answers top_logprobs"
)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a server allows. ``extras``: options beyond OpenAI's; ``length``: its name of the length limit."""

    k: int
    extras: bool = True
    length: str = "max_tokens"
    token_ids: bool = False


def open_openai(config: GenerateConfig, asked: OpenAI, questions: Sequence[Question]) -> OpenedBackend:
    """Ask the configured server what it allows and return its sampler.

    InputError, one line each, for an address or key that is refused, a model that is not there, a server that
    gives no log-probabilities, and settings that a server cannot follow; WorkError when it fails.
    """
    server = open_server(asked)
    if config.model.revision is not None:
        raise InputError("--revision does not go with --backend openai: the server has loaded its model")
    prompts = {question.id: prompt_of(config.questions, question) for question in questions}
    if not prompts:
        raise InputError("no question to sample; the question file is empty")
    settings = config.sampling
    probe = prompts[min(prompts)]

    async def ask(put: Callable[[tuple[Terms, Tokenized]], None]) -> None:
        async with server.session() as session:
            terms = await _negotiate(session, config.model.name, probe, settings)
            tokens = Tokenized()
            if config.generation.skip_long:
                tokens = await tokenized(session, config.model.name, prompts)
            put((terms, tokens))

    ((terms, prompt_tokens),) = streamed(ask)
    if config.generation.keep_tokens and not terms.token_ids:
        raise InputError(f"{server.url} gives no token ids; leave out --keep-tokens")
    notes = []
    if terms.k < settings.k:
        notes.append(
            f"{server.url} gives {terms.k} log-probabilities a token of {settings.k}: confidences are means "
            f"of {terms.k} (k in the file's metadata), not comparable with those of {settings.k}"
        )
    metadata = {
        "backend": "openai",
        "server": server.url,
        "logprobs_mode": "server",
        "entropy": "topk",
        **prompt_metadata(config.questions, config.model.name),
    }
    return OpenedBackend(
        OpenAISampler(server, config.model.name, prompts, terms),
        # The token ids of a prompt where they were asked for (``skip_long``), else none.
        lambda question: prompt_tokens.ids.get(question.id, ()),
        metadata,
        context=prompt_tokens.context,
        k=terms.k,
        notes=tuple(notes),
    )


def prompt_of(asked: Questions, question: Question) -> Prompt:
    """Return the messages where the template is a chat's (the server has the template), else the text."""
    text = prompt_text(asked, question, chat=json.dumps)
    if not asked.template.startswith("chat"):
        return text
    messages: list[dict[str, str]] = json.loads(text)
    return messages


class OpenAISampler:
    """Samples of ``model`` on ``server``; ``prompts`` holds the prompt of each question by its id.

    Every sample is a request of its own, with a seed derived from (seed, question, sample): repeatable as far
    as the server is. Questions are begun in order and yielded as they finish.
    """

    def __init__(self, server: Server, model: str, prompts: Mapping[str, Prompt], terms: Terms) -> None:
        self._server, self._model, self._prompts, self._terms = server, model, prompts, terms

    def sample(self, requests: Sequence[SampleRequest], settings: Sampling) -> Iterator[list[Rollout]]:
        """Yield the rollouts of each request that is not held; WorkError or InputError when one fails."""
        wanted = [request for request in requests if not request.held]
        return streamed(lambda put: self._all(wanted, settings, put))

    async def _all(
        self,
        requests: Sequence[SampleRequest],
        settings: Sampling,
        put: Callable[[list[Rollout]], None],
    ) -> None:
        jobs = ((i, sample) for i, request in enumerate(requests) for sample in request.sample_ids)
        done: dict[int, dict[int, Rollout]] = {}
        async with self._server.session() as session:

            async def work() -> None:
                for index, sample_id in jobs:
                    request = requests[index]
                    rollout = await self._one(session, request, sample_id, settings)
                    finished = done.setdefault(index, {})
                    finished[sample_id] = rollout
                    if len(finished) == len(request.sample_ids):
                        put([finished[number] for number in request.sample_ids])
                        del done[index]

            await _together(work, self._server.asked.concurrency)

    async def _one(
        self, session: Session, request: SampleRequest, sample_id: int, settings: Sampling
    ) -> Rollout:
        prompt = self._prompts[request.query_id]
        seed = derive_seed(
            settings.seed, step=request.step or 0, query=request.query_id, purpose=f"openai:{sample_id}"
        )
        body = request_body(self._model, prompt, self._terms, settings, seed=seed)
        what = f"question {request.query_id!r}, sample {sample_id}"
        try:
            reply = read_reply(await session.ask(path_of(prompt), body, what=what))
            if not reply.tokens.names and reply.finish_reason != "abort" and reply.text:
                raise ReplyError("there are no log-probabilities")
        except Refused as refused:
            raise await explained(session, refused, self._model, what) from None
        except ReplyError as error:
            raise WorkError(f"{session.server.url}: {what}: the reply cannot be read: {error}") from None
        return to_rollout(
            reply, k=self._terms.k, query_id=request.query_id, sample_id=sample_id, step=request.step
        )


def path_of(prompt: Prompt) -> str:
    """Where a prompt is sent, below the base address."""
    return "/completions" if isinstance(prompt, str) else "/chat/completions"


def request_body(
    model: str, prompt: Prompt, terms: Terms, settings: Sampling, *, seed: int
) -> dict[str, Any]:
    """Return the JSON of one request.

    Everything that a server might take from the model's own defaults (vLLM does) is said explicitly.
    """
    body: dict[str, Any] = {
        "model": model, "temperature": settings.temperature, "top_p": settings.top_p,
        "seed": seed & 0x7FFFFFFF, terms.length: settings.max_new_tokens,
    }  # fmt: skip
    if isinstance(prompt, str):
        body |= {"prompt": prompt, "logprobs": terms.k}
    else:
        body |= {"messages": prompt, "logprobs": True, "top_logprobs": terms.k}
    if settings.stop:
        body["stop"] = list(settings.stop)
    if terms.extras:
        body |= {"top_k": settings.top_k or -1, "repetition_penalty": 1.0, "return_token_ids": True}
    return body


async def _together(work: Callable[[], Any], workers: int) -> None:
    """Run ``workers`` of ``work`` until all end or one fails; the others are then cancelled."""
    tasks = [asyncio.ensure_future(work()) for _ in range(workers)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _negotiate(session: Session, model: str, prompt: Prompt, settings: Sampling) -> Terms:
    tokens = min(_PROBE_TOKENS, settings.max_new_tokens)
    short = settings.model_copy(update={"max_new_tokens": tokens})
    terms, server = Terms(settings.k), session.server
    what = "the first request"
    while True:
        body = request_body(model, prompt, terms, short, seed=0)
        try:
            answer = await session.ask(path_of(prompt), body, what=what, patient=False)
            return _as_given(terms, read_reply(answer), server)
        except Refused as refused:
            changed = _next_terms(terms, refused) if refused.status in (400, 422) else None
            if changed is None:
                raise await explained(session, refused, model, what) from None
            if changed.k < 1:
                raise InputError(f"{server.url}: {_NO_LOGPROBS}") from None
            if not changed.extras and settings.top_k:
                raise InputError(
                    f"{server.url} does not know top_k ({refused.message}); leave out --top-k"
                ) from None
            terms = changed
        except ReplyError as error:
            raise WorkError(f"{server.url}: {what}: the reply cannot be read: {error}") from None


def _next_terms(terms: Terms, refused: Refused) -> Terms | None:
    """Return what to try after a refusal; k 0 where nothing is left to try, None for any other refusal."""
    message = refused.message.lower()
    if "logprob" in message:
        named = [int(number) for number in re.findall(r"(?<![\w.-])\d+(?![\w.]*\w)", message)]
        smaller = [number for number in named if 0 < number < terms.k]
        return replace(terms, k=max(smaller or [step for step in _STEPS if step < terms.k], default=0))
    if "max_completion_tokens" in message and terms.length == "max_tokens":
        return replace(terms, length="max_completion_tokens")
    unknown = ("top_k", "repetition_penalty", "return_token_ids", "unrecognized", "unknown", "extra")
    if terms.extras and any(word in message for word in unknown):
        return replace(terms, extras=False)
    return None


def _as_given(terms: Terms, reply: Reply, server: Server) -> Terms:
    """Return the terms with the k that the reply shows; servers may give fewer without a word."""
    given = max(map(len, reply.tokens.entries), default=0)
    if given == 0:
        raise InputError(f"{server.url}: {_NO_LOGPROBS}")
    return replace(terms, k=min(terms.k, given), token_ids=len(reply.token_ids) > 0)


async def explained(session: Session, refused: Refused, model: str, what: str) -> DttrlError:
    """Return the error of a refusal, with what to do about it."""
    server, message = session.server, refused.message
    if refused.status in (401, 403):
        state = "refused the key of" if server.key else "wants a key, and none is in"
        return InputError(
            f"{server.url} {state} the environment variable {server.asked.api_key_env} (--api-key-env): "
            f"{refused.status}, {message}"
        )
    if refused.status == 404:
        offered = await _models(session)
        if offered is None:
            return InputError(
                f"{server.url} has nothing there (404: {message}); --base-url usually ends in /v1"
            )
        if model not in offered:
            names = ", ".join(offered[:10]) or "none"
            return InputError(f"{server.url} does not have the model {model!r}; it offers: {names}")
    if refused.status >= 500 or refused.status == 429:
        return WorkError(f"{server.url}: {what} failed: {refused.status}, {message}")
    advice = "; try a smaller --max-new-tokens" if _TOO_LONG.search(message) else ""
    return InputError(f"{server.url} refused {what}: {refused.status}, {message}{advice}")


async def _models(session: Session) -> list[str] | None:
    """Return the names of the server's models, None where it does not say."""
    try:
        body = await session.ask("/models", what="/models", patient=False)
        return [session.server.hidden(str(entry["id"])) for entry in body["data"]]
    except (Refused, DttrlError, KeyError, TypeError):
        return None
