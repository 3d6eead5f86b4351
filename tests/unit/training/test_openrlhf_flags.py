"""Our configuration as OpenRLHF's flags, and what is refused before anything starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dttrl.errors import InputError
from dttrl.settings.commands import ScaleConfig, settings_of
from dttrl.settings.files import load_config
from dttrl.training.openrlhf.flags import TABLE, Places, micro_batch, openrlhf_flags

QUICKSTART = Path(__file__).parents[3] / "data" / "quickstart" / "train.yaml"
PAGE = QUICKSTART.parents[2] / "docs" / "openrlhf.md"
MODEL = QUICKSTART.with_name("model")
CHOSEN: dict[str, object] = {"engine": "openrlhf"}
PLACES = Places(
    model=str(MODEL),
    dataset=Path("/r/p.jsonl"),
    checkpoints=Path("/r/c"),
    output=Path("/r/model"),
    longest=20,
)


def flags_of(extra: Sequence[str] = (), **changes: object) -> list[str]:
    return openrlhf_flags(load_config(ScaleConfig, QUICKSTART, CHOSEN | changes), PLACES, extra)


def value_of(flags: Sequence[str], name: str) -> str:
    assert flags.count(name) == 1, name
    return flags[flags.index(name) + 1]


def test_the_flags_of_the_quickstart() -> None:
    flags = flags_of()
    expected = {
        "--actor.model_name_or_path": str(MODEL),
        "--data.prompt_dataset": "/r/p.jsonl",
        "--rollout.max_new_tokens": "44",
        "--data.max_len": "64",
        "--rollout.n_samples_per_prompt": "64",
        "--rollout.batch_size": "8",
        "--rollout.temperature": "1.0",
        "--train.batch_size": "32",
        "--train.micro_batch_size": "16",
        "--train.max_epochs": "1",
        "--actor.adam.lr": "1e-05",
        "--actor.lr_scheduler": "constant_with_warmup",
        "--actor.lr_warmup_ratio": "0.03",
        "--actor.eps_clip": "0.2",
        "--actor.num_gpus_per_node": "1",
        "--vllm.num_engines": "1",
        "--ckpt.save_steps": "10",
        "--ckpt.path": "/r/c",
        "--ckpt.output_dir": "/r/model",
    }
    assert {name: value_of(flags, name) for name in expected} == expected
    assert {"--train.colocate_all", "--vllm.enable_sleep", "--ds.enable_sleep"} <= set(flags)
    names = [flag for flag in flags if flag.startswith("--")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"k": 21}, "--k 21"),
        ({"top_k": 5}, "--top-k"),
        ({"stop": ("\n",)}, "--stop"),
        ({"gpus": 3}, "--gpus 3 x --nodes 1: must divide the 32 rollouts"),
        ({"gpus": 8, "nodes": 8}, "--gpus 8 x --nodes 8"),
        ({"gpus": 4, "tensor_parallel": 3}, "--tensor-parallel 3: must divide the 4 GPUs"),
        ({"measure": "self-certainty"}, "--measure self-certainty"),
    ],
)
def test_what_openrlhf_cannot_follow_is_refused_in_one_line(changes: dict[str, object], named: str) -> None:
    with pytest.raises(InputError) as error:
        flags_of(**changes)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_the_largest_k_is_taken() -> None:
    assert flags_of(k=20)


@pytest.mark.parametrize(
    ("extra", "ours"),
    [
        (["--actor.adam.lr", "1"], "set it with --learning-rate"),
        (["--train.batch_size=8"], "set it with --train-samples"),
        (["--ckpt.load_enable"], "leave it out"),
    ],
)
def test_a_flag_that_the_table_sets_is_refused_and_ours_named(extra: list[str], ours: str) -> None:
    with pytest.raises(InputError) as error:
        flags_of(extra)
    message = str(error.value)
    assert message.startswith(extra[0].split("=")[0])
    assert message.endswith(ours)


def test_other_flags_follow_at_the_end() -> None:
    extra = ["--logger.tensorboard_dir", "tb", "--ds.attn_implementation", "flash_attention_2"]
    flags = flags_of(extra)
    assert flags[-4:] == extra
    assert flags.count("--ds.attn_implementation") == 1


@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [("cosine", "cosine"), ("linear", "linear"), ("constant", "constant_with_warmup")],
)
def test_schedules_and_warm_up(schedule: str, theirs: str) -> None:
    flags = flags_of(schedule=schedule, warmup=0.25)
    assert value_of(flags, "--actor.lr_scheduler") == theirs
    assert value_of(flags, "--actor.lr_warmup_ratio") == "0.25"


def test_the_kl_is_in_the_loss_only_with_a_beta() -> None:
    assert [flag for flag in flags_of(beta=0) if flag.startswith("--algo.kl.")] == ["--algo.kl.init_coef"]
    assert value_of(flags_of(beta=0), "--algo.kl.init_coef") in {"0", "0.0"}
    flags = flags_of(beta=0.001)
    assert value_of(flags, "--algo.kl.init_coef") == "0.001"
    assert value_of(flags, "--algo.kl.estimator") == "k3"
    assert "--algo.kl.use_loss" in flags


@pytest.mark.parametrize(("gpus", "asked", "size"), [(1, 16, 16), (4, 16, 8), (4, 3, 2), (32, 16, 1)])
def test_a_micro_batch_divides_a_gpus_share(gpus: int, asked: int, size: int) -> None:
    assert (
        micro_batch(load_config(ScaleConfig, QUICKSTART, CHOSEN | {"gpus": gpus, "micro_batch": asked}))
        == size
    )


def test_engines_share_the_gpus_of_all_nodes() -> None:
    flags = flags_of(gpus=8, nodes=2, tensor_parallel=4)
    assert value_of(flags, "--vllm.num_engines") == "4"
    assert value_of(flags, "--actor.num_nodes") == "2"


def test_a_hub_model_must_be_trusted() -> None:
    places = replace(PLACES, model="someone/model")
    config = load_config(ScaleConfig, QUICKSTART, CHOSEN | {"model": "someone/model"})
    with pytest.raises(InputError, match=r"^someone/model: .*--trust-remote-code"):
        openrlhf_flags(config, places)
    assert openrlhf_flags(config.but(trust_remote_code=True), places)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_folder_that_names_code_must_be_trusted(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    config, places = load_config(ScaleConfig, QUICKSTART, CHOSEN), replace(PLACES, model=str(tmp_path))
    assert openrlhf_flags(config, places)
    (tmp_path / name).write_text(json.dumps({"auto_map": {"AutoModel": "code.Model"}}))
    with pytest.raises(InputError, match="auto_map") as error:
        openrlhf_flags(config, places)
    assert str(error.value).startswith(str(tmp_path / name))
    assert openrlhf_flags(config.but(trust_remote_code=True), places)


def test_the_page_shows_the_table() -> None:
    def ours(names: str) -> str:
        shown = [
            name.upper() if name in {"model", "questions"} else f"--{name.replace('_', '-')}"
            for name in names.split(", ")
        ]
        return ", ".join(f"`{name}`" for name in shown) if names else "set by dttrl"

    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index("| dttrl | OpenRLHF | paper |") + 2
    wanted = [f"| {ours(flag.ours)} | `{flag.theirs}` | {flag.paper} |" for flag in TABLE]
    assert lines[start : start + len(wanted)] == wanted
    assert not lines[start + len(wanted)].startswith("|")


def test_the_table_names_fields_that_there_are() -> None:
    named = {name for flag in TABLE if flag.ours for name in flag.ours.split(", ")}
    assert named <= set(settings_of(ScaleConfig))
