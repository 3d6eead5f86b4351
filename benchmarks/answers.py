"""Answers graded right, and how fast, beside math-verify in the same run.

    python benchmarks/answers.py [--data ../shared/data/grading] [--markdown]

Pairs of answers, with ours warm and every pair asked once in each direction; completions; and the classes of
64 answers with 8 spellings. The pairs are those of ``grading.jsonl`` (without the doubtful ones) and our own
of ``tests/data/answer_pairs.tsv``; without the folder only our own. math-verify gets ``$a$`` and ``$b$`` with
its default time limits. One core. ``--markdown`` writes the tables by category into docs/answers.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from math_verify import parse, verify

from dttrl.answers.equivalence import Verdict
from dttrl.answers.extraction import extract
from dttrl.answers.grading import Grader

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "tests" / "data" / "answer_pairs.tsv"
PAGE = ROOT / "docs" / "answers.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
SPELLINGS = [
    r"\sqrt{8}", r"2\sqrt2", r"\frac{4}{\sqrt2}", r"\sqrt{2}\cdot 2", r"3\sqrt2", r"\frac{1+\sqrt{31}}{2}",
    r"\sqrt{\dfrac{16+\sqrt{31}}{2}}", "x=5",
]  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two answers, and whether they are equal."""

    category: str
    a: str
    b: str
    equal: bool


@dataclass(frozen=True)
class Outcome:
    """Verdicts on the same pairs in both directions, and seconds of the first."""

    forward: list[bool]
    backward: list[bool]
    seconds: list[float]

    def right(self, pairs: Sequence[Pair]) -> int:
        """Pairs judged right in the first direction."""
        return sum(found == pair.equal for found, pair in zip(self.forward, pairs, strict=True))

    def false_equal(self, pairs: Sequence[Pair]) -> int:
        """Unequal pairs that were called equal."""
        return sum(found and not pair.equal for found, pair in zip(self.forward, pairs, strict=True))

    def asymmetric(self) -> int:
        """Pairs whose verdict depends on the order."""
        return sum(x != y for x, y in zip(self.forward, self.backward, strict=True))

    def quantile(self, share: float) -> float:
        """Seconds that this share of the pairs stays below."""
        return sorted(self.seconds)[min(int(share * len(self.seconds)), len(self.seconds) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "grading")
    parser.add_argument("--markdown", action="store_true", help="write the table into docs/answers.md")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    corpora = {"our own pairs": own_pairs()}
    if (arguments.data / "grading.jsonl").exists():
        corpora = {"grading.jsonl": foreign_pairs(arguments.data / "grading.jsonl"), **corpora}
    lines: list[str] = []
    with Grader() as grader:
        grader.equal(r"\sqrt{18}", r"3\sqrt2")
        tables = []
        for name, pairs in corpora.items():
            ours = judge(pairs, lambda a, b: grader.equal(a, b) is Verdict.YES)
            theirs = judge(pairs, by_math_verify)
            lines += summary(name, pairs, ours, theirs)
            tables.append(by_category(name, pairs, ours, theirs))
        lines.append(
            f"not decided: {grader.counters['unknown']}, workers killed: {grader.counters['killed']}"
        )
    lines += classes()
    if (arguments.data / "extraction.jsonl").exists():
        lines += completions(arguments.data / "extraction.jsonl")
    print("\n".join(lines))
    if arguments.markdown:
        write_page("\n\n".join(["```\n" + "\n".join(lines) + "\n```", *tables]))


def own_pairs() -> list[Pair]:
    category, found = "", []
    for line in OWN.read_text("utf-8").splitlines():
        if line.startswith("# ") and "\t" not in line:
            category = line[2:]
            continue
        sign, a, b = line.split("\t")
        found.append(Pair(category, a, b, sign == "="))
    return found


def foreign_pairs(path: Path) -> list[Pair]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [Pair(r["category"], r["a"], r["b"], r["equal"]) for r in rows if not r.get("doubtful")]


def judge(pairs: Sequence[Pair], equal: Callable[[str, str], bool]) -> Outcome:
    forward, seconds = [], []
    for pair in pairs:
        begin = time.perf_counter()
        forward.append(equal(pair.a, pair.b))
        seconds.append(time.perf_counter() - begin)
    return Outcome(forward, [equal(pair.b, pair.a) for pair in pairs], seconds)


def by_math_verify(a: str, b: str) -> bool:
    try:
        return bool(verify(parse(f"${a}$"), parse(f"${b}$")))
    except Exception:
        return False


def summary(name: str, pairs: Sequence[Pair], ours: Outcome, theirs: Outcome) -> list[str]:
    total = len(pairs)
    lines = [f"{name}: {total} pairs{'':<20} ours  math-verify"]
    for label, first, second in (
        ("right", ours.right(pairs), theirs.right(pairs)),
        ("false equal", ours.false_equal(pairs), theirs.false_equal(pairs)),
        ("other verdict when swapped", ours.asymmetric(), theirs.asymmetric()),
    ):
        lines.append(f"  {label:<34} {first:>8} {second:>12}")
    for label, share in (("median", 0.5), ("99th percentile", 0.99), ("slowest", 1.0)):
        mine, other = ours.quantile(share), theirs.quantile(share)
        lines.append(
            f"  {label + ' (ms)':<34} {1000 * mine:>8.2f} {1000 * other:>12.2f}   ratio {mine / other:.4f}"
        )
    return lines


def by_category(name: str, pairs: Sequence[Pair], ours: Outcome, theirs: Outcome) -> str:
    rows = [f"| {name} | pairs | ours right | math-verify right | false equal: ours | math-verify |"]
    rows.append("|---|---:|---:|---:|---:|---:|")
    categories = [*dict.fromkeys(pair.category for pair in pairs), "all"]
    for category in categories:
        index = [i for i, pair in enumerate(pairs) if category in (pair.category, "all")]
        chosen = [pairs[i] for i in index]
        part = [Outcome([o.forward[i] for i in index], [], []) for o in (ours, theirs)]
        right = [o.right(chosen) for o in part]
        false = [o.false_equal(chosen) for o in part]
        rows.append(f"| {category} | {len(index)} | {right[0]} | {right[1]} | {false[0]} | {false[1]} |")
    return "\n".join(rows)


def classes() -> list[str]:
    answers = [SPELLINGS[i % len(SPELLINGS)] for i in range(64)]

    def theirs() -> int:
        heads: list[str] = []
        for answer in answers:
            if not any(by_math_verify(head, answer) for head in heads):
                heads.append(answer)
        return len(heads)

    first = []
    for _ in range(5):
        with Grader() as grader:
            grader.equal(r"\sqrt{18}", r"3\sqrt2")
            begin = time.perf_counter()
            grader.classes(answers)
            first.append(time.perf_counter() - begin)
    mine = median(first)
    begin = time.perf_counter()
    theirs()
    other = time.perf_counter() - begin
    times = f"{1000 * mine:>8.2f} {1000 * other:>12.2f}   ratio {mine / other:.4f}"
    return [f"classes of 64 answers, 8 spellings (ms) {times}"]


def completions(path: Path) -> list[str]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows = [row for row in rows if not row.get("doubtful")]
    ours = theirs = invented = 0
    with Grader() as grader:
        for row in rows:
            found = extract(row["text"], kind=row["type"]).answer
            expected = [e for e in (row["expected"], *row.get("also", [])) if e is not None]
            same = found is not None and any(grader.equal(found, e) is Verdict.YES for e in expected)
            ours += same if expected else found is None
            invented += found is not None and not expected
            parsed = parse(row["text"])
            theirs += any(verify(parse(f"${e}$"), parsed) for e in expected) if expected else not parsed
    return [
        f"extraction.jsonl: {len(rows)} completions, right      {ours:>8} {theirs:>12}",
        f"  something found where nothing may be {invented:>8}",
    ]


def write_page(text: str) -> None:
    page = PAGE.read_text("utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n{text}\n{END}", page), "utf-8")


if __name__ == "__main__":
    main()
