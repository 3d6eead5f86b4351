"""The formats that can be imported: name, how a file is recognised, what it carries, its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dttrl.errors import InputError
from dttrl.interop import columns, inspect_logs, lighteval, lm_eval, openai_chat, traces, trl, ttrl, verl
from dttrl.interop.fields import ROLES, Findings, ReadOptions, Record


@dataclass(frozen=True)
class Format:
    """One format; ``recognised`` and ``carries`` are for people, a folder is searched for ``endings``.

    ``roles`` are what ``--columns`` may name for it; ``top_entries``: it may hold top log-probabilities;
    ``prompts_vary``: one question may have several prompts (examples drawn anew).
    """

    name: str
    summary: str
    recognised: str
    carries: str
    endings: tuple[str, ...]
    recognise: Callable[[Path], bool]
    read: Callable[[Path, ReadOptions, Findings], Iterator[Record]]
    roles: tuple[str, ...] = ()
    top_entries: bool = False
    prompts_vary: bool = False

    def check(self, options: ReadOptions) -> None:
        """Raise InputError for an option that this format would not heed."""
        unheeded = [role for role in options.columns if role not in self.roles]
        if unheeded:
            known = f"it heeds {', '.join(self.roles)}" if self.roles else "its fields have fixed names"
            raise InputError(f"--columns: format {self.name} has no use for {unheeded[0]!r}; {known}")
        if options.k is not None and not self.top_entries:
            raise InputError(f"--k is for formats with top log-probabilities; {self.name} has none")


_NONE = "no confidence; "

_FORMATS = (
    Format(
        "verl",
        "verl: rollout dump of a step, Parquet of a generation",
        "JSONL with input, output, step; Parquet with prompt, responses",
        _NONE + "prompt, gold, text, step; dumps: score and what the reward returned",
        (".jsonl", ".parquet"),
        verl.recognise,
        verl.read,
    ),
    Format(
        "ttrl",
        "TTRL: its questions with responses, and its trainer's dumps (verl's)",
        "JSONL or Parquet with prompt, answer and responses, outputs or output",
        _NONE + "prompt, gold, source, text",
        (".jsonl", ".parquet"),
        ttrl.recognise,
        ttrl.read,
    ),
    Format(
        "trl",
        "TRL: completions that a trainer logged",
        "Parquet with step, prompt, completion",
        _NONE + "prompt, text, step; rewards; gold where the data set passed it through",
        (".parquet",),
        trl.recognise,
        trl.read,
        roles=("gold",),
    ),
    Format(
        "lm-eval",
        "lm-evaluation-harness: samples of a task",
        "JSONL with doc_id, resps, filtered_resps",
        _NONE + "prompt, gold, text; answer of the filter; metrics",
        (".jsonl",),
        lm_eval.recognise,
        lm_eval.read,
        roles=("gold",),
        prompts_vary=True,
    ),
    Format(
        "lighteval",
        "lighteval: details of a task",
        "Parquet with doc, model_response",
        _NONE + "prompt, gold, text, number of tokens; metrics",
        (".parquet",),
        lighteval.recognise,
        lighteval.read,
    ),
    Format(
        "inspect",
        "inspect_ai: log of a task, .eval or .json",
        "zip with header.json; JSON with version, status, eval",
        "prompt, gold, text, scores, scorer's answer; with logprobs: confidence, log-probability, offsets",
        (".eval", ".json"),
        inspect_logs.recognise,
        inspect_logs.read,
        top_entries=True,
    ),
    Format(
        "openai",
        "OpenAI chat responses, also a batch's output; vLLM and other servers",
        "JSONL with choices[].message, also under response or response.body",
        "text, model; with logprobs: confidence, log-probability, offsets; no gold (give --questions)",
        (".jsonl",),
        openai_chat.recognise,
        openai_chat.read,
        roles=("question", "id", "sample", "answer", "confidence", "gold", "source"),
        top_entries=True,
    ),
    Format(
        "deepconf",
        "DeepConf and SSC: pickle of a question's traces (needs --allow-pickle)",
        "pickle",
        "prompt, gold, text, answer, token confidences, token ids",
        (".pkl", ".pickle"),
        traces.recognise,
        traces.read,
    ),
    Format(
        "columns",
        "any table, a row a rollout, with --columns question=…,answer=…,confidence=…",
        "never by itself",
        "what --columns names",
        (".parquet", ".jsonl", ".json", ".csv", ".tsv"),
        columns.recognise,
        columns.read,
        roles=ROLES,
    ),
)
FORMATS = {entry.name: entry for entry in _FORMATS}


def format_named(name: str) -> Format:
    """Return a format; raises InputError with the names there are."""
    if name not in FORMATS:
        raise InputError(f"format {name!r} is unknown; formats: {', '.join(FORMATS)} (dttrl import --list)")
    return FORMATS[name]


def recognise(path: Path) -> Format | None:
    """Return the format of a file, None where none fits; at most its head and its first row are read."""
    by_head = (FORMATS["inspect"], FORMATS["deepconf"])  # first: a log may be one long line
    return next((entry for entry in (*by_head, *FORMATS.values()) if entry.recognise(path)), None)
