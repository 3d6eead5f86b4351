"""One worker process of the grader, seen from our side: started, asked, and killed when it takes too long.

The worker is ``sys.executable -m dttrl.answers.worker``; a thread reads its replies, so that waiting for one
has a limit on every platform.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

import dttrl
from dttrl.answers.equivalence import Verdict
from dttrl.errors import WorkError

START_TIMEOUT_S: Final = 60.0
"""How long a worker may take to import what it needs, which is not counted against a pair."""


def worker_command(timeout_s: float, memory_mb: int) -> list[str]:
    """Return the command that starts a worker; -P: no module of the working directory may shadow ours."""
    options = ["--memory-mb", str(memory_mb), "--seconds", str(timeout_s)]
    return [sys.executable, "-P", "-m", "dttrl.answers.worker", *options]


def _worker_environment() -> dict[str, str]:
    """One thread, and the folder of this package on the path where it is not installed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
    }
    root = Path(dttrl.__file__).resolve().parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    return environment


class WorkerProcess:
    """One worker process and the thread that reads its replies."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_worker_environment(),
            start_new_session=os.name == "posix",  # Ctrl-C is for the parent
        )
        self._owner = os.getpid()
        self._next_id = 0
        self._replies: queue.SimpleQueue[dict[str, object] | None] = queue.SimpleQueue()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin: IO[bytes] = self._process.stdin
        threading.Thread(
            target=_read_replies,
            args=(self._process.stdout, self._replies),
            name="dttrl-grading",
            daemon=True,
        ).start()
        ready = self._receive(START_TIMEOUT_S)
        if ready is None or not ready.get("ready"):
            self.kill()
            raise WorkError(
                f"the grading worker did not start (exit code {self._process.poll()}): run "
                f"`{' '.join(command)}` to see why, raise memory_mb, or use use_algebra=False"
            )

    @property
    def usable(self) -> bool:
        """False in a forked child (the pipes are the parent's) and after the process has ended."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, a: str, b: str, timeout_s: float) -> Verdict | None:
        """Return the verdict on a pair, or None when the worker took too long or died."""
        self._next_id += 1
        request = json.dumps({"id": self._next_id, "a": a, "b": b}) + "\n"
        try:
            self._stdin.write(request.encode("ascii"))
            self._stdin.flush()
        except OSError:
            return None
        deadline = time.monotonic() + timeout_s
        while (reply := self._receive(deadline - time.monotonic())) is not None:
            if reply.get("id") == self._next_id:  # an earlier id: its asker was interrupted
                return Verdict(reply["verdict"])
        return None

    def _receive(self, timeout_s: float) -> dict[str, object] | None:
        try:
            return self._replies.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def kill(self) -> None:
        """End the process at once."""
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
            self._close_pipe()

    def close(self) -> None:
        """Let the process end by itself; kill it if it doesn't."""
        if self._owner == os.getpid():
            self._close_pipe()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)
            self.kill()

    def _close_pipe(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()


def _read_replies(stream: IO[bytes], replies: queue.SimpleQueue[dict[str, object] | None]) -> None:
    with stream:
        for line in stream:
            try:
                replies.put(json.loads(line))
            except ValueError:
                break
    replies.put(None)
