"""Programs in the wild that read nccl-tests' table, each as its rule is described, over what collbench prints.

Written here from what each needs: how it finds rows, which columns it takes, what it takes for success.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from nccl_samples import COLLECTIVES, VERSIONS, halves, style, table
from sample_records import run_record

from collbench.nccl_table import Printer

AR, AG = "all_reduce", "all_gather_into_tensor"

SIZES = [2**power for power in range(3, 31)]
ROWS = [halves(AR, size, size // 4, "float32", 14.2 + size / 200e3, 14.1 + size / 210e3) for size in SIZES]
LEFT, RIGHT = ([row[side][0]["busbw_GBps"] for row in ROWS] for side in (0, 1))
RUN = run_record(
    world_size=4,
    nodes=[{"host": host, "ranks": ranks, "devices": 2 * ["NVIDIA H200"], "pids": [101, 102]}
           for host, ranks in (("n0", [0, 1]), ("gpu-node-17", [2, 3]))],
    groups={"world": [[0, 1, 2, 3]]},
)  # fmt: skip

STYLES = {version: style(version) for version in VERSIONS} | {"collbench's own": style(plain=False)}
every_version = pytest.mark.parametrize("like", STYLES.values(), ids=STYLES)


def close(values, expected):
    """Equal as far as two decimals say."""
    return values == pytest.approx(expected, rel=1e-9, abs=0.0051)


# --- NVIDIA/cloudai --------------------------------------------------------------------------------------------------


def cloudai_rows(text):
    """Rows begin with a digit and are taken if they have exactly 13 tokens."""
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    return [tokens for tokens in rows if len(tokens) == 13]


def cloudai_succeeded(text):
    return "# Out of bounds values" in text and "# Avg bus bandwidth" in text


def cloudai_devices(text):
    """(host, device number) of device lines."""
    lines = [line for line in text.splitlines() if "Rank" in line and "device" in line and "NVIDIA" in line]
    return [re.search(r"on\s+(\S+)\s+device\s+(\d+)", line).groups() for line in lines]


@every_version
def test_cloudai(like):
    text = table(*ROWS, like=like, run=RUN)
    rows = cloudai_rows(text)
    assert [int(tokens[0]) for tokens in rows] == SIZES
    assert close([float(tokens[7]) for tokens in rows], LEFT) and close([float(tokens[11]) for tokens in rows], RIGHT)
    assert cloudai_succeeded(text)
    assert cloudai_devices(text) == [("n0", "0"), ("n0", "1"), ("gpu-node-17", "0"), ("gpu-node-17", "1")]


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "hypercube"])
def test_cloudai_takes_the_rows_of_every_collective_with_an_operator_column(collective):
    text = table(halves(collective, 1048576, 32768, "bfloat16", 28.1, 27.9), like=style())
    assert len(cloudai_rows(text)) == 1
    assert not cloudai_rows(table(halves("hypercube", 1048576, 32768, "bfloat16", 28.1, 27.9), like=style()))


# --- awslabs/awsome-distributed-ai -----------------------------------------------------------------------------------


def nccl_to_csv(text):
    """(size, in-place busbw) of rows with known types, operators and plain decimals."""
    figure = r"\s+(\d+\.?\d*)"
    one_half = rf"{figure}{figure}{figure}\s+(?:\d+|N/A)"
    pattern = (
        rf"^\s*(\d+)\s+(\d+)\s+(?:float|double|int|half)\s+(?:sum|prod|max|min|none)\s+(-?\d+){one_half}{one_half}"
    )
    return [(int(found[1]), float(found[9])) for found in re.finditer(pattern, text, re.MULTILINE)]


def allreduce_check(text):
    """The largest second-last field of rows with a leading blank."""
    return max(float(line.split()[-2]) for line in text.splitlines() if re.match(r"\s+[0-9]", line))


def isolates_the_node(text, exit_code):
    return exit_code != 0 and "out of bound" in text.lower()


@every_version
def test_awslabs(like):
    text = table(*ROWS, like=like, run=RUN)
    found = nccl_to_csv(text)
    assert [size for size, _ in found] == SIZES and close([busbw for _, busbw in found], RIGHT)
    assert close(allreduce_check(text), max(RIGHT))
    assert isolates_the_node(text, exit_code=1) and not isolates_the_node(text, exit_code=0)


# --- aws/aws-parallelcluster -----------------------------------------------------------------------------------------


def parallelcluster(text):
    """Field 12, as awk counts, of the line with 1 GiB of float32."""
    [line] = [line for line in text.splitlines() if re.search(r"1073741824\s+268435456", line)]
    return float(line.split()[12 - 1])


@every_version
def test_parallelcluster(like):
    assert close(parallelcluster(table(*ROWS, like=like)), RIGHT[SIZES.index(2**30)])


# --- GoogleCloudPlatform/cluster-health-scanner ----------------------------------------------------------------------


def health_scanner(text):
    """({size as a power of two: (in-place time, in-place busbw)}, the average's whole part)."""
    rows = [line.split() for line in text.splitlines()]
    found = {
        2 ** round(np.log2(int(tokens[0]))): (float(tokens[9]), float(tokens[11]))
        for tokens in rows
        if len(tokens) == 13 and tokens[2] == "float"
    }
    return found, int(re.search(r"# Avg bus bandwidth\s*:\s*(\d+)", text)[1])


@every_version
def test_cluster_health_scanner(like):
    found, average = health_scanner(table(*ROWS, like=like))
    assert list(found) == SIZES
    assert close([busbw for _, busbw in found.values()], RIGHT)
    assert [time_us for time_us, _ in found.values()] == pytest.approx([row[1][0]["time_us"] for row in ROWS], rel=1e-3)
    assert average == int(sum(LEFT + RIGHT) / len(LEFT + RIGHT))


# --- Lumi-supercomputer/lumi-reframe-tests ---------------------------------------------------------------------------


def lumi(text):
    return float(re.search(r"^\s+134217728.+\s+(?P<busbw>\S+)\s+\S+$", text, re.MULTILINE)["busbw"])


@every_version
def test_lumi(like):
    assert close(lumi(table(*ROWS, like=like)), RIGHT[SIZES.index(134217728)])


# --- microsoft/superbenchmark ----------------------------------------------------------------------------------------


def superbenchmark(text, in_place):
    """The lines between the last that names the left half and the footer; columns counted from the header's end."""
    lines = text.splitlines()
    begin = max(index for index, line in enumerate(lines) if "out-of-place" in line)
    end = next(index for index, line in enumerate(lines) if index > begin and "Out of bounds values" in line)
    body = lines[begin + 1 : end]
    [header] = [line.split() for line in body if "time" in line and "busbw" in line]
    columns = [index - len(header) for index, word in enumerate(header) if word == "busbw"]
    return [float(tokens[columns[in_place]]) for line in body if re.match(r"\s*\d", line) and (tokens := line.split())]


@every_version
def test_superbenchmark(like):
    before = halves("broadcast", 8, 2, "float32", 1.0, 1.0)  # it reads the last table
    text = table(before, *ROWS, like=like)
    assert close(superbenchmark(text, in_place=False), LEFT) and close(superbenchmark(text, in_place=True), RIGHT)


# --- MooreThreads/SimuMax --------------------------------------------------------------------------------------------


def simumax(text):
    """(latency us, us a byte): a line through the times of the first 11 rows whose tokens 5, 6 and 7 are numbers."""
    points = []
    for line in text.splitlines():
        tokens = line.split()
        try:
            [time_us, _, _] = [float(token) for token in tokens[5:8]]
            points.append((int(tokens[0]), time_us))
        except (ValueError, IndexError):
            continue
    sizes, times = zip(*points[:11], strict=True)
    slope, latency = np.polyfit(sizes, times, 1)
    return latency, slope


@every_version
def test_simumax(like):
    latency_us, us_per_byte = simumax(table(*ROWS[10:21], like=like))  # 8 KiB ... 8 MiB
    assert latency_us == pytest.approx(14.2, rel=0.01) and us_per_byte == pytest.approx(1 / 200e3, rel=0.001)


# --- lcskrishna/nccl-rccl-parser -------------------------------------------------------------------------------------


def rccl_parser(text):
    """The average that stands within five lines of the header, and the row between them: one size a run."""
    lines = text.splitlines()
    header = next(index for index, line in enumerate(lines) if "busbw" in line and "time" in line)
    near = lines[header + 1 : header + 6]
    [average] = [float(line.split(":")[1]) for line in near if "Avg bus bandwidth" in line]
    return average, [line.split()[0] for line in near if line.strip()[:1].isdigit()]


@every_version
def test_rccl_parser(like):
    average, sizes = rccl_parser(table(ROWS[20], like=like))
    assert average == pytest.approx((LEFT[20] + RIGHT[20]) / 2, rel=1e-5) and sizes == [str(SIZES[20])]


# --- NVIDIA DCGM, aws-k8s-tester -------------------------------------------------------------------------------------


def average_alone(text):
    return float(re.search(r"# Avg bus bandwidth\s*:\s*([0-9.eE+-]+)", text)[1])


@every_version
def test_the_average_alone(like):
    assert average_alone(table(*ROWS, like=like)) == pytest.approx(sum(LEFT + RIGHT) / 2 / len(ROWS), rel=1e-5)


# --- what they forbid ------------------------------------------------------------------------------------------------


@every_version
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_nothing_after_the_header_misleads_a_parser(collective, like):
    comment = "collbench: all_reduce world 8 bytes skipped: out of memory on rank 0 (host n0)"
    written = []
    printer = Printer(run_record(), written.append, like)
    printer.add(halves(collective, 1048576, 262144, "float32", 35.46, 34.90))
    printer.comment(comment)
    printer.add(halves(collective, 2097152, 524288, "float32", 35.46, 34.90))
    printer.close()
    lines = "".join(written).splitlines()
    assert sum("out-of-place" in line for line in lines) == 1
    header = next(index for index, line in enumerate(lines) if "busbw" in line)
    after = lines[header + 2 :]
    if like.plain:
        assert not any("collbench" in line for line in lines)
    else:
        assert after.pop(1) == f"# {comment}"
    for line in after:
        assert "out-of-place" not in line and not ("time" in line and "busbw" in line)
        assert line == "" or line.startswith("#") or len(line.split()) == (12 if collective == "hypercube" else 13)
        assert line == line.rstrip() or line.startswith("# Avg bus bandwidth")
    assert len(superbenchmark("".join(written), in_place=True)) == 2


def test_device_lines_follow_the_grammar():
    lines = [line for line in table(ROWS[0], run=RUN).splitlines() if "Rank" in line]
    address = r"\[[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\]"
    grammar = rf"#  Rank [ \d]\d Group [ \d]\d Pid [ \d]{{5}}\d on +\S+ device [ \d]\d {address} .+"
    assert len(lines) == 4 and all(re.fullmatch(grammar, line) for line in lines)
