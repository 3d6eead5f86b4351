"""DeepConf and SSC: a pickle a question, ``…_qidQ_ridR_TIME.pkl``, read only with ``--allow-pickle``.

A pickle can run any code when it is loaded, so it is opened by another process that admits plain data only
(``pickles``). Read are ``question, ground_truth, qid`` and, for each of ``all_traces`` (else
``final_traces``), ``text, token_ids, confs, extracted_answer, stop_reason``. ``confs`` are minus the mean of
all log-probabilities that vLLM returned, the sampled token's included where it was not among the top k.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dttrl.data.row_files import Place, head, json_lines
from dttrl.errors import InputError
from dttrl.interop.fields import Fields, Findings, ReadOptions, Record, chat_text, finish

SECONDS = 600
_NOT_SCORES = ("num_tokens",)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""One thread in the process: each more would reserve memory that its limit counts."""


def recognise(path: Path) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later does, or is called ``.pkl``."""
    start = head(path, 2)
    return start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def read(path: Path, options: ReadOptions, findings: Findings) -> Iterator[Record]:
    """Yield the traces of one question."""
    if not options.allow_pickle:
        raise InputError(
            f"{path}: is a pickle, read only when asked for with dttrl import deepconf --allow-pickle"
            " (a process of its own opens it and admits plain data only)"
        )
    findings.facts["logprobs_mode"] = "raw, mean of all entries returned (DeepConf)"
    with tempfile.TemporaryDirectory(prefix="dttrl-pickle-") as folder:
        unpacked = Path(folder) / "traces.jsonl"
        _unpack(path, unpacked)
        rows = json_lines(unpacked)
        header = next(rows)[1]
        for number, (_, trace) in enumerate(rows):
            place = Place(path, number, "trace")
            yield _trace(Fields(place, header), Fields(place, trace), options, findings)


def _unpack(path: Path, target: Path) -> None:
    command = [sys.executable, "-m", "dttrl.interop.pickles", str(path.resolve())]
    try:
        with target.open("wb") as output:
            done = subprocess.run(
                command,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=SECONDS,
                check=False,
                cwd=Path(__file__).resolve().parents[2],  # so that the process finds this package
                env={**os.environ, **dict.fromkeys(_THREADS, "1")},
            )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{path}: the pickle was not read within {SECONDS} s") from error
    except OSError as error:
        raise InputError(f"{path}: the pickle cannot be unpacked ({error.strerror})") from error
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InputError(f"{path}: refused: {text[-1] if text else 'the process that read it was killed'}")


def _trace(header: Fields, trace: Fields, options: ReadOptions, findings: Findings) -> Record:
    place = trace.place
    score = trace.score(options, findings, _NOT_SCORES)
    question, identity = header.get("question"), header.label("qid")
    confidence_T = _array(trace.get("confs"), "confs", place)
    ids = trace.get("token_ids")
    if isinstance(ids, list) and not all(isinstance(i, int) and -(2**31) <= i < 2**31 for i in ids):
        raise InputError(f"{place}: field 'token_ids' is not a list of token ids")
    if confidence_T is not None and isinstance(ids, list) and len(ids) != len(confidence_T):
        # One value a token is what a region needs; values without tokens (a window's) are not that.
        raise InputError(f"{place}: {len(confidence_T)} confs for {len(ids)} token_ids")
    return Record(
        place,
        identity if identity is not None else place.path.stem,
        prompt=None if question is None else chat_text(question, "question", place),
        gold=header.label("ground_truth"),
        text=trace.text("text"),
        finish_reason=finish(trace.get("stop_reason")),
        num_tokens=trace.whole("num_tokens"),
        token_ids=ids if isinstance(ids, list) else None,
        token_confidence=confidence_T,
        answer=trace.label("extracted_answer") or trace.label("answer"),
        confidence=score,
        model=header.label("model"),
    )


def _array(values: Any, name: str, place: Place) -> Any:
    if values is None:
        return None
    try:
        return np.asarray(values, dtype=np.float32).reshape(-1) if len(values) else None
    except (TypeError, ValueError):
        raise InputError(f"{place}: field {name!r} is not a list of numbers") from None
