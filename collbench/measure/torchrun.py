"""torchrun as collbench starts it: the same program, but it dies with its parent, and says which rank failed first in a
verdict file instead of a traceback."""

from __future__ import annotations

import logging
import os
import signal
import sys

from collbench.errors import EXIT_INTERRUPTED, EXIT_JOB
from collbench.measure.process import Verdict, die_with_parent, write_verdict


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))  # until torchrun sets its own
    die_with_parent(int(os.environ["COLLBENCH_LAUNCHER_PID"]))
    logging.disable(logging.CRITICAL)  # torchrun's own account of a failure: the verdict says it in one line
    try:
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.run import main as torchrun
    except ImportError as error:
        write_verdict("torchrun", Verdict(EXIT_JOB, f"torch does not import ({error}): see 'collbench env'"))
        return EXIT_JOB

    try:
        torchrun(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        write_verdict("torchrun", Verdict(EXIT_JOB, f"rank {rank} {killed}"))
        return EXIT_JOB
    except SignalException as error:
        interrupted = error.sigval == signal.SIGINT
        return EXIT_INTERRUPTED if interrupted else EXIT_JOB
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
