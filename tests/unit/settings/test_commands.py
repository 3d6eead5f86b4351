from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from dttrl.errors import InputError
from dttrl.settings.commands import GenerateConfig, ScoreConfig, Setting, TrainConfig, settings_of
from dttrl.settings.files import dump_config, load_config
from dttrl.settings.sections import Sampling

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
    update, evaluation, signal = config.update, config.evaluation, config.signal
    assert (signal.votes, signal.train_samples, update.questions_per_step) == (64, 32, 8)
    assert (signal.tau, update.clip_epsilon, update.beta, config.sampling.k) == (0.1, 0.2, 0.001, 20)
    assert (update.learning_rate, update.warmup, update.schedule) == (5e-7, 0.03, "cosine")
    assert (evaluation.samples, evaluation.temperature, evaluation.top_p) == (16, 0.6, 0.95)
    assert (signal.method, signal.select, config.scoring.region) == ("distri-latent", "first", "last-step")
    papers = config.but(method="distri-gmm").signal.vote
    assert papers is not None
    assert papers.parameters == {
        "f": "majority", "reject": "guarded", "monotone": "no", "min": 1, "window": "all",
    }  # fmt: skip


CHANGED: dict[str, object] = {
    "stop": ("\n\n", "END: #"),
    "learning_rate": 3e-6,
    "label": "progressive:monotone=yes,window=0",
    "limit": 7,
    "region": "bottom:0.1:2048",
    "measure": "perplexity",
    "heldout": Path("höldout dir/ä.jsonl"),
    "system": "- yes: 'no'\n# not a comment",
    "suffix": "",
    "warmup": 0.0,
    "steps": 3,
    "method": "distri-gmm",
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


def every_setting() -> list[tuple[str, Setting]]:
    models = (TrainConfig, GenerateConfig, ScoreConfig)
    return [(name, one) for model in models for name, each in settings_of(model).items() for one in each]


def test_every_setting_has_a_description_and_a_panel() -> None:
    for name, setting in every_setting():
        assert setting.info.description, name
        assert setting.section.panel, name


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, with_needed("tau: 0.3\nvotes: 40\n"))
    config = load_config(TrainConfig, path, {"tau": 0.2})
    assert (config.signal.tau, config.signal.votes) == (0.2, 40)


def test_dashes_are_underscores(tmp_path: Path) -> None:
    config = load_config(TrainConfig, write(tmp_path, with_needed("learning-rate: 5e-7\ntrain-samples: 8\n")))
    assert (config.update.learning_rate, config.signal.train_samples) == (5e-7, 8)


def test_a_config_is_frozen() -> None:
    config = load_config(TrainConfig, overrides=NEEDED)
    with pytest.raises(ValidationError):
        config.signal.tau = 0.5


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
        ("votes: many\n", "votes: a number of rollouts or a range as 8..64 is needed, got 'many'"),
        ("votes: 1.5\n", "votes: Input should be a valid integer"),
        ("stop: word\n", "stop: Input should be a valid tuple"),
        ("revision: [a]\n", "revision: Input should be a valid string"),
        (
            "dtype: float64\n",
            "dtype: Input should be 'auto', 'float32', 'bfloat16' or 'float16' (got 'float64')",
        ),
        (
            "method: grpo\n",
            "method 'grpo' is not one of: ttrl, ttrl-gt, ttrl-wsc, distri-wsc, distri-gmm",
        ),
        ("region: tail\n", "region 'tail' is not one of: last-step, all, tail:N"),
        ("measure: entrop\n", "measure: Input should be 'topk'"),
        (
            "method: distri-gmm\nf_vote: mean\n",
            "label: method 'progressive': f='mean' is not one of: majority, weighted",
        ),
        (
            "method: distri-gmm\nhistory_window: -1\n",
            "label: method 'progressive': window='-1' is not one of: all",
        ),
        ("label: vote\n", "label: voting method 'vote' is not one of: sc, wsc"),
        ("engine: magic\n", "engine: Input should be one of 'local', 'openrlhf' (got 'magic')"),
        ("gpus: 8\n", "--gpus does nothing with --engine local; leave it out, or add --engine openrlhf"),
        ("engine: openrlhf\nthreads: 2\n", "--threads does nothing with --engine openrlhf; leave it out"),
        ("method: ttrl\nf_vote: hierarchical\n", "--f-vote does nothing with labels by sc; leave it out"),
        ("method: ttrl\ncentre: question\n", "--centre does nothing with labels by sc (--method ttrl); "),
        ("method: ttrl\ntau: 0.3\n", "--tau does nothing with --method ttrl, which has no diversity penalty"),
        ("method: ttrl-gt\nlabel: sc\n", "method ttrl-gt labels with gold answers; leave --label out"),
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
        ("tau: 0.1\n# twice\ntau: 0.2\n", "line 3 gives tau again, which line 1 gave already"),
        ("train-samples: 1\ntrain_samples: 2\n", "line 2 gives train-samples again, which line 1"),
    ],
)
def test_bad_yaml(tmp_path: Path, text: str | bytes, expected: str) -> None:
    assert message(tmp_path, text).startswith(expected)


@pytest.mark.parametrize(
    "text", ["limit: 2001-13-45\n", "limit: 0x_\n", "limit: 0b_\n", "system: " + "[" * 3000 + "\n"]
)
def test_yaml_that_breaks_pyyaml(tmp_path: Path, text: str) -> None:
    message(tmp_path, with_needed(text))


@pytest.mark.parametrize(("field", "value"), [("region", "foo"), ("method", "magic"), ("kind", "riddle")])
def test_an_error_names_field_and_value_once(tmp_path: Path, field: str, value: str) -> None:
    found = message(tmp_path, with_needed(f"{field}: {value}\n"))
    assert found.count(value) == 1
    assert found.count(f"{field}") <= 2


def test_help_texts_need_no_paper() -> None:
    for name, setting in every_setting():
        assert "eq:" not in (setting.info.description or ""), name


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
    assert load_config(TrainConfig, write(tmp_path, "# nothing\n"), NEEDED).model.name == "some/model"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"backend": "transformers", "replicas": 8}, "--replicas does nothing with --backend transformers; "),
        (
            {"backend": "vllm", "retries": 1},
            "--retries does nothing with --backend vllm; leave it out, or add ",
        ),
        ({"backend": "vllm", "batch_size": 8}, "--batch-size does nothing with --backend vllm; leave it out"),
        (
            {"backend": "openai", "device": "cuda"},
            "--device does nothing with --backend openai; leave it out",
        ),
    ],
)
def test_a_setting_of_another_backend_is_refused(given: dict[str, object], expected: str) -> None:
    with pytest.raises(InputError, match=f"^options: {expected}"):
        load_config(GenerateConfig, overrides=NEEDED | given)


def test_auto_takes_the_settings_of_every_backend() -> None:
    config = load_config(GenerateConfig, overrides=NEEDED | {"replicas": 8, "concurrency": 2})
    assert config.flat().items() >= {"backend": "auto", "replicas": 8, "concurrency": 2}.items()


def test_what_is_at_its_default_says_nothing_and_is_not_written() -> None:
    """Files of older runs hold the settings of every engine."""
    older = {"gpus": 1, "zero_stage": 2, "ray_address": None, "f_vote": "majority", "history_window": None}
    config = load_config(TrainConfig, overrides=NEEDED | older | {"method": "ttrl", "tau": 0.1})
    assert config == load_config(TrainConfig, overrides=NEEDED | {"method": "ttrl"})
    assert not {"gpus", "f_vote", "tau", "centre"} & config.flat().keys()


def test_the_file_of_a_run_loads_whatever_it_holds(tmp_path: Path) -> None:
    path = write(tmp_path, with_needed("gpus: 8\nmethod: ttrl\nf_vote: hierarchical\ntau: 0.3\n"))
    config = load_config(TrainConfig, path, lenient=True)
    assert (config.signal.method, config.signal.label) == ("ttrl", None)


def test_the_older_settings_of_the_progressive_vote_are_parameters_of_the_label() -> None:
    older = {"f_vote": "weighted", "reject": "off", "monotone": True, "min_positives": 3, "history_window": 5}
    config = load_config(TrainConfig, overrides=NEEDED | older)
    assert config.signal.method == "distri-gmm"  # whose settings they were
    assert config.signal.label == "progressive:f=weighted,reject=off,monotone=yes,min=3,window=5"
    more = load_config(TrainConfig, overrides=NEEDED | {"label": "progressive:min=3", "history_window": 5})
    assert more.signal.label == "progressive:min=3,window=5"
    assert (more.signal.history().window, config.but(label=None).signal.history().window) == (5, None)


def test_a_flag_that_chooses_anew_leaves_behind_what_the_file_said_of_the_old_choice(tmp_path: Path) -> None:
    path = write(
        tmp_path, with_needed("threads: 1\ndevice: cpu\nlabel: progressive:min=3\ncentre: question\n")
    )
    chosen = load_config(
        TrainConfig, path, {"engine": "openrlhf", "gpus": 2, "method": "ttrl", "label": None}
    )
    assert chosen.flat().items() >= {"engine": "openrlhf", "gpus": 2, "method": "ttrl"}.items()
    with pytest.raises(InputError, match="--centre does nothing with labels by sc"):
        load_config(TrainConfig, path, {"label": "sc", "centre": "question"})


def test_a_section_is_what_the_code_takes() -> None:
    config = load_config(TrainConfig, overrides=NEEDED | {"temperature": 0.7, "seed": 4})
    assert config.sampling == Sampling(temperature=0.7, seed=4)
    assert TrainConfig.model_validate(config.sections()) == config
