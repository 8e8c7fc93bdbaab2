"""Faults of joining, put in by PYTHONPATH into rank processes alone. Each variable is `RANK=VALUE` (or `RANK`):

COLLBENCH_TEST_VERSION: that rank has this version of collbench. COLLBENCH_TEST_REFUSES: that rank has no device.
COLLBENCH_TEST_DIES: that rank dies between the meeting and the process group.
"""

import os
import signal


def _mine(fault):
    """The value for this rank; None where the fault is not its."""
    rank, _, value = os.environ.get(fault, "").partition("=")
    return value if rank and rank == os.environ.get("RANK") else None


if _mine("COLLBENCH_TEST_VERSION") is not None:
    import collbench

    collbench.__version__ = _mine("COLLBENCH_TEST_VERSION")

if _mine("COLLBENCH_TEST_REFUSES") is not None:
    import collbench.measure.device
    from collbench.errors import InputError

    def _refuse(backend, local_rank, local_world_size):
        raise InputError(f"backend {backend}: rank {os.environ['RANK']} has no GPU of its own")

    collbench.measure.device.open_device = _refuse

if _mine("COLLBENCH_TEST_DIES") is not None:
    import torch.distributed

    torch.distributed.init_process_group = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
