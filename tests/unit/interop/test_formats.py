"""Every format's sample file, read to exact rows. The files were written from the documented field names."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.data.questions import Question
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table
from dttrl.errors import InputError
from dttrl.interop.fields import ReadOptions, question_key
from dttrl.interop.formats import FORMATS, recognise
from dttrl.interop.importing import ImportSummary, import_files
from tests.rollout_groups import read_groups

DATA = Path(__file__).resolve().parents[2] / "data" / "interop"
U, V = "<|user|>What is 1+1?<|assistant|>", "<|user|>What is 2+3?<|assistant|>"


def as_parquet(name: str, folder: Path) -> Path:
    """The rows of a JSON lines file as the Parquet file that the tool would write."""
    rows = [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]
    path = folder / Path(name).with_suffix(".parquet").name
    names = list(dict.fromkeys(name for row in rows for name in row))
    pq.write_table(
        pa.table({name: [row.get(name) for row in rows] for name in names}), path, row_group_size=2
    )
    return path


def imported(
    entry: str, sources: list[Path], folder: Path, *names: str, **options: Any
) -> tuple[list[tuple[Any, ...]], ImportSummary]:
    """Import and read back: the named columns of each row, in the order of the file."""
    output = folder / "out.parquet"
    questions = options.pop("questions", None)
    summary = import_files(
        FORMATS[entry], sources, output, options=ReadOptions(**options), questions=questions, overwrite=True
    )
    table = read_table(output, ROLLOUTS)
    assert [path.name for path in folder.iterdir() if "spill" in path.name or ".tmp" in path.name] == []
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True)), summary


def by_id(*pairs: tuple[str, Any]) -> list[Any]:
    return [rows for _, rows in sorted(pairs)]


def test_verl_dump_is_grouped_by_its_prompts(tmp_path: Path) -> None:
    path = DATA / "verl_40.jsonl"
    names = ("step", "query_id", "sample_id", "prompt", "gold", "text")
    rows, summary = imported("verl", [path], tmp_path, *names)
    u, v = question_key(U), question_key(V)
    ones = [
        (40, u, 0, U, "2", r"1+1 is \boxed{2}"),
        (40, u, 1, U, "2", r"It is \boxed{3}"),
        (40, u, 2, U, "2", r"So \boxed{2}."),
    ]
    twos = [(40, v, 0, V, "5", r"I add: \boxed{6}"), (40, v, 1, V, "5", r"2+3 = \boxed{5}")]
    assert rows == [row for group in by_id((u, ones), (v, twos)) for row in group]
    assert summary.columns == list(names)
    assert summary.possible == (
        "no confidence: votes without weights (sc, latent); best-of-n and MoB on a stored score need "
        "--score FIELD (fields: score, acc)"
    )
    assert read_metadata(tmp_path / "out.parquet")["imported_from"] == "verl"


def test_verl_dump_is_grouped_by_uid_where_there_is_one(tmp_path: Path) -> None:
    path = DATA / "verl_uid_41.jsonl"
    rows, _ = imported("verl", [path], tmp_path, "query_id", "sample_id", "text", "confidence", score="score")
    assert rows == [
        ("a9", 0, r"\boxed{4}", 0.0),
        ("b7", 0, r"\boxed{2}", 1.0),
        ("b7", 1, r"\boxed{2} again", 1.0),
    ]
    assert read_metadata(tmp_path / "out.parquet")["measure"] == "score:score"


def test_steps_of_several_dumps_are_sorted(tmp_path: Path) -> None:
    rows, summary = imported(
        "verl",
        [DATA / "verl_uid_41.jsonl", DATA / "verl_40.jsonl"],
        tmp_path,
        "step",
        "query_id",
        "sample_id",
    )
    assert rows == sorted(rows)
    assert [row[0] for row in rows] == [40] * 5 + [41] * 3
    assert (summary.files, summary.questions, summary.rollouts) == (2, 4, 8)


def test_verl_generation(tmp_path: Path) -> None:
    path = as_parquet("verl_generation.jsonl", tmp_path)
    assert recognise(path) is FORMATS["verl"]
    names = ("step", "query_id", "sample_id", "source", "prompt", "gold", "text", "confidence")
    rows, _ = imported("verl", [path], tmp_path, *names, score="rm")
    assert rows == [
        (None, "AIME-0", 0, "AIME", "What is 2+3?", "5", r"\boxed{5}", 0.4),
        (None, "AIME-1", 0, "AIME", "What is 1+1?", "2", r"\boxed{2}", 0.9),
        (None, "AIME-1", 1, "AIME", "What is 1+1?", "2", r"\boxed{3}", 0.1),
    ]


@pytest.mark.parametrize("parquet", [False, True])
def test_ttrl(tmp_path: Path, parquet: bool) -> None:
    path = as_parquet("ttrl.jsonl", tmp_path) if parquet else DATA / "ttrl.jsonl"
    assert recognise(path) is FORMATS["ttrl"]
    rows, _ = imported("ttrl", [path], tmp_path, "query_id", "sample_id", "source", "prompt", "gold", "text")
    assert rows == [
        ("0", 0, "AIME-TTT", "What is 20+5?", "025", r"\boxed{025}"),
        ("0", 1, "AIME-TTT", "What is 20+5?", "025", r"\boxed{24}"),
        ("algebra/7", 0, "MATH-TTT", "Halve 1.", r"\frac{1}{2}", r"\boxed{0.5}"),
    ]


def test_ttrl_reads_the_dump_of_its_trainer(tmp_path: Path) -> None:
    path = DATA / "verl_40.jsonl"
    names = ("step", "query_id", "sample_id", "gold", "text")
    assert imported("ttrl", [path], tmp_path, *names) == (
        imported("verl", [path], tmp_path, *names)[0],
        imported("ttrl", [path], tmp_path, *names)[1],
    )


def test_trl_completions(tmp_path: Path) -> None:
    path = as_parquet("trl_completions.jsonl", tmp_path)
    assert recognise(path) is FORMATS["trl"]
    u, v = question_key("What is 1+1?"), question_key("What is 2+3?")
    rows, summary = imported(
        "trl", [path], tmp_path, "step", "query_id", "sample_id", "text", "confidence", score="length_reward"
    )
    ones = [(3, u, 0, r"\boxed{2}", 0.25), (3, u, 1, r"\boxed{1}", 0.5)]
    assert rows == [row for group in by_id((u, ones), (v, [(3, v, 0, "five", 0.75)])) for row in group]
    assert summary.possible == (
        "column confidence holds length_reward: methods with weights, best-of-n and MoB use it"
    )


def test_trl_chats_and_gold(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    reply = [{"role": "assistant", "content": "two"}]
    path = tmp_path / "completions_00001.parquet"
    pq.write_table(
        pa.table({"step": [1], "prompt": [chat], "completion": [reply], "answer": [2], "truth": ["II"]}), path
    )
    rows, _ = imported("trl", [path], tmp_path, "prompt", "text", "gold")
    assert rows == [("1+1?", "two", "2")]
    rows, _ = imported("trl", [path], tmp_path, "gold", columns={"gold": "truth"})
    assert rows == [("II",)]


def test_lm_eval_reads_one_filter_and_the_answers_it_found(tmp_path: Path) -> None:
    path = DATA / "samples_gsm8k_2025-01-02T03-04-05.678901.jsonl"
    assert recognise(path) is FORMATS["lm-eval"]
    names = ("query_id", "sample_id", "source", "prompt", "gold", "text", "answer")
    rows, summary = imported("lm-eval", [path], tmp_path, *names)
    assert rows == [
        ("gsm8k-0", 0, "gsm8k", "Q: Two and two?\nA:", "4", "#### 4", "4"),
        ("gsm8k-0", 1, "gsm8k", "Q: Two and two?\nA:", "4", "no idea", None),
        ("gsm8k-1", 0, "gsm8k", "Q: Ten minus one?\nA:", "9", "#### 9", "9"),
        ("gsm8k-1", 1, "gsm8k", "Q: Ten minus one?\nA:", "9", "#### 8", "8"),
    ]
    assert summary.notes == [f"{path.name}: rows of filters other than 'strict-match' were passed over (1)"]
    with pytest.raises(InputError, match="one value for 2 responses"):
        imported("lm-eval", [path], tmp_path, score="exact_match")


def test_lighteval(tmp_path: Path) -> None:
    path = as_parquet("lighteval_details.jsonl", tmp_path)
    assert recognise(path) is FORMATS["lighteval"]
    names = ("query_id", "sample_id", "source", "prompt", "gold", "text", "num_tokens")
    rows, _ = imported("lighteval", [path], tmp_path, *names)
    task = "lighteval|aime25|0"
    assert rows == [
        (f"{task}-0", 0, task, "What is 1+1?", "2", r"\boxed{2}", 3),
        (f"{task}-0", 1, task, "What is 1+1?", "2", r"\boxed{1}", 2),
        (f"{task}-1", 0, task, "What is 2+3?", "5", r"\boxed{5}", 1),
        (f"{task}-1", 1, task, "What is 2+3?", "5", r"\boxed{5}.", 2),
    ]


def as_eval(folder: Path, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """The JSON log as inspect_ai's zip: a header, and a file a sample."""
    log = json.loads((DATA / "inspect_log.json").read_text("utf-8"))
    path = folder / "log.eval"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("_journal/start.json", json.dumps({"eval": log["eval"]}))
        for sample in log["samples"]:
            archive.writestr(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", json.dumps(sample))
        archive.writestr("header.json", json.dumps({k: v for k, v in log.items() if k != "samples"}))
    return path


@pytest.mark.parametrize("archived", [False, True])
def test_inspect(tmp_path: Path, archived: bool) -> None:
    path = as_eval(tmp_path) if archived else DATA / "inspect_log.json"
    assert recognise(path) is FORMATS["inspect"]
    names = (
        "query_id", "sample_id", "source", "prompt", "gold", "text", "finish_reason", "answer", "confidence",
    )  # fmt: skip
    rows, summary = imported("inspect", [path], tmp_path, *names, score="match")
    thought = "<think>\n2+3\n</think>\n\nANSWER: 5"
    assert rows == [
        ("1", 0, "sums", "What is 1+1?", "2", "ANSWER: 2", "stop", "2", 1.0),
        ("1", 1, "sums", "What is 1+1?", "2", "ANSWER: 3", "stop", "3", 0.0),
        ("two", 0, "sums", "What is 2+3?", "5", thought, "length", "5", 1.0),
    ]
    assert (summary.model, summary.k) == ("mock/m", 2)
    assert summary.notes == [
        f"{path.name}: samples that ended with an error were passed over (1)",
        "2 rollouts have no token confidences; they do not weigh in votes",
    ]
    rows, _ = imported("inspect", [path], tmp_path, "token_confidence", "token_logprob", "token_offset")
    assert rows == [([1.0, 1.25], [-0.5, -0.25], [0, 8]), (None, None, None), (None, None, None)]


def test_openai(tmp_path: Path) -> None:
    path = DATA / "openai_chat.jsonl"
    assert recognise(path) is FORMATS["openai"]
    names = ("query_id", "sample_id", "text", "finish_reason", "num_tokens", "token_offset", "token_logprob")
    known = {"sum": Question("sum", "What is 1+1?", "2", "ours")}
    rows, summary = imported("openai", [path], tmp_path, *names, questions=known)
    assert rows == [
        ("product", 0, r"\boxed{6}", "stop", 0, None, None),
        ("sum", 0, r"é: \boxed{2}", "stop", 5, [0, 0, 1, 10, 12], [-0.5, -0.25, -7.0, -1.0, -0.125]),
        ("sum", 1, r"\boxed{3}", "length", 2, [0, 7], [-4.0, -6.0]),
    ]
    assert (summary.model, summary.k) == ("tiny-1", 2)
    rows, _ = imported("openai", [path], tmp_path, "prompt", "gold", "source", questions=known)
    assert rows == [("", None, None), *[("What is 1+1?", "2", "ours")] * 2]
    assert "1 rollouts answer a question that --questions does not have" in summary.notes
    assert "openai_chat.jsonl: responses that are errors were passed over (1)" in summary.notes


def test_openai_confidence_is_the_mean_of_the_k_largest_that_are_known(tmp_path: Path) -> None:
    path = DATA / "openai_chat.jsonl"
    rows, _ = imported("openai", [path], tmp_path, "token_confidence")
    # Worked by hand. -9999 is missing; the sampled token as a third entry does not count; the sampled token
    # put first in place of the second entry (the last token) does not either.
    assert rows == [(None,), ([1.0, 0.25, 1.5, 2.0, 1.125],), ([2.0, 1.0],)]


def test_openai_names_its_questions_as_told(tmp_path: Path) -> None:
    def line(**extra: Any) -> str:
        body = {"model": "m", "choices": [{"message": {"role": "assistant", "content": "7"}}]}
        return json.dumps({**extra, **body}) + "\n"

    path = tmp_path / "r.jsonl"
    path.write_text(line(m={"q": "b", "n": 1, "a": 7}) + line(m={"q": "b", "n": 0, "a": 7}))
    with pytest.raises(InputError, match=r"r.jsonl:1: nothing says which question"):
        imported("openai", [path], tmp_path)
    columns = {"question": "m.q", "sample": "m.n", "gold": "m.a"}
    rows, _ = imported("openai", [path], tmp_path, "query_id", "sample_id", "gold", columns=columns)
    assert rows == [("b", 0, "7"), ("b", 1, "7")]
    asked = [{"role": "user", "content": "3+4?"}]
    path.write_text(line(request={"messages": asked}))
    rows, _ = imported("openai", [path], tmp_path, "query_id", "prompt", "text")
    assert rows == [(question_key(asked), "3+4?", "7")]


CSV_COLUMNS = {
    "question": "qid", "answer": "prediction", "confidence": "certainty", "gold": "truth", "sample": "draw",
    "text": "chain",
}  # fmt: skip


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_any_table_by_its_columns(tmp_path: Path, ending: str) -> None:
    path = DATA / "table.csv"
    if ending != ".csv":
        lines = [line.split(",", 5) for line in path.read_text("utf-8").splitlines()]
        made = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
        made = [{**row, "chain": row["chain"].strip('"'), "draw": int(row["draw"])} for row in made]
        path = tmp_path / f"table{ending}"
        if ending == ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in made))
        else:
            pq.write_table(pa.Table.from_pylist(made), path)
    names = ("query_id", "sample_id", "gold", "text", "answer", "confidence")
    rows, _ = imported("columns", [path], tmp_path, *names, columns=CSV_COLUMNS)
    assert rows == [
        ("q1", 0, "2", "x", "2", 0.25),
        ("q1", 1, "2", "", "2.0", 0.5),
        ("q2", 0, "5", r"So \boxed{5}, yes", "5", 0.75),
        ("q2", 1, "5", "nothing", None, None),
    ]
    without = {role: name for role, name in CSV_COLUMNS.items() if role != "sample"}
    rows, _ = imported("columns", [path], tmp_path, "query_id", "sample_id", "answer", columns=without)
    assert rows == [("q1", 0, "2.0"), ("q1", 1, "2"), ("q2", 0, "5"), ("q2", 1, None)]


def test_a_question_that_is_a_text_becomes_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    long = "What is " + "1+" * 50 + "1?"
    path.write_text("".join(json.dumps({"q": q, "a": 42.0, "i": 7}) + "\n" for q in ("1 + 1?", long)))
    columns = {"question": "q", "answer": "a"}
    rows, _ = imported("columns", [path], tmp_path, "query_id", "prompt", "answer", columns=columns)
    assert rows == [("1 + 1?", "1 + 1?", "42.0"), (question_key(long), long, "42.0")]


def test_a_folder_stands_for_the_files_of_its_format(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    for name in ("verl_40.jsonl", "openai_chat.jsonl"):
        (folder / name).write_bytes((DATA / name).read_bytes())
    _, summary = imported("verl", [folder], tmp_path)
    assert (summary.files, summary.rollouts) == (1, 5)
    with pytest.raises(InputError, match="no files of format lighteval"):
        imported("lighteval", [folder], tmp_path)
    with pytest.raises(InputError, match="given twice"):
        imported("verl", [folder, folder / "verl_40.jsonl"], tmp_path)


def test_every_output_is_what_the_streaming_reader_accepts(tmp_path: Path) -> None:
    samples = DATA / "samples_gsm8k_2025-01-02T03-04-05.678901.jsonl"
    sources = {"verl": "verl_40.jsonl", "openai": "openai_chat.jsonl", "inspect": "inspect_log.json"}
    for entry, name in {**sources, "lm-eval": samples.name}.items():
        _, summary = imported(entry, [DATA / name], tmp_path)
        groups = list(read_groups(RolloutFiles([tmp_path / "out.parquet"])))
        assert len(groups) == summary.questions
        assert sum(group.table.num_rows for group in groups) == summary.rollouts
        assert all(np.array_equal(g.table["sample_id"], range(g.table.num_rows)) for g in groups)
