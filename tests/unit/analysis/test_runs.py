"""Runs in folders and in packs: the same records, settings and tables from both."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dttrl.analysis import runs
from dttrl.analysis.grouping import group_folders
from dttrl.data.schemas import EVALUATIONS, HISTORY, LABELS
from dttrl.data.tables import write_table
from dttrl.errors import InputError
from dttrl.settings.commands import TrainConfig
from dttrl.settings.files import load_config
from dttrl_cli.app import main

REFERENCE = Path(__file__).parents[3] / "data" / "reference"
LATENT = REFERENCE.parent / "latent"


def make_run(folder: Path, *, seed: int, evaluated: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"method": "ttrl", "seed": seed, "model": "m"}))
    records = [
        {"step": 1, "auroc": None, "majority_ratio": 0.1 + 0.2},
        {"step": 2, "time": "t", "updates": 3},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if evaluated:
        rows = [
            {"step": step, "split": "train", "query_id": query, "source": None, "n": 4,
             "n_correct": seed + step, "maj_correct": None, "majority_ratio": 0.5, "answer": None,
             "gold": "1"}
            for step in (0, 2)
            for query in ("b", "a")
        ]  # fmt: skip
        table = pa.Table.from_pylist(rows, schema=EVALUATIONS.fields)
        write_table(folder / "evaluations.parquet", table, EVALUATIONS, metadata={})
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [make_run(tmp_path / f"{name}.{seed}", seed=seed) for name in ("one", "two") for seed in (0, 1)]


@pytest.fixture
def pack(folders: list[Path], tmp_path: Path) -> Path:
    folders = [*folders, make_run(tmp_path / "bare", seed=0, evaluated=False)]
    runs.pack_runs(folders, tmp_path / "pack")
    return tmp_path / "pack"


def test_a_pack_says_what_the_folders_say(folders: list[Path], pack: Path) -> None:
    assert sorted(path.name for path in pack.iterdir()) == [
        "configs.parquet", "evaluations.parquet", "metrics.parquet"
    ]  # fmt: skip
    for folder in folders:
        run = Path(f"{pack}#{folder.name}")
        assert runs.is_run(run)
        assert runs.config_text(run) == (folder / "config.yaml").read_text()
        assert runs.read_config(run) == runs.read_config(folder)
        assert runs.read_scores(run) == runs.read_scores(folder) != {}
        assert runs.read_records(run, EVALUATIONS).equals(runs.read_records(folder, EVALUATIONS))
        assert runs.read_records(run, EVALUATIONS, columns=["n"]).column_names == ["n"]
        # A null metric is one that is not known, and may be left out.
        assert runs.read_metrics(run) == [
            {"step": 1, "majority_ratio": 0.1 + 0.2}, {"step": 2, "time": "t", "updates": 3}
        ]  # fmt: skip
        assert runs.read_records(run, LABELS) is runs.read_records(run, HISTORY) is None
        assert runs.rollout_files(run) == []
    bare = Path(f"{pack}#bare")
    assert (runs.read_records(bare, EVALUATIONS), runs.read_scores(bare)) == (None, {})


def test_runs_of_a_pack_are_named_by_patterns(folders: list[Path], pack: Path) -> None:
    def named(*given: str | Path) -> list[str]:
        return [str(run).rpartition("#")[2] for run in runs.expand_runs(map(Path, given))]

    assert named(pack) == ["one.0", "one.1", "two.0", "two.1", "bare"]
    assert named(f"{pack}#two.?") == ["two.0", "two.1"]
    assert named(f"{pack}#two.1", f"{pack}#two.*") == ["two.1", "two.0"]
    assert runs.expand_runs([folders[0], folders[0]]) == [folders[0]]
    with pytest.raises(InputError, match=r"no such run; it has one\.0, one\.1"):
        runs.expand_runs([Path(f"{pack}#three.*")])
    with pytest.raises(InputError, match="pack has no such run"):
        runs.read_config(Path(f"{pack}#one.*"))
    with pytest.raises(InputError, match="no such run folder"):
        runs.read_config(Path(f"{folders[0]}#one"))


def test_a_folder_with_a_hash_in_its_name_is_a_folder(pack: Path) -> None:
    folder = make_run(Path(f"{pack}#one.0"), seed=7)
    assert runs.expand_runs([folder]) == [folder]
    assert runs.read_config(folder)["seed"] == 7


def test_a_pack_that_is_written_again_is_read_again(folders: list[Path], pack: Path) -> None:
    assert len(runs.expand_runs([pack])) == 5
    runs.pack_runs(folders[:1], pack)
    assert len(runs.expand_runs([pack])) == 1


def test_an_analysis_says_the_same_of_folders_and_pack(
    folders: list[Path], pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("majority-ratio", "compare"):
        assert main(["analyze", command, *map(str, folders), "--json"]) == 0
        expected = capsys.readouterr().out
        assert main(["analyze", command, f"{pack}#one.*", f"{pack}#two.*", "--json"]) == 0
        assert capsys.readouterr().out == expected
    assert main(["analyze", "accuracy", f"{pack}#two.1", "--json"]) == 0
    assert [row["avg"] for row in json.loads(capsys.readouterr().out)] == [0.25, 0.75]
    assert main(["analyze", "confidence", f"{pack}#two.1"]) == 2
    assert "kept no rollouts" in capsys.readouterr().err


def test_a_pack_is_not_written_over(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (str(pack), f"{pack}#one.0"):
        command = ["analyze", "compare", given, "--overwrite", "-o"]
        assert main([*command, str(pack / "metrics.parquet")]) == 2
        assert "is one of the inputs" in capsys.readouterr().err


def test_the_groups_of_the_reference_runs_are_those_of_the_plan() -> None:
    groups = group_folders([Path(f"{REFERENCE}#sums-right.*")])
    assert [(group.label, group.start, group.seeds) for group in groups] == [
        (method, "sums-right", (0, 1, 2))
        for method in ("distri-gmm", "distri-wsc", "ttrl-gt", "ttrl-wsc", "ttrl")
    ]


def test_the_settings_of_every_reference_run_load(tmp_path: Path) -> None:
    found = runs.expand_runs([REFERENCE])
    assert len(found) == 181
    for run in found:
        (tmp_path / "config.yaml").write_text(runs.config_text(run))
        loaded = load_config(TrainConfig, tmp_path / "config.yaml", lenient=True).flat()
        written = yaml.safe_load(runs.config_text(run))
        for name in ("method", "seed", "model", "votes", "train_samples", "learning_rate"):
            assert loaded[name] == written[name]
        assert f".{loaded['seed']}" == Path(str(run)).suffix


def test_the_runs_of_the_latent_answer_vote_open_by_name() -> None:
    found = runs.expand_runs([LATENT])
    assert len(found) == 176
    groups = group_folders([LATENT])
    kept = {tuple(path.name.rpartition("#")[2].rpartition(".")[0] for path in group.runs) for group in groups}
    # A group is one START.VARIANT, with its seeds.
    assert len(groups) == len(kept) == 4 * 8 + 2 * 6
    assert all(len(set(names)) == 1 for names in kept)
    seeds = {names[0]: len(names) for names in kept}
    assert (seeds["sums-wrong.ttrl"], seeds["two-steps.latent-weighed-no-penalty"]) == (7, 9)
    assert (seeds["sums-wrong.latent"], seeds["two-steps.latent-auto"]) == (3, 1)
    for name, known in (("two-steps.latent.0", True), ("two-steps.ttrl.0", False)):
        labels = runs.read_records(LATENT.with_name(f"latent#{name}"), LABELS)
        assert labels is not None
        assert labels.num_rows == 60 * 8
        assert labels.column("label_probability").null_count == (0 if known else labels.num_rows)
    assert sum(path.stat().st_size for path in LATENT.glob("*.parquet")) < 3e6


def test_compare_gives_the_table_that_the_documentation_quotes(tmp_path: Path) -> None:
    published = pq.read_table(REFERENCE / "tables" / "methods-smollm2.parquet")
    methods = [
        f"{REFERENCE}#{start}.{method}.?"
        for start in ("long-sums", "two-steps")
        for method in ("ttrl-gt", "ttrl", "distri-gmm")
    ]
    table = tmp_path / "t.parquet"
    assert main(["analyze", "compare", *methods, "--quiet", "-o", str(table)]) == 0
    made = pq.read_table(table)
    assert made.schema == published.schema
    for ours, theirs in zip(made.to_pylist(), published.to_pylist(), strict=True):
        numbers = {name for name, value in theirs.items() if isinstance(value, float)}
        assert {k: v for k, v in ours.items() if k not in numbers} == {
            k: v for k, v in theirs.items() if k not in numbers
        }
        # The sums of the bootstrap differ in the last bits between machines.
        assert [ours[name] for name in numbers] == pytest.approx(
            [theirs[name] for name in numbers], rel=1e-12
        )
