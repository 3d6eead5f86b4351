"""Whatever happens to a file of another tool, it is read or refused in one line; nothing else is raised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dttrl.data.rollout_files import RolloutFiles
from dttrl.errors import DttrlError
from dttrl.interop.fields import ReadOptions
from dttrl.interop.formats import FORMATS, recognise
from dttrl.interop.importing import import_files
from tests.rollout_groups import read_groups

DATA = Path(__file__).resolve().parents[1] / "data" / "interop"
FILES = {
    "verl_40.jsonl": "verl",
    "ttrl.jsonl": "ttrl",
    "openai_chat.jsonl": "openai",
    "inspect_log.json": "inspect",
    "samples_gsm8k_2025-01-02T03-04-05.678901.jsonl": "lm-eval",
    "table.csv": "columns",
}
COLUMNS = {"question": "qid", "answer": "prediction", "sample": "draw", "confidence": "certainty"}
ODD: list[Any] = [
    None,
    True,
    1,
    -1.5,
    10**30,
    float("nan"),
    "x",
    "",
    "\ud800",
    [],
    {},
    [None],
    ["a", 2],
    {"a": 1},
]


def read_or_refused(path: Path, entry: str) -> None:
    options = ReadOptions(columns=COLUMNS if entry == "columns" else {})
    output = path.with_name("out.parquet")
    recognise(path)
    message = ""
    try:
        import_files(FORMATS[entry], [path], output, options=options, overwrite=True)
    except DttrlError as error:
        message = str(error)
    if not message:
        assert sum(group.table.num_rows for group in read_groups(RolloutFiles([output]))) > 0
        return
    assert "\n" not in message
    assert path.name in message


@pytest.mark.parametrize("name", list(FILES))
@given(data=st.data())
def test_any_bytes_may_change(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray((DATA / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("d") / name
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)) | st.just(len(content)))]))
    read_or_refused(path, FILES[name])


@pytest.mark.parametrize("name", [name for name in FILES if name != "table.csv"])
@given(data=st.data())
def test_any_field_may_hold_anything(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def changed(value: Any) -> Any:
        places = list(value.items() if isinstance(value, dict) else enumerate(value))
        key, inner = data.draw(st.sampled_from(places))
        deeper = isinstance(inner, (dict, list)) and inner and data.draw(st.integers(0, 3))
        value[key] = changed(inner) if deeper else data.draw(st.sampled_from(ODD))
        return value

    text = (DATA / name).read_text("utf-8")
    rows = [json.loads(text)] if name.endswith(".json") else [json.loads(row) for row in text.splitlines()]
    rows[data.draw(st.integers(0, len(rows) - 1))] = changed(data.draw(st.sampled_from(rows)))
    path = tmp_path_factory.mktemp("d") / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    read_or_refused(path, FILES[name])
