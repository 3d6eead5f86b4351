from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data.questions import BOXED_SUFFIX, Question, read_questions, render
from dttrl.errors import InputError

SHARED = Path(__file__).resolve().parents[3].parent / "shared"


def text(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(content.encode(encoding))
    return path


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    return text(path, "".join(json.dumps(row) + "\n" for row in rows))


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


# --- formats


def test_jsonl_with_mark_blank_lines_and_line_separators(tmp_path: Path) -> None:
    content = '\ufeff{"prompt": "a\u2028b", "answer": 7}\r\n\r\n  \n{"prompt":\r "c", "id": 5, "source": "s"}'
    assert read_questions(text(tmp_path / "set.jsonl", content)) == [
        Question("set-0", "a\u2028b", "7", None),
        Question("5", "c", None, "s"),
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "42"),
        ("42.0", "42.0"),
        ("0.10", "0.10"),
        ("1e400", "1e400"),
        ("9" * 5000, "9" * 5000),
        ('"025"', "025"),
        ('" 7\\n"', "7"),
        ('""', None),
        ("null", None),
        ("NaN", None),
        ("true", "True"),
        ('["x"]', "x"),
        ('"\\ud800"', "\ufffd"),
    ],
)
def test_answers_become_text_as_they_are_spelled(tmp_path: Path, answer: str, expected: str | None) -> None:
    row = f'{{"prompt": "p", "answer": {answer}}}'
    for name, content in (("q.jsonl", row), ("q.json", f"[{row}]"), ("q", row), ("r", f" [{row}]")):
        assert read_questions(text(tmp_path / name, content))[0].answer == expected


def test_parquet_answers(tmp_path: Path) -> None:
    path = parquet(tmp_path / "q.parquet", prompt=["a", "b", "c"], answer=[42.0, float("nan"), None])
    assert [question.answer for question in read_questions(path)] == ["42.0", None, None]
    path = parquet(tmp_path / "no-extension", prompt=["a"], answer=[42])
    assert read_questions(path) == [Question("no-extension-0", "a", "42")]


def test_csv_with_quotes_newlines_and_long_fields(tmp_path: Path) -> None:
    long = "x" * 300_000
    limit = csv.field_size_limit()
    content = f'\ufeffprompt,answer,id\r\n"a ""b"",\nc",1,k\r\n\r\n{long},,\r\n'
    assert read_questions(text(tmp_path / "q.csv", content)) == [
        Question("k", 'a "b",\nc', "1"),
        Question("q-1", long),
    ]
    assert csv.field_size_limit() == limit < 300_000
    assert read_questions(text(tmp_path / "q.tsv", "prompt\tanswer\na, b\t2\n")) == [
        Question("q-0", "a, b", "2")
    ]


def test_ttrl_json(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p", "answer": "3", "source": "AIME-TTT", "id": "0"},
        {"prompt": "q", "answer": "4", "source": "AIME-TTT", "id": "1"},
    ]
    assert read_questions(text(tmp_path / "train.json", json.dumps(rows, indent=2))) == [
        Question("0", "p", "3", "AIME-TTT"),
        Question("1", "q", "4", "AIME-TTT"),
    ]
    rows = [{"prompt": "p", "answer": "3", "solution": "long", "unique_id": "test/algebra/1.json"}]
    assert read_questions(text(tmp_path / "l5.json", json.dumps(rows))) == [
        Question("test/algebra/1.json", "p", "3")
    ]


def verl(path: Path, *chats: list[dict[str, str]]) -> Path:
    n = len(chats)
    return parquet(
        path,
        data_source=["math"] * n,
        prompt=list(chats),
        ability=["math"] * n,
        reward_model=[{"style": "rule", "ground_truth": str(i)} for i in range(n)],
        extra_info=[{"split": "train", "index": 10 + i} for i in range(n)],
    )


def test_verl_parquet(tmp_path: Path) -> None:
    path = verl(
        tmp_path / "train.parquet",
        [{"role": "user", "content": "1+1?"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "x"},
            {"role": "user", "content": "y"},
        ],
    )
    assert read_questions(path) == [
        Question("math-10", "1+1?", "0", "math"),
        Question("math-11", "x\n\ny", "1", "math"),
    ]
    path = verl(
        tmp_path / "shots.parquet",
        [{"role": "user", "content": "1+1?"}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
    )
    with pytest.raises(InputError, match=r"shots.parquet, row 1: 'prompt' is a chat .*role 'assistant'"):
        read_questions(path)


def test_chats_in_json(tmp_path: Path) -> None:
    path = lines(tmp_path / "q.jsonl", {"prompt": [{"role": "user", "content": "hi"}]})
    assert read_questions(path)[0].prompt == "hi"
    for chat in ([], [{"role": "system", "content": "s"}], [{"role": "user", "content": " "}]):
        with pytest.raises(InputError, match=r"q.jsonl:1: 'prompt' is empty"):
            read_questions(lines(tmp_path / "q.jsonl", {"prompt": chat}))
    image: Any = [{"role": "user", "content": [{"type": "image"}]}]
    for other in (["hi"], [{"role": "user"}], image):
        with pytest.raises(InputError, match=r"q.jsonl:1: 'prompt' is a chat with a message"):
            read_questions(lines(tmp_path / "q.jsonl", {"prompt": other}))


# --- columns


def test_other_names_for_the_prompt(tmp_path: Path) -> None:
    for name in ("question", "problem"):
        path = lines(tmp_path / "q.jsonl", {name: "p", "solution": "so 3"})
        assert read_questions(path) == [Question("q-0", "p", None)]
        assert read_questions(path, answer_column="solution")[0].answer == "so 3"
    both = lines(tmp_path / "q.jsonl", {"question": "p", "problem": "p"})
    with pytest.raises(
        InputError, match="either of question and problem could be it; name it with --prompt-column"
    ):
        read_questions(both)
    assert read_questions(both, prompt_column="problem")[0].prompt == "p"
    named = lines(tmp_path / "q.jsonl", {"prompt": "right", "question": "wrong"})
    assert read_questions(named)[0].prompt == "right"
    broken = lines(tmp_path / "q.jsonl", {"question": "a\ud800"})
    assert read_questions(broken)[0].prompt == "a\ufffd"


def test_named_columns_must_be_there(tmp_path: Path) -> None:
    path = lines(tmp_path / "q.jsonl", {"question": "p", "extra": {"gold": "5", "text": "deep"}})
    assert read_questions(path, answer_column="extra.gold")[0].answer == "5"
    assert read_questions(path, prompt_column="extra.text")[0].prompt == "deep"
    for option in ("prompt", "answer", "id", "source"):
        with pytest.raises(
            InputError, match=rf"no column 'x' \(columns: question, extra\).*--{option}-column"
        ):
            read_questions(path, **cast(Any, {f"{option}_column": "x"}))
    chat = verl(tmp_path / "v.parquet", [{"role": "user", "content": "1+1?"}])
    with pytest.raises(InputError, match="no column 'gold'"):
        read_questions(chat, answer_column="gold")
    with pytest.raises(InputError, match=r"no column 'prompt' .columns: text."):
        read_questions(lines(tmp_path / "q.jsonl", {"text": "p"}))


def test_limit(tmp_path: Path) -> None:
    path = text(tmp_path / "q.jsonl", '{"prompt": "a"}\n{"prompt": "b"}\nbroken')
    assert [question.id for question in read_questions(path, limit=2)] == ["q-0", "q-1"]
    with pytest.raises(InputError, match="limit is 0"):
        read_questions(path, limit=0)


# --- errors


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("q.jsonl", "", "q.jsonl: holds no question"),
        ("q.json", "[]", "q.json: holds no question"),
        ("q.csv", "prompt,answer\n", "q.csv: holds no question"),
        ("q.csv", "", "q.csv: holds no question"),
        (
            "q.jsonl",
            '{"prompt": "a"}\n\n{"prompt": \n',
            "q.jsonl:3: bad JSON at column 11 .*; expected one JSON object a line",
        ),
        ("q.json", '[{"prompt": "a"},\n{"prompt": }]', "q.json: bad JSON at line 2"),
        ("q.jsonl", '{"prompt": "a"}\n[1]\n', "q.jsonl:2: expected a JSON object"),
        ("q.json", '[{"prompt": "a"}, 3]', "q.json, row 1: expected a JSON object"),
        ("q.jsonl", "[" * 100_000, "q.jsonl: JSON nested too deeply"),
        ("q.jsonl", '{"prompt": "a"}\n{"prompt": " "}\n', "q.jsonl:2: 'prompt' is empty"),
        ("q.jsonl", '{"prompt": "a"}\n{"answer": "3"}\n', "q.jsonl:2: 'prompt' is empty"),
        ("q.jsonl", '{"prompt": null}\n', "q.jsonl:1: 'prompt' is empty"),
        ("q.jsonl", '{"prompt": 3}\n', "q.jsonl:1: 'prompt' is a number, expected text or a chat"),
        ("q.jsonl", '{"prompt": "a", "answer": [1, 2]}\n', "q.jsonl:1: 'answer' is a list, expected text"),
        ("q.jsonl", '{"prompt": "a", "id": {}}\n', "q.jsonl:1: 'id' is a dict, expected text"),
        (
            "q.jsonl",
            '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "1"}\n',
            "q.jsonl:2: id '1' was used at .*q.jsonl:1 already",
        ),
        ("q.jsonl", '{"prompt": "a", "id": "q-1"}\n{"prompt": "b"}\n', "q.jsonl:2: id 'q-1' was used at"),
        ("q.csv", "prompt,answer\na,1\nb\n", "q.csv:3: 1 fields, but the header has 2"),
        ("q.csv", 'prompt,answer\na,1\n"b,2\n', "q.csv:3: bad CSV"),
        ("q.csv", "prompt,prompt\na,1\n", "q.csv:1: column 'prompt' appears twice"),
        ("q.csv", "prompt,answer\na,1\n ,2\n", "q.csv:3: 'prompt' is empty"),
        ("q.txt", "What is 1+1?\n", "q.txt: unknown format; use .jsonl"),
        ("q.parquet", "prompt\n", "q.parquet: not a Parquet file"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, name: str, content: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as error:
        read_questions(text(tmp_path / name, content))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(tmp_path))


def test_unreadable_files(tmp_path: Path) -> None:
    for name in ("q.jsonl", "q.json", "q.csv", "q.parquet"):
        with pytest.raises(InputError, match=f"{name}: no such file"):
            read_questions(tmp_path / name)
    with pytest.raises(InputError, match="is a folder"):
        read_questions(tmp_path)
    (tmp_path / "sub.jsonl").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_questions(tmp_path / "sub.jsonl")
    for name, content in (
        ("q.jsonl", '{"prompt": "é"}'),
        ("q.json", '[{"prompt": "é"}]'),
        ("q.csv", "prompt\né"),
    ):
        with pytest.raises(InputError, match=f"{name}: not UTF-8 text"):
            read_questions(text(tmp_path / name, content, "latin-1"))
    path = parquet(tmp_path / "q.parquet", prompt=["a", ""])
    with pytest.raises(InputError, match=r"q.parquet, row 1: 'prompt' is empty"):
        read_questions(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"q.parquet: truncated or damaged"):
        read_questions(path)


# --- rendering


QUESTION = Question("q", "1 + 1?\n")


def chat(messages: list[dict[str, str]]) -> str:
    return "|".join(f"{message['role']}:{message['content']}" for message in messages) + "|assistant:"


def test_templates() -> None:
    assert render(QUESTION, "raw") == "1 + 1?\n"
    assert render(QUESTION, "boxed") == "1 + 1?" + BOXED_SUFFIX
    assert render(QUESTION, "boxed", suffix=" Now.") == "1 + 1? Now."
    assert render(QUESTION, "chat", chat=chat) == "user:1 + 1?\n|assistant:"
    assert (
        render(QUESTION, "chat-boxed", system="S", suffix="!", chat=chat)
        == "system:S|user:1 + 1?!|assistant:"
    )
    assert "\\boxed{}" in BOXED_SUFFIX


def test_templates_that_cannot_be() -> None:
    with pytest.raises(InputError, match="'chat' needs a model with a chat template; use raw or boxed"):
        render(QUESTION, "chat")
    with pytest.raises(InputError, match="system message needs a chat template"):
        render(QUESTION, "boxed", system="S")
    with pytest.raises(InputError, match="'box' is unknown; use one of raw, boxed, chat, chat-boxed"):
        render(QUESTION, "box")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "count"),
    [("aime2024", 30), ("amc", 83), ("math500", 500), ("gpqa_diamond", 198), ("brumo_2025", 30)],
)
def test_public_sets(name: str, count: int) -> None:
    path = SHARED / "data" / "questions" / f"{name}.jsonl"
    if not path.is_file():
        pytest.skip("the shared questions are not here")
    questions = read_questions(path)
    assert len(questions) == count
    assert all(question.answer and question.source == name for question in questions)
    if name == "amc":
        assert questions[0].answer == "142.0"
