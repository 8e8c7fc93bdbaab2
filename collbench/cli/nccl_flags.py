"""The options of nccl-tests that torch gives no way to: what `run` says of them, in `--help` and where one is given."""

from __future__ import annotations

from collbench.errors import InputError

# option: (long word, why not, and what to do instead). README.md holds the same table.
NOT_POSSIBLE = {
    "-t": ("nthreads", "a rank is a process: start more with --nproc (torchrun: --nproc-per-node)"),
    "-g": ("ngpus", "a rank has one GPU: start more with --nproc (torchrun: --nproc-per-node)"),
    "-p": ("parallel_init", "torch creates the communicators; how long that took is in the results (init)"),
    "-y": ("stream_null", "torch chooses the stream of a collective"),
    "-R": ("local_register", "whether buffers are registered with NCCL is torch's to decide"),
    "-x": ("cta_policy", "a setting of the communicator, which torch creates"),
    "-D": ("device_implementation", "kernels of nccl-tests' own, which training does not run"),
    "-V": ("device_cta_count", "kernels of nccl-tests' own, which training does not run"),
}

HELP = "nccl-tests' options that torch gives no way to:\n" + "\n".join(
    f"  {letter}, --{word:<22}{why}" for letter, (word, why) in NOT_POSSIBLE.items()
)


def refuse_impossible(argv: list[str]) -> None:
    """InputError for an option of nccl-tests that cannot be had here."""
    for word in argv:
        flag = word.partition("=")[0]
        for letter, (name, why) in NOT_POSSIBLE.items():
            if flag in (letter, f"--{name}", f"--{name.replace('_', '-')}"):
                raise InputError(f"{flag} of nccl-tests is not to be had through torch: {why} ('collbench run --help')")
