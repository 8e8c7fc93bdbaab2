"""nccl-tests' tables as people keep and post them: one small specimen of each kind of mess."""

from __future__ import annotations

import pytest
from foreign_logs import measurements, read_text
from nccl_texts import ABOVE, FOOT, NEW, OLD, OPTIONS, POWERS, devices, half, log, old_row, row, rows, time_us

WHOLE = log()
NCCL = "node01:1001:1042 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[0] [send] via NET/IB/0"


def summary(imported):
    """(collective, ranks, nodes, rows) of each table."""
    return [
        (table.collective, table.nranks, table.nnodes, len({row.line for row in table.rows}))
        for table in imported.tables
    ]


def is_whole(imported):
    return summary(imported) == [("all_reduce", 8, 2, 5)] and len(measurements(imported)) == 10 and not imported.refused


def each_line(change, text=WHOLE):
    return "\n".join(change(line) for line in text.splitlines()) + "\n"


def test_a_log_as_the_tool_prints_it():
    imported = read_text(WHOLE)
    assert is_whole(imported)
    ((run, first, second, *_),) = imported.records()
    assert run["backend"] == "nccl"
    assert run["options"]["stepfactor"] == 2
    assert [node["host"] for node in run["nodes"]] == ["node00", "node01"]
    assert run["nodes"][1]["ranks"] == [4, 5, 6, 7]
    assert run["imported"]["format"] == "nccl-tests"
    assert (first["size_bytes"], first["count"], first["dtype"], first["redop"]) == (2**20, 2**18, "float32", "sum")
    assert (first["in_place"], second["in_place"]) == (False, True)
    assert first["time_us"] == 51.21
    assert (first["nranks"], first["nnodes"], first["iterations"], first["wrong"]) == (8, 2, 20, 0)
    assert first["timing"] == "pipelined"
    assert "mode" not in first


PREFIXES = {
    "Open MPI's tag": lambda line: f"[1,0]<stdout>:{line}",
    "Open MPI 5's tag": lambda line: f"[prterun-node01-77@1,0]<stdout>: {line}",
    "srun's label": lambda line: f"0: {line}",
    "srun's wide label": lambda line: f"   0: {line}",
    "torchrun": lambda line: f"[default0]:{line}",
    "a rank": lambda line: f"[rank0]: {line}",
    "MPICH's rank": lambda line: f"[0] {line}",
    "Ray": lambda line: f"(worker pid=4242, ip=10.0.0.1) {line}",
    "kubectl's prefix": lambda line: f"[pod/nccl-launcher-x7k2/main] {line}",
    "compose": lambda line: f"worker-1  | {line}",
    "pdsh": lambda line: f"node01: {line}",
    "an address": lambda line: f"10.0.0.1: {line}",
    "a time of day": lambda line: f"10:00:01.123 {line}",
    "RFC 3339": lambda line: f"2026-01-02T03:04:05.123456789Z {line}",
    "a logger's time": lambda line: f"[2026-01-02 03:04:05,123] {line}",
    "syslog's time": lambda line: f"Jan  2 03:04:05 {line}",
    "mpirun's time": lambda line: f"Fri Jan  2 03:04:05 2026[1,0]<stdout>:{line}",
    "time and rank": lambda line: f"2026-01-02T03:04:05Z [1,0]<stdout>:{line}",
    "time and label": lambda line: f"2026-01-02 03:04:05 0: {line}",
    "a level": lambda line: f"[INFO] {line}",
    "a reply": lambda line: f"> {line}",
    "a reply to a reply": lambda line: f"> > {line}",
    "an indent": lambda line: f"      {line}",
    "colours": lambda line: f"\x1b[90m{line}\x1b[0m",
    "colours without their escape": lambda line: f"[90m{line}[0m",
    "a container's JSON": lambda line: '{"log":"' + line + '\\n","stream":"stdout","time":"2026-01-02T03:04:05Z"}',
    "escaped HTML": lambda line: f"[1,0]&lt;stdout&gt;:{line}".replace("  ", "&nbsp; "),
    "no-break spaces": lambda line: line.replace("  ", "\u00a0 "),
    "no-break spaces misread": lambda line: line.replace("  ", "\u00c2\u00a0 "),
    "narrow spaces and marks without width": lambda line: line.replace("  ", "\u202f\u200b "),
    "tabs": lambda line: line if line.startswith("#") else "\t".join(line.split()),
    "carriage returns": lambda line: f"{line}\r",
    "code of a page": lambda line: f"<code>{line}</code>",
    "lost #": lambda line: line.lstrip("#"),
}


@pytest.mark.parametrize("name", PREFIXES)
def test_what_stands_around_a_line_is_taken_off(name):
    imported = read_text(each_line(PREFIXES[name]))
    assert is_whole(imported), (summary(imported), imported.refused)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_an_encoding_is_told_by_its_bytes(encoding):
    from collbench.importers.check import Asked
    from collbench.importers.reading import read_log
    from collbench.importers.registry import FORMATS
    from collbench.importers.source import Log

    assert is_whole(read_log(Log("log", WHOLE.encode(encoding)), FORMATS.values(), Asked()))


def test_a_tag_before_each_piece_of_a_row():
    parts = row(20)
    tagged = f"[1,0]<stdout>:{parts[:52]}[1,0]<stdout>:{parts[52:85]}[1,0]<stdout>:{parts[85:]}"
    text = each_line(PREFIXES["Open MPI's tag"]).replace(f"[1,0]<stdout>:{parts}", tagged)
    assert tagged in text
    assert is_whole(read_text(text))


def test_another_rank_s_words_inside_a_tagged_line():
    torn = f"[1,0]<stdout>:{row(20)[:52]}[1,3]<stdout>:{NCCL}[1,0]<stdout>:{row(20)[52:]}"
    assert is_whole(read_text(each_line(PREFIXES["Open MPI's tag"]).replace(f"[1,0]<stdout>:{row(20)}", torn)))


@pytest.mark.parametrize("at", [52, 85])
def test_nccl_s_lines_inside_a_row(at):
    """A row is printed in three pieces; what NCCL prints meanwhile stands between them."""
    line = row(22)
    body = [*rows(range(20, 22)), line[:at] + NCCL, NCCL, "", line[at:], *rows(range(23, 25))]
    imported = read_text(log(body))
    assert is_whole(imported), (summary(imported), imported.refused)


def test_others_lines_inside_a_row():
    line = row(22)
    noise = "[node01:4242] PMIX ERROR: ERROR in file gds.c at line 168"
    body = [*rows(range(20, 22)), line[:52] + noise, "libibverbs: Warning: no device", line[52:], *rows(range(23, 25))]
    assert is_whole(read_text(log(body)))


def test_nccl_s_lines_everywhere_else():
    text = "\n".join(line for each in WHOLE.splitlines() for line in (NCCL, each, "", NCCL.replace("INFO", "WARN")))
    assert is_whole(read_text(text))


@pytest.mark.parametrize("width", [72, 80, 100])
def test_rows_wrapped_by_a_terminal(width):
    lines = [line[at : at + width] for line in WHOLE.splitlines() for at in range(0, max(1, len(line)), width)]
    imported = read_text("\n".join(lines) + "\n")
    assert is_whole(imported), (summary(imported), imported.refused)


def test_a_row_whose_end_is_lost_counts_by_half():
    imported = read_text(log([*rows(range(20, 24)), row(24)[:95]])[: -len("\n".join(FOOT)) - 1])
    assert [row.in_place for row in imported.tables[0].rows][-1] is False
    assert len(measurements(imported)) == 9
    assert ["in-place half is left out" in each.reason for each in imported.refused] == [True]


def test_a_row_whose_beginning_is_lost_is_refused():
    imported = read_text(log([row(20)[52:], *rows()]))
    assert summary(imported) == [("all_reduce", 8, 2, 5)]
    assert [(each.line, each.reason) for each in imported.refused] == [(17, "the first part of this row is lost")]


def test_a_row_cut_within_its_first_half_is_refused():
    imported = read_text(log([row(20)[:60], *rows(range(21, 25))]))
    assert summary(imported) == [("all_reduce", 8, 2, 4)]
    assert [each.reason for each in imported.refused] == ["the row is torn"]


@pytest.mark.parametrize(
    "mark", ["...", "[...]", "<snip>", "# Truncated smaller message sizes", ". . .", "(output omitted)"]
)
def test_elided_parts(mark):
    listed = [devices()[0], mark, devices()[-1]]
    imported = read_text(log([row(20), mark, *rows(range(21, 25))], listed=listed))
    assert summary(imported) == [("all_reduce", 8, 2, 5)]
    assert imported.tables[0].inferred["nranks"] == "busbw / algbw"
    assert "devices a node" in imported.tables[0].inferred["nnodes"]


def test_fences_between_tests():
    both = f"```bash\n{log()}```\nand then\n```\n{log(program='alltoall_perf', body=_alltoall())}```\n"
    assert summary(read_text(both)) == [("all_reduce", 8, 2, 5), ("all_to_all_single", 8, 2, 5)]


def _alltoall():
    return rows(collective="all_to_all_single", redop="none", wrong=("0", "N/A"))


def test_a_form_that_was_not_checked_or_not_measured():
    imported = read_text(log(_alltoall(), program="alltoall_perf"))
    assert {(record["in_place"], record["wrong"]) for record in measurements(imported)} == {(False, 0), (True, None)}
    unmeasured = [f"{line[:52]}{line[52:85]}      N/A     N/A     N/A    N/A" for line in rows()]
    assert {record["in_place"] for record in measurements(read_text(log(unmeasured)))} == {False}


def test_wrong_data_are_kept_and_counted():
    records = measurements(read_text(log([row(20, wrong=("96", "2.68435e+08")), *rows(range(21, 25))])))
    assert [record["wrong"] for record in records[:2]] == [96, 268435000]


# --- pipe tables, columns in front, halves --------------------------------------------------------------------------


def piped(lines, head, cell=lambda text: text):
    return [
        f"| {' | '.join(head)} |",
        "|---:" * len(head) + "|",
        *(f"| {' | '.join(map(cell, line))} |" for line in lines),
    ]


def test_a_pipe_table_with_thousands_separated():
    head = "size (B), count, type, redop, time (us), algbw (GB/s), busbw (GB/s), time (us), algbw (GB/s), busbw (GB/s)"
    lines = [[words[0], *words[1:4], *words[5:8], *words[9:12]] for words in map(str.split, rows())]
    for line in lines:
        line[0] = f"{int(line[0]):,}"
    imported = read_text("\n".join(piped(lines, head.split(", "))))
    assert summary(imported) == [("all_reduce", 8, None, 5)]
    assert {record["root"] for record in measurements(imported)} == {None}


def test_a_pipe_table_with_bold_cells_and_named_halves():
    head = [
        "size",
        "count",
        "type",
        "redop",
        "root",
        "in-place time (us)",
        "in-place algbw (GB/s)",
        "in-place busbw (GB/s)",
    ]
    lines = [words[:5] + words[9:12] for words in map(str.split, rows())]
    imported = read_text("\n".join(piped(lines, head, lambda text: f"**{text}**")))
    assert summary(imported) == [("all_reduce", 8, None, 5)]
    assert {record["in_place"] for record in measurements(imported)} == {True}


def test_a_column_of_nodes_in_front():
    shapes = ((1, 8), (2, 16), (4, 32))
    body = [f"{nodes:5d} {row(30, n=n)}" for nodes, n in shapes]
    imported = read_text("\n".join([ABOVE, NEW[1].replace("#", " nodes", 1), NEW[2].replace("#", " ", 1), *body]))
    assert summary(imported) == [("all_reduce", n, nodes, 1) for nodes, n in shapes]


def test_a_column_without_a_name_in_front():
    imported = read_text(log([f"{index} {line}" for index, line in enumerate(rows())]))
    assert is_whole(imported)


@pytest.mark.parametrize(("name", "in_place"), [("out-of-place", False), ("in-place", True), (None, False)])
def test_one_half_alone(name, in_place):
    head = [f"#{name:>70}"] if name else []
    head += [NEW[1][: NEW[1].index("#wrong") + 6], NEW[2][: NEW[2].rindex("(us)")]]
    imported = read_text(log([line[:87].rstrip() for line in rows()], head=head))
    assert summary(imported) == [("all_reduce", 8, 2, 5)]
    assert {record["in_place"] for record in measurements(imported)} == {in_place}
    assert ("in_place" in imported.tables[0].inferred) == (name is None)


def test_columns_after_the_halves():
    head = [ABOVE, f"{NEW[1]}      algo     proto   nchannels", NEW[2]]
    imported = read_text(log([f"{line}      Ring    Simple          32" for line in rows()], head=head))
    records = measurements(imported)
    assert {(each["algorithm"], each["protocol"], each["channels"]) for each in records} == {("Ring", "Simple", 32)}
    assert is_whole(imported)


# --- generations ----------------------------------------------------------------------------------------------------


def test_the_old_layout_has_an_error_and_no_count_of_wrong_data():
    imported = read_text(log([old_row(power) for power in POWERS], head=OLD, program=None))
    assert summary(imported) == [("all_reduce", 8, 2, 5)]
    first = measurements(imported)[0]
    assert (first["max_error"], first["wrong"]) == (5e-07, None)


@pytest.mark.parametrize(
    ("collective", "columns", "words"),
    [
        ("all_gather_into_tensor", "", ""),
        ("broadcast", "    root", "       0"),
        ("reduce", "   redop    root", "     sum       0"),
    ],
)
def test_the_old_layout_s_columns_differ_by_collective(collective, columns, words):
    names = "     time   algbw   busbw  error"
    head = [f"#       size         count    type{columns}{names}{names}"]
    divided = 8 if collective.startswith("all_gather") else 1
    body = [
        f"{2**power:12d}  {2**power // 4 // divided:12d}   float{words}"
        + 2 * half(collective, 2**power, time_us(2**power), 8, "0e+00")
        for power in POWERS
    ]
    imported = read_text(log(body, head=head, program=None))
    assert summary(imported) == [(collective, 8, 2, 5)]
    assert {record["root"] for record in measurements(imported)} == {0 if "root" in columns else None}


def test_the_first_version_s_milliseconds():
    names = "     time  algbw  busbw      res"
    lines = [
        "# Using devices",
        *(f"#   Rank {rank:2d} uses device {rank:2d} [0x0{rank}] Tesla P100" for rank in range(4)),
    ]
    lines += [f"#{'out-of-place':>60}{'in-place':>28}", f"#      bytes             N    type      op{names}{names}"]
    for power in POWERS:
        size, time = 2**power, round(time_us(2**power) / 1e3, 3)
        algbw = size / time / 1e6
        a_half = f"  {time:7.3f}  {algbw:5.2f}  {algbw * 1.5:5.2f}    0e+00"
        lines.append(f"{size:12d}  {size // 4:12d}   float     sum{a_half}{a_half}")
    imported = read_text("\n".join(lines))
    assert summary(imported) == [("all_reduce", 4, None, 5)]
    assert measurements(imported)[0]["time_us"] == pytest.approx(time_us(2**20), rel=0.02)


def test_rccl_tests():
    listed = [line.replace("NVIDIA H100", "AMD Instinct MI300X") for line in devices()]
    text = log(listed=["rccl-tests: Version develop:a7809b3", *listed])
    imported = read_text(text)
    assert is_whole(imported)
    assert imported.tables[0].backend == "rccl"
    assert imported.tables[0].versions == {"rccl_tests": "develop:a7809b3"}


def test_versions():
    lines = f"# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902\n{WHOLE}"
    assert read_text(lines).tables[0].versions == {"nccl_tests": "2.17.8", "nccl": "2.29.2"}
    assert read_text(f"NCCL version 2.27.5+cuda12.9\n{WHOLE}").tables[0].versions == {"nccl": "2.27.5+cuda12.9"}


# --- several tests, several jobs ------------------------------------------------------------------------------------


def test_several_tests_in_one_log_are_several_runs():
    imported = read_text(
        log() + log(rows(collective="all_gather_into_tensor", redop="none"), program="all_gather_perf")
    )
    assert summary(imported) == [("all_reduce", 8, 2, 5), ("all_gather_into_tensor", 8, 2, 5)]
    first, second = imported.records()
    assert first[0]["run_id"] != second[0]["run_id"]


def test_headers_alone_of_several_tests():
    both = "\n".join([*NEW, *rows(n=16), *FOOT, *NEW, *rows(n=4), *FOOT])
    assert summary(read_text(both)) == [("all_reduce", 16, None, 5), ("all_reduce", 4, None, 5)]


def test_titles_between_rows_without_a_header():
    text = "\n".join(["====== 1-node ======", *rows(n=8), "====== 4-node ======", *rows(n=32)])
    imported = read_text(text)
    assert summary(imported) == [("all_reduce", 8, 1, 5), ("all_reduce", 32, 4, 5)]
    assert imported.tables[1].inferred["nnodes"] == "'4-node' on line 7"


def test_rows_alone():
    assert summary(read_text("\n".join(rows(n=16)))) == [("all_reduce", 16, None, 5)]


def test_a_repeated_cycle_is_a_pass():
    records = measurements(read_text(log(rows() + rows(slower=1.1))))
    assert len(records) == 20
    places = {(record["size_bytes"], record["in_place"], record["pass"]) for record in records}
    assert len(places) == 20


def test_two_jobs_in_turns_under_one_header_are_two_runs():
    body = [line for pair in zip(rows(), rows(slower=1.5), strict=True) for line in pair]
    imported = read_text(log(body))
    assert summary(imported) == [("all_reduce", 8, 2, 5)] * 2
    assert all("alternate" in table.notes[0] for table in imported.tables)
    fast, slow = (table.rows[0].time_us.value for table in imported.tables)
    assert slow == pytest.approx(1.5 * fast, rel=0.01)


def test_jobs_that_write_side_by_side_are_told_apart_by_their_labels():
    fast, slow = log(listed=devices(1, 1), body=rows(n=1)), log(listed=devices(1, 1), body=rows(n=1, slower=1.5))
    pairs = zip(fast.splitlines(), slow.splitlines(), strict=True)
    imported = read_text("\n".join(line for one, two in pairs for line in (f"0: {one}", f"1: {two}")))
    assert summary(imported) == [("all_reduce", 1, 1, 5)] * 2


def test_jobs_of_one_rank_each_that_write_side_by_side():
    """A build without MPI: as many jobs of one rank as processes."""
    lines = log(listed=devices(1, 1), body=rows(n=1)).splitlines()
    imported = read_text("\n".join(line for line in lines for _ in range(3)))
    assert {table.nranks for table in imported.tables} == {1}
    assert sum(len(table.rows) for table in imported.tables) == 30


def test_groups_that_ran_at_once_have_their_own_ranks():
    imported = read_text(log(rows(n=4), listed=devices(group=lambda rank: rank % 2)))
    (table,) = imported.tables
    assert (table.collective, table.nranks) == ("all_reduce", 4)
    assert any("2 groups of 4" in note for note in table.notes)


# --- what is not stated ---------------------------------------------------------------------------------------------


def test_the_collective_from_the_command_line():
    text = "$ mpirun -np 8 ./build/reduce_scatter_perf -b 1M -e 16M -f 2 -c 0\n"
    both_unchecked = old_like(collective="reduce_scatter_tensor")
    imported = read_text(text + log(both_unchecked, head=OLD, program=None))
    assert summary(imported) == [("reduce_scatter_tensor", 8, 2, 5)]
    assert imported.tables[0].inferred["collective"] == "reduce_scatter_perf on line 1"


def old_like(collective):
    return [
        f"{2**power:12d}  {2**power // 32:12d}   float     sum"
        + 2 * half(collective, 2**power, time_us(2**power), 8, "N/A")
        for power in POWERS
    ]


def test_the_collective_from_the_file_s_name():
    text = log(old_like("reduce_scatter_tensor"), head=OLD, program=None)
    (table,) = read_text(text, "runs/n2/alltoall_output.dat.6").tables
    assert (table.collective, table.inferred["collective"]) == (
        "all_to_all_single",
        "the file's name, alltoall_output.dat.6",
    )


def test_what_may_be_either_is_not_guessed():
    imported = read_text(log(old_like("reduce_scatter_tensor"), head=OLD, program=None))
    assert summary(imported) == [("reduce_scatter_tensor/all_to_all_single", 8, 2, 5)]
    assert "--collective" in imported.tables[0].notes[-1]
    asked = read_text(log(old_like("reduce_scatter_tensor"), head=OLD, program=None), collective="all_to_all_single")
    assert summary(asked) == [("all_to_all_single", 8, 2, 5)]


def test_a_label_that_contradicts_the_numbers():
    shown = [devices(144, 36)[-1]]
    imported = read_text(log(rows(range(29, 34), n=128), listed=shown))
    assert summary(imported) == [("all_reduce", 128, 32, 5)]
    assert any("144" in note and "128" in note for note in imported.tables[0].notes)
    imported = read_text(log(rows(n=4)))
    assert [(table.nranks, table.nnodes) for table in imported.tables] == [(4, None)]
    assert "the log says 8 ranks" in imported.tables[0].notes[0]
    imported = read_text(log(rows(collective="all_gather_into_tensor", redop="none")))
    assert summary(imported) == [("all_gather_into_tensor", 8, 2, 5)]
    assert "the log says all_reduce" in imported.tables[0].notes[0]


def test_ranks_that_the_digits_leave_open_come_from_the_launcher():
    body = rows(range(20, 23), n=2048)
    text = "+ srun -N 512 --ntasks-per-node=4 ./all_reduce_perf -b 1M -e 4M -f 2\n"
    imported = read_text(text + log(body, listed=["..."]))
    assert summary(imported) == [("all_reduce", 2048, 512, 3)]
    assert imported.tables[0].inferred["nranks"] == "the command on line 1"
    text = "$ mpirun -np 2048 -N 4 ./all_reduce_perf -b 1M -e 4M -f 2\n"  # Open MPI's -N: processes of each node
    assert summary(read_text(text + log(body, listed=["..."]))) == [("all_reduce", 2048, 512, 3)]
    unknown = read_text(log(body, listed=["..."]))
    assert unknown.tables[0].nranks is None
    assert "--nranks" in unknown.tables[0].notes[-1]
    assert summary(read_text(log(body, listed=["..."]), nranks=2048, nnodes=512)) == [("all_reduce", 2048, 512, 3)]


def test_a_footer_of_other_rows_is_noted():
    text = WHOLE.replace("# Out of bounds values : 0 OK", "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.5")
    assert "1.5 GB/s" in read_text(text).tables[0].notes[0]


def test_options_are_not_taken_for_training_s_times():
    text = WHOLE.replace("agg iters: 1 validation: 1 graph: 0", "agg iters: 4 validation: 1 graph: 1")
    assert {record["mode"] for record in measurements(read_text(text))} == {"agg_iters=4 cudagraph=1"}
    assert OPTIONS in WHOLE


@pytest.mark.parametrize("trim", [str.rstrip, str.strip])
@pytest.mark.parametrize("width", [72, 80, 90])
def test_rows_wrapped_with_their_blanks_trimmed(width, trim):
    """As an editor or a mail wraps: between words, the blanks at the ends gone."""
    lines = []
    for line in WHOLE.splitlines():
        while len(line) > width:
            at = line.rfind(" ", 0, width)
            lines.append(trim(line[:at]))
            line = line[at:]
        lines.append(trim(line))
    imported = read_text("\n".join(lines) + "\n")
    assert is_whole(imported), (summary(imported), imported.refused)


def test_numbered_lines():
    numbered = "\n".join(f"{number:6d}\t{line}" for number, line in enumerate(WHOLE.splitlines(), start=1))
    assert is_whole(read_text(numbered))


def test_a_diff():
    assert is_whole(read_text(each_line(lambda line: f"+{line}")))


def test_nccl_s_words_behind_a_device():
    text = WHOLE.replace("device  3 [0000:03:00] NVIDIA H100", f"device  3 [0000:03:00] NVIDIA H100{NCCL}", 1)
    assert "H100node01" in text
    assert is_whole(read_text(text))
