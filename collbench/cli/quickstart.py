"""`collbench quickstart`: the loop on this machine in about a minute."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from pathlib import Path

from collbench.cli.fit import fit_table
from collbench.cli.predict import format_prediction
from collbench.validate.compare import as_text

_STEPS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where (default: a new folder here)")
    parser.add_argument("--nproc", type=int, metavar="N", help="ranks (default: one a GPU where there are two, else 2)")
    parser.add_argument("--backend", choices=["nccl", "gloo"], help="default: nccl where there are two GPUs, else gloo")


def run(args: argparse.Namespace) -> int:
    from collbench.errors import InputError
    from collbench.measure.launch import is_worker
    from collbench.quickstart import new_folder, run_loop

    if is_worker():
        raise InputError("quickstart starts its own ranks: run it without torchrun")
    began, step = time.monotonic(), 0

    def say(text: str) -> None:
        nonlocal step
        step += 1
        print(f"[{step}/{_STEPS}] {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    if args.output is None:
        folder = new_folder(Path())
    else:
        folder = Path(args.output)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"-o {folder}: exists and is not an empty folder: name a new one")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"-o {folder}: cannot be made ({error.strerror}): name another folder") from None
    loop = run_loop(folder, args.nproc, args.backend or "", args.json, say)
    if args.json:
        document = {
            "folder": str(folder),
            "model": loop.model.to_dict(),
            "predictions": [prediction.to_dict() for prediction in loop.predictions],
            "validation": loop.validation,
        }
        print(json.dumps(document))
        return 0
    print("\n" + fit_table(loop.model.fits))
    for prediction in loop.predictions:
        print("\n" + format_prediction(prediction))
    print()
    print(as_text(loop.validation) if loop.validation else f"the real step could not be run: {loop.problem}")
    _print_next(folder)
    print(f"[done] {time.monotonic() - began:4.0f} s", file=sys.stderr)
    return 0


def _print_next(folder: Path) -> None:
    """Three commands to paste, by the name this program can be called with."""
    called = sys.argv[0] if Path(sys.argv[0]).name == "collbench" else f"{shlex.quote(sys.executable)} -m collbench"
    program = "collbench" if shutil.which("collbench") == str(Path(called).absolute()) else called
    workload, model = (shlex.quote(str(folder / name)) for name in ("workload.toml", "model.json"))
    print(f"\nEverything is in {folder}; report.html has the plots. Next:")
    print(f"  {program} estimate all_reduce --size 1M,16M,64M --model {model}")
    print(f"  {program} predict {workload} --strategy fsdp --nodes 4 --model {model}")
    print(f"  {program} validate {workload} --bucket-cap-mb 4 --model {model}")
