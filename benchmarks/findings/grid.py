"""Train the runs of ``plan.py`` side by side, several to a GPU, and pack what the findings need of them.

    python benchmarks/findings/grid.py --out OUT --starts STARTS --jobs 60 --seconds 400

Every worker is one process on one GPU (or the CPU) that does one job after the other: a training run, or
sampling 256 rollouts a question from a start for the scaling of the voting budget. The starts come from
``data/starts.tar.xz`` or from what ``--starts`` names; those it lacks, and with ``--pretrain`` all, are
pre-trained first. What has not begun when the time is nearly up is left out, and said so; the same command
with ``--skip-done`` goes on with the rest. ``OUT`` gets the archives of ``packing.py`` and ``grid.json``
(one record a job).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Asking whether there is a GPU must not start CUDA before the workers are forked.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import plan as plans
import starts
from packing import MEASURES, analyse, finished_runs, pack


def main() -> None:
    """Pre-train what is missing, run the jobs, pack."""
    options = parse()
    began = time.monotonic()
    options.work.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    gpus = count_gpus()
    say(began, f"{gpus} GPUs, {os.cpu_count()} cores, {options.jobs} workers")
    prepare_starts(options, gpus, began)
    runs = plans.runs(options.plan, steps=options.steps, eval_every=options.eval_every, seeds=options.seeds)
    runs = [run for run in runs if not options.only or any(part in run.name for part in options.only)]
    if options.skip_done:
        known = {run.name for run in finished_runs(options)}
        known.update(options.done.read_text().split() if options.done else ())
        runs = [run for run in runs if run.name not in known]
    # The rollouts for the budgets come early: they are few, and everything else can be cut short.
    budgets: list[Any] = [] if options.no_budget else list(plans.starts(options.plan))
    budgets = [name for name in budgets if not options.only or any(part in name for part in options.only)]
    if options.skip_done:
        last = MEASURES[-1]
        budgets = [name for name in budgets if not (options.work / f"{name}.{last}.parquet").is_file()]
    jobs: list[Any] = [*runs[: options.limit], *budgets]
    jobs.sort(key=lambda job: 0 if isinstance(job, str) else 1)
    records = work_through(jobs, options, gpus, began)
    say(began, f"{sum(r['rc'] == 0 for r in records)} of {len(jobs)} jobs done")
    if not options.no_tables:
        say(began, "tables made, failed: {}, {}".format(*analyse(options)))
    pack(options, records)
    say(began, "packed")


def say(began: float, text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - began:5.0f} s] {text}", flush=True)


def count_gpus() -> int:
    """Count the GPUs without starting CUDA in this process, which forks."""
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def prepare_starts(options: argparse.Namespace, gpus: int, began: float) -> None:
    """Put every start's model and questions into the work folder; pre-train those that are not there."""
    if plans.on_smollm2(options.plan):
        link_starts(options, began)
        return
    folder = options.work / "starts"
    device = "cuda" if gpus else "cpu"
    if not options.pretrain:
        starts.gather(options.starts or starts.ARCHIVE, folder)
    starts.pretrain(folder, seconds=options.pretrain_seconds, device=device, gpus=gpus)
    for name in plans.STARTS:
        known = starts.described(folder / name)
        say(began, f"start {name}: {known}")
        if known["avg"] < 0.05:
            raise SystemExit(f"start {name} has learnt nothing: give --pretrain-seconds more")


def link_starts(options: argparse.Namespace, began: float) -> None:
    """Give each family of the fine-tuned model a start folder: links to the model, and its questions."""
    for family in plans.starts(options.plan):
        folder = options.work / "starts" / family
        folder.mkdir(parents=True, exist_ok=True)
        for path in options.starts.iterdir():
            if path.suffix != ".jsonl" and path.name != "recipe.json":
                (folder / path.name).unlink(missing_ok=True)
                (folder / path.name).symlink_to(path.resolve())
        for name in ("questions.jsonl", "heldout.jsonl"):
            shutil.copy(options.starts / f"{family}.{name}", folder / name)
        shutil.copy(options.starts / "recipe.json", folder / "recipe.json")
        figures = json.loads((options.starts / "recipe.json").read_text())["figures"]
        say(began, f"start {family}: {figures.get(family)}")


def work_through(
    jobs: Sequence[Any], options: argparse.Namespace, gpus: int, began: float
) -> list[dict[str, Any]]:
    """Run the jobs in forked workers that have imported everything once; kill what runs over the time."""
    import torch  # noqa: F401  imported before the fork, so that no worker pays for it
    import transformers.models.llama.modeling_llama  # noqa: F401

    import dttrl.training.loop  # noqa: F401
    from dttrl_cli.app import main as dttrl_main

    context = mp.get_context("fork")
    following, lock = context.Value("i", 0), context.Lock()
    deadline = began + options.seconds
    done = options.work / "done"
    shutil.rmtree(done, ignore_errors=True)
    done.mkdir()
    workers = [
        context.Process(
            target=worker, args=(number, jobs, following, lock, deadline, options, gpus, dttrl_main)
        )
        for number in range(min(options.jobs, len(jobs)))
    ]
    for process in workers:
        process.start()
    said: set[str] = set()
    while any(process.is_alive() for process in workers) and time.monotonic() < deadline:
        time.sleep(1.0)
        for path in sorted(done.glob("*.json")):
            if path.name not in said:
                said.add(path.name)
                record = json.loads(path.read_text())
                if record["rc"] or len(said) % 10 == 0:
                    say(began, f"{len(said)} jobs; {record}")
    for process in workers:
        process.kill()
        process.join()
    return [json.loads(path.read_text()) for path in sorted(done.glob("*.json"))]


def worker(
    number: int,
    jobs: Sequence[Any],
    following: Any,
    lock: Any,
    deadline: float,
    options: argparse.Namespace,
    gpus: int,
    dttrl_main: Callable[[Sequence[str]], int],
) -> None:
    """Take one job after the other while there is time for as long a one as the last."""
    on_gpu = gpus > 0 and (options.gpu_jobs is None or number < options.gpu_jobs)
    os.environ["CUDA_VISIBLE_DEVICES"] = str(number % gpus) if on_gpu else ""
    device, last = ("cuda" if on_gpu else "cpu"), 0.0
    run_dttrl = fresh_process if options.fresh or (on_gpu and not cuda_starts()) else dttrl_main
    while time.monotonic() + last < deadline:
        with lock:
            index = following.value
            following.value += 1
        if index >= len(jobs):
            return
        job, started = jobs[index], time.monotonic()
        name = job if isinstance(job, str) else job.name
        with (options.work / f"{name}.log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            commands = (
                budget_commands(job, options, device)
                if isinstance(job, str)
                else [train_command(job, options, device)]
            )
            rc = next((code for command in commands if (code := run_dttrl(command))), 0)
            if rc == 0 and not isinstance(job, str):
                forget_weights(options.work / "runs" / job.name)
        seconds = time.monotonic() - started
        last = last if isinstance(job, str) else seconds
        # A file a record, moved into its place: a worker may be killed at any time.
        record = options.work / f"{name}.json"
        record.write_text(
            json.dumps({"name": name, "rc": rc, "seconds": round(seconds, 1), "worker": number})
        )
        record.rename(options.work / "done" / record.name)


def cuda_starts() -> bool:
    """Return whether CUDA can be started in this forked process."""
    import torch

    try:
        torch.cuda.init()
    except RuntimeError:
        return False
    return True


def fresh_process(command: Sequence[str]) -> int:
    """Run ``dttrl`` in a process of its own: slower to start, but nothing is inherited."""
    code = "import sys; from dttrl_cli.app import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-P", "-c", code, *command], check=False).returncode


def train_command(run: plans.Planned, options: argparse.Namespace, device: str) -> list[str]:
    """Return the arguments of ``dttrl`` that begin a run, or go on with it."""
    folder = options.work / "runs" / run.name
    if options.skip_done and any(folder.glob("checkpoints/step-*/state.json")):
        return ["train", "--resume", str(folder), "--device", device, "--quiet"]
    start = options.work / "starts" / run.start
    flags = [part for name, value in run.options.items() for part in (f"--{name}", value) if part]
    return [
        "train", str(start), str(start / "questions.jsonl"), "--heldout", str(start / "heldout.jsonl"),
        "--run", str(folder), "--device", device, "--overwrite", "--quiet",
        "--keep-rollouts" if run.keep_rollouts else "--no-keep-rollouts", *flags,
    ]  # fmt: skip


def forget_weights(run: Path) -> None:
    """Empty the checkpoints of a finished run: a few of a language model fill a disk."""
    for path in (run / "checkpoints").rglob("*"):
        if path.is_file():
            path.unlink()


def budget_commands(start: str, options: argparse.Namespace, device: str) -> list[list[str]]:
    """Return the commands that make the budget table of a start, for two measures of confidence."""
    folder, tables = options.work / "starts" / start, options.work / "tables"
    tables.mkdir(exist_ok=True)
    base = plans.base(options.plan)
    drawn = options.work / f"{start}.parquet"
    commands = [
        [
            "generate", str(folder), str(folder / "questions.jsonl"), "-o", str(drawn), "--samples",
            str(options.budget_samples), "--template", base["template"], "--max-new-tokens",
            base["max-new-tokens"], "--batch-size", "2048",
            "--device", device, "--dtype", base["dtype"], "--overwrite", "--quiet",
        ]
    ]  # fmt: skip
    for measure in MEASURES:
        scored = options.work / f"{start}.{measure}.parquet"
        commands.append(
            ["score", str(drawn), "-o", str(scored), "--region", "all", "--measure", measure, "--overwrite"]
        )
        if not options.no_tables:
            commands.append([
                "analyze", "budget-scaling", str(scored), "--method", "all", "--overwrite", "--quiet",
                "-o", str(tables / f"budget.{start}.{measure}.parquet"),
                "--plot", str(tables / f"budget.{start}.{measure}.svg"),
            ])  # fmt: skip
    return commands


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the runs of plan.py side by side.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the archives")
    parser.add_argument("--work", type=Path, default=Path("/tmp/findings"), help="folder for everything else")
    parser.add_argument("--plan", choices=plans.PLANS, default="small", help="see plan.py")
    parser.add_argument(
        "--starts",
        type=Path,
        help="archive or folder of starts (default: data/starts.tar.xz); SmolLM2: the model folder",
    )
    parser.add_argument("--pretrain", action="store_true", help="pre-train all starts anew")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs side by side")
    parser.add_argument("--gpu-jobs", type=int, help="how many of them on GPUs, the rest on the CPU (all)")
    parser.add_argument("--seconds", type=float, default=400, help="time for everything but the packing")
    parser.add_argument("--pretrain-seconds", type=float, default=100, help="longest pre-training")
    parser.add_argument("--skip-done", action="store_true", help="go on with what the work folder has")
    parser.add_argument("--done", type=Path, help="file with names of more runs that --skip-done leaves out")
    parser.add_argument("--fresh", action="store_true", help="a new process for every command")
    parser.add_argument("--steps", type=int, default=100, help="steps of a run")
    parser.add_argument("--eval-every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of every run")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of the runs to do")
    parser.add_argument("--limit", type=int, help="only the first so many runs")
    parser.add_argument("--budget-samples", type=int, default=256, help="rollouts a question for the budgets")
    parser.add_argument(
        "--no-tables", action="store_true", help="leave out the tables of whole rollouts and budgets"
    )
    parser.add_argument("--no-budget", action="store_true", help="leave the budgets out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
