"""What can go wrong, each kind with the exit code a script sees.

    CollbenchError
      InputError   2   bad arguments, a bad input file, or a request the data cannot answer
      JobError     3   the job itself failed: a rank died, hung or could not start
      Interrupted  130 stopped by the user; what was measured is kept

Exit code 1 ("the answer is no": wrong data, a prediction outside its tolerance) is a result, not an error.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_NO = 1
EXIT_INPUT = 2
EXIT_JOB = 3
EXIT_INTERRUPTED = 130


class CollbenchError(Exception):
    """One line for the user: what, where (file:line, rank, host), and what to do."""

    exit_code = EXIT_INPUT


class InputError(CollbenchError):
    """Bad arguments or a bad input file."""

    exit_code = EXIT_INPUT


class JobError(CollbenchError):
    """A rank failed, hung or could not start."""

    exit_code = EXIT_JOB


class Interrupted(CollbenchError):
    """The user stopped the run; results so far are kept."""

    exit_code = EXIT_INTERRUPTED


def one_of(what: str, text: object, known: list[str]) -> InputError:
    """The error for a word that is not in a list, with the nearest word of the list."""
    import difflib

    near = difflib.get_close_matches(str(text), known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return InputError(f"unknown {what} {str(text)!r}{hint}: one of {', '.join(known)}")
