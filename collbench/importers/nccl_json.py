"""nccl-tests' JSON report (-J), file versions 1 (2.17.3), 2 (2.19.2) and 3 (2.19.6), whole or cut by a kill.

What its writer gets wrong (nccl-tests src/util.cu): truths are the strings "true" and "false", the root is a string of
six characters, nan is "nan" and inf no JSON at all, a killed run leaves a file without its end, `devices` names only
the first GPU of each process, and nothing but argv[0] says what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from collbench.collectives import COLLECTIVES
from collbench.importers.derived import count_in
from collbench.importers.json_text import Lines, Walk, integer, number, shown, text_of, time_us_of, with_json_numbers
from collbench.importers.nccl_comments import library_version
from collbench.importers.source import Log
from collbench.importers.table import Format, Refusal, Row, Table
from collbench.importers.words import collective_named, dtype_named, is_uneven, redop_named

_NAME = "nccl-json"
_SIDES = ("out_of_place", "in_place")
_START = re.compile(r'\{\s{0,200}"')
_MOST_STARTS = 200  # braces tried as the start of a report in one file

# The whole environment is in the file, secrets too: kept is what changes a measurement.
_KEPT = re.compile(r"(?:NCCL|RCCL|FI|UCX|GLOO)_\w{1,80}|(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES|HSA_\w{1,80}")

_PER_ITER = ("min_us", "max_us", "avg_us", "p50_us", "p95_us", "p99_us", "stdev_us", "cv_pct")
_MOST_SAMPLES = 1_000_000


@dataclass(slots=True)
class _Report:
    """One report as far as it is whole. results: (where it begins, object).  cut_at: where a result is torn."""

    start: int
    end: int = 0
    whole: bool = False
    cut_at: int | None = None
    results: list[tuple[int, Any]] = field(default_factory=list)
    members: dict[str, Any] = field(default_factory=dict)

    @property
    def program(self) -> str:
        return next(iter(self.texts("args")), "")

    def part(self, name: str) -> dict[str, Any]:
        value = self.members.get(name)
        return value if isinstance(value, dict) else {}

    def texts(self, name: str) -> list[str]:
        value = self.members.get(name)
        return [text for text in value if type(text) is str] if isinstance(value, list) else []


def _recognises(log: Log) -> bool:
    return log.holds('"alg_bw"') and log.holds('"results"')


def _read(log: Log) -> Iterator[Table | Refusal]:
    for written in (log.text, log.cleaned_text):  # a launcher may have labelled each line of it
        text = with_json_numbers(written())
        reports = list(_reports(text))
        for report in reports:
            yield from _tables(report, Lines(text))
        if reports:
            return


def _reports(text: str) -> Iterator[_Report]:
    start = 0
    for _ in range(_MOST_STARTS):
        match = _START.search(text, start)
        if match is None or text.find('"results"', match.start()) < 0:
            return
        report = _report(text, match.start())
        if report.results or report.cut_at is not None:
            yield report
            start = report.end
        else:
            start = match.start() + 1


def _report(text: str, start: int) -> _Report:
    walk, report = Walk(text, start), _Report(start)
    for key, at, value in walk.members("results"):
        if key != "results":
            report.members[key] = value
        elif isinstance(value, dict):
            report.results.append((at, value))
    report.end, report.whole, report.cut_at = walk.end, walk.whole, walk.torn_at
    return report


def _tables(report: _Report, lines: Lines) -> Iterator[Table | Refusal]:
    begins, modes = lines.at(report.start), _modes(report)
    tables: dict[str, Table] = {}
    refusals = []
    for index, (at, result) in enumerate(report.results):
        line = lines.at(at)
        name = text_of(result.get("experiment_name"))
        table = tables.get(name)
        if table is None:
            table = tables[name] = _table(report, name, begins)
        for row in _rows(result, line, _origin(name), report.part("config"), modes):
            if isinstance(row, Row):
                table.rows.append(row)
            else:
                refusals.append(Refusal(line, f"result {index + 1}: {row}"))
    if report.cut_at is not None:
        refusals.append(Refusal(lines.at(report.cut_at), f"the file is cut in result {len(report.results) + 1}"))
    for table in tables.values():
        if not report.whole:
            table.notes.append(
                f"the file has no end: nccl-tests was killed or still ran; {len(report.results)} results are whole"
            )
        if table.rows:
            yield table
    yield from refusals


@dataclass(frozen=True, slots=True)
class _Origin:
    """What `experiment_name` says: nccl-tests leaves it empty, collbench writes `all_reduce/inter/pipelined/pass-2`."""

    collective: str
    group: str
    timing: str
    sweep_pass: int = 0
    concurrent: bool = True
    mode: str | None = None

    @property
    def more(self) -> dict[str, str]:
        group = {"group": self.group} if self.group != "?" else {}
        return group | ({"mode": self.mode} if self.mode else {})


def _origin(name: str) -> _Origin | None:
    """None for a report that is not collbench's."""
    words = name.split("/")
    if len(words) < 3 or words[0] not in COLLECTIVES or words[2] not in ("pipelined", "isolated"):
        return None
    sweep_pass, concurrent, mode = 0, True, None
    for word in words[3:]:
        if word == "one-at-a-time":
            concurrent = False
        elif re.fullmatch(r"pass-\d{1,6}", word):
            sweep_pass = int(word.removeprefix("pass-")) - 1
        else:
            mode = word
    return _Origin(words[0], words[1], words[2], sweep_pass, concurrent, mode)


def _table(report: _Report, name: str, line: int) -> Table:
    origin = _origin(name)
    table = Table(format=_NAME, line=line, timing=origin.timing if origin else "pipelined", is_document=True)
    table.collective = origin.collective if origin else collective_named(report.program) or collective_named(name)
    is_rccl = "rccl_version" in report.members
    table.backend = None if origin else "rccl" if is_rccl else "nccl"
    version = _version(report.members.get("rccl_version" if is_rccl else "nccl_version"))
    if version is not None:
        table.versions["rccl" if is_rccl else "nccl"] = version
    pairs = (text.partition("=") for text in report.texts("env"))
    table.environment = {key: value for key, _, value in pairs if _KEPT.fullmatch(key)}
    table.more = {"arguments": report.texts("args")} | ({"started": started} if (started := _moment(report)) else {})
    _place(table, report, None if origin is None else origin.group)
    if is_uneven(report.program):
        table.notes.append("an uneven all-to-all (alltoallv): its sizes are the most that any rank sends or receives")
    return table


def _moment(report: _Report) -> str | None:
    """When it began; nccl-tests gives local time without its zone."""
    try:
        return datetime.fromisoformat(text_of(report.members.get("start_time"))).isoformat()
    except ValueError:
        return None


def _version(code: Any) -> str | None:
    known = integer(code)
    return library_version(known) if known is not None and 1000 <= known < 1_000_000 else None


# --- ranks and nodes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Device:
    rank: int
    group: int
    host: str
    process: tuple[str, int]
    name: str


def _place(table: Table, report: _Report, group: str | None) -> None:
    """Ranks and nodes, from the devices that the report lists."""
    config = report.part("config")
    listed = [device for each in _listed(config, report) if (device := _device(each)) is not None]
    if not listed or len({device.rank for device in listed}) != len(listed):
        return
    threads, gpus = integer(config.get("nthreads")) or 1, integer(config.get("ngpus")) or 1
    per_process = threads * gpus
    processes = {device.process for device in listed}
    if per_process > 1 and len(listed) == len(processes) and len(listed) * per_process <= 1_000_000:
        listed = [
            _Device(device.rank + step, device.group, device.host, device.process, device.name)
            for device in listed
            for step in range(per_process)
        ]
        table.inferred["nranks"] = f"{len(processes)} processes of {threads} threads with {gpus} GPUs each"
    hosts = list(dict.fromkeys(device.host for device in listed))
    table.nodes = [
        {
            "host": host,
            "ranks": [device.rank for device in listed if device.host == host],
            "devices": [device.name for device in listed if device.host == host],
        }
        for host in hosts
    ]
    groups: dict[int, list[_Device]] = {}
    for device in listed:
        groups.setdefault(device.group, []).append(device)
    shapes = {(len(members), len({member.host for member in members})) for members in groups.values()}
    if group in (None, "?", "world") or len(groups) > 1:
        if len(shapes) == 1:
            table.nranks, table.nnodes = shapes.pop()
        else:
            table.notes.append("its groups are of different sizes: what one of them took is not in the file")
    elif group == "intra":
        table.nnodes = 1


def _listed(config: dict[str, Any], report: _Report) -> list[Any]:
    devices = config.get("devices") or report.members.get("devices")
    return devices if isinstance(devices, list) else []


def _device(each: Any) -> _Device | None:
    if not isinstance(each, dict) or (rank := integer(each.get("rank"))) is None:
        return None
    host, pid = text_of(each.get("hostname")), integer(each.get("pid")) or 0
    return _Device(rank, integer(each.get("group")) or 0, host, (host, pid), text_of(each.get("device_info")))


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows(
    result: dict[str, Any], line: int, origin: _Origin | None, config: dict[str, Any], modes: dict[str, Any]
) -> Iterator[Row | str]:
    """The two halves of a result, each a row or the reason why it is none."""
    size = integer(result.get("size"))
    if size is None:
        yield f"its size is {shown(result.get('size'))}, no number of bytes"
        return
    collective = COLLECTIVES[origin.collective] if origin else None
    for index, side in enumerate(_SIDES):
        half = result.get(side)
        if half is None:
            continue  # rccl-tests -O leaves one out
        if not isinstance(half, dict):
            yield f"{side} is {shown(half)}, no result"
        elif "time" not in half and "cpu_time" in half:
            yield f"{side} has the CPU's time alone (-C): how long it takes to start the operation, not to do it"
        elif (time_us := time_us_of(half.get("time"))) is None or time_us.value <= 0:
            yield f"{side} took {shown(half.get('time'))} us, which is no time"
        else:
            root = number(result.get("root"))
            own = modes
            if origin and collective:
                form = collective.halves()[index][0]  # torch may have one form alone: then both halves are of it
                own = {"in_place": form, "pass": origin.sweep_pass, "concurrent": origin.concurrent, **origin.more}
            yield Row(
                line=line,
                size_bytes=size,
                time_us=time_us,
                count=integer(result.get("count")),
                dtype=dtype_named(result.get("type")),
                redop=redop_named(result.get("redop")),
                root=int(root.value) if root is not None and 0 <= root.value < 2**31 else None,
                in_place=side == "in_place",
                wrong=count_in(number(half.get("nwrong"))),
                algbw_GBps=number(half.get("alg_bw")),
                busbw_GBps=number(half.get("bus_bw")),
                more=_more(result, side, config) | own,
            )


def _more(result: dict[str, Any], side: str, config: dict[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {}
    iterations = integer(result.get("actual_iterations"))
    if iterations is None:
        iterations = integer(config.get("iterations"))
    if iterations:
        more["iterations"] = iterations
    per_iter = result.get(f"{side}_per_iter")
    if isinstance(per_iter, dict):
        figures: dict[str, Any] = {name: known.value for name in _PER_ITER if (known := number(per_iter.get(name)))}
        figures["skipped_iterations"] = integer(per_iter.get("skipped_iterations"))
        times = per_iter.get("times_us")
        samples = [number(time) for time in times[:_MOST_SAMPLES]] if isinstance(times, list) else []
        figures["times_us"] = [time.value for time in samples if time is not None]
        more["per_iter"] = figures
    return more


def _modes(report: _Report) -> dict[str, Any]:
    """What sets these times apart from those of back-to-back calls, in the words of this program's own records."""
    config, words = report.part("config"), []
    aggregated, graph = integer(config.get("aggregated_iterations")) or 1, integer(config.get("graph")) or 0
    if aggregated > 1:
        words.append(f"agg_iters={aggregated}")
    if text_of(config.get("blocking_collectives")) == "true" or config.get("blocking_collectives") is True:
        words.append("blocking")
    if graph:
        words.append(f"cudagraph={graph}")
    if is_uneven(report.program):
        words.append("uneven")
    return {"mode": " ".join(words)} if words else {}


FORMAT = Format(name=_NAME, title="nccl-tests -J: JSON report", recognises=_recognises, read=_read)
