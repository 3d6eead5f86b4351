from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import write_table
from dttrl_cli.app import main

IMPORTS = Path(__file__).resolve().parents[1] / "data" / "interop"
UNSCORED = [
    "query_id", "sample_id", "gold", "text", "finish_reason", "num_tokens", "token_offset",
    "token_logprob", "token_confidence",
]  # fmt: skip
STORED = ["query_id", "sample_id", "gold", "answer", "confidence"]


def rollouts(*, step: int | None = None, seed: int = 3) -> list[dict[str, Any]]:
    """Sixteen questions of eight rollouts: two right and likely, four and two wrong; topk is noise.

    The last step, a single token, is as likely in all of them.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for q in range(16):
        for i in range(8):
            right, answer = i < 2, str(1 if i < 2 else 2 if i < 6 else 3)
            rows.append(
                {
                    "step": step, "query_id": f"q{q:02d}", "sample_id": i, "gold": "1", "prompt": "?",
                    "text": f"think\n\nso \\boxed{{{answer}}}", "finish_reason": "stop", "num_tokens": 2,
                    "answer": answer, "answer_class": int(answer) - 1,
                    "token_offset": [0, 7],
                    "token_logprob": [*(rng.normal(-0.2 if right else -0.8, 0.15, 1).clip(None, 0)), -0.01],
                    "token_confidence": rng.normal(10, 1, 2).tolist(),
                    "confidence": float(rng.normal(5 + 3 * right, 1)),
                }
            )  # fmt: skip
    return rows


def write(path: Path, names: list[str], rows: list[dict[str, Any]] | None = None, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen = [{name: (row | more)[name] for name in names} for row in rows or rollouts()]
    table = pa.Table.from_pylist(chosen, schema=ROLLOUTS.select(names))
    write_table(path, table, ROLLOUTS, metadata={})
    return path


def said(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert main(["advise", "-q", *map(str, args)]) == 0
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *args, "--json"))
    return found


def test_the_measure_that_tells_is_found_with_gold_and_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rollouts.parquet", UNSCORED)
    text = said(capsys, path)
    assert re.search(r"^perplexity +all +16 +\+\d+\.\d +[1-5]\.\d\d +0\.\d{3} +1\.000$", text, re.MULTILINE)
    assert re.search(r"^sc +0 +0\.\d{3} +0\.000 \(", text, re.MULTILINE)
    assert re.search(r"^latent +16 +0\.\d{3} +1\.000 \(", text, re.MULTILINE)
    assert "Perplexity over the whole completion tells right from wrong" in text
    assert f"  dttrl score {path} -o scored.parquet --measure perplexity --region all\n" in text
    assert "\n  dttrl vote scored.parquet --method latent\n" in text
    assert "\n  dttrl train MODEL QUESTIONS --method ttrl-latent --measure perplexity --region all\n" in text
    assert max(map(len, text.partition("Perplexity")[0].splitlines())) <= 100
    found = data(capsys, path)
    blind = data(capsys, write(tmp_path / "blind.parquet", UNSCORED, gold=None))
    assert found["chosen"] == blind["chosen"]
    assert found["sentence"] == blind["sentence"]
    assert {each["auroc_gold"] for each in blind["measures"]} == {None}
    assert [each["gain"] for each in blind["measures"]] == [each["gain"] for each in found["measures"]]
    assert all(method["accuracy"] is None for method in blind["methods"])
    latent = found["methods"][-1]
    assert (latent["method"], latent["correct"]) == ("latent", 16)
    assert found["methods"][0]["expected_accuracy"] < 0.3 < 0.7 < latent["expected_accuracy"]


def test_scored_rollouts_keep_their_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unscored = data(capsys, write(tmp_path / "a.parquet", UNSCORED))
    names = [*UNSCORED, "answer", "answer_class", "confidence"]
    scored = data(capsys, write(tmp_path / "b.parquet", names))
    by_name = {each["name"]: each for each in scored["measures"]}
    assert by_name.pop("confidence")["contrasts"] == 16  # the file does not say what it measures
    for each in unscored["measures"]:
        if each["name"] in by_name:
            assert each == pytest.approx(by_name[each["name"]])
    assert {"perplexity:all", "topk:last-step"} <= {each["name"] for each in unscored["measures"]}


def test_a_stored_confidence_is_judged_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "s.parquet", STORED)
    found = data(capsys, path)
    assert [each["name"] for each in found["measures"]] == ["confidence"]
    assert found["commands"] == [f"dttrl vote {path} --method latent"]
    assert found["sentence"].startswith("The stored confidence tells right from wrong")


def test_where_no_measure_tells_the_plain_vote_is_advised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    rows = [row | {"confidence": float(rng.normal())} for row in rollouts()]
    path = write(tmp_path / "noise.parquet", STORED, rows)
    assert main(["advise", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["chosen"] is None
    assert found["measures"][0]["gain"] < 2
    assert found["sentence"].startswith("No measure tells right from wrong")
    assert found["commands"] == [
        f"dttrl vote {path} --method sc",
        "dttrl train MODEL QUESTIONS --method ttrl",
    ]
    assert [method["method"] for method in found["methods"]] == ["sc", "bon", "mob", "latent"]
    assert "negative confidences cannot weigh votes: without wsc, deepconf, distrivoting" in captured.err


def test_without_confidences_votes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"query_id": ["q"] * 3, "sample_id": [0, 1, 2], "answer": ["1", "1", "2"]}), path)
    found = data(capsys, path)
    assert found["measures"] == []
    assert [method["method"] for method in found["methods"]] == ["sc", "latent"]
    assert found["sentence"].startswith("There is no confidence")


def test_the_steps_of_a_run_are_pooled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    names = ["step", "prompt", *UNSCORED, "answer", "answer_class"]
    for step in (1, 2):
        write(run / "rollouts" / f"step-{step:06d}.parquet", names, rollouts(step=step, seed=step))
    settings = {"method": "ttrl", "model": "m/start", "questions": "my sums.jsonl"}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    found = data(capsys, run)
    by_name = {each["name"]: each for each in found["measures"]}
    assert by_name["perplexity:all"]["contrasts"] == 32
    assert found["questions"] == 32
    assert found["methods"][0]["with_gold"] == 32
    assert found["commands"][-1].startswith("dttrl train m/start 'my sums.jsonl' --method ttrl-latent")


def test_a_run_without_rollouts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("method: ttrl\n")
    assert main(["advise", str(tmp_path)]) == 2
    assert "kept no rollouts; train with --keep-rollouts" in capsys.readouterr().err


def test_files_of_other_tools_are_named_as_they_were_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = IMPORTS / "openai_chat.jsonl"
    found = data(capsys, path)
    assert f"dttrl vote {path} " in " ".join(found["commands"])
    assert found["measures"]


def test_on_public_rollouts_the_advice_is_right(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shared_data / "data" / "rollouts" / "brumo2025_r1-0528-qwen3-8b_deepconf_b64.parquet"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there")
    found = data(capsys, path)
    (measure,) = found["measures"]
    assert measure["gain"] > 50
    assert measure["auroc_gold"] > 0.9
    methods = {each["method"]: each for each in found["methods"]}
    assert (methods["latent"]["changed"], methods["latent"]["correct"]) == (12, 28)
    for each in methods.values():
        assert each["expected_accuracy"] == pytest.approx(each["accuracy"], abs=0.06), each["method"]
