"""The part of a configuration that says which server samples; :mod:`dttrl.config` joins the parts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

SERVER: dict[str, Any] = {"panel": "Server"}


class ServerFields(BaseModel):
    """Which OpenAI-compatible server samples, and how it is asked."""

    base_url: str | None = Field(
        None,
        description="Address of an OpenAI-compatible server, for example http://localhost:8000/v1; auto then "
        "means openai.",
        json_schema_extra=SERVER,
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY",
        description="Environment variable that holds the server's key, if it wants one.",
        json_schema_extra=SERVER,
    )
    concurrency: int = Field(
        64, ge=1, description="Requests that are under way together.", json_schema_extra=SERVER
    )
    retries: int = Field(
        5,
        ge=0,
        description="How often a request is tried again after a busy or failing server, a lost connection or "
        "a timeout, with growing pauses.",
        json_schema_extra=SERVER,
    )
    timeout: float = Field(
        3600.0,
        gt=0,
        description="Seconds to wait for the reply of one request, all its tokens.",
        json_schema_extra=SERVER,
    )
