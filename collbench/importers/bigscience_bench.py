"""The first all_reduce_bench (a gist, bigscience, llm-jp): a block of lines from every rank and trial, or means.

    3 data size: 4.0 GB
    3:
     duration: 0.0479 sec
     algo throughput: 1336658447010.4644 bps, 1336.6584 Gbps
     busbw: 1002.4938  Gbps

    tput_avg (Gbps): 1499.18 busbw_avg (Gbps): 1495.65

Definitions: GB is 10^9 bytes, bps bits a second. Throughput is 2 x size / time, busbw nccl-tests'. One call a trial,
timed by each rank's own clock until the result is on the host. Blocks of several ranks may stand in each other: lines
belong together whose numbers do.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from collbench.importers.derived import (
    GBPS_PER_GBITPS,
    MOST_BYTES,
    MOST_RANKS,
    agree,
    exact,
    quotient,
    ranks_of_share,
    single,
    time_us,
    whole,
)
from collbench.importers.launch_line import launched
from collbench.importers.source import Log
from collbench.importers.table import Format, Printed, Refusal, Row, Table

_LONGEST_LINE = 400
_SIZE = re.compile(r"(?:\A|[\s\]:])([0-9]{1,7}) data size: ([0-9.]{1,16}) ?GB\s*\Z")
_LABEL = re.compile(r"\s{0,8}([0-9]{1,7}):\s*\Z")
_DURATION = re.compile(r"\bduration: ([0-9.]{1,24}) sec\b")
_THROUGHPUT = re.compile(r"\balgo throughput: ([0-9.]{1,40}) bps, ([0-9.]{1,24}) Gbps\b")
_BUSBW = re.compile(r"\bbusbw: ([0-9.]{1,24}) {1,4}Gbps\b")
_MEANS = re.compile(r"\btput_avg \(Gbps\): ([0-9.]{1,32}),? {1,8}busbw_avg \(Gbps\): ([0-9.]{1,32})")
_NODES = re.compile(r"\A(?:export )?(?:NUM_NODES|NNODES|SLURM_NNODES)=([0-9]{1,6})\s*\Z")
_OPEN_BLOCKS = 256  # blocks that may stand in each other


@dataclass(slots=True)
class _Block:
    """What one rank printed of one trial, so far."""

    line: int
    rank: int | None
    duration_us: Printed
    throughput_GBps: Printed | None = None
    busbw_GBps: Printed | None = None


def _recognises(log: Log) -> bool:
    return log.holds("algo throughput: ", "tput_avg (Gbps): ")


def _read(log: Log) -> Iterator[Table | Refusal]:
    blocks: list[_Block] = []
    unfinished: list[_Block] = []
    sizes: set[float] = set()
    busbws: list[tuple[int, Printed]] = []
    means: list[tuple[int, Printed, Printed]] = []
    refusals: list[Refusal] = []
    nnodes: tuple[int, str] | None = None
    label: int | None = None
    for number, source, line in log.pieces(without_nccl=True):
        if len(line) > _LONGEST_LINE:
            continue
        if not line.strip():
            label = _rank_of(source)
        elif (named := _LABEL.match(line)) is not None:
            label = int(named[1])
        elif "data size: " in line and (size := _SIZE.search(f"{source} {line}")) is not None:
            value = Printed.read(size[2])
            if value is not None:
                sizes.add(value.value)
        elif "duration: " in line and (match := _DURATION.search(line)) is not None:
            value = Printed.read(match[1])
            if value is None or value.value <= 0:
                refusals.append(Refusal(number, f"a duration of {match[1]} sec"))
            else:
                blocks.append(_Block(number, label, value.times(1e6)))
                unfinished = [*unfinished[-_OPEN_BLOCKS:], blocks[-1]]
            label = None
        elif "algo throughput: " in line and (match := _THROUGHPUT.search(line)) is not None:
            taken = _take_throughput(match, unfinished, sizes)
            if taken is None:
                refusals.append(Refusal(number, "a throughput that is of no duration above it"))
            else:
                unfinished.remove(taken)
        elif "busbw: " in line and (match := _BUSBW.search(line)) is not None:
            if (value := Printed.read(match[1])) is not None:
                busbws.append((number, value.times(GBPS_PER_GBITPS)))
        elif "tput_avg" in line and (match := _MEANS.search(line)) is not None:
            throughput, busbw = Printed.read(match[1]), Printed.read(match[2])
            if throughput is not None and busbw is not None and throughput.value > 0:
                means.append((number, throughput, busbw))
        elif (asked := _NODES.match(line)) is not None:
            nnodes = (int(asked[1]), line.strip()[:40])
        elif "distributed" in line and (started := launched(line)) is not None and started.nnodes:
            nnodes = (started.nnodes, f"the command in line {number}")
    if not blocks and not means:
        yield from refusals
        return
    size_bytes = round(next(iter(sizes)) * 1e9) if len(sizes) == 1 else None
    if size_bytes is None or not 0 < size_bytes <= MOST_BYTES:
        what = "no line says" if not sizes else f"the log says {len(sizes)} things of"
        yield Refusal(
            blocks[0].line if blocks else means[0][0], f"{what} how large the payload was ('0 data size: ...')"
        )
        yield from refusals
        return
    nranks, strays = _give_busbws(busbws, blocks)
    refusals += [Refusal(line, "a busbw that is of no throughput above it") for line in strays]
    for table in (_of_blocks(blocks, size_bytes, nranks), _of_means(means, size_bytes)):
        if table.rows:
            if nnodes is not None and 0 < nnodes[0] <= MOST_RANKS:
                table.nnodes, table.inferred["nnodes"] = nnodes
            yield table
    yield from refusals


def _rank_of(source: str) -> int | None:
    """The rank of a line that is nothing but its label `3:`, which looks like a launcher's prefix."""
    return whole(source.rpartition("/")[2])


def _take_throughput(match: re.Match[str], unfinished: list[_Block], sizes: set[float]) -> _Block | None:
    """Give it to the latest block it can be of."""
    bits_per_s, gigabits = Printed.read(match[1]), Printed.read(match[2])
    if bits_per_s is None or gigabits is None or not agree(bits_per_s.times(1e-9), gigabits):
        return None
    rate_GBps = single(bits_per_s.times(GBPS_PER_GBITPS * 1e-9))
    for block in reversed(unfinished):
        for size_GB in sizes:
            expected = quotient(exact(2 * size_GB * 1e6), block.duration_us)  # GB / us is 1e6 GB/s
            if expected is not None and agree(expected, rate_GBps):
                block.throughput_GBps = rate_GBps
                return block
    return None


def _give_busbws(busbws: list[tuple[int, Printed]], blocks: list[_Block]) -> tuple[int | None, list[int]]:
    """(ranks, lines of those that are of no block): each to the latest block before it whose throughput it is of.

    busbw is (n-1)/n of the throughput, with the n that most neighbours have; where they tell none, to the latest block.
    """
    with_throughput = [block for block in blocks if block.throughput_GBps is not None]
    votes = Counter(
        nranks
        for (_, value), block in zip(busbws, _last_before(busbws, with_throughput), strict=True)
        if block is not None and (nranks := _ranks_of(value, block)) is not None
    )
    nranks = votes.most_common(1)[0][0] if votes else None
    strays = []
    waiting: list[_Block] = []
    coming = iter([*with_throughput, None])
    following = next(coming)
    for line, value in busbws:
        while following is not None and following.line < line:
            waiting = [*waiting[1 - _OPEN_BLOCKS :], following]
            following = next(coming)
        of = [block for block in waiting if nranks is None or _is_share(value, block, nranks)]
        if of:
            of[-1].busbw_GBps = value
            waiting.remove(of[-1])
        else:
            strays.append(line)
    return nranks, strays


def _last_before(busbws: list[tuple[int, Printed]], blocks: list[_Block]) -> Iterator[_Block | None]:
    lines = [block.line for block in blocks]
    for line, _ in busbws:
        place = bisect_left(lines, line)
        yield blocks[place - 1] if place else None


def _ranks_of(busbw_GBps: Printed, block: _Block) -> int | None:
    assert block.throughput_GBps is not None
    ratio = quotient(busbw_GBps, block.throughput_GBps)
    return None if ratio is None else ranks_of_share([ratio])


def _is_share(busbw_GBps: Printed, block: _Block, nranks: int) -> bool:
    assert block.throughput_GBps is not None
    return agree(block.throughput_GBps.times((nranks - 1) / nranks), busbw_GBps)


def _new_table(line: int, nranks: int | None, *notes: str) -> Table:
    table = Table(
        format=FORMAT.name,
        line=line,
        timing="isolated",
        collective="all_reduce",
        nranks=nranks,
        notes=["throughput is 2 x size / time, of which the times are made", *notes],
    )
    if nranks is not None:
        table.inferred["nranks"] = "busbw / throughput"
    return table


def _of_blocks(blocks: list[_Block], size_bytes: int, nranks: int | None) -> Table:
    table = _new_table(blocks[0].line if blocks else 1, nranks, "each row is one rank's time of one trial")
    for block in blocks:
        algbw_GBps = None if block.throughput_GBps is None else block.throughput_GBps.times(0.5)
        time = None if algbw_GBps is None else time_us(size_bytes, algbw_GBps)
        table.rows.append(
            _row(block.line, size_bytes, time or block.duration_us, algbw_GBps, block.busbw_GBps, block.rank)
        )
    return table


def _of_means(means: list[tuple[int, Printed, Printed]], size_bytes: int) -> Table:
    ratios = [
        ratio for _, throughput, busbw in means if (ratio := quotient(single(busbw), single(throughput))) is not None
    ]
    nranks = ranks_of_share(ratios) if ratios else None
    table = _new_table(means[0][0] if means else 1, nranks, "a row is the mean of all trials' throughputs")
    for line, throughput, busbw in means:
        algbw_GBps = single(throughput).times(GBPS_PER_GBITPS / 2)
        time = time_us(size_bytes, algbw_GBps)
        if time is not None:
            busbw_GBps = single(busbw).times(GBPS_PER_GBITPS)
            table.rows.append(_row(line, size_bytes, time, algbw_GBps, busbw_GBps, None))
    return table


def _row(
    line: int, size_bytes: int, time: Printed, algbw: Printed | None, busbw: Printed | None, rank: int | None
) -> Row:
    return Row(
        line=line,
        size_bytes=size_bytes,
        time_us=time,
        count=size_bytes // 4 if size_bytes % 4 == 0 else None,
        dtype="float32",
        redop="sum",
        algbw_GBps=algbw,
        busbw_GBps=busbw,
        more={} if rank is None else {"rank": rank},
    )


FORMAT = Format(
    name="bigscience",
    title="the first all_reduce_bench (bigscience, llm-jp)",
    recognises=_recognises,
    read=_read,
)
