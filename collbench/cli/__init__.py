"""The command line: one small file per command, loaded only when it is asked for.

A command file has add_arguments(parser) and run(args) -> exit code, and may have an EPILOG, and a normalize(arguments)
for what argparse cannot read. A new command is such a file and one line in COMMANDS.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from contextlib import redirect_stderr, suppress
from importlib import import_module
from typing import TextIO

from collbench import __version__
from collbench.errors import EXIT_DONE, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_JOB, CollbenchError, one_of

# In the order of the pipeline; the one-line help stands here so that --help loads no command.
COMMANDS = {
    "quickstart": "the whole loop on this machine, in about a minute: sweep, fit, predict, check",
    "env": "what this machine is, and what would go wrong on it",
    "run": "measure a sweep of collectives (starts torchrun itself, or runs as its worker)",
    "import": "read other tools' logs: nccl-tests, rccl-tests, OSU, PyTorch traces and more",
    "show": "print a results file: a table, nccl-tests' own layout, CSV, JSON, or a matrix of links",
    "fit": "fit α–β models to results",
    "estimate": "the time of one collective, from a model file or from link figures",
    "capture": "a torch module as a workload: its layers, and the collectives torch issues for it",
    "predict": "a training step: its time, its exposed communication, its memory",
    "plan": "strategies and knobs that fit into the memory, ranked by the step they lead to",
    "validate": "run the real step and compare it with its prediction",
    "report": "one self-contained page: plots and tables",
    "models": "the public models that come with collbench: their systems, errors and sources",
}

USAGE = """\
usage: collbench COMMAND [options]        collbench COMMAND --help

Times PyTorch collectives, fits α–β models to them, and predicts how much communication a step cannot hide.

{commands}

Every command takes --json (one JSON document on stdout) and --debug (tracebacks).
Exit codes: 0 done; 1 the answer is "no" (wrong data, outside the tolerance); 2 bad arguments or input;
3 the job failed; 130 interrupted, results kept.
"""


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line, like all others."""

    def error(self, message: str) -> None:  # type: ignore[override]
        unknown = re.fullmatch(r"unrecognized arguments: (-\S+)(.*)", message)
        if unknown is not None:
            import difflib

            flag = unknown[1].partition("=")[0]
            known = [name for name in self._option_string_actions if len(name) > 2]
            near = difflib.get_close_matches(flag, known, n=1)
            message = f"unknown option {flag}" + (f" (did you mean {near[0]}?)" if near else "")
        self.exit(EXIT_INPUT, f"{self.prog}: {message} (see '{self.prog} --help')\n")


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns its exit code. `argv` defaults to the process's own arguments."""
    argv = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without α still gets the rest of the line
    with redirect_stderr(_Log(sys.stderr)):
        return _guarded(argv)


class _Log:
    """stderr that nobody may be reading any more: progress and notes must not end the work they tell of."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _guarded(argv: list[str]) -> int:
    """The command's exit code, whatever it raises."""
    try:
        code = _main(argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a closed pipe is caught
        return code
    except SystemExit as stop:  # argparse: --help and usage errors
        return int(stop.code or 0)
    except BrokenPipeError:  # `collbench show | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except KeyboardInterrupt:
        if not _is_rank():  # whoever started the ranks says it once
            print("collbench: interrupted; what was written so far is kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    except CollbenchError as error:
        if "--debug" in argv:
            raise
        if not _is_rank() or os.environ.get("LOCAL_RANK", "0") == "0":  # of a launcher's ranks, one a node says it
            print(f"collbench: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # a bug: still one line, and not exit code 1, which is an answer
        if "--debug" in argv:
            raise
        reason = (str(error).strip().splitlines() or [""])[0]
        print(f"collbench: {type(error).__name__}: {reason} (--debug shows where)", file=sys.stderr)
        return EXIT_JOB


def _is_rank() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        width = max(len(name) for name in COMMANDS)
        print(USAGE.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())), end="")
        return 0 if argv else EXIT_INPUT
    if argv[0] in ("--version", "-V"):
        print(f"collbench {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise one_of("command", argv[0], list(COMMANDS))
    command = import_module(f"collbench.cli.{argv[0]}")
    parser = _Parser(
        prog=f"collbench {argv[0]}",
        description=COMMANDS[argv[0]],
        epilog=getattr(command, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON document on stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    words = getattr(command, "normalize", list)(argv[1:])
    args = parser.parse_args(words)
    args.argv = words  # what a launcher passes on to its workers
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    return int(command.run(args))


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Warnings are one line on stderr; collbench's own alone (libraries' deprecations are no news to a user)."""
    if category is UserWarning:
        print(f"collbench: warning: {message}", file=sys.stderr)
