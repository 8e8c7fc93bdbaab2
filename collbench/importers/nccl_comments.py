"""What the lines around a table of nccl-tests say about the run: program, options, devices, versions, footer.

What they state is kept apart from what they hint at (a command line, a job script's echo): the data decide on hints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from collbench.importers.launch_line import launched
from collbench.importers.table import Printed
from collbench.importers.words import collective_named, is_uneven

_PROGRAM = re.compile(r"\b([a-z_]{3,20})_perf(?:_mpi)?\b")
_STARTING = re.compile(r"Collective test starting:?\s{0,8}([\w./-]{1,200})")
_DEVICE = re.compile(
    r"\bRank\s{1,8}(\d{1,7})\s{1,8}(?:Group\s{1,8}(\d{1,7})\s{1,8})?(?:Pid\s{1,8}(\d{1,10})\s{1,8})?"
    r"(?:on\s{1,40}(\S{1,255})\s{1,8}|uses\s{1,8})?device\s{1,8}(\d{1,4})\s{0,8}(?:\[([^\[\]]{0,40})\])?\s{0,8}(.{0,120})"
)
_OPTIONS = {
    "nThread": "nthreads",
    "nGpus": "ngpus",
    "minBytes": "minbytes",
    "maxBytes": "maxbytes",
    "step:": "step",
    "iters:": "iters",
    "validation:": "check",
    "graph:": "cudagraph",
    "unalign:": "unalign",
}
_OPTION = re.compile(
    r"(warmup |agg )?(nThread|nGpus|minBytes|maxBytes|step:|iters:|validation:|graph:|unalign:)\s{0,4}(\d{1,19})"
)
_STEP_UNIT = re.compile(r"step:\s{0,4}\d{1,19}\((factor|bytes)\)")
_VERSION = re.compile(
    r"\b(nccl|rccl)-tests:?\s{1,4}[Vv]ersion\s{1,4}(\S{1,80})(?:.{0,40}(?:nccl|rccl)-library=(\d{1,9}))?"
)
_LIBRARY = re.compile(r"\b(NCCL|RCCL) version\s{0,2}:?\s{1,4}(\d{1,3}\.\d{1,3}\.\d{1,4}[\w.+:-]{0,60})")
_BOUNDS = re.compile(r"Out of bounds values\s{0,8}:\s{0,8}(\d{1,12})\s{1,8}(OK|FAILED)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s{0,8}:\s{0,8}([\d.e+-]{1,24})")
_NODES = re.compile(
    r"(?:^|[\s=(])(?:(\d{1,6})[ -]?nodes?\b(?! cluster)|"
    r"(?:SLURM_N?NODES|SLURM_JOB_NUM_NODES|nnodes|num_nodes)[=: ]{1,2}(\d{1,6})\b)",
    re.IGNORECASE,
)
_RANKS = re.compile(
    r"(?:^|[\s=(,])(?:(?:world[_ ]size|SLURM_NTASKS|nranks|num_ranks|n_ranks)\s{0,2}[=:]\s{0,2}(\d{1,7})\b|"
    r"(\d{1,7}) (?:GPUs|ranks)\b)",
    re.IGNORECASE,
)
_TITLE = re.compile(r"[\s#=*_-]{0,40}([1-9]\d{0,5})[ -]?(nodes?|gpus?|ranks?)\b[^|\d]{0,60}\Z", re.IGNORECASE)
_GPUS_EACH = re.compile(r"_perf\S{0,8}(?=\s).{0,400}?\s-g\s?(\d{1,4})\b")
_AMD = re.compile(r"\b(?:AMD|Instinct|MI\d{2,3}\w?|Radeon|gfx\d{3,4})\b")

_OF_INTEREST = re.compile(  # words alone: a class among them would make the search several times as slow
    "Collective test starting|nThread|minBytes|nccl-tests|rccl-tests|CCL version|Rank |_perf|Out of bounds|Avg bus|"
    "node|Node|NODE|rank|RANK|world|WORLD|NTASKS|GPUs|Blocking Enabled|Reducing maxBytes"
)


@dataclass(frozen=True, slots=True)
class Device:
    """One line of `# Using devices`."""

    rank: int
    group: int
    pid: int | None
    host: str | None
    number: int
    name: str


@dataclass(slots=True)
class Run:
    """One test, from what is said above its table to its footer.

    jobs: how many tests began before the first row: more than one ran side by side, all writing here.
    hints: (value, where it is from) by what it is about; later ones are nearer to the table.
    """

    line: int
    program: str | None = None
    is_uneven: bool = False
    jobs: int = 0
    devices: list[Device] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    is_rccl: bool = False
    average_GBps: float | None = None
    failed: int | None = None
    is_over: bool = False
    hints: dict[str, list[tuple[Any, str]]] = field(default_factory=dict)

    def hint(self, what: str, value: Any, where: str) -> None:
        self.hints.setdefault(what, []).append((value, where))


def is_of_interest(text: str) -> bool:
    """Whether `read_comment` may find something in this line; fast."""
    return _OF_INTEREST.search(text) is not None


def begins_run(text: str) -> bool:
    """Whether a test begins with this line."""
    return "Collective test starting" in text or "minBytes" in text or bool(_VERSION.search(text))


def read_title(text: str) -> tuple[str, int] | None:
    """What a title says: `====== 2-node ======` -> ("nnodes", 2), `## 16 GPUs` -> ("nranks", 16)."""
    match = _TITLE.match(text)
    if match is None:
        return None
    return ("nnodes" if match[2].lower().startswith("node") else "nranks"), int(match[1])


def ends_run(text: str) -> bool:
    """Whether a line is one of those below a table."""
    return any(mark in text for mark in ("Out of bounds", "Avg bus", "concluded", "GPU memory usage"))


def read_comment(run: Run, number: int, text: str) -> None:
    """Add what one line says to its run."""
    starting = _STARTING.search(text)
    if starting is not None:
        run.program = collective_named(starting[1])
        run.is_uneven = is_uneven(starting[1])
    elif "minBytes" in text:
        run.jobs += 1
        _read_options(run, text)
    elif (device := _DEVICE.search(text)) is not None:
        rank, group, pid, host, index, _, name = device.groups()
        run.is_rccl = run.is_rccl or bool(_AMD.search(name))
        run.devices.append(
            Device(int(rank), int(group or 0), int(pid) if pid else None, host, int(index), " ".join(name.split()))
        )
    elif (bounds := _BOUNDS.search(text)) is not None:
        run.failed, run.is_over = int(bounds[1]), True
    elif (average := _AVERAGE.search(text)) is not None:
        run.is_over = True
        number_read = Printed.read(average[1])
        run.average_GBps = None if number_read is None else number_read.value
    elif "Blocking Enabled" in text:
        run.options["blocking"] = 3 if "outer" in text else 2 if "no barrier" in text else 1
    else:
        _read_versions(run, text)
        _read_hints(run, number, text)


def _read_options(run: Run, text: str) -> None:
    for kind, name, value in _OPTION.findall(text):
        to = {"warmup ": "warmup_iters", "agg ": "agg_iters"}.get(kind, _OPTIONS[name])
        run.options[to] = int(value)
    step, unit = run.options.pop("step", None), _STEP_UNIT.search(text)
    if step is not None and unit is not None:
        run.options["stepfactor" if unit[1] == "factor" else "stepbytes"] = step


def _read_versions(run: Run, text: str) -> None:
    version = _VERSION.search(text)
    if version is not None:
        run.is_rccl = run.is_rccl or version[1] == "rccl"
        run.versions[f"{version[1]}_tests"] = version[2]
        if version[3]:
            run.versions[version[1]] = library_version(int(version[3]))
    library = _LIBRARY.search(text)
    if library is not None:
        run.is_rccl = run.is_rccl or library[1] == "RCCL"
        run.versions[library[1].lower()] = library[2]


def library_version(code: int) -> str:
    """22703 -> 2.27.3, 2708 -> 2.7.8 (nccl.h: NCCL_VERSION)."""
    thousands = 10_000 if code >= 10_000 else 1_000
    return f"{code // thousands}.{code % thousands // 100}.{code % 100}"


def _read_hints(run: Run, number: int, text: str) -> None:
    for word in _PROGRAM.findall(text):
        collective = collective_named(word)
        if collective is not None:
            run.hint("collective", collective, f"{word}_perf on line {number}")
    if (asked := launched(_PROGRAM.split(text, maxsplit=1)[0])) is not None:
        gpus = _GPUS_EACH.search(text)
        if asked.nranks:
            run.hint("nranks", asked.nranks * (int(gpus[1]) if gpus else 1), f"the command on line {number}")
        if asked.nnodes:
            run.hint("nnodes", asked.nnodes, f"the command on line {number}")
        return
    for pattern, what in ((_NODES, "nnodes"), (_RANKS, "nranks")):
        match = pattern.search(text)
        value = int(next(group for group in match.groups() if group)) if match is not None else 0
        if match is not None and value:
            run.hint(what, value, f"'{match[0].strip(' =(,')}' on line {number}")
