"""inspect_ai logs: ``.eval`` (a zip with a JSON file a sample) and ``.json`` (one document).

A sample has ``id, epoch, input, target, output, scores``; its repeats are the epochs, and each choice of the
output is a rollout. With ``logprobs`` in the choices the tokens get confidence, log-probability and offsets.
A ``.eval`` is read a sample at a time; a ``.json`` log must be parsed whole.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dttrl.data.row_files import Place, PlacedRow, head, json_object, lookup, reading
from dttrl.data.validation import one_line, shown
from dttrl.errors import InputError
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, chat_text, finish, label, no_score
from dttrl.interop.openai_chat import put_tokens

MAX_SAMPLE_BYTES = 2**30
"""Longest JSON file of one sample that is unpacked."""
_VALUES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}


def recognise(path: Path) -> bool:
    """Whether a file is a zip with ``header.json`` or ``_journal/``, or JSON that begins as a log does."""
    start = head(path)
    if start[:2] == b"PK":
        try:
            with zipfile.ZipFile(path) as archive:
                return any(n == "header.json" or n.startswith("_journal/") for n in archive.namelist())
        except (zipfile.BadZipFile, OSError, NotImplementedError):
            return path.suffix == ".eval"
    begin = start[:2048]
    return (
        begin.lstrip()[:1] == b"{" and b'"version"' in begin and b'"eval"' in start and b'"status"' in begin
    )


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the choices of each sample; samples that ended with an error are counted and passed over."""
    archived = head(path, 2) == b"PK"
    samples = _archive(path) if archived else _document(path)
    header = Fields(*next(samples))
    task, model = header.label("eval.task"), header.label("eval.model")
    for place, sample in samples:
        if not lookup(sample, "output.choices"):
            why = "that ended with an error" if sample.get("error") else "without output"
            findings.remarks[f"{path.name}: samples {why} were passed over"] += 1
            continue
        yield from _sample(Fields(place, sample), task, model, options, findings)


def _document(path: Path) -> Iterator[PlacedRow]:
    with reading(path):
        log = json_object(path.read_bytes(), path)
    yield Place(path, 0, "header"), log
    samples = log.get("samples")
    if not isinstance(samples, list):
        raise InputError(f"{path}: no list 'samples'; was the log written without its samples?")
    for number, sample in enumerate(samples):
        place = Place(path, number, "sample")
        if not isinstance(sample, dict):
            raise InputError(f"{place}: expected an object")
        yield place, sample


def _archive(path: Path) -> Iterator[PlacedRow]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            first = next((n for n in ("header.json", "_journal/start.json") if n in names), None)
            if first is None:
                raise InputError(f"{path}: no header.json in this zip, so it is no log of inspect_ai")
            yield Place(path, 0, "header"), _member(archive, first, path)
            samples = sorted(n for n in names if n.startswith("samples/") and n.endswith(".json"))
            for number, name in enumerate(samples):
                yield Place(path, number, "sample"), _member(archive, name, path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: damaged zip, copy the log again ({one_line(error)})") from error
    except (OSError, EOFError, RuntimeError) as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)})") from error


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> dict[str, Any]:
    try:
        with archive.open(name) as file:
            # The size in the directory is only a claim: read no more than the limit.
            data = file.read(MAX_SAMPLE_BYTES + 1)
    except NotImplementedError as error:
        raise InputError(
            f"{path}: {name} has a compression that Python cannot read; convert the log to JSON"
            " with `inspect log convert --to json`"
        ) from error
    except zlib.error as error:
        raise InputError(f"{path}: {name} is damaged ({one_line(error)})") from error
    if len(data) > MAX_SAMPLE_BYTES:
        raise InputError(f"{path}: {name} unpacks to more than {MAX_SAMPLE_BYTES >> 20} MiB")
    return json_object(data, Path(f"{path}/{name}"))


def _sample(
    fields: Fields, task: str | None, model: str | None, options: ReadOptions, findings: Findings
) -> Iterator[Record]:
    place, given = fields.place, fields.get("scores")
    scores = given if isinstance(given, dict) else {}
    findings.scores.update({name: None for name, score in scores.items() if _value(score) is not None})
    epoch = fields.whole("epoch") or 1
    identity = label(fields.need("id"), "id", place)
    model = fields.label("output.model") or model
    prompt, gold = _resolved(fields.chat("input"), fields), _gold(fields.get("target"), place)
    choices = fields.objects("output.choices")
    for index, choice in enumerate(choices):
        text = _resolved(_message(choice.inside("message").get("content"), place), fields)
        record = Record(
            place,
            str(identity),
            sample=(epoch - 1) * 1000 + index,
            source=task,
            prompt=prompt,
            gold=gold,
            finish_reason=finish(choice.get("stop_reason")),
            model=model,
        )
        put_tokens(record, choice.get("logprobs"), text, options, findings)
        if len(choices) == 1:
            record.answer = _answer(scores, options.score, text)
        if options.score is not None:
            record.confidence = _score(scores, options.score, len(choices), place)
        yield record


def _message(content: Any, place: Place) -> str:
    """Return the text of a message; reasoning goes before it, between the usual marks."""
    if not isinstance(content, list):
        return "" if content is None else chat_text(content, "output.choices.message.content", place)
    parts = []
    for part in content:
        if isinstance(part, dict) and part.get("type") == "reasoning":
            parts.append(f"<think>\n{part.get('reasoning') or ''}\n</think>\n\n")
        else:
            parts.append(chat_text(part, "output.choices.message.content", place))
    return "".join(parts)


def _resolved(text: str, sample: Fields) -> str:
    """Put back a text that the log keeps once under ``attachments``."""
    if not text.startswith("attachment://"):
        return text
    return sample.text(f"attachments.{text.removeprefix('attachment://')}")


def _gold(target: Any, place: Place) -> str | None:
    """Return the target; of several, the first."""
    if isinstance(target, list):
        target = target[0] if target else None
    return label(target, "target", place)


def _value(score: Any) -> float | None:
    value = score.get("value") if isinstance(score, dict) else None
    if isinstance(value, str):
        return _VALUES.get(value)
    return float(value) if isinstance(value, (int, float)) else None


def _answer(scores: dict[str, Any], chosen: str | None, text: str) -> str | None:
    """Return what a scorer took for the answer; a scorer that took the whole text took none."""
    for name, score in scores.items():
        answer = score.get("answer") if isinstance(score, dict) and chosen in (None, name) else None
        if isinstance(answer, str) and answer.strip() and answer.strip() != text.strip():
            return answer.strip()
    return None


def _score(scores: dict[str, Any], name: str, count: int, place: Place) -> float | None:
    if name not in scores:
        raise no_score(name, place, list(scores))
    if count > 1:
        raise InputError(f"{place}: score {name!r} is one value for {count} choices; leave out --score")
    value = _value(scores[name])
    if value is None:
        raise InputError(f"{place}: score {name!r} is {shown(scores[name])}, expected a number or C, I, P, N")
    return None if math.isnan(value) else value
