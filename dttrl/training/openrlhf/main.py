"""OpenRLHF's own entry point with the method's trainer in it: ``python -m dttrl.training.openrlhf.main``.

The first argument is the run folder, the others are OpenRLHF's flags. Started by
:mod:`dttrl.training.openrlhf.launch`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Put the trainer in the place of OpenRLHF's and run its command."""
    if sys.platform == "linux":
        # A killed `dttrl train` must not leave a trainer that writes into a run which is being resumed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    run, flags = Path(sys.argv[1]), sys.argv[2:]
    import openrlhf.trainer.ppo_trainer as theirs
    import ray

    from dttrl.training.openrlhf.launch import openrlhf_version
    from dttrl.training.openrlhf.trainer import trainer_for

    theirs.PPOTrainer = trainer_for(run, f"openrlhf {openrlhf_version()}")
    # Workers on this and other machines need what this process was given.
    passed = ("PYTHONPATH", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "HF_HUB_OFFLINE")
    prefixes = ("VLLM_", "TORCH_", "DS_", "NCCL_", "HF_")
    environment = {k: v for k, v in os.environ.items() if k in passed or k.startswith(prefixes)}
    environment.setdefault("RAY_ENABLE_ZERO_COPY_TORCH_TENSORS", "1")
    ray.init(runtime_env={"env_vars": environment})
    sys.argv = ["train_ppo_ray", *flags]
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
