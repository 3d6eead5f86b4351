"""Files that are not quite of their format: one line that names file, line or row, and field; no output."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.errors import DttrlError, InputError
from dttrl.interop import inspect_logs
from dttrl.interop.fields import ReadOptions
from dttrl.interop.formats import FORMATS, recognise
from dttrl.interop.importing import import_files

DATA = Path(__file__).resolve().parents[2] / "data" / "interop"
TABLE = {"question": "qid", "answer": "prediction"}
VERL = {"input": "q", "output": "a", "gts": "1", "score": 1.0, "step": 1}
CHAT: dict[str, Any] = {"custom_id": "q", "choices": [{"message": {"content": "x"}}]}
LM_EVAL: dict[str, Any] = {"doc_id": 0, "target": "1", "resps": [["x"]], "filtered_resps": ["x"]}
SAMPLE: dict[str, Any] = {
    "id": 1, "epoch": 1, "input": "q", "target": "1", "output": {"choices": [{"message": {"content": "x"}}]},
}  # fmt: skip


def chat(**token: Any) -> dict[str, Any]:
    choice = {"message": {"content": "x"}, "logprobs": {"content": [token]}}
    return {"custom_id": "q", "choices": [choice]}


def log(*samples: Any, **changes: Any) -> str:
    whole = {"version": 2, "status": "success", "eval": {"task": "t", "model": "m"}, "samples": list(samples)}
    return json.dumps({**whole, **changes})


def jsonl(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


# format, content, options, what the message must hold
TEXTS: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "verl no output": (
        "verl", jsonl(VERL, {"input": "q", "step": 1}), {},
        [":2:", "'output'", "input, step"],
    ),
    "verl output is a list": ("verl", jsonl({**VERL, "output": ["a"]}), {}, [":1:", "'output' is a list"]),
    "verl step": ("verl", jsonl({**VERL, "step": 1.5}), {}, [":1:", "'step' is 1.5"]),
    "verl huge step": ("verl", jsonl({**VERL, "step": 2**40}), {}, [":1:", "'step'"]),
    "verl bad json": ("verl", jsonl(VERL, '{"input": '), {}, [":2:", "bad JSON"]),
    "verl not an object": ("verl", jsonl(VERL, "[1]"), {}, [":2:", "JSON object"]),
    "verl no such score": ("verl", jsonl(VERL), {"score": "acc"}, ["'acc' for --score", "score"]),
    "verl score is text": (
        "verl", jsonl({**VERL, "acc": "hm"}), {"score": "acc"},
        [":1:", "'acc'", "number"],
    ),
    "verl golds differ": ("verl", jsonl(VERL, {**VERL, "gts": "2"}), {}, [":2:", "'2'", "'1'", ":1"]),
    "verl many digits": ("verl", jsonl('{"input": ' + "9" * 5000 + "}"), {}, [":1:"]),
    "verl nested": ("verl", jsonl("[" * 100_000), {}, [":1:"]),
    "ttrl no responses": ("ttrl", jsonl({"prompt": "p", "answer": "1"}), {}, [":1:", "'responses'"]),
    "ttrl null response": (
        "ttrl", jsonl({"prompt": "p", "answer": "1", "responses": ["a", None]}), {},
        [":1:", "responses.1", "null"],
    ),
    "lm-eval likelihood": ("lm-eval", jsonl({**LM_EVAL, "resps": [[-1.5, True]]}), {}, [":1:", "resps.0"]),
    "lm-eval no id": ("lm-eval", jsonl({**LM_EVAL, "doc_id": None}), {}, [":1:", "'doc_id'"]),
    "openai no choices": ("openai", jsonl(CHAT, {"id": "x"}), {}, [":2:", "'choices'"]),
    "openai no message": ("openai", jsonl({"custom_id": "q", "choices": [{}]}), {}, [":1:", "'message'"]),
    "openai no question": ("openai", jsonl({"choices": CHAT["choices"]}), {}, [":1:", "--columns question="]),
    "openai column": ("openai", jsonl(CHAT), {"columns": {"question": "qid"}}, [":1:", "'qid'"]),
    "openai two models": (
        "openai", jsonl({**CHAT, "model": "a"}, {**CHAT, "model": "b"}), {},
        [":2:", "'b'", "'a'", "one by one"],
    ),
    "openai logprob text": ("openai", jsonl(chat(token="x", logprob="-1")), {}, [":1:", "content.0.logprob"]),
    "openai bytes": (
        "openai", jsonl(chat(token="x", logprob=-1, bytes=[300])), {},
        [":1:", "content.0.bytes"],
    ),
    "openai bytes as a size": (
        "openai", jsonl(chat(token="x", logprob=-1, bytes=10**30)), {}, [":1:", "content.0.bytes"],
    ),
    "openai no token": ("openai", jsonl(chat(logprob=-1)), {}, [":1:", "content.0.token"]),
    "openai entries": (
        "openai", jsonl(chat(token="x", logprob=-1, top_logprobs=[1])), {},
        ["content.0.top_lo"],
    ),
    "openai logprobs list": (
        "openai", jsonl({"custom_id": "q", "choices": [{"message": {"content": ""}, "logprobs": [1]}]}), {},
        [":1:", "'logprobs'"],
    ),
    "inspect no samples": ("inspect", log(samples=None), {}, ["'samples'"]),
    "inspect no id": ("inspect", log(SAMPLE, {**SAMPLE, "id": None}), {}, ["sample 1", "'id'"]),
    "inspect sample is text": ("inspect", log("x"), {}, ["sample 0", "object"]),
    "inspect choices": (
        "inspect", log({**SAMPLE, "output": {"choices": 1}}), {}, ["sample 0", "output.choices"],
    ),
    "inspect no such score": (
        "inspect", log(SAMPLE), {"score": "match"},
        ["sample 0", "'match' for --score"],
    ),
    "inspect cut": ("inspect", log(SAMPLE)[:-40], {}, ["bad JSON"]),
    "inspect attachment": (
        "inspect", log({**SAMPLE, "input": "attachment://ff"}), {}, ["sample 0", "attachments.ff"],
    ),
    "table no column": ("columns", "a,b\n1,2\n", {"columns": TABLE}, ["'qid' for question", "a, b"]),
    "table no question": ("columns", "qid,prediction\n,2\n", {"columns": TABLE}, ["'qid'", "question"]),
    "table fields": ("columns", "qid,prediction\n1,2,3\n", {"columns": TABLE}, [":2:", "3 fields"]),
    "table confidence": (
        "columns", "qid,prediction\n1,high\n", {"columns": {**TABLE, "confidence": "prediction"}},
        [":2:", "'prediction'", "expected a number"],
    ),
    "table sample twice": (
        "columns", "qid,prediction,s\nq,1,0\nr,1,0\nq,2,0\n", {"columns": {**TABLE, "sample": "s"}},
        [":4:", "sample 0 of question 'q'"],
    ),
    "table negative sample": (
        "columns", "qid,prediction,s\nq,1,-1\n", {"columns": {**TABLE, "sample": "s"}}, [":2:", "'s'"],
    ),
    "table says no question": ("columns", "a\n1\n", {"columns": {"answer": "a"}}, ["question=FIELD"]),
    "table says no answer": ("columns", "a\n1\n", {"columns": {"question": "a"}}, ["answer=FIELD"]),
    "not utf-8": ("verl", "\udcff", {}, ["UTF-8"]),
    "empty": ("verl", "\n\n", {}, ["no rollouts of format verl"]),
}  # fmt: skip


def refused(entry: str, path: Path, options: dict[str, Any], folder: Path | None = None) -> str:
    output = (folder or path.parent) / "out" / "out.parquet"
    with pytest.raises(InputError) as caught:
        import_files(FORMATS[entry], [path], output, options=ReadOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    assert not output.exists()
    assert not output.parent.exists() or list(output.parent.iterdir()) == []
    return message


@pytest.mark.parametrize("case", list(TEXTS))
def test_a_malformed_file_is_one_line(tmp_path: Path, case: str) -> None:
    entry, content, options, named = TEXTS[case]
    endings = {"columns": "csv", "inspect": "json"}
    path = tmp_path / f"theirs.{endings.get(entry, 'jsonl')}"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    message = refused(entry, path, options)
    assert [part for part in named if part not in message] == []
    assert "theirs" in message or "--columns must" in message


PARQUET: dict[str, tuple[str, dict[str, list[Any]], dict[str, Any], list[str]]] = {
    "verl response is null": (
        "verl", {"prompt": ["p"], "responses": [["a", None]]}, {},
        ["row 0", "responses.1"],
    ),
    "verl no responses": (
        "verl", {"prompt": ["p", "q"], "responses": [["a"], None]}, {},
        ["row 1", "'responses'"],
    ),
    "verl scores": (
        "verl", {"prompt": ["p"], "responses": [["a", "b"]], "rm": [[1.0]]}, {"score": "rm"},
        ["row 0", "not a list of 2 numbers"],
    ),
    "trl completion": (
        "trl", {"step": [1, 1], "prompt": ["p"] * 2, "completion": ["a", None]}, {},
        ["row 1", "'completion'"],
    ),
    "trl reward": (
        "trl", {"step": [1], "prompt": ["p"], "completion": ["a"], "fmt": [1.0]}, {"score": "rew"},
        ["row 0", "'rew' for --score", "fmt"],
    ),
    "lighteval gold": (
        "lighteval",
        {"doc": [{"query": "q", "choices": ["a"], "gold_index": 3}], "model_response": [{"text": ["x"]}]}, {},
        ["row 0", "doc.gold_index"],
    ),
    "lighteval text": (
        "lighteval", {"doc": [{"query": "q"}], "model_response": [{"logprobs": [-1.0]}]}, {},
        ["row 0", "model_response.text"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(PARQUET))
def test_a_malformed_parquet_is_one_line(tmp_path: Path, case: str) -> None:
    entry, columns, options, named = PARQUET[case]
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table(columns), path)
    message = refused(entry, path, options)
    assert [part for part in ["theirs.parquet", *named] if part not in message] == []


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = data.index(b"samples/") + 60
    data[start : start + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(("damage", "named"), [(cut, "damaged zip"), (flipped, "damaged")])
def test_a_damaged_eval(tmp_path: Path, damage: Callable[[Path], None], named: str) -> None:
    path = tmp_path / "theirs.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/1_epoch_1.json", json.dumps({**SAMPLE, "metadata": list(range(500))}))
        archive.writestr("header.json", log(samples=[]))
    damage(path)
    assert named in refused("inspect", path, {})


def test_a_zip_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "theirs.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.json", log(samples=[]))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 200  # version needed to extract
    path.write_bytes(bytes(data))
    assert recognise(path) is FORMATS["inspect"]  # by its ending, so that the error says what is wrong
    assert "cannot be read" in refused("inspect", path, {})


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_logs, "MAX_SAMPLE_BYTES", 2**16)
    path = tmp_path / "theirs.eval"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", log(samples=[]))
        archive.writestr("samples/1_epoch_1.json", b" " * 2**22)
    assert "unpacks to more than" in refused("inspect", path, {})


def test_a_zip_that_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "theirs.eval"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "no header.json" in refused("inspect", path, {})
    assert recognise(path) is None


@pytest.mark.parametrize(
    ("entry", "options", "named"),
    [
        ("verl", {"columns": {"gold": "gts"}}, "no use for 'gold'; its fields have fixed names"),
        ("trl", {"columns": {"text": "x"}}, "no use for 'text'; it heeds gold"),
        ("verl", {"k": 5}, "--k is for formats with top log-probabilities; verl has none"),
    ],
)
def test_options_that_would_not_be_heeded(
    tmp_path: Path, entry: str, options: dict[str, Any], named: str
) -> None:
    assert named in refused(entry, DATA / "verl_40.jsonl", options, tmp_path)


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_what_is_not_there(tmp_path: Path, name: str) -> None:
    for entry in FORMATS.values():
        with pytest.raises(InputError, match=r"no such file|no files of format"):
            import_files(entry, [tmp_path / name], tmp_path / "o.parquet")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"{}", b"PAR1", b"PK", b"\x80", b"[1]", b'{"a": 1}\n', b"\xff\xfe"]
)
def test_nothing_is_recognised_in_anything_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert recognise(path) is None


@pytest.mark.parametrize("entry", list(FORMATS))
@pytest.mark.parametrize("source", ["verl_40.jsonl", "openai_chat.jsonl", "inspect_log.json", "table.csv"])
def test_a_wrong_format_is_refused_without_a_traceback(tmp_path: Path, entry: str, source: str) -> None:
    options = ReadOptions(columns=TABLE if entry == "columns" else {}, allow_pickle=True)
    message = ""
    try:
        import_files(FORMATS[entry], [DATA / source], tmp_path / "o.parquet", options=options)
    except DttrlError as error:
        message = str(error)
    right = {"verl_40.jsonl": ("verl", "ttrl"), "openai_chat.jsonl": ("openai",), "table.csv": ("columns",)}
    assert (entry in right.get(source, ("inspect",))) == (message == "")
    assert "\n" not in message
    assert [path.name for path in tmp_path.iterdir()] == ([] if message else ["o.parquet"])
    assert not message or source.split(".")[0] in message
