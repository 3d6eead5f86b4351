"""Random generators derived from what is being drawn, never from the order of the calls.

A generator depends on ``(seed, step, query, purpose)`` alone, so that a resumed run, a run with another
batch size and a single question drawn again all see the same numbers. Nothing here is global.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _digest(seed: int, step: int, query: str, purpose: str) -> bytes:
    # Length-prefixed parts: ("ab", "c") and ("a", "bc") must not meet.
    state = hashlib.blake2b(digest_size=16)
    for part in (str(int(seed)), str(int(step)), query, purpose):
        data = part.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.digest()


def derive(seed: int, *, step: int = 0, query: str = "", purpose: str = "") -> np.random.Generator:
    """Return the generator that belongs to ``(seed, step, query, purpose)``.

    Two different keys give independent streams (a 128-bit hash keys a Philox counter generator).

    >>> derive(0, purpose="order").integers(10) == derive(0, purpose="order").integers(10)
    np.True_
    """
    key = int.from_bytes(_digest(seed, step, query, purpose), "little")
    return np.random.Generator(np.random.Philox(key=key))


def derive_seed(seed: int, *, step: int = 0, query: str = "", purpose: str = "") -> int:
    """Return a 63-bit seed for the same key, for generators that are not numpy's (torch)."""
    return int.from_bytes(_digest(seed, step, query, purpose)[:8], "little") >> 1
