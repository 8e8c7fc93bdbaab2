"""`python -m tests.cluster`: the shaped cluster by hand.

    run --hosts 2 --rate 500 -- collbench run --collective all_reduce     make one, run a command on it, remove it
    up --hosts 3 --rate 1000 --slow 1:600                                 make one that stays; prints its name
    run --cluster NAME -- COMMAND ...                                     on that one
    down NAME, list, clean

`clean` removes what killed runs left, and no cluster whose process lives.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from .names import Found, clean, find, missing
from .network import Cluster
from .system import ClusterError

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    args.words = argv[1:]
    reason = missing()
    if reason is not None:
        print(f"cluster: {reason}", file=sys.stderr)
        return 2
    for each in _ENDING:
        signal.signal(each, _leave)
    try:
        code: int = args.do(args)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="up|run|down|list|clean")
    shape = argparse.ArgumentParser(add_help=False)
    shape.add_argument("--hosts", type=int, default=2, metavar="N", help="default 2")
    shape.add_argument("--rate", type=float, default=500.0, metavar="MBIT", help="of every NIC (default 500 Mbit/s)")
    shape.add_argument("--slow", action="append", default=[], metavar="HOST:MBIT", help="a host with another rate")
    shape.add_argument("--intra", type=float, metavar="MBIT", help="inside a host (default: as fast as it goes)")
    shape.add_argument("--delay", type=float, default=0.0, metavar="MS", help="one way (default none)")

    up = commands.add_parser("up", parents=[shape], help="make a cluster that stays; prints its name")
    up.set_defaults(do=_up)
    commands.add_parser("keep", parents=[shape]).set_defaults(do=_keep)
    run = commands.add_parser("run", parents=[shape], help="run a command as every rank")
    run.add_argument("--cluster", metavar="NAME", help="on this one (default: on a new one, which is then removed)")
    run.add_argument("--ranks-per-host", type=int, default=1, metavar="N")
    run.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="default 300")
    run.add_argument("--torchrun", action="store_true", help="by a torchrun on every host")
    run.add_argument("--realtime", action="store_true", help="real-time priority for the ranks")
    run.add_argument("command", nargs="+", metavar="COMMAND", help="and its arguments, after --")
    run.set_defaults(do=_run)
    down = commands.add_parser("down", help="remove a cluster that `up` made")
    down.add_argument("name", metavar="NAME")
    down.set_defaults(do=_down)
    commands.add_parser("list", help="the clusters on this machine").set_defaults(do=_list)
    commands.add_parser("clean", help="remove what killed runs left").set_defaults(do=_clean)
    return parser


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that contexts end


def _cluster(args: argparse.Namespace) -> Cluster:
    try:
        slow = {int(host): float(rate) for host, rate in (each.split(":") for each in args.slow)}
    except ValueError:
        raise ClusterError(f"--slow {' '.join(args.slow)}: expected HOST:MBIT, such as 1:300") from None
    return Cluster(args.hosts, args.rate, slow=slow, intra_mbit=args.intra, delay_ms=args.delay)


def _up(args: argparse.Namespace) -> int:
    """Leave a process behind that holds the cluster."""
    _cluster(args)  # refuses what cannot be
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", "keep", *args.words], start_new_session=True,
        cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert keeper.stdout is not None
    name = keeper.stdout.readline().strip()
    if not name:
        return keeper.wait() or 2
    print(name)
    return 0


def _keep(args: argparse.Namespace) -> int:
    with _cluster(args) as cluster:
        print(cluster.name, flush=True)
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):  # whoever reads them need not wait for the cluster's end
            os.dup2(nothing, stream)
        while True:
            signal.pause()


def _run(args: argparse.Namespace) -> int:
    how = {"ranks_per_host": args.ranks_per_host, "torchrun": args.torchrun, "realtime": args.realtime}
    if args.cluster:
        outcome = Cluster.attach(args.cluster).run(args.command, timeout_s=args.timeout, **how)
    else:
        with _cluster(args) as cluster:
            outcome = cluster.run(args.command, timeout_s=args.timeout, **how)
    for name, code, stdout, stderr in zip(outcome.names, outcome.codes, outcome.stdout, outcome.stderr, strict=True):
        sys.stdout.write(stdout)
        sys.stdout.flush()
        for line in [*stderr.splitlines(), *([f"exit code {code}"] if code else [])]:
            print(f"[{name}] {line}", file=sys.stderr)
    if outcome.timed_out:
        print(f"cluster: ended after {args.timeout:g} s (--timeout)", file=sys.stderr)
    return outcome.exit_code


def _down(args: argparse.Namespace) -> int:
    found = _find(args.name)
    if found is not None and found.alive:
        if b"\0keep\0" not in Path(f"/proc/{found.owner}/cmdline").read_bytes():
            raise ClusterError(f"{args.name} belongs to process {found.owner}, which runs: end that one")
        os.kill(found.owner, signal.SIGTERM)
        give_up = time.monotonic() + 20
        while (found := _find(args.name)) is not None and found.alive and time.monotonic() < give_up:
            time.sleep(0.05)
    elif found is None:
        raise ClusterError(f"{args.name}: no such cluster: see `list`")
    clean()
    return 0


def _find(name: str) -> Found | None:
    return next((each for each in find() if each.name == name), None)


def _list(args: argparse.Namespace) -> int:
    for each in find():
        state = f"held by process {each.owner}" if each.alive else f"left by process {each.owner}, which is gone"
        print(f"{each.name}  {each.hosts} host{'s' * (each.hosts != 1)}, {state}")
    return 0


def _clean(args: argparse.Namespace) -> int:
    for name in clean():
        print(f"removed {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
