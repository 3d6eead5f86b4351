"""What all tests share: one thread, no network, seeded hypothesis, the optional shared data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports torch or numpy: OpenMP reads these once. One thread, because the spin barriers of
# two threads on shared cores cost many times what they gain, and because sums then have one order.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "Agg"

# The default profile draws the same examples every time; `--hypothesis-profile search` draws new ones.
settings.register_profile("seeded", deadline=None, max_examples=50, derandomize=True, database=None)
settings.register_profile("search", deadline=None, max_examples=500, print_blob=True)
settings.load_profile("seeded")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder ``shared`` beside the checkout (public rollouts, question sets, gradings); skips without it."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip("no folder `shared` beside the checkout: its data sets are optional")
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a two-layer character model with random weights."""
    from tests.tiny import write_model

    return write_model(tmp_path_factory.mktemp("tiny") / "model")
