from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from dttrl.analysis import figures, frames, majority_ratio
from dttrl.data.schemas import EVALUATIONS, LABELS
from dttrl.data.tables import write_table
from dttrl.errors import InputError, OutputExistsError


def make_run(
    folder: Path,
    *,
    ratios: list[float],
    accuracies: dict[int, float] | None = None,
    heldout: dict[int, float] | None = None,
    **settings: Any,
) -> Path:
    """A run folder with the files that analysis reads: one metric record a step, some evaluations."""
    folder.mkdir(parents=True)
    config = {"method": "ttrl", "seed": 0, "learning_rate": 1e-5, "run": str(folder)} | settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with (folder / "metrics.jsonl").open("w") as file:
        for step, ratio in enumerate(ratios):
            record = {"step": step, "majority_ratio": ratio, "label_accuracy": 0.5, "seconds_sample": 1.5}
            file.write(json.dumps(record) + "\n")
    rows = [
        {
            "step": step, "split": split, "query_id": f"q{i}", "source": None, "n": 4,
            "n_correct": round(4 * accuracy), "maj_correct": accuracy > 0.5, "majority_ratio": 0.75,
            "answer": "1", "gold": "1" if accuracy > 0.5 else "<b>2</b>",
        }
        for split, values in (("train", accuracies), ("heldout", heldout))
        for step, accuracy in (values or {}).items()
        for i in range(2)
    ]  # fmt: skip
    if rows:
        table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
        write_table(folder / "evaluations.parquet", table, EVALUATIONS, metadata={})
    return folder


def test_a_run_is_read_step_by_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ratios=[0.25, 0.5, 0.75], accuracies={0: 0.25, 3: 0.75})
    curve = majority_ratio.read_curve(run)
    assert curve.index.to_list() == [0, 1, 2, 3]
    assert curve["majority_ratio"].to_list() == pytest.approx([0.25, 0.5, 0.75, float("nan")], nan_ok=True)
    nan = float("nan")
    assert curve["accuracy"].to_list() == pytest.approx([0.25, nan, nan, 0.75], nan_ok=True)
    assert curve["maj_accuracy"].to_list() == pytest.approx([0.0, nan, nan, 1.0], nan_ok=True)


def test_a_cut_last_line_of_metrics_is_left_out_and_a_bad_middle_one_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ratios=[0.25, 0.5])
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text + '{"step": 2, "majo')
    assert majority_ratio.read_curve(run).index.to_list() == [0, 1]
    (run / "metrics.jsonl").write_text("nonsense\n" + text)
    with pytest.raises(InputError, match=r"metrics\.jsonl: line 1 is not"):
        majority_ratio.read_curve(run)


def test_the_last_record_of_a_repeated_step_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ratios=[0.25, 0.5])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "majority_ratio": 0.625}\n')
    assert majority_ratio.read_curve(run)["majority_ratio"].to_list() == [0.25, 0.625]


def test_labels_stand_in_for_missing_metrics(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", ratios=[])
    row = {
        "step": 0, "query_id": "a", "label": "1", "label_class": 0, "gold": "1", "label_correct": True,
        "majority_answer": "1", "n": 4, "n_valid": 4, "majority_ratio": 0.5, "label_ratio": 0.5, "tie": False,
        "diversity": 2, "diversity_weight": 1.0, "reward_mean": 0.5, "n_pos": None, "n_neg": None,
        "rejected": None, "fallback": None,
    }  # fmt: skip
    rows = [row, row | {"query_id": "b", "majority_ratio": 1.0, "label_correct": False}]
    table = pa.Table.from_pylist(rows, schema=LABELS.fields)
    write_table(run / "labels.parquet", table, LABELS, metadata={})
    curve = majority_ratio.read_curve(run)
    assert curve["majority_ratio"].to_list() == [0.75]
    assert curve["label_accuracy"].to_list() == [0.5]


def test_seeds_of_a_method_are_one_group_and_other_settings_are_named(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", ratios=[0.2, 0.4], seed=0),
        make_run(tmp_path / "b", ratios=[0.4, 0.8, 1.0], seed=1),
        make_run(tmp_path / "c", ratios=[0.9], seed=0, learning_rate=1e-4),
        make_run(tmp_path / "d", ratios=[0.1], method="distri-gmm"),
    ]
    table = majority_ratio.majority_ratios(runs)
    labels = list(table["method"].unique())
    assert labels == ["ttrl learning_rate=1e-05", "ttrl learning_rate=0.0001", "distri-gmm"]
    first = table[table["method"] == labels[0]]
    assert first["runs"].to_list() == [2, 2, 1]
    assert first["majority_ratio"].to_list() == pytest.approx([0.3, 0.6, 1.0])
    assert first["majority_ratio_low"].to_list() == pytest.approx([0.2, 0.4, 1.0])
    assert first["majority_ratio_high"].to_list() == pytest.approx([0.4, 0.8, 1.0])


def test_a_run_older_than_a_setting_is_of_the_group_with_its_default(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "old", ratios=[0.2], seed=0),
        make_run(tmp_path / "new", ratios=[0.4], seed=1, min_positives=1),
    ]
    table = majority_ratio.majority_ratios(runs)
    assert table[["method", "runs"]].to_dict("records") == [{"method": "ttrl", "runs": 2}]


def test_the_table_has_a_row_a_method_and_step_with_nulls_for_what_is_not_known(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", ratios=[0.25, 0.5], accuracies={0: 0.5})
    rows = frames.arrow(majority_ratio.majority_ratios([run])).to_pylist()
    assert [(row["method"], row["step"], row["runs"]) for row in rows] == [("ttrl", 0, 1), ("ttrl", 1, 1)]
    assert [row["accuracy"] for row in rows] == [0.5, None]
    assert rows[1]["majority_ratio_low"] == 0.5


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such run folder"):
        majority_ratio.majority_ratios([tmp_path / "absent"])
    (tmp_path / "s.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"s\.parquet: is a file, not a run folder"):
        majority_ratio.majority_ratios([tmp_path / "s.parquet"])
    with pytest.raises(InputError, match=r"not a run folder, it has no config\.yaml"):
        majority_ratio.majority_ratios([tmp_path])
    (tmp_path / "config.yaml").write_text("- a list")
    with pytest.raises(InputError, match="expected a mapping"):
        majority_ratio.majority_ratios([tmp_path])
    (tmp_path / "config.yaml").write_text("method: ttrl")
    with pytest.raises(InputError, match="no finished step yet"):
        majority_ratio.majority_ratios([tmp_path])


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_a_figure_is_the_same_twice_and_not_overwritten_unasked(tmp_path: Path, kind: str) -> None:
    runs = [make_run(tmp_path / n, ratios=[0.2, 0.4], accuracies={0: 0.5, 2: 0.75}) for n in ("a", "b")]
    table = majority_ratio.majority_ratios(runs)
    path = tmp_path / f"figure.{kind}"
    figures.save(figures.accuracy_majority(table), path)
    again = figures.render(figures.accuracy_majority(table), kind)
    assert path.read_bytes() == again
    with pytest.raises(OutputExistsError):
        figures.save(figures.accuracy_majority(table), path)
    with pytest.raises(InputError, match="unknown kind of figure"):
        figures.check_figure(tmp_path / "figure.jpeg", overwrite=False)


def test_the_figure_draws_every_method_with_a_band_over_seeds(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", ratios=[0.2, 0.4], accuracies={0: 0.5, 2: 0.75}, seed=0),
        make_run(tmp_path / "b", ratios=[0.3, 0.6], accuracies={0: 0.5, 2: 1.0}, seed=1),
        make_run(tmp_path / "c", ratios=[0.9, 0.9], method="ttrl-gt"),
    ]
    table = majority_ratio.majority_ratios(runs)
    left, right = figures.accuracy_majority(table).axes
    lines = {str(line.get_label()): line for line in left.get_lines()}
    assert lines["ttrl (2 runs)"].get_ydata() == pytest.approx([0.25, 0.5])
    assert lines["ttrl-gt"].get_ydata() == pytest.approx([0.9, 0.9])
    assert len(left.collections) == 2  # bands of the two lines of ttrl; ttrl-gt is a single run
    accuracy = next(line for line in right.get_lines() if line.get_label() == "ttrl (2 runs)")
    assert accuracy.get_xdata() == pytest.approx([0, 2])


def test_heldout_accuracy_is_a_curve_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", ratios=[0.2, 0.4], accuracies={0: 0.5, 2: 0.75}, heldout={0: 0.25, 2: 1.0})
    table = majority_ratio.majority_ratios([run])
    rows = frames.arrow(table).to_pylist()
    assert [row["heldout_accuracy"] for row in rows] == [0.25, None, 1.0]
    assert [row["accuracy"] for row in rows] == [0.5, None, 0.75]
    _, right = figures.accuracy_majority(table).axes
    lines = {str(line.get_label()): line for line in right.get_lines()}
    assert lines["heldout avg@n"].get_ydata() == pytest.approx([0.25, 1.0])
    assert lines["heldout avg@n"].get_color() != lines["train avg@n"].get_color()
    legend = right.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {
        "train avg@n", "train maj@n", "heldout avg@n", "heldout maj@n",
    }  # fmt: skip


def test_the_styles_of_several_methods_name_the_split(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, ratios=[0.2], accuracies={0: 0.5}, heldout={0: 0.25}, method=name)
        for name in ("ttrl", "ttrl-gt")
    ]
    _, right = figures.accuracy_majority(majority_ratio.majority_ratios(runs)).axes
    legend = right.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "ttrl", "ttrl-gt", "train avg@n", "train maj@n", "heldout avg@n", "heldout maj@n",
    ]  # fmt: skip


def test_without_gold_there_is_no_accuracy_panel_and_steps_are_whole(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", ratios=[0.2, 0.4])
    figure = figures.accuracy_majority(majority_ratio.majority_ratios([run]))
    (axes,) = figure.axes
    axes.set_xlim(0.6, 1.4)
    assert axes.get_xticks().tolist() == pytest.approx([round(tick) for tick in axes.get_xticks().tolist()])


def test_inputs_are_never_outputs(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    file = folder / "a.parquet"
    file.write_bytes(b"x")
    link = tmp_path / "link.parquet"
    link.symlink_to(file)
    for output, inputs in (
        (file, [file]),
        (link, [file]),
        (file, [folder]),
        (folder / "new.parquet", [folder]),
        (tmp_path / "parts" / ".." / "parts" / "a.parquet", [file]),
    ):
        with pytest.raises(InputError, match="input"):
            frames.check_output(output, overwrite=True, inputs=inputs)
    frames.check_output(folder / "curve.csv", overwrite=False, inputs=[folder])
    frames.check_output(folder / "new.parquet", overwrite=False, inputs=[file])
    frames.check_output(tmp_path / "parts.csv", overwrite=False, inputs=[folder, tmp_path / "absent"])


def test_tables_are_written_by_their_ending(tmp_path: Path) -> None:
    table = frames.frame([{"step": 0, "value": 0.5}, {"step": 1, "value": float("nan")}])
    frames.write_frame(tmp_path / "t.csv", table)
    assert (tmp_path / "t.csv").read_text() == '"step","value"\n0,0.5\n1,\n'
    frames.write_frame(tmp_path / "t.parquet", table)
    with pytest.raises(OutputExistsError):
        frames.write_frame(tmp_path / "t.csv", table)
    with pytest.raises(InputError, match=r"\*\.csv or \*\.parquet"):
        frames.write_frame(tmp_path / "t.xlsx", table)
    with pytest.raises(InputError, match="does not exist"):
        frames.write_frame(tmp_path / "absent" / "t.csv", table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.parquet"]
