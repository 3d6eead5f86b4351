from __future__ import annotations

import pickle

import pytest

from dttrl import errors

KINDS = [
    (errors.DttrlError, Exception, 1),
    (errors.WorkError, RuntimeError, 1),
    (errors.InputError, ValueError, 2),
    (errors.OutputExistsError, FileExistsError, 2),
    (errors.MissingDependencyError, ImportError, 2),
]
MESSAGE = "rollouts.parquet: column 'text' is missing; run dttrl generate"


@pytest.mark.parametrize(("kind", "builtin", "code"), KINDS)
def test_every_kind_is_also_a_built_in_one_and_has_its_exit_code(
    kind: type[errors.DttrlError], builtin: type[Exception], code: int
) -> None:
    error = kind(MESSAGE)
    assert isinstance(error, builtin)
    assert isinstance(error, errors.DttrlError)
    assert error.exit_code == code
    assert str(error) == MESSAGE


@pytest.mark.parametrize(("kind", "builtin", "code"), KINDS)
def test_they_survive_pickling(kind: type[errors.DttrlError], builtin: type[Exception], code: int) -> None:
    error = pickle.loads(pickle.dumps(kind(MESSAGE)))
    assert type(error) is kind
    assert str(error) == MESSAGE
    assert error.exit_code == code


def test_these_are_all_kinds() -> None:
    found = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
    }
    assert found == {kind for kind, _, _ in KINDS}
