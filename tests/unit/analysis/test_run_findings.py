"""Shift, labels, confidence and comparison on hand-made run folders with numbers worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dttrl.analysis import (
    blocks,
    comparison,
    confidence_quality,
    figures,
    frames,
    grouping,
    label_quality,
    shift,
)
from dttrl.data.schemas import EVALUATIONS, HISTORY, LABELS, ROLLOUTS
from dttrl.data.tables import write_table
from dttrl.errors import InputError
from dttrl.method.methods import Signal
from dttrl.method.mixture import Mixture
from dttrl.method.scored import Scored
from dttrl.method.training_signal import training_signal

LABEL = {
    "label_class": 0, "n": 4, "n_valid": 4, "majority_ratio": 0.5, "label_ratio": 0.5, "tie": False,
    "diversity": 2, "diversity_weight": 1.0, "reward_mean": 0.5, "n_pos": None, "n_neg": None,
    "rejected": None, "fallback": None,
}  # fmt: skip
MIXTURE = {
    "mixture_mean_neg": 1.0, "mixture_std_neg": 0.5, "mixture_weight_neg": 0.5, "mixture_mean_pos": 3.0,
    "mixture_std_pos": 0.5, "mixture_weight_pos": 0.5, "mixture_degenerate": None,
}  # fmt: skip

MIXTURE_NAMES = [name.removeprefix("mixture_") for name in MIXTURE if name != "mixture_degenerate"]


def make_run(folder: Path, metrics: list[dict[str, Any]], **settings: Any) -> Path:
    folder.mkdir(parents=True)
    config = {"method": "ttrl", "seed": 0, "model": "m/start", "questions": "q/sums.jsonl"} | settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    return folder


def add_rollouts(run: Path, step: int, rows: list[dict[str, Any]]) -> None:
    """Rows name query_id, answer, confidence and what else there is; four a question, gold 1."""
    full = []
    for number, row in enumerate(rows):
        entry = {
            "step": step, "sample_id": number % 4, "source": "sums", "prompt": "?", "gold": "1",
            "text": str(row["answer"]), "finish_reason": "stop", "num_tokens": 1,
        } | row  # fmt: skip
        full.append(entry)
    (run / "rollouts").mkdir(exist_ok=True)
    table = pa.Table.from_pylist(full, schema=ROLLOUTS.select(full[0]))
    write_table(run / "rollouts" / f"step-{step:06d}.parquet", table, ROLLOUTS, metadata={})


def add_labels(run: Path, rows: list[tuple[int, str, str, bool, str]]) -> None:
    """Rows of (step, query_id, label, label_correct, majority_answer); gold 1."""
    names = ("step", "query_id", "label", "label_correct", "majority_answer")
    full = [LABEL | {"gold": "1"} | dict(zip(names, row, strict=True)) for row in rows]
    write_table(run / "labels.parquet", pa.Table.from_pylist(full, schema=LABELS.fields), LABELS, metadata={})


def add_evaluations(run: Path, correct: dict[tuple[int, str], list[int]], source: str | None = None) -> None:
    rows = [
        {
            "step": step, "split": split, "query_id": f"{split}{i}", "source": source, "n": 4,
            "n_correct": count, "maj_correct": count > 2, "majority_ratio": 0.5, "answer": "1", "gold": "1",
        }
        for (step, split), counts in correct.items()
        for i, count in enumerate(counts)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
    write_table(run / "evaluations.parquet", table, EVALUATIONS, metadata={})


def one_group(*runs: Path) -> grouping.RunGroup:
    (group,) = grouping.group_folders(runs)
    return group


# Blocks of steps.


def test_blocks_follow_step_numbers_and_a_short_last_one_joins() -> None:
    assert [str(s) for s in blocks.spans(range(1, 31))] == ["1-15", "16-30"]
    assert [str(s) for s in blocks.spans([5, 3, 3, 4], 2)] == ["3-4", "5"]
    assert [str(s) for s in blocks.spans([1, 2, 3, 4, 5], 4)] == ["1-5"]
    assert [str(s) for s in blocks.spans([0, 91], 15)] == ["0-91"]
    assert blocks.spans([], 15) == []
    with pytest.raises(InputError, match="at least 1 step"):
        blocks.spans([1], 0)


# Grouping.


def test_a_group_is_named_by_where_it_departs_from_most_runs(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, [], method="distri-gmm", **settings)
        for name, settings in {
            "a": {"tau": 0.1, "seed": 0},
            "b": {"tau": 0.1, "seed": 1},
            "c": {"tau": 0.3},
            "d": {"tau": 0.1, "model": "n/start"},
        }.items()
    ]
    groups = grouping.group_folders([*runs, runs[0]])
    assert [(g.label, g.start, len(g.runs)) for g in groups] == [
        ("distri-gmm", "m/start", 2), ("distri-gmm tau=0.3", "m/start", 1), ("distri-gmm", "n/start", 1)
    ]  # fmt: skip
    assert groups[0].questions == "sums"


def test_a_setting_younger_than_a_run_had_its_default(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "old", [], method="distri-gmm"),
        make_run(tmp_path / "new", [], method="distri-gmm", seed=1, min_positives=1),
        make_run(tmp_path / "changed", [], method="distri-gmm", min_positives=3),
    ]
    groups = grouping.group_folders(runs)
    assert [(group.label, group.seeds) for group in groups] == [
        ("distri-gmm", (0, 1)),
        ("distri-gmm label=progressive:min=3", (0,)),
    ]


def test_without_a_usual_value_every_group_is_named(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(i), [], k=k) for i, k in enumerate((10, 20))]
    assert [g.label for g in grouping.group_folders(runs)] == ["ttrl k=10", "ttrl k=20"]


def test_a_label_is_named_although_all_runs_have_it(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), [], seed=seed, label="mob") for seed in range(2)]
    assert [g.label for g in grouping.group_folders(runs)] == ["ttrl label=mob"]
    settings = [{"method": "ttrl", "seed": seed, "label": "mob"} for seed in range(2)]
    assert grouping.telling_labels(settings) == ["ttrl label=mob"] * 2


def test_what_most_methods_have_is_usual_where_a_method_is_undecided(tmp_path: Path) -> None:
    kinds = [("ttrl", 10), ("ttrl", 20), ("ttrl-gt", 10)]
    runs = [make_run(tmp_path / f"{m}{k}", [], method=m, k=k) for m, k in kinds]
    assert [g.label for g in grouping.group_folders(runs)] == ["ttrl", "ttrl k=20", "ttrl-gt"]


def test_a_setting_that_a_method_does_not_read_makes_no_group(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(i), [], tau=tau, seed=i) for i, tau in enumerate((0.1, 0.2))]
    assert [(g.label, g.seeds) for g in grouping.group_folders(runs)] == [("ttrl", (0, 1))]


def test_the_question_set_is_the_source_of_the_evaluations(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [])
    add_evaluations(run, {(0, "train"): [1]}, source="carries")
    assert one_group(run).questions == "carries"


# Distribution shift.


def shifted_run(folder: Path, means: list[float], **settings: Any) -> Path:
    run = make_run(folder, [{"step": s} for s in range(1, len(means) + 1)], **settings)
    for step, mean in enumerate(means, start=1):
        rows = [
            {"query_id": query, "answer": "1", "confidence": mean + offset}
            for query in ("a", "b")
            for offset in (-1.0, 1.0, -1.0, 1.0)
        ]
        add_rollouts(run, step, rows)
    return run


def test_each_block_has_its_shift_and_settles(tmp_path: Path) -> None:
    run = shifted_run(tmp_path / "r", [4.0, 4.0, 6.0, 6.0, 6.05, 6.05])
    curve = shift.shift_curve(one_group(run), size=2)
    table = curve.table
    assert table[["first_step", "last_step"]].to_numpy().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert table["mean"].to_list() == pytest.approx([4.0, 6.0, 6.05])
    assert table["std"].to_list() == pytest.approx([1.0, 1.0, 1.0])
    assert math.isnan(table["shift"][0])
    assert table["shift"].to_list()[1:] == pytest.approx([2.0, 0.05])
    assert table["distance"].to_list()[1:] == pytest.approx([2.0, 0.05])
    # Every question moves alike, so drawing questions changes nothing.
    assert (table["shift_low"][1], table["shift_high"][1]) == pytest.approx((2.0, 2.0))
    assert table["settled"].to_list() == [False, False, True]
    assert curve.settled == (5, 6)
    assert shift.shift_curve(one_group(run), size=2, tolerance=0.01).settled is None


def test_seeds_are_pooled_and_missing_confidences_left_out(tmp_path: Path) -> None:
    one, two = shifted_run(tmp_path / "a", [4.0]), shifted_run(tmp_path / "b", [6.0], seed=1)
    row = {"query_id": "a", "answer": "1", "confidence": float("nan")}
    add_rollouts(two, 2, [row, row | {"confidence": 5.0}])
    curve = shift.shift_curve(one_group(one, two))
    assert (curve.values[0].size, curve.table["mean"].to_list()) == (17, [pytest.approx(5.0)])
    assert curve.settled is None
    rows = frames.arrow(curve.table).to_pylist()
    assert (rows[0]["runs"], rows[0]["n"], rows[0]["shift"], rows[0]["settled"]) == (2, 17, None, False)


def test_the_history_stands_in_for_rollouts_unless_it_is_centred(tmp_path: Path) -> None:
    table = pa.table(
        {"step": [1, 1], "query_id": ["a", "a"], "sample_id": [0, 1], "confidence": [1.0, 3.0],
         "midpoint": [2.0, 2.0]},
        schema=HISTORY.fields,
    )  # fmt: skip
    plain = make_run(tmp_path / "p", [], method="distri-gmm")
    centred = make_run(tmp_path / "c", [], method="distri-gmm", centre="question")
    for run in (plain, centred):
        write_table(run / "history.parquet", table, HISTORY, metadata={})
    assert shift.read_confidences(plain).column("confidence").to_pylist() == [1.0, 3.0]
    with pytest.raises(InputError, match="centred confidences"):
        shift.read_confidences(centred)
    with pytest.raises(InputError, match="kept neither rollouts"):
        shift.read_confidences(make_run(tmp_path / "n", []))


def test_wasserstein_of_samples_of_unequal_size() -> None:
    assert shift.wasserstein(np.array([0.0]), np.array([1.0, 3.0])) == 2.0
    assert shift.wasserstein(np.array([1.0, 2.0]), np.array([2.0, 1.0])) == 0.0


# Labels.


def labelled_run(folder: Path, **settings: Any) -> Path:
    """Question a: label right, b: the plain vote was right and the label is wrong."""
    metrics = [
        MIXTURE | {"step": 1, "label_accuracy": 0.5, "reward_accuracy": 0.75, "auroc": 0.5},
        MIXTURE | {"step": 2, "label_accuracy": 1.0, "reward_accuracy": 1.0, "auroc": None},
    ]
    run = make_run(folder, metrics, method="distri-gmm", **settings)
    add_labels(run, [(1, "a", "1", True, "1"), (1, "b", "2", False, "1"), (2, "a", "1", True, "3")])
    for step in (1, 2):
        add_rollouts(
            run,
            step,
            [
                {"query_id": query, "answer": answer, "answer_class": int(answer) - 1, "confidence": value,
                 "reward": reward}
                for query, reward_of in (("a", "1"), ("b", "2"))
                for answer, value in (("1", 3.0), ("1", 1.0), ("2", 3.0), ("2", 1.0))
                for reward in [float(answer == reward_of)]
            ],
        )  # fmt: skip
    return run


def test_label_quality_counts_votes_rewards_and_components(tmp_path: Path) -> None:
    quality = label_quality.label_quality(one_group(labelled_run(tmp_path / "r")))
    (block,) = quality.blocks.itertuples()
    assert block.label_accuracy == 0.75
    assert block.reward_accuracy == 0.875
    assert block.auroc == 0.5
    assert math.isnan(block.auroc_within)
    assert (block.labels_kept, block.labels_repaired) == (1, 1)
    assert (block.labels_broken, block.labels_both_wrong) == (1, 0)
    # Of a's four rollouts two are rewarded and right; of b's two are rewarded and wrong; two steps.
    assert (block.rollouts_rewarded_right, block.rollouts_rewarded_wrong) == (4, 4)
    assert (block.rollouts_unrewarded_right, block.rollouts_unrewarded_wrong) == (4, 4)
    assert (block.rollouts_positive, block.right_if_positive, block.right_if_negative) == (8, 0.5, 0.5)


def test_calibration_puts_rollouts_into_bins() -> None:
    table = label_quality.calibration(
        [
            (np.array([0.05, 0.07, 1.0]), np.array([False, True, True])),
            (np.array([0.95]), np.array([True])),
        ]
    )
    assert [(row.low, row.n, row.right) for row in table.itertuples()] == [(0.0, 2, 0.5), (0.9, 2, 1.0)]
    assert table["probability"][0] == pytest.approx(0.06)
    assert len(label_quality.calibration([])) == 0


def test_the_probabilities_of_labels_are_held_against_gold(tmp_path: Path) -> None:
    run = labelled_run(tmp_path / "r")
    rows = [
        LABEL | {"step": step, "query_id": query, "label": "1", "gold": "1", "label_correct": right,
                 "majority_answer": "1", "label_probability": probability}
        for step, query, right, probability in (
            (1, "a", True, 0.95), (1, "b", False, 0.91), (2, "a", True, 0.3), (2, "b", False, None),
            (2, "c", None, 0.5),
        )
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=LABELS.fields)
    write_table(run / "labels.parquet", table, LABELS, metadata={}, overwrite=True)
    quality = label_quality.label_quality(one_group(run))
    assert [
        (row.low, row.n, round(row.probability, 6), row.right)
        for row in quality.label_calibration.itertuples()
    ] == [(0.3, 1, 0.3, 1.0), (0.9, 2, 0.93, 0.5)]
    (block,) = quality.blocks.itertuples()
    assert block.label_calibration_error == pytest.approx((0.7 + 2 * 0.43) / 3)
    assert block.label_brier == pytest.approx((0.05**2 + 0.91**2 + 0.7**2) / 3)
    titles = [axes.get_title() for axes in figures.label_panels([quality]).axes if axes.get_visible()]
    assert titles[2:] == ["calibration of the mixture", "calibration of the labels"]


def test_labels_without_probabilities_have_no_calibration(tmp_path: Path) -> None:
    run = labelled_run(tmp_path / "r")
    labels = pq.read_table(run / "labels.parquet")
    pq.write_table(labels.drop_columns("label_probability"), run / "labels.parquet")  # an older run
    quality = label_quality.label_quality(one_group(run))
    assert len(quality.label_calibration) == 0
    assert quality.blocks["labels_kept"].to_list() == [1]
    assert math.isnan(quality.blocks["label_brier"][0])


def test_the_probability_of_the_positive_component_uses_the_weights() -> None:
    mixture = Mixture(0.0, 1.0, 0.75, 2.0, 1.0, 0.25, n=0)
    value = label_quality.positive_probability(np.array([1.0, 1000.0, -1000.0]), mixture)
    assert value.tolist() == pytest.approx([0.25, 1.0, 0.0])


def test_confidences_are_centred_as_the_run_centred_them(tmp_path: Path) -> None:
    quality = label_quality.label_quality(one_group(labelled_run(tmp_path / "r", centre="question")))
    # Centred on 2, all confidences lie at -1 and 1, which the mixture calls negative.
    assert quality.blocks["rollouts_positive"].to_list() == [0]


def test_labels_are_judged_by_the_very_confidences_that_met_the_mixture(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    value_BG = rng.normal(10.0, 3.0, (4, 19))
    value_BG[rng.random((4, 19)) < 0.2] = np.nan
    class_BG = rng.integers(0, 2, (4, 19)).astype(np.int32)
    label = "progressive:monotone=yes"
    settings = Signal(votes=19, train_samples=4, centre="question", label=label)
    signal, _ = training_signal(Scored(class_BG, value_BG, 1), None, settings)
    assert signal.progressive is not None
    assert signal.distrivote is not None
    assert signal.entered_BG is not None
    mixture = signal.progressive.mixture
    record = {f"mixture_{name}": getattr(mixture, name) for name in MIXTURE_NAMES}
    run = make_run(
        tmp_path / "r",
        [{"step": 1, "label_accuracy": 1.0} | record],
        method="distri-gmm",
        centre="question",
        label=label,
    )
    add_rollouts(
        run,
        1,
        [
            {"query_id": str(b), "sample_id": g, "answer": str(1 + class_BG[b, g]),
             "answer_class": int(class_BG[b, g]), "confidence": value_BG[b, g]}
            for b, g in np.ndindex(4, 19)
        ],
    )  # fmt: skip
    quality = label_quality.label_quality(one_group(run))
    assert quality.blocks["rollouts_positive"][0] == signal.distrivote.n_pos_R.sum() > 0
    finite_BG = np.isfinite(value_BG)
    expected = [
        (label_quality.positive_probability(entered_G[finite_G], mixture), class_G[finite_G] == 0)
        for entered_G, class_G, finite_G in zip(signal.entered_BG, class_BG, finite_BG, strict=True)
    ]
    assert quality.calibration.equals(label_quality.calibration(expected))


def test_runs_without_gold_or_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished step"):
        label_quality.label_quality(one_group(make_run(tmp_path / "a", [])))
    with pytest.raises(InputError, match="no gold answers"):
        label_quality.label_quality(one_group(make_run(tmp_path / "b", [{"step": 1}])))


# Confidence against correctness.


def test_auroc_by_measure_region_and_source(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [{"step": 1}])
    rows = [
        {
            "query_id": query, "source": source, "answer": answer, "answer_class": int(answer) - 1,
            "confidence": 0.0, "text": f"x\n\n\\boxed{{{answer}}}", "token_offset": [0, 3],
            "token_confidence": tokens, "token_logprob": [-value for value in tokens],
        }
        for query, source, marks in (
            ("a", "sums", [("1", [1.0, 9.0]), ("1", [1.0, 8.0]), ("2", [9.0, 2.0]), ("2", [9.0, 3.0])]),
            ("b", "words", [("1", [5.0, 1.0]), ("2", [5.0, 2.0]), ("1", [5.0, 3.0]), ("2", [5.0, 4.0])]),
        )
        for answer, tokens in marks
    ]  # fmt: skip
    add_rollouts(run, 1, rows)
    found = confidence_quality.confidence_quality(
        one_group(run), measures=("topk", "logprob"), regions=("last-step", "all")
    )
    value = found.set_index(["source", "measure", "region"])["auroc_within"]
    assert value["sums", "topk", "last-step"] == 1.0
    assert value["sums", "logprob", "last-step"] == 0.0
    assert value["sums", "topk", "all"] == 0.0  # means 5, 4.5 right; 5.5, 6 wrong
    assert value["words", "topk", "all"] == 0.25
    assert {(f.n, f.accuracy) for f in found.itertuples()} == {(4, 0.5)}
    assert (found["auroc"] == found["auroc_within"]).all()  # one question a source
    with pytest.raises(InputError, match="kept no rollouts"):
        confidence_quality.confidence_quality(one_group(make_run(tmp_path / "n", [])))


# Comparison.


def test_rows_say_before_after_change_and_difference(tmp_path: Path) -> None:
    base = [
        make_run(tmp_path / f"t{s}", [{"step": 1, "majority_ratio": 0.5, "label_accuracy": 1.0}], seed=s)
        for s in (0, 1)
    ]
    other = make_run(tmp_path / "d", [], method="distri-gmm")
    add_evaluations(base[0], {(0, "train"): [1, 1], (2, "train"): [4, 2]}, source="s")
    add_evaluations(base[1], {(0, "train"): [1, 1], (2, "train"): [4, 4]}, source="s")
    add_evaluations(other, {(0, "train"): [2, 0], (2, "train"): [4, 0]}, source="s")
    table = comparison.compare(grouping.group_folders([*base, other]))
    ttrl, distri = table.itertuples()
    assert (ttrl.before, ttrl.after, ttrl.change) == (0.25, 0.875, 0.625)
    assert (ttrl.lowest, ttrl.highest) == (0.75, 1.0)
    assert (ttrl.maj_before, ttrl.maj_after) == (0.0, 0.75)
    assert (ttrl.ratio_first, ttrl.ratio_last, ttrl.label_accuracy) == (0.5, 0.5, 1.0)
    assert math.isnan(ttrl.against)
    assert (ttrl.first_step, ttrl.last_step, ttrl.question_count, ttrl.n) == (0, 2, 2, "4")
    assert (distri.against, distri.against_seeds) == (-0.25, 1)
    assert distri.against_low < -0.25 < distri.against_high <= 0.0
    assert math.isnan(distri.ratio_first)
    rows = frames.arrow(table).to_pylist()
    assert (rows[1]["method"], rows[1]["after"], rows[0]["against"]) == ("distri-gmm", 0.5, None)


def test_intervals_draw_runs_as_well_as_questions() -> None:
    value = np.array([[0.0, 0.0], [1.0, 1.0]])  # no difference between questions, all between runs
    estimate = comparison.mean_interval(value, rng=np.random.default_rng(0))
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.0, 1.0)
    same = comparison.difference_interval(value[:1], value[:1], rng=np.random.default_rng(0))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_the_difference_is_taken_seed_by_seed(tmp_path: Path) -> None:
    # Seeds differ by a half, methods by a quarter; the runs of a group come in any order.
    runs = []
    for method, seed, right in (
        ("ttrl", 0, [0, 0]), ("ttrl", 1, [2, 2]), ("ttrl", 2, [4, 4]),
        ("distri-gmm", 1, [3, 3]), ("distri-gmm", 0, [1, 1]), ("distri-wsc", 9, [4, 4]),
    ):  # fmt: skip
        runs.append(make_run(tmp_path / f"{method}-{seed}", [], method=method, seed=seed))
        add_evaluations(runs[-1], {(0, "train"): [1, 1], (2, "train"): right}, source="s")
    _, distri, apart = comparison.compare(grouping.group_folders(runs)).itertuples()
    assert (distri.against, distri.against_low, distri.against_high) == (0.25, 0.25, 0.25)
    assert distri.against_seeds == 2
    assert (apart.against, apart.against_seeds) == (0.5, 0)
    assert apart.against_low < 0.5 < apart.against_high


def test_two_runs_of_a_seed_count_once(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(i), [], method=m) for i, m in enumerate(("ttrl", "ttrl", "distri-gmm"))]
    for run, right in zip(runs, (0, 2, 4), strict=True):
        add_evaluations(run, {(0, "train"): [1, 1], (2, "train"): [right, right]}, source="s")
    _, distri = comparison.compare(grouping.group_folders(runs)).itertuples()
    assert (distri.against, distri.against_seeds) == (0.75, 1)


def test_a_run_without_evaluations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        comparison.compare(grouping.group_folders([make_run(tmp_path / "r", [])]))


# Figures.


def test_every_figure_can_be_drawn(tmp_path: Path) -> None:
    run = labelled_run(tmp_path / "r")
    add_evaluations(run, {(0, "train"): [1, 1], (2, "train"): [4, 2]})
    group = one_group(run)
    drawn = (
        figures.shift_panels([shift.shift_curve(group, size=1)]),
        figures.label_panels([label_quality.label_quality(group, size=1)]),
        figures.separation_panels(
            frames.frame(
                group.columns
                | blocks.Span(1, 2).columns
                | {"source": "s", "measure": "topk", "region": region, "auroc_within": 0.6}
                for region in ("all", "last-step")
            )
        ),
        figures.comparison_panels(comparison.compare([group])),
    )
    assert all(figures.render(figure, "svg").startswith(b"<?xml") for figure in drawn)
