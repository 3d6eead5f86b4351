from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dttrl.config import GenerateConfig, ScoreConfig, TrainConfig, dump_config, load_config
from dttrl.errors import InputError

NEEDED: dict[str, object] = {"model": "some/model", "questions": "questions.jsonl"}


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def message(folder: Path, text: str | bytes, overrides: dict[str, object] | None = None) -> str:
    """The one line of the error that a file gives; it must begin with the file's name."""
    path = write(folder, text)
    with pytest.raises(InputError) as error:
        load_config(TrainConfig, path, overrides)
    found = str(error.value)
    assert "\n" not in found
    assert found.startswith(f"{path}: ")
    assert error.value.exit_code == 2
    return found.removeprefix(f"{path}: ")


def with_needed(text: str) -> str:
    return "model: m\nquestions: q.jsonl\n" + text


def test_the_defaults_are_the_papers_and_ttrls() -> None:
    config = load_config(TrainConfig, overrides=NEEDED)
    assert (config.votes, config.train_samples, config.questions_per_step) == (64, 32, 8)
    assert (config.tau, config.clip_epsilon, config.beta, config.k) == (0.1, 0.2, 0.001, 20)
    assert (config.learning_rate, config.warmup, config.schedule) == (5e-7, 0.03, "cosine")
    assert (config.eval_samples, config.eval_temperature, config.eval_top_p) == (16, 0.6, 0.95)
    assert (config.method, config.f_vote, config.reject, config.select) == (
        "distri-gmm",
        "majority",
        "guarded",
        "first",
    )
    assert config.history_window is None
    assert config.region == "last-step"


CHANGED: dict[str, object] = {
    "stop": ("\n\n", "END: #"),
    "learning_rate": 3e-6,
    "history_window": 0,
    "limit": 7,
    "region": "bottom:0.1:2048",
    "measure": "perplexity",
    "heldout": Path("höldout dir/ä.jsonl"),
    "system": "- yes: 'no'\n# not a comment",
    "suffix": "",
    "warmup": 0.0,
    "steps": 3,
    "method": "ttrl",
    "monotone": True,
    "keep_rollouts": False,
    "model": "yes",
    "prompt_column": "1e5",
}


@pytest.mark.parametrize("changed", [{}, CHANGED])
def test_round_trip(tmp_path: Path, changed: dict[str, object]) -> None:
    config = load_config(TrainConfig, overrides=NEEDED | changed)
    path = write(tmp_path, dump_config(config))
    assert load_config(TrainConfig, path) == config
    again = load_config(TrainConfig, path)
    assert dump_config(again) == dump_config(config)
    assert {type(value) for value in yaml.safe_load(path.read_text()).values()} <= {
        str,
        int,
        float,
        bool,
        list,
        type(None),
    }


@pytest.mark.parametrize("model", [GenerateConfig, ScoreConfig])
def test_the_other_stages_round_trip(tmp_path: Path, model: Any) -> None:
    config = load_config(model, overrides=NEEDED if model is GenerateConfig else {})
    assert load_config(model, write(tmp_path, dump_config(config))) == config


def test_every_field_has_a_description_and_a_panel() -> None:
    for model in (TrainConfig, GenerateConfig, ScoreConfig):
        for name, field in model.model_fields.items():
            assert field.description, name
            assert isinstance(field.json_schema_extra, dict), name
            assert field.json_schema_extra["panel"], name


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, with_needed("tau: 0.3\nvotes: 40\n"))
    config = load_config(TrainConfig, path, {"tau": 0.2})
    assert (config.tau, config.votes) == (0.2, 40)


def test_dashes_are_underscores(tmp_path: Path) -> None:
    config = load_config(TrainConfig, write(tmp_path, with_needed("learning-rate: 5e-7\ntrain-samples: 8\n")))
    assert (config.learning_rate, config.train_samples) == (5e-7, 8)


def test_a_config_is_frozen() -> None:
    config = load_config(TrainConfig, overrides=NEEDED)
    with pytest.raises(ValidationError):
        config.tau = 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nope: 1\n", "there is no field 'nope'"),
        ("learning-rat: 1\n", "there is no field 'learning-rat'"),
        ("1: 2\n", "there is no field '1'"),
        ("tau: 2\n", "tau: Input should be less than 1 (got 2)"),
        ("tau: 0\n", "tau: Input should be greater than 0 (got 0)"),
        ("tau: .nan\n", "tau: "),
        ("temperature: -1\n", "temperature: Input should be greater than or equal to 0 (got -1)"),
        ("votes: many\n", "votes: Input should be a valid integer"),
        ("votes: 1.5\n", "votes: Input should be a valid integer"),
        ("stop: word\n", "stop: Input should be a valid tuple"),
        ("model: [a]\n", "model: Input should be a valid string"),
        (
            "dtype: float64\n",
            "dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16' (got 'float64')",
        ),
        (
            "method: grpo\n",
            "method: method 'grpo' is not one of: ttrl, ttrl-gt, ttrl-wsc, distri-wsc, distri-gmm",
        ),
        ("region: tail\n", "region: region 'tail' is not one of: last-step, all, tail:N"),
        ("measure: entrop\n", "measure: Input should be 'topk'"),
        ("f_vote: mean\n", "f-vote: Input should be 'majority', 'weighted' or 'hierarchical'"),
        ("history_window: -1\n", "history-window: Input should be greater than or equal to 0 (got -1)"),
        ("seed: -1\n", "seed: "),
        ("temperature: 0\n", "temperature must be above 0 in training"),
        (
            "questions_per_step: 7\nquestions_per_update: 2\n",
            "questions-per-step (7) must be a multiple of questions-per-update (2)",
        ),
        ("votes: 16\ntrain_samples: 17\n", "train-samples (17) must be at most votes (16)"),
    ],
)
def test_a_bad_value_is_one_line_that_names_file_and_field(tmp_path: Path, text: str, expected: str) -> None:
    assert message(tmp_path, with_needed(text)).startswith(expected)


def test_missing_fields(tmp_path: Path) -> None:
    assert message(tmp_path, "questions: q\n") == "model is needed and was not given"
    assert message(tmp_path, "model: m\n") == "questions is needed and was not given"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [\n", "not valid YAML at line 2"),
        ("a: 1\n\tb: 2\n", "not valid YAML at line 2"),
        ("a\x00b: 1\n", "not valid YAML"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        ("- a\n- b\n", "must be a mapping of fields to values, found a list"),
        ("just text\n", "must be a mapping of fields to values, found a str"),
        ("!!python/object/apply:os.getcwd []\n", "not valid YAML at line 1"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert message(tmp_path, text).startswith(expected)


@pytest.mark.parametrize(
    "text", ["limit: 2001-13-45\n", "limit: 0x_\n", "limit: 0b_\n", "system: " + "[" * 3000 + "\n"]
)
def test_yaml_that_breaks_pyyaml(tmp_path: Path, text: str) -> None:
    message(tmp_path, with_needed(text))


def test_a_bad_flag_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, with_needed("votes: 64\n"))
    with pytest.raises(InputError) as error:
        load_config(TrainConfig, path, {"tau": 5})
    assert not str(error.value).startswith(str(path))


@pytest.mark.parametrize("field", ["learning_rate", "temperature", "weight_decay", "beta"])
def test_infinity_is_refused(tmp_path: Path, field: str) -> None:
    assert message(tmp_path, with_needed(f"{field}: .inf\n")).startswith(field.replace("_", "-"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(InputError, match=r"none\.yaml: there is no such configuration file"):
        load_config(TrainConfig, path)
    with pytest.raises(InputError, match="cannot be read as text"):
        load_config(TrainConfig, tmp_path)


def test_without_a_file_the_options_are_named() -> None:
    with pytest.raises(InputError, match=r"^options: tau: Input should be less than 1"):
        load_config(TrainConfig, overrides=NEEDED | {"tau": 1.5})


def test_an_empty_file_takes_everything_from_flags(tmp_path: Path) -> None:
    assert load_config(TrainConfig, write(tmp_path, "# nothing\n"), NEEDED).model == "some/model"
