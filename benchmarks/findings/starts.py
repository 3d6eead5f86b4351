"""The models that the runs start from: published in one archive, pre-trained again where that is asked.

    python benchmarks/findings/starts.py WORK data/starts.tar.xz --device cpu

pre-trains what the folder lacks by ``data/recipes/arithmetic`` (twenty minutes on a core), writes the
questions beside each model, and packs the four, without times and owners.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import plan as plans

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "data" / "recipes" / "arithmetic"
ARCHIVE = ROOT / "data" / "starts.tar.xz"
FILES = (
    "config.json", "generation_config.json", "heldout.jsonl", "model.safetensors", "questions.jsonl",
    "recipe.json", "tokenizer.json", "tokenizer_config.json",
)  # fmt: skip
"""What a start consists of."""
# Two bytes a weight: with the position's lowest bit as context xz saves a fifteenth more.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 1, "pb": 1}]


def pack(folder: Path, archive: Path) -> None:
    """Write the starts of a folder into an archive, without times and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in plans.STARTS:
            for file in FILES:
                data = (folder / name / file).read_bytes()
                member = tarfile.TarInfo(f"starts/{name}/{file}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    written = archive.with_name(archive.name + ".tmp")
    written.write_bytes(lzma.compress(packed.getvalue(), format=lzma.FORMAT_XZ, filters=FILTERS))
    written.rename(archive)


def unpack(archive: Path, target: Path) -> None:
    """Put the starts of an archive into a folder, one folder a start."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            member.name = member.name.removeprefix("starts/")
            tar.extract(member, target, filter="data")


def gather(source: Path, target: Path) -> None:
    """Put the starts that an archive or a folder has into a folder, one folder a start."""
    if source.is_file():
        return unpack(source, target)
    for name in plans.STARTS:
        found = source / name
        if (found / "recipe.json").is_file() and found.resolve() != (target / name).resolve():
            shutil.copytree(found, target / name, dirs_exist_ok=True)


def pretrain(folder: Path, *, seconds: float, device: str, gpus: int = 0) -> None:
    """Pre-train the families of which the folder lacks a start, side by side, and write the questions."""
    missing: dict[str, list[tuple[str, float]]] = {}
    for name, (operation, level) in plans.STARTS.items():
        if not (folder / name / "recipe.json").is_file():
            missing.setdefault(operation, []).append((name, level))
    running = []
    for index, (operation, wanted) in enumerate(missing.items()):
        made = folder / f"pretrain-{index}"
        made.mkdir(parents=True, exist_ok=True)
        command = _command(made, operation, [level for _, level in wanted], seconds, device)
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(index % max(gpus, 1))}
        with (made / "log").open("w") as log:
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    for index, (process, wanted) in enumerate(zip(running, missing.values(), strict=True)):
        process.wait()
        for name, level in wanted:
            made = folder / f"pretrain-{index}" / f"at-{level:.2f}"
            made = made if made.is_dir() else made.with_name("last")
            if not made.is_dir():
                raise SystemExit(f"pre-training failed: {made.with_name('log')}")
            shutil.copytree(made, folder / name, dirs_exist_ok=True)
    for name in plans.STARTS:
        write_questions(folder / name)


def _command(made: Path, operation: str, levels: Sequence[float], seconds: float, device: str) -> list[str]:
    return [
        sys.executable, str(RECIPE / "pretrain.py"), "--out", str(made), "--operation", operation,
        "--digits", "3,4", "--last-step", "places", "--seed", "0", "--eval-every", "10", "--steps", "6000",
        "--stop-accuracy", *(f"{level:.2f}" for level in levels), "--corpus", "60000", "--batch", "128",
        "--max-seconds", str(seconds), "--save-dtype", "bfloat16", "--device", device,
    ]  # fmt: skip


def write_questions(folder: Path) -> None:
    """Write the question files that belong to the model of a folder."""
    command = [sys.executable, str(RECIPE / "write_questions.py"), str(folder / "recipe.json"), str(folder)]
    subprocess.run(command, check=True)


def described(folder: Path) -> dict[str, float]:
    """Return what the model of a folder could do when it was saved."""
    figures = json.loads((folder / "recipe.json").read_text("utf-8"))["figures"]
    return {key: round(figures[key], 3) for key in ("avg", "maj@64", "auroc_all_question", "diversity")}


def main() -> None:
    """Pre-train what is missing and pack."""
    parser = argparse.ArgumentParser(description="Pre-train the starts of the runs and pack them.")
    parser.add_argument("work", type=Path, help="folder of the starts; what it lacks is pre-trained")
    parser.add_argument("archive", type=Path, nargs="?", default=ARCHIVE, help="archive to write")
    parser.add_argument("--seconds", type=float, default=1e9, help="longest pre-training")
    parser.add_argument("--device", default="cpu", help="cpu, cuda")
    options = parser.parse_args()
    pretrain(options.work, seconds=options.seconds, device=options.device)
    pack(options.work, options.archive)
    for name in plans.STARTS:
        print(name, described(options.work / name))


if __name__ == "__main__":
    main()
