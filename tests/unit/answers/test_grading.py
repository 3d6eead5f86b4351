"""The grader: algebra in a worker, classes, and what happens when a worker hangs, dies or needs too much."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dttrl.answers.equivalence import Verdict
from dttrl.answers.grading import Grader, sendable
from dttrl.answers.worker import Judge
from dttrl.errors import WorkError

YES, NO, UNKNOWN = Verdict.YES, Verdict.NO, Verdict.UNKNOWN
SHARED = Path(__file__).resolve().parents[3].parent / "shared"
PAIRS = SHARED / "data" / "grading" / "grading.jsonl"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(timeout_s=20.0) as shared:
        yield shared


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (r"\sqrt{8}", r"2\sqrt2", YES),
        (r"\frac{1+\sqrt{31}}{2}", r"R=\sqrt{\dfrac{16+\sqrt{31}}{2}}", YES),
        (r"0.5+\frac{\pi}{8}", r"\pi \div 8 + 1 \div 2", YES),
        (r"-2\pi", "-2*pi", YES),
        ("e^{i\\pi}", "-1", YES),
        (r"\sin^2 x+\cos^2 x", "1", YES),
        (r"\sqrt{1/n}", r"1/\sqrt{n}", YES),
        ("(x-1)(x^4+x^2+1)", "x^5-x^4+x^3-x^2+x-1", YES),
        ("2x+4y-3=0", r"y=-\frac{1}{2}x+\frac{3}{4}", YES),
        (r"\frac{9\sqrt{30}}{4}, 2", r"2, 2.25\sqrt{30}", YES),
        (r"\int_0^1 x dx", r"\frac12", YES),
        (r"\sum_{k=1}^{10} k", "55", YES),
        (r"\sqrt{5+2\sqrt6}-\sqrt2-\sqrt3", "0", YES),
        # known false positives of graders that drop what they can't read, or round
        ("3*x-1*y+13=0", "3x + 4y + 14=0", NO),
        ("$4$", r"$4\sqrt(2)$", NO),
        (r"\sqrt{x^2}", "x", NO),
        (r"\sqrt2", "1.41421356", NO),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}", NO),
        (r"2^{-2005}\pi", r"2^{-2004}\pi", NO),
        (r"10^{300}+\pi", "10^{300}+e", NO),
        (r"\frac{10^{400}\pi+1}{10^{400}\pi}", "1", NO),
        (r"\frac{d}{dx}x^2", "x", NO),
        (r"\int_0^1 x dx", r"\int_0^1 x^2 dx", NO),
        ("(x-1)^2=0", "x-1=0", NO),
        ("x=5", "y=5", NO),
        (r"2\sin b\cos a", r"2\sin a\cos b", NO),
    ],
)
def test_algebra(grader: Grader, a: str, b: str, expected: Verdict) -> None:
    assert grader.equal(a, b) is expected
    assert grader.equal(b, a) is expected


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("9^9^9^9^9", "5"),
        ("(10^{9})!", "7"),
        ("(3000!)^2+1", "(3000!)^2"),
        (r"\lfloor x\rfloor", r"\lceil x\rceil-1"),
        (r"A\cap B", r"A\cup B"),
        ("f(x)=0", r"\forall x>0, f(x)=0"),
        ("__import__('os').system('true')+x^2", "x+1"),
    ],
)
def test_what_nobody_can_decide_is_not_equal(grader: Grader, a: str, b: str) -> None:
    assert grader.equal(a, b) is not YES


def test_numbers_and_equal_strings_start_no_process() -> None:
    with Grader() as grader:
        answers = ["1/2", "0.5", r"\frac{1}{2}", "7", r"\sqrt2+1", "$\\sqrt{2}+1$", "x=7"]
        assert grader.classes(answers[:4]).tolist() == [0, 0, 0, 1]
        assert grader.equal(answers[4], answers[5]) is YES
        assert grader.equal("7", "x=7") is YES
        assert grader._worker is None
        assert grader.counters["algebra"] == 0


def test_cache_is_symmetric_and_counted_once() -> None:
    with Grader(use_algebra=False) as grader:
        for _ in range(3):
            assert grader.equal("1/2", "0.5") is YES
            assert grader.equal("0.5", "1/2") is YES
            assert grader.equal(r"\sqrt8", r"2\sqrt2") is UNKNOWN
        assert grader.counters == {
            "pairs": 2, "string": 0, "exact": 1, "algebra": 0, "custom": 0, "unknown": 1, "killed": 0,
        }  # fmt: skip


def _fake_worker(grader: Grader, body: str) -> None:
    script = "import json, sys, time\nprint(json.dumps({'ready': True}), flush=True)\n" + body
    grader._command = [sys.executable, "-c", script]


def test_a_hanging_worker_is_killed_and_replaced(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with Grader(timeout_s=0.5) as grader:
        real = grader._command
        note = f"import os\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        _fake_worker(
            grader, "for line in sys.stdin:\n    " + note.replace("\n", "\n    ") + "time.sleep(60)\n"
        )
        begin = time.perf_counter()
        assert grader.equal(r"\sqrt8", r"2\sqrt2") is UNKNOWN
        assert time.perf_counter() - begin < 10.0
        assert grader.counters["killed"] == grader.counters["unknown"] == 1
        assert grader._worker is None
        if os.name == "posix":
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid_file.read_text()), 0)
        grader._command, grader._timeout_s = real, 20.0
        assert grader.equal(r"\sqrt{18}", r"3\sqrt2") is YES
        assert grader.counters["killed"] == 1


def test_the_clock_starts_when_the_worker_is_ready() -> None:
    with Grader(timeout_s=0.5) as grader:
        script = (
            "import json, sys, time\ntime.sleep(1.0)\nprint(json.dumps({'ready': True}), flush=True)\n"
            "for line in sys.stdin:\n"
            "    print(json.dumps({'id': json.loads(line)['id'], 'verdict': 'yes'}), flush=True)\n"
        )
        grader._command = [sys.executable, "-c", script]
        assert grader.equal(r"\sqrt8", r"2\sqrt2") is YES


def test_a_dying_or_babbling_worker_is_unknown() -> None:
    for body in (
        "sys.stdin.readline()\nsys.exit(3)\n",
        "sys.stdin.readline()\nprint('garbage', flush=True)\n",
    ):
        with Grader(timeout_s=5.0) as grader:
            _fake_worker(grader, body)
            assert grader.equal(r"\sqrt8", r"2\sqrt2") is UNKNOWN
            assert grader.counters["killed"] == 1


def test_a_worker_that_cannot_start_is_one_clear_error() -> None:
    with Grader() as grader:
        grader._command = [sys.executable, "-c", "raise SystemExit(7)"]
        with pytest.raises(WorkError, match=r"did not start.*use_algebra=False"):
            grader.equal(r"\sqrt8", r"2\sqrt2")


@pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="RLIMIT_AS is not enforced here")
def test_the_worker_limits_its_own_memory() -> None:
    script = (
        "from dttrl.answers import worker\nworker._limit('RLIMIT_AS', 700 * 2**20)\n"
        "judge = worker.Judge()\n"
        "judge.agreement = lambda: bytearray(2**31)\n"
        "print(judge.safely('\\\\sqrt{8}', '2\\\\sqrt{2}'))\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert "UNKNOWN" in done.stdout
    assert "True" in done.stdout  # the process ends itself afterwards


def test_worker_output_is_protected_and_silent(capfd: pytest.CaptureFixture[str]) -> None:
    with Grader(timeout_s=20.0) as grader:
        assert grader.equal(r"\int_0^2 x dx", "2") is YES
    out, err = capfd.readouterr()
    assert out == err == ""


def test_what_a_library_prints_does_not_reach_the_replies() -> None:
    script = (
        "import os\nfrom dttrl.answers import worker\nreplies = worker._private_stdout()\n"
        "print('noise', flush=True)\nos.write(1, b'noise')\nos.write(2, b'noise')\n"
        "worker._reply(replies, {'id': 1})\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    assert done.stdout == '{"id": 1}\n'
    assert done.stderr == ""


def test_a_reading_that_lost_text_is_noticed() -> None:
    judge = Judge()
    integral = judge._parse(r"\int_0^1 x dx")
    assert judge._kept_all(r"\int_0^1 x dx", integral)
    for longer in (r"\int_0^1 x dx+7", r"y\int_0^1 x dx", r"\sin\int_0^1 x dx", r"0.5\int_0^1 x dx"):
        assert not judge._kept_all(longer, integral)
    assert judge._by_algebra(r"0.5\int_0^1 x dx", "0.25") is UNKNOWN  # math-verify says YES
    assert judge._by_algebra(r"\int_0^1 x dx", r"\frac{1}{2}") is YES


def test_threads_share_a_grader(grader: Grader) -> None:
    found: list[Verdict] = []

    def ask(k: int) -> None:
        found.append(grader.equal(rf"\sqrt{{{2 * k * k}}}", rf"{k}\sqrt2"))

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(3, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [YES] * 10


def test_classes_are_dense_in_order_of_appearance(grader: Grader) -> None:
    answers = [None, "0.5", r"2\sqrt2", "", r"\frac12", "7", r"\sqrt8", "x = 7", "..."]
    class_N = grader.classes(answers)
    assert class_N.dtype == np.int32
    assert class_N.tolist() == [-1, 0, 1, -1, 0, 2, 1, 2, -1]
    assert grader.classes([]).tolist() == []


def test_units_that_differ_are_not_joined_by_the_bare_number() -> None:
    with Grader(use_algebra=False) as grader:
        for answers in (["12", "12 cm", r"12\text{ m}"], [r"12\text{ m}", "12 cm", "12"]):
            class_N = grader.classes(answers).tolist()
            assert class_N[answers.index("12 cm")] != class_N[answers.index(r"12\text{ m}")]
            assert class_N[answers.index("12 cm")] == class_N[answers.index("12")]


def test_comparisons_are_between_distinct_answers_only() -> None:
    distinct = [r"\sqrt2", r"\sqrt3", r"\sqrt5", "x+1", "y"]
    with Grader(use_algebra=False) as grader:
        class_N = grader.classes([distinct[i % 5] for i in range(64)])
        assert class_N.max() == 4
        assert grader.counters["pairs"] <= 10


def test_integers_are_fast() -> None:
    answers = [str(n * 7919 % 1000) for n in range(64)]
    with Grader() as grader:
        grader.classes(answers)
        begin = time.perf_counter()
        for _ in range(20):
            grader.classes(answers)
        assert (time.perf_counter() - begin) / 20 < 0.005
        assert grader.counters["pairs"] == 0


def test_match_and_spelling() -> None:
    with Grader() as grader:
        answers = ["0.5", r"\frac12", " 1/2", "1/2", None, "3", "03"]
        class_N = grader.classes(answers)
        spellings = grader.spelling(answers, class_N)
        assert spellings == ["1/2", "3"]
        assert grader.match("2/4", spellings) == 0
        assert grader.match("3.0", spellings) == 1
        assert grader.match("4", spellings) == -1
        assert grader.spelling([None], np.array([-1], dtype=np.int32)) == []


def test_choice_and_text_compare_strings_only() -> None:
    with Grader(kind="choice") as grader:
        assert grader.classes(["A", "(a)", r"\text{A}", "B"]).tolist() == [0, 0, 0, 1]
    with Grader(kind="text") as grader:
        answers = ["yajo", "Yajo.", r"\text{yajo}", "yaj", "1/2", "0.5"]
        assert grader.classes(answers).tolist() == [0, 0, 0, 1, 2, 3]
        assert grader._worker is None


def test_what_may_be_sent() -> None:
    assert sendable(r"\frac{1+\sqrt{31}}{2}")
    for text in (
        "",
        "x" * 401,
        "a\x00",
        "\ud800",
        "__import__('os')",
        "9" * 101,
        "(" * 40,
        "2^{999999999999}",
    ):
        assert not sendable(text)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_gets_its_own_worker(grader: Grader) -> None:
    assert grader.equal(r"\sqrt{50}", r"5\sqrt2") is YES
    assert grader._worker is not None
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        verdict = grader.equal(r"\sqrt{72}", r"6\sqrt2")
        os.write(writer, verdict.value.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    assert os.read(reader, 10) == b"yes"
    os.close(reader)
    assert grader.equal(r"\sqrt{98}", r"7\sqrt2") is YES


@pytest.mark.skipif(not PAIRS.exists(), reason="the grading data are not here")
def test_pairs_of_the_data_set(grader: Grader) -> None:
    """No false YES; all 322 pairs that are not doubtful were right when this was written."""
    false_yes, right, total = [], 0, 0
    for line in PAIRS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("doubtful"):
            continue
        total += 1
        equal = grader.equal(row["a"], row["b"]) is YES
        assert (grader.equal(row["b"], row["a"]) is YES) == equal
        right += equal == row["equal"]
        if equal and not row["equal"]:
            false_yes.append(row["id"])
    assert false_yes == []
    assert total == 322
    assert right >= 318
