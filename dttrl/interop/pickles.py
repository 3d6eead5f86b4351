"""A pickle of DeepConf or SSC turned into JSON lines, in a process of its own that admits only data.

``python -m dttrl.interop.pickles FILE`` limits its own memory, unpickles with an Unpickler that knows plain
containers, numbers, and numpy's arrays and scalars, and prints the question's fields, then a line a trace.
No function of numpy is called by the pickle: what stands for them here only takes bytes of the stated length.
Every other global is refused by its name. Run like this, neither code nor memory of a pickle reaches the
process of the user.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HEADER_FIELDS = ("question", "ground_truth", "qid", "run_id", "mode")
TRACE_FIELDS = (
    "text", "token_ids", "num_tokens", "confs", "extracted_answer", "answer", "stop_reason", "min_conf",
    "mean_conf", "tail_conf",
)  # fmt: skip
TRACE_LISTS = ("all_traces", "final_traces")

_MEMORY_FACTOR = 40
_MEMORY_FLOOR = 2**30
_OUTPUT_FACTOR = 100
_NUMERIC = "biuf"


class NotPlainData(Exception):
    """The pickle is not plain data; the message says why."""


class _Stand:
    """What stands for one admitted global: it can be called and nothing else, whatever the pickle asks."""

    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise NotPlainData("it sets an attribute of a function")

    def __setstate__(self, state: Any) -> None:
        raise NotPlainData("it sets the state of a function")


class _Dtype:
    """A numpy type of numbers, given by its code; the byte order comes as a state."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or len(code) > 8:
            raise NotPlainData("a numpy type that is not of numbers")
        try:
            self.dtype = np.dtype(code)
        except TypeError as error:
            raise NotPlainData("a numpy type that is not known") from error
        if self.dtype.kind not in _NUMERIC:
            raise NotPlainData(f"a numpy array of {code!r}, and only numbers are read")

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise NotPlainData("a numpy type of an unknown form")
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """A numpy array that its state fills: (version, shape, type, order, bytes)."""

    def __init__(self, *_: Any) -> None:
        self.values: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise NotPlainData("a numpy array of an unknown form")
        _, shape, dtype, _, data = state
        self.values = _values(data, dtype, shape)


def _values(data: Any, dtype: Any, shape: Any) -> list[Any]:
    if not isinstance(dtype, _Dtype) or not isinstance(data, (bytes, bytearray)):
        raise NotPlainData("a numpy array that is not of numbers")
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n >= 0 for n in shape):
        raise NotPlainData("a numpy array of an unknown shape")
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise NotPlainData("a numpy array whose size is not that of its bytes")
    values: list[Any] = np.frombuffer(bytes(data), dtype.dtype).tolist()
    return values


def _scalar(dtype: Any, data: Any = b"") -> Any:
    values = _values(data.encode("latin-1") if isinstance(data, str) else data, dtype, ())
    return values[0]


def _frombuffer(data: Any, dtype: Any, shape: Any, *_: Any) -> _Array:
    array = _Array()
    array.values = _values(data, dtype, shape)
    return array


def _encode(text: Any, *_: Any) -> bytes:
    if not isinstance(text, str):
        raise NotPlainData("bytes that are not written as text")
    return text.encode("latin-1")


def _bytearray(data: Any = b"", *_: Any) -> bytes:
    if isinstance(data, str):
        return _encode(data)
    if not isinstance(data, (bytes, bytearray)):
        raise NotPlainData("a byte array that is not given by its bytes")
    return bytes(data)


def _plain_list(items: Any = ()) -> list[Any]:
    if not isinstance(items, (list, tuple, set, frozenset, dict)):
        raise NotPlainData("a list that is not given by its entries")
    return list(items)


def _plain_dict(*arguments: Any) -> dict[Any, Any]:
    given = arguments[-1] if arguments else ()
    return dict(given) if isinstance(given, (dict, list, tuple)) else {}


def _number(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def convert(value: Any = 0, *_: Any) -> Any:
        if isinstance(value, str) and len(value) > 400:
            raise NotPlainData("a number of more than 400 digits")
        return kind(value)

    return convert


_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_BUILTINS: dict[str, Callable[..., Any]] = {
    "list": _plain_list,
    "set": _plain_list,
    "frozenset": _plain_list,
    "tuple": _plain_list,
    "dict": _plain_dict,
    "bytearray": _bytearray,
    "bytes": _bytearray,
    "int": _number(int),
    "float": _number(float),
    "bool": _number(bool),
}
_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    **{(module, "_reconstruct"): _Array for module in _MODULES},
    **{(module, "scalar"): _scalar for module in _MODULES},
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("_codecs", "encode"): _encode,
    **{(module, name): call for module in ("builtins", "__builtin__") for name, call in _BUILTINS.items()},
    **{("collections", name): _plain_dict for name in ("OrderedDict", "defaultdict", "Counter")},
}


class PlainUnpickler(pickle.Unpickler):
    """Admits the globals of ``_ADMITTED`` only, each as something that makes plain data."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global; raises NotPlainData with its name for any other."""
        call = _ADMITTED.get((module, name))
        if call is None:
            raise NotPlainData(f"it asks for {f'{module}.{name}'[:120]!r}, which is not plain data")
        return _Stand(call)

    def persistent_load(self, pid: Any) -> Any:
        """Refuse references to objects outside the pickle."""
        raise NotPlainData("it refers to an object outside the file")


def load_plain(data: bytes) -> Any:
    """Unpickle plain data; raises NotPlainData, MemoryError, or what pickle raises for damage."""
    return PlainUnpickler(io.BytesIO(data)).load()


def lines(content: Any, limit: int) -> Iterator[str]:
    """Yield header and traces as JSON; raises NotPlainData for other content and beyond ``limit`` bytes."""
    if not isinstance(content, dict):
        raise NotPlainData("it holds no dictionary with the traces of one question")
    traces = next((content[name] for name in TRACE_LISTS if content.get(name)), None)
    if not isinstance(traces, (list, tuple)):
        raise NotPlainData(f"it has none of {', '.join(TRACE_LISTS)}")
    header = {name: _flat(content.get(name)) for name in HEADER_FIELDS}
    config = content.get("config")
    header["model"] = _flat(config.get("model")) if isinstance(config, dict) else None
    written = 0
    for row in (header, *traces):
        if not isinstance(row, dict):
            raise NotPlainData("one of its traces is not a dictionary")
        kept = header if row is header else {name: _flat(row[name]) for name in TRACE_FIELDS if name in row}
        line = json.dumps(kept)
        written += len(line)
        if written > limit:
            raise NotPlainData("it unfolds to far more than its size")
        yield line


def _flat(value: Any) -> Any:
    """Return text, a number, or a list of numbers; null for anything deeper."""
    if isinstance(value, _Array):
        value = value.values
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (list, tuple)) and all(
        item is None or isinstance(item, (int, float, str)) for item in value
    ):
        return list(value)
    return None


def main(arguments: list[str]) -> int:
    """Print the JSON lines of a pickle; on failure one line on stderr and 1."""
    path = Path(arguments[0])
    try:
        size = path.stat().st_size
        _limit_memory(max(_MEMORY_FLOOR, _MEMORY_FACTOR * size))
        content = load_plain(path.read_bytes())
        for line in lines(content, _OUTPUT_FACTOR * size + 2**20):
            sys.stdout.write(line + "\n")
    except NotPlainData as error:
        return _fail(str(error))
    except MemoryError:
        return _fail("it needs more memory than its size allows")
    except RecursionError:
        return _fail("it is nested too deeply")
    except OSError as error:
        return _fail(f"cannot be read ({error.strerror})")
    except Exception as error:  # pickle raises anything for a damaged file
        return _fail(f"damaged, or no pickle ({type(error).__name__}: {error})")
    return 0


def _fail(text: str) -> int:
    sys.stderr.write(" ".join(text.split())[:300] + "\n")
    return 1


def _limit_memory(limit: int) -> None:
    try:
        import resource
    except ImportError:  # not on Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
