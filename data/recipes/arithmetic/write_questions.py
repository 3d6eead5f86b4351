r"""Write the question files that belong to a pre-trained model.

    python data/recipes/arithmetic/write_questions.py data/quickstart/model/recipe.json data/quickstart

writes ``questions.jsonl`` (the test questions) and ``heldout.jsonl`` into the folder. The family and the
seed in ``recipe.json`` fix both files to the byte.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from family import SOURCES, Sum, answer, family_from, question, question_sets


def lines(sums: Sequence[Sum], name: str) -> str:
    """Return JSON lines with the ids ``NAME-000``, ``NAME-001``, ...

    >>> print(lines([Sum(347, 825)], "sums"), end="")
    {"id": "sums-000", "prompt": "347+825?", "answer": "1172", "source": "sums"}
    """
    rows = (
        {
            "id": f"{name}-{index:03d}",
            "prompt": question(numbers),
            "answer": answer(numbers),
            "source": SOURCES[numbers.operation],
        }
        for index, numbers in enumerate(sums)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_questions(recipe: Path, folder: Path) -> None:
    """Write ``questions.jsonl`` and ``heldout.jsonl`` for the model of a ``recipe.json``."""
    options = json.loads(recipe.read_text(encoding="utf-8"))
    sets = question_sets(family_from(options), options["question_seed"])
    for file, sums, name in (
        ("questions", sets.test, SOURCES[sets.test[0].operation]),
        ("heldout", sets.heldout, "heldout"),
    ):
        with (folder / f"{file}.jsonl").open("w", encoding="utf-8", newline="\n") as out:
            out.write(lines(sums, name))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the question files of a pre-trained model.")
    parser.add_argument("recipe", type=Path, help="recipe.json of the model")
    parser.add_argument("folder", type=Path, help="where questions.jsonl and heldout.jsonl go")
    given = parser.parse_args()
    write_questions(given.recipe, given.folder)
