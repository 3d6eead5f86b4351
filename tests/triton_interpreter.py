"""Makes Triton kernels run where there is no CUDA device: import it before any module that holds kernels."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    plain = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        # Triton 3.6 calls int() on an array of one entry, which NumPy no longer allows.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    builder = interpreter.InterpreterBuilder
    plain_dot = builder.create_dot

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        # bfloat16 is kept as its bits, which the interpreter's product takes for integers.
        return plain_dot(self, *(_widened(interpreter, part) for part in (a, b)), *rest)

    builder.create_dot = dot


def _widened(interpreter: Any, part: Any) -> Any:
    if part.data.dtype != np.uint16:
        return part
    data = (part.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(data, interpreter.tl.float32)


if DEVICE.type == "cpu":
    _interpret()
