from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dttrl.answers.grading import Grader
from dttrl.data.rollout_files import RolloutFiles
from dttrl.data.schemas import ROLLOUTS, VOTES
from dttrl.data.tables import read_metadata, read_table, write_table
from dttrl.errors import InputError, OutputExistsError
from dttrl.method.voting.registry import METHODS
from dttrl.scoring.vote import strategies, vote_files


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as opened:
        yield opened


def rows(
    query: str, answers: Sequence[str | None], confidence: Sequence[float | None], **more: Any
) -> list[dict[str, Any]]:
    return [
        {"query_id": query, "sample_id": i, "answer": answer, "confidence": value} | more
        for i, (answer, value) in enumerate(zip(answers, confidence, strict=True))
    ]


def write(path: Path, records: list[dict[str, Any]], **metadata: Any) -> Path:
    names = records[0].keys()
    table = pa.Table.from_pylist(records, schema=ROLLOUTS.select(names))
    write_table(path, table, ROLLOUTS, metadata=metadata)
    return path


def results(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["method"], row["query_id"]): row for row in read_table(path, VOTES).to_pylist()}


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Question a: heads and weights disagree; b: a tie, no gold; c: nobody answers; d: three rollouts."""
    records = [
        *rows("a", ["1", "1", "2", None], [1.0, 1.0, 5.0, 9.0], gold="2"),
        *rows("b", ["3", "4", "4.0", "3"], [1.0, 1.0, 1.0, 2.0], gold=None),
        *rows("c", [None] * 4, [1.0] * 4, gold="7"),
        *rows("d", ["8", "8", "9"], [1.0, None, 1.0], gold="8"),
    ]
    return write(tmp_path / "scored.parquet", records)


def test_votes_by_hand(scored: Path, tmp_path: Path, grader: Grader) -> None:
    output = tmp_path / "votes.parquet"
    summary = vote_files([scored], ["sc", "wsc"], grader=grader, output=output)
    found = results(output)
    assert len(found) == 8
    assert found["sc", "a"]["answer"] == "1"
    assert found["wsc", "a"]["answer"] == "2"
    first = found["sc", "a"]
    assert (first["n"], first["n_valid"], first["n_votes"], first["diversity"]) == (4, 3, 2, 2)
    assert (first["majority_ratio"], first["label_ratio"], first["correct"], first["tie"]) == (
        0.5,
        0.5,
        False,
        False,
    )
    assert found["wsc", "a"]["majority_ratio"] == 0.5
    assert found["wsc", "a"]["label_ratio"] == 0.25
    tied = found["sc", "b"]
    assert (tied["answer"], tied["tie"], tied["correct"]) == ("3", True, None)
    nobody = found["sc", "c"]
    assert (nobody["answer"], nobody["answer_class"], nobody["correct"]) == (None, -1, False)
    assert found["sc", "d"]["n"] == 3

    sc, wsc = summary.methods
    assert (sc.correct, sc.with_gold, sc.ties, sc.unanswered) == (1, 3, 1, 1)
    assert (wsc.correct, wsc.with_gold) == (1 + int(found["wsc", "d"]["correct"]), 3)
    assert sc.majority_ratio == pytest.approx((0.5 + 0.5 + 0 + 2 / 3) / 4)
    assert (summary.questions, summary.rollouts) == (4, 15)
    differing = sum(found["sc", q]["answer_class"] != found["wsc", q]["answer_class"] for q in "abcd")
    assert summary.disagreements == Counter({("sc", "wsc"): differing})
    assert summary.split_questions == differing > 0


def test_questions_are_voted_alike_alone_and_in_batches(tmp_path: Path, grader: Grader) -> None:
    """All but the pooled votes and the probability of a label, which are fitted to all questions."""
    methods = [name for name, info in METHODS.items() if not info.pooled]
    pooled = ("mean_", "std_", "label_probability")
    rng = np.random.default_rng(5)
    records = []
    for index in range(20):
        size = int(rng.choice([8, 8, 8, 12]))
        answers = [str(value) if value else None for value in rng.integers(0, 4, size)]
        records.append(rows(f"q{index:02d}", answers, rng.gamma(2.0, size=size).tolist(), gold="1"))
    whole = write(tmp_path / "whole.parquet", [row for record in records for row in record])
    vote_files([whole], methods, grader=grader, output=tmp_path / "votes.parquet")
    found = results(tmp_path / "votes.parquet")
    assert len(found) == 20 * len(methods)
    for index, record in enumerate(records):
        one, out = tmp_path / f"{index}.parquet", tmp_path / f"votes-{index}.parquet"
        vote_files([write(one, record)], methods, grader=grader, output=out)
        for key, row in results(out).items():
            assert {k: v for k, v in row.items() if not k.startswith(pooled)} == {
                k: v for k, v in found[key].items() if not k.startswith(pooled)
            }


def test_distrivoting_rows_say_what_the_filter_did(tmp_path: Path, grader: Grader) -> None:
    low, high = np.linspace(1.0, 1.5, 8), np.linspace(9.0, 9.5, 8)
    answers = ["5"] * 8 + ["6"] * 5 + ["5"] * 3
    records = rows("q", answers, [*low.tolist(), *high.tolist()], gold="6")
    summary = vote_files(
        [write(tmp_path / "s.parquet", records)],
        ["distrivoting:f=majority", "sc"],
        grader=grader,
        output=tmp_path / "votes.parquet",
    )
    row = results(tmp_path / "votes.parquet")["distrivoting:f=majority", "q"]
    assert (row["answer"], row["correct"], row["n_pos"], row["n_neg"]) == ("6", True, 8, 8)
    assert (row["rejected"], row["fallback"]) == ("5", None)
    assert row["mean_neg"] == pytest.approx(1.25, abs=0.05)
    assert row["mean_pos"] == pytest.approx(9.25, abs=0.05)
    assert [method.correct for method in summary.methods] == [1, 0]


def test_a_degenerate_question_falls_back_and_is_counted(tmp_path: Path, grader: Grader) -> None:
    path = write(tmp_path / "s.parquet", rows("q", ["1", "1", "2"], [1.0, 1.0, 1.0], gold="1"))
    output = tmp_path / "votes.parquet"
    summary = vote_files([path], ["distrivoting"], grader=grader, output=output)
    row = results(output)["distrivoting", "q"]
    assert (row["answer"], row["fallback"], row["mean_neg"]) == ("1", "degenerate", None)
    assert summary.methods[0].fallbacks == Counter({"degenerate": 1})


def test_a_question_without_confidences_counts_heads_and_says_so(tmp_path: Path, grader: Grader) -> None:
    records = rows("q", ["1", "1", "2"], [None, None, None], gold="1") + rows("r", ["1"], [1.0], gold="1")
    path = write(tmp_path / "s.parquet", records)
    output = tmp_path / "votes.parquet"
    vote_files([path], ["wsc", "sc"], grader=grader, output=output)
    assert results(output)["wsc", "q"]["fallback"] == "no-confidence"
    assert results(output)["wsc", "q"]["answer"] == "1"
    assert results(output)["sc", "q"]["fallback"] is None


def test_log_probabilities_enter_weighted_votes_as_probabilities(tmp_path: Path, grader: Grader) -> None:
    answers = ["1", "1", "2"]
    values = [-0.1, -0.2, -0.3]
    path = write(tmp_path / "log.parquet", rows("q", answers, values, gold="1"), measure="logprob")
    output = tmp_path / "votes.parquet"
    vote_files([path], ["wsc"], grader=grader, output=output)
    row = results(output)["wsc", "q"]
    weights = np.exp(values)
    assert row["answer"] == "1"
    assert row["margin"] == pytest.approx((weights[0] + weights[1] - weights[2]) / weights.sum())


def test_negative_weights_of_unknown_measure_are_refused(tmp_path: Path, grader: Grader) -> None:
    path = write(tmp_path / "s.parquet", rows("q", ["1", "2"], [-0.1, -0.2], gold="1"))
    with pytest.raises(InputError, match=r"question .q.: column confidence holds -0\.2"):
        vote_files([path], ["wsc"], grader=grader)
    assert vote_files([path], ["sc"], grader=grader).methods[0].questions == 1


def test_files_without_confidence_allow_only_the_plain_vote(tmp_path: Path, grader: Grader) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(
        pa.table({"query_id": ["q"] * 3, "sample_id": [0, 1, 2], "answer": ["1/2", "0.5", "3"]}), path
    )
    with pytest.raises(InputError, match="possible without them: sc, latent"):
        vote_files([path], ["wsc"], grader=grader)
    for methods, note in (["all"], "wsc is left out"), ([], "only methods without weights are possible"):
        output = tmp_path / "votes.parquet"
        summary = vote_files([path], methods, grader=grader, output=output, overwrite=True)
        assert [method.method for method in summary.methods] == ["sc", "latent"]
        assert any(note in text for text in summary.notes)
    row = results(tmp_path / "votes.parquet")["sc", "q"]
    assert (row["n_votes"], row["gold"], row["correct"]) == (2, None, None)


def test_files_that_were_never_scored_and_unknown_methods_are_refused(tmp_path: Path, grader: Grader) -> None:
    path = tmp_path / "raw.parquet"
    pq.write_table(pa.table({"query_id": ["q"], "sample_id": [0], "text": ["1"]}), path)
    with pytest.raises(InputError, match="dttrl score"):
        vote_files([path], ["sc"], grader=grader)
    with pytest.raises(InputError, match="'nonsense' is not one of"):
        strategies(["nonsense"], RolloutFiles([path]), list)


def test_steps_are_kept_apart(tmp_path: Path, grader: Grader) -> None:
    records = [
        row for step in (1, 2) for row in rows("q", ["1", "2"], [1.0, float(step)], gold="2", step=step)
    ]
    output = tmp_path / "votes.parquet"
    vote_files([write(tmp_path / "s.parquet", records)], ["wsc"], grader=grader, output=output)
    assert [row["step"] for row in read_table(output, VOTES).to_pylist()] == [1, 2]


def test_every_method_is_judged_by_one_fit_of_the_latent_vote(tmp_path: Path, grader: Grader) -> None:
    """Twelve questions in which the surest three of eight are right; nobody answers the last one."""
    rng = np.random.default_rng(1)
    records = []
    for q in range(12):
        answers = ["1"] * 3 + ["2"] * 5 if q < 11 else [None] * 8
        values = np.repeat([6.0, 2.0], [3, 5]) + rng.normal(size=8)
        records.append(rows(f"q{q:02d}", answers, values.tolist(), gold="1"))
    path = write(tmp_path / "s.parquet", [row for record in records for row in record])
    output, alone = tmp_path / "votes.parquet", tmp_path / "alone.parquet"
    summary = vote_files([path], ["sc", "latent", "bon", "latent:lambda=2"], grader=grader, output=output)
    found = results(output)
    probability = {name: [found[name, f"q{q:02d}"]["label_probability"] for q in range(12)] for name in
                   ("sc", "latent", "bon", "latent:lambda=2")}  # fmt: skip
    assert probability["sc"][-1] is probability["latent"][-1] is None
    assert probability["latent"][:-1] == probability["bon"][:-1] == probability["latent:lambda=2"][:-1]
    assert max(probability["sc"][:-1]) < 0.3 < 0.7 < min(probability["latent"][:-1])
    sc, latent = summary.methods[:2]
    assert (sc.correct, latent.correct) == (0, 11)
    assert sc.expected_accuracy == pytest.approx(sum(probability["sc"][:-1]) / 12)
    assert latent.expected_accuracy == pytest.approx(sum(probability["latent"][:-1]) / 12)
    vote_files([path], ["sc"], grader=grader, output=alone)  # whoever stands
    for q in range(11):
        key = ("sc", f"q{q:02d}")
        assert results(alone)[key]["label_probability"] == found[key]["label_probability"]


def test_steps_may_come_in_any_order(tmp_path: Path, grader: Grader) -> None:
    late = write(tmp_path / "late.parquet", rows("q", ["1", "2"], [1.0, 2.0], gold="2", step=2))
    early = write(tmp_path / "early.parquet", rows("q", ["1", "1"], [1.0, 2.0], gold="2", step=1))
    assert vote_files([late, early], ["sc"], grader=grader).questions == 2


def test_the_votes_file_is_not_overwritten_and_carries_the_metadata(
    scored: Path, tmp_path: Path, grader: Grader
) -> None:
    output = tmp_path / "votes.parquet"
    vote_files([scored], ["sc"], grader=grader, output=output)
    assert read_metadata(output)["methods"] == ["sc"]
    before = output.read_bytes()
    with pytest.raises(OutputExistsError):
        vote_files([scored], ["sc"], grader=grader, output=output)
    assert output.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("brumo2025_r1-0528-qwen3-8b_deepconf_b64", {"sc": (17, 29), "wsc": (23, 29)}),
        ("lastletters_gpt3.5_esc_n40", {"sc": (415, 500)}),
    ],
)
def test_public_rollouts_give_the_published_counts(
    shared_data: Path, name: str, expected: dict[str, tuple[int, int]]
) -> None:
    path = shared_data / "data" / "rollouts" / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there")
    with Grader(kind="text" if name.startswith("last") else "math") as grader:
        summary = vote_files([path], list(expected), grader=grader)
    assert {m.method: (m.correct, m.with_gold) for m in summary.methods} == expected
