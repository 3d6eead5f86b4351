"""How long prompts are for the server that has the tokenizer, to leave out those that do not fit.

OpenAI's interface has no such question; vLLM answers it at ``/tokenize``, beside the path of the interface.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dttrl.errors import InputError
from dttrl.sampling.openai_client import Refused, Session


@dataclass(frozen=True)
class Tokenized:
    """The token ids of prompts by question, and the positions of the model; empty where nobody asked."""

    ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    context: int | None = None


async def tokenized(
    session: Session, model: str, prompts: Mapping[str, str | list[dict[str, str]]]
) -> Tokenized:
    """Return what the server makes of each prompt; InputError where it does not say."""
    ids: dict[str, tuple[int, ...]] = {}
    context = None
    for query_id, prompt in prompts.items():
        form: dict[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
        what = f"the length of question {query_id!r}"
        try:
            body = await session.post("/tokenize", {"model": model, **form}, what=what, beside=True)
            ids[query_id] = tuple(int(token) for token in body["tokens"])
            context = int(body["max_model_len"])
        except (Refused, KeyError, TypeError, ValueError):
            raise InputError(
                f"{session.server.url} does not say how long prompts are (vLLM's /tokenize does); "
                "leave out --skip-long"
            ) from None
    return Tokenized(ids, context)
