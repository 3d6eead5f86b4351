"""DeepConf pickles: plain data is read to exact rows, and everything else is refused by its name."""

from __future__ import annotations

import collections
import pickle
import pickletools
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dttrl.data.schemas import ROLLOUTS
from dttrl.data.tables import read_metadata, read_table
from dttrl.errors import InputError
from dttrl.interop.fields import ReadOptions
from dttrl.interop.formats import FORMATS, recognise
from dttrl.interop.importing import ImportSummary, import_files
from dttrl.interop.pickles import NotPlainData, lines, load_plain


def trace(text: str, answer: str | None, confs: Any, **extra: Any) -> dict[str, Any]:
    return {
        "stop_reason": "stop", "text": text, "token_ids": list(range(len(confs))), "num_tokens": len(confs),
        "confs": confs, "extracted_answer": answer, **extra,
    }  # fmt: skip


def question(**changes: Any) -> dict[str, Any]:
    traces = [
        trace(r"so \boxed{4}", "4", [10.5, np.float64(2.25)]),
        trace("hm", None, np.asarray([1.5, 3.0, 8.0], np.float32), stop_reason="length"),
        trace(r"\boxed{5}", "5", [], min_conf=np.float32(0.5)),
    ]
    whole = {
        "question": "2+2?", "ground_truth": "4", "qid": 7, "run_id": "r", "all_traces": traces,
        "mode": "offline",
        "config": collections.OrderedDict(model="org/m", window_size=2048),
        "voting_results": collections.defaultdict(dict, majority={"answer": "4", "votes": np.int64(1)}),
        "token_stats": {"set": {1, 2}, "frozen": frozenset("ab"), "bytes": b"x", "array": bytearray(b"y")},
    }  # fmt: skip
    return {**whole, **changes}


def saved(
    folder: Path, content: Any, protocol: int = 4, name: str = "deepthink_offline_qid7_rid0_x.pkl"
) -> Path:
    path = folder / name
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def imported(path: Path, folder: Path, **options: Any) -> ImportSummary:
    return import_files(
        FORMATS["deepconf"],
        [path],
        folder / "out.parquet",
        options=ReadOptions(allow_pickle=True, **options),
        overwrite=True,
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_traces_are_read(tmp_path: Path, protocol: int) -> None:
    path = saved(tmp_path, question(), protocol)
    assert recognise(path) is FORMATS["deepconf"]
    summary = imported(path, tmp_path)
    table = read_table(tmp_path / "out.parquet", ROLLOUTS)
    names = ("query_id", "sample_id", "prompt", "gold", "text", "finish_reason", "num_tokens", "answer")
    assert list(zip(*(table[name].to_pylist() for name in names), strict=True)) == [
        ("7", 0, "2+2?", "4", r"so \boxed{4}", "stop", 2, "4"),
        ("7", 1, "2+2?", "4", "hm", "length", 3, None),
        ("7", 2, "2+2?", "4", r"\boxed{5}", "stop", 0, "5"),
    ]
    assert table["token_confidence"].to_pylist() == [[10.5, 2.25], [1.5, 3.0, 8.0], None]
    assert table["token_ids"].to_pylist() == [[0, 1], [0, 1, 2], []]
    metadata = read_metadata(tmp_path / "out.parquet")
    assert (metadata["model"], metadata["imported_from"]) == ("org/m", "deepconf")
    assert "all entries" in metadata["logprobs_mode"]
    assert summary.possible.startswith("token confidences")


def test_a_score_and_the_older_field_of_traces(tmp_path: Path) -> None:
    content = question()
    content["final_traces"] = [
        {**row, "min_conf": 0.5 + i} for i, row in enumerate(content.pop("all_traces"))
    ]
    imported(saved(tmp_path, content), tmp_path, score="min_conf")
    assert read_table(tmp_path / "out.parquet", ROLLOUTS)["confidence"].to_pylist() == [0.5, 1.5, 2.5]


def test_pickles_are_off_unless_asked_for(tmp_path: Path) -> None:
    path = saved(tmp_path, question())
    with pytest.raises(InputError, match="--allow-pickle"):
        import_files(FORMATS["deepconf"], [path], tmp_path / "o.parquet")


class Attack:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def boom() -> None:
    raise AssertionError("this must never run")


ATTACKS: dict[str, tuple[Any, str]] = {
    "system": (Attack(__import__("os").system, "touch pwned"), "posix.system"),
    "eval": (Attack(eval, "1"), "builtins.eval"),
    "getattr": (Attack(getattr, "", "join"), "builtins.getattr"),
    "import": (Attack(__import__, "os"), "builtins.__import__"),
    "subprocess": (Attack(subprocess.run, ["touch", "pwned"]), "subprocess.run"),
    "numpy load": (Attack(np.load, "x"), "numpy.load"),
    "numpy full": (Attack(np.zeros, 10**12), "numpy.zeros"),
    "a class": (Fraction(1, 2), "fractions.Fraction"),
    "range": (range(3), "builtins.range"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(ATTACKS))
def test_other_globals_are_refused_with_their_name(tmp_path: Path, case: str) -> None:
    attack, name = ATTACKS[case]
    path = saved(tmp_path, question(evaluation=attack))
    with pytest.raises(InputError) as caught:
        imported(path, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    assert f"'{name.replace('posix', __import__('os').system.__module__)}'" in message
    assert not list(tmp_path.parent.rglob("pwned"))
    assert not (tmp_path / "out.parquet").exists()


def program(*operations: bytes) -> bytes:
    return b"\x80\x04" + b"".join(operations) + b"."


def text(value: str) -> bytes:
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def global_of(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


BAD: dict[str, tuple[bytes, str]] = {
    # The state of an admitted global: a dict that would set attributes of the function.
    "state of a function": (
        program(global_of("numpy", "dtype"), b"}" + text("x") + b"K\x01s", b"b"), "state of a function",
    ),
    "class of an object": (program(b"c__main__\nAttack\n"), "__main__.Attack"),
    "dotted name": (program(global_of("collections", "OrderedDict.fromkeys")), "OrderedDict.fromkeys"),
    "persistent": (program(b"K\x01Q"), "outside the file"),
    "object array": (program(global_of("numpy", "dtype"), text("O8"), b"\x85R"), "only numbers"),
    "wrong size": (
        program(
            global_of("numpy.core.multiarray", "_reconstruct"), global_of("numpy", "ndarray"),
            b"K\x00\x85C\x01b\x87R",
            b"(K\x01", b"J" + struct.pack("<i", 10**9) + b"\x85",
            global_of("numpy", "dtype"), text("f8"), b"\x85R", b"\x89C\x08", b"\0" * 8, b"tb",
        ),
        "size is not that of its bytes",
    ),
    "bytes by length": (
        program(global_of("builtins", "bytearray"), b"J\xff\xff\xff\x7f\x85R"), "by its bytes",
    ),
    "int of many digits": (
        program(global_of("builtins", "int"), b"X" + struct.pack("<I", 5000) + b"9" * 5000, b"\x85R"),
        "400 digits",
    ),
    "long memo index": (program(b"K\x01", b"r\x00\x00\x00\x08"), "memory"),
    "truncated": (pickle.dumps(question())[:-20], "damaged"),
    "no pickle": (b"\x80\x04hello", "damaged"),
    "a list": (pickle.dumps([1, 2]), "no dictionary"),
    "no traces": (pickle.dumps({"qid": 1}), "none of all_traces"),
    "traces of numbers": (pickle.dumps({"all_traces": [1]}), "not a dictionary"),
    "deep": (pickle.dumps({"all_traces": [{}]})[:-1] + b"(" * 10 + b".", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_a_bad_pickle_is_one_line(tmp_path: Path, case: str) -> None:
    data, named = BAD[case]
    path = tmp_path / "bad.pkl"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        imported(path, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert named in message


def test_the_programs_of_these_tests_are_valid() -> None:
    for case in ("state of a function", "object array", "wrong size", "bytes by length"):
        assert list(pickletools.genops(BAD[case][0]))


def test_shared_lists_do_not_unfold_without_end() -> None:
    confs = [1.0] * 1000
    content = {"all_traces": [{"text": "x", "confs": confs}] * 5000}
    data = pickle.dumps(content)
    with pytest.raises(NotPlainData, match="unfolds"):
        list(lines(load_plain(data), 100 * len(data)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"confs": [1.0, 2.0, 3.0]}, "3 confs for 2 token_ids"),
        ({"confs": ["high", "low"]}, "'confs' is not a list of numbers"),
        ({"text": None}, "'text'"),
        ({"token_ids": [2**40, 1]}, "'token_ids'"),
        ({"extracted_answer": ["a", "b"]}, "'extracted_answer' is a list"),
    ],
)
def test_a_malformed_trace_names_its_number_and_field(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    good = trace("x", "1", [1.0, 2.0])
    path = saved(tmp_path, question(all_traces=[good, {**good, **change}]))
    with pytest.raises(InputError) as caught:
        imported(path, tmp_path)
    assert f"{path}, trace 1: " in str(caught.value)
    assert named in str(caught.value)


def test_the_process_that_unpickles_is_another_one(tmp_path: Path) -> None:
    """Nothing of ``pickle`` is called here: a broken Unpickler in this process changes nothing."""
    path = saved(tmp_path, question())
    code = (
        "import sys, pickle\npickle.Unpickler = pickle.load = pickle.loads = None\n"
        "from pathlib import Path\nfrom dttrl.interop.importing import import_files\n"
        "from dttrl.interop.fields import ReadOptions\nfrom dttrl.interop.formats import FORMATS\n"
        "import_files(FORMATS['deepconf'], [Path(sys.argv[1])], Path(sys.argv[2]),"
        " options=ReadOptions(allow_pickle=True))\n"
    )
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "o.parquet")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
