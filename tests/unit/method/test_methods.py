from __future__ import annotations

import pytest

from dttrl.errors import InputError
from dttrl.method.methods import METHODS, find_method


@pytest.mark.parametrize(
    ("name", "vote", "history", "diversity"),
    [
        ("ttrl", "sc", False, False),
        ("ttrl-gt", "gold", False, False),
        ("ttrl-wsc", "wsc", False, False),
        ("distri-wsc", "wsc", False, True),
        ("distri-gmm", "progressive", True, True),
    ],
)
def test_the_rows_of_the_papers_table(name: str, vote: str, history: bool, diversity: bool) -> None:
    method = find_method(name)
    assert (method.name, method.vote, method.history, method.diversity) == (
        name,
        vote,
        history,
        diversity,
    )
    assert method.summary


def test_these_are_all() -> None:
    assert list(METHODS) == [
        "ttrl",
        "ttrl-gt",
        "ttrl-wsc",
        "distri-wsc",
        "distri-gmm",
        "ttrl-latent",
        "distri-latent",
    ]
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.parametrize("name", ["", "TTRL", "grpo", "distri_gmm"])
def test_an_unknown_method_names_those_there_are(name: str) -> None:
    with pytest.raises(
        InputError, match=f"method '{name}' is not one of: ttrl, ttrl-gt, .*distri-gmm"
    ) as error:
        find_method(name)
    assert error.value.__cause__ is None
