"""The options of nccl-tests that torch gives no way to: what `run` says of them, in `--help` and where one is given."""

from __future__ import annotations

import re

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


# What these do where they are not given, and here always; said all the same, they ask for nothing.
_AS_HERE = {"-t": "1", "-g": "1", "-p": "0", "-y": "0", "-R": "0", "-D": "0"}


def without_impossible(argv: list[str]) -> list[str]:
    """The arguments without those options of nccl-tests that cannot be had here; InputError where one asks for more
    than what is done anyway."""
    kept: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        flag, _, value = word.partition("=")
        if re.fullmatch(r"-[tgpyRxDV]\d+", word):
            flag, value = word[:2], word[2:]
        found = next((letter for letter, (name, _) in NOT_POSSIBLE.items() if flag in _spellings(letter, name)), None)
        if found is None:
            kept.append(word)
            continue
        value = value or (words.pop(0) if words and words[0].isdigit() else "")
        if value != _AS_HERE.get(found):
            why = NOT_POSSIBLE[found][1]
            raise InputError(f"{flag} of nccl-tests is not to be had through torch: {why} ('collbench run --help')")
    return kept


def _spellings(letter: str, name: str) -> tuple[str, str, str]:
    return letter, f"--{name}", f"--{name.replace('_', '-')}"
