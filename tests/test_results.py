from __future__ import annotations

import json
import math
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import measurement, run_record, write_lines

from collbench.errors import InputError
from collbench.results import ResultsWriter, cell_key, load_results
from collbench.results_frame import read_results

SKIP = {"kind": "skip", "run_id": "r1", "collective": "all_reduce", "group": "world", "size_bytes": 8, "reason": "why"}
END = {"kind": "end", "run_id": "r1", "finished": "later", "measurements": 1, "skips": 1, "exit_code": 0}

OF_KINDS = {
    "aggregates": {"kind": "aggregate", "run_id": "r1", "collective": "all_reduce", "group": "inter", "groups": 2},
    "overlaps": {"kind": "overlap", "run_id": "r1", "collective": "all_reduce", "group": "world"},
    "inits": {"kind": "init", "run_id": "r1", "group": "inter", "groups": 2, "create_us": 812.5},
}

CONTRACT_COLUMNS = [
    "run_id", "collective", "group", "group_ranks", "nranks", "nnodes", "dtype", "redop", "root", "in_place",
    "size_bytes", "count", "timing", "concurrent", "iterations", "time_us", "time_min_us", "time_p50_us", "time_p95_us",
    "time_max_us", "time_rank_max_us", "slowest_rank", "algbw_GBps", "busbw_GBps", "wrong",
]  # fmt: skip


def lines_of(*records):
    return [json.dumps(record) for record in records]


def append_all(path, *records):
    writer = ResultsWriter(path)
    for record in records:
        writer.append(record)
    writer.close()


# --- round trips -----------------------------------------------------------------------------------------------------

positive = st.floats(1e-3, 1e12, allow_nan=False)
measurements = st.builds(
    measurement,
    collective=st.sampled_from(["broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"]),
    group=st.sampled_from(["world", "intra", "inter"]),
    group_ranks=st.none() | st.lists(st.integers(0, 4095), max_size=4),
    nranks=st.integers(1, 4096),
    dtype=st.none() | st.sampled_from(["float32", "bfloat16"]),
    root=st.none() | st.integers(0, 7),
    in_place=st.none() | st.booleans(),
    size_bytes=st.integers(0, 2**62),
    count=st.none() | st.integers(0, 2**62),
    time_us=positive,
    time_p95_us=st.none() | positive,
    timing=st.sampled_from(["isolated", "pipelined"]),
    wrong=st.none() | st.integers(0, 2**40),
    note=st.text(max_size=20),
)


@settings(deadline=None, max_examples=50)
@given(st.lists(measurements, max_size=5))
def test_records_come_back_as_they_were_written(records):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl"
        append_all(path, run_record(), *records, SKIP, END)
        results = load_results(path)
        assert results.as_document() == {"runs": [run_record()], "measurements": records, "skips": [SKIP]}
        assert results.ends == [END]
        assert results.torn_at_byte is None
        frame = read_results(path)
        assert frame["time_us"].tolist() == [record["time_us"] for record in records]


def test_records_of_other_kinds_are_kept_apart_from_measurements(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_record(), *OF_KINDS.values(), measurement(), *OF_KINDS.values(), END)
    results = load_results(path)
    for name, record in OF_KINDS.items():
        assert getattr(results, name) == [record, record]
    of_kinds = {name: [OF_KINDS[name]] * 2 for name in ("aggregates", "overlaps")}
    plain = {"runs": [run_record()], "measurements": [measurement()], "skips": []}
    assert results.as_document() == plain | of_kinds
    assert len(read_results(path)) == 1


@pytest.mark.parametrize("name", OF_KINDS)
def test_records_of_other_kinds_belong_to_a_run_too(tmp_path, name):
    kind = OF_KINDS[name]["kind"]
    path = write_lines(tmp_path / "r.jsonl", run_record(), {**OF_KINDS[name], "run_id": "r7"})
    with pytest.raises(InputError, match=rf"r\.jsonl:2: {kind} of run 'r7', which no run record before it describes"):
        load_results(path)


def test_a_file_that_knows_no_mode_holds_the_same_cells(tmp_path):
    assert cell_key({**measurement(), "mode": None}) == cell_key(measurement())


def test_every_record_is_a_line_that_is_on_disk_at_once(tmp_path):
    writer = ResultsWriter(tmp_path / "new" / "folder" / "r.jsonl")
    for written, record in enumerate([run_record(), measurement(), SKIP, END], start=1):
        writer.append(record)
        assert len((tmp_path / "new" / "folder" / "r.jsonl").read_text().splitlines()) == written
    writer.close()


def test_blank_lines_are_no_damage(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(["", *lines_of(run_record()), "", *lines_of(measurement()), ""]))
    assert len(load_results(path).measurements) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_json_cannot_hold_is_never_written(tmp_path, value):
    path = tmp_path / "r.jsonl"
    writer = ResultsWriter(path)
    writer.append(run_record())
    before = path.read_bytes()
    with pytest.raises(ValueError):
        writer.append(measurement(time_us=value, algbw_GBps=None, busbw_GBps=None))
    writer.close()
    assert path.read_bytes() == before


# --- read_results ----------------------------------------------------------------------------------------------------


def test_the_frame_has_a_row_a_measurement_and_the_contracts_columns(tmp_path):
    path = write_lines(
        tmp_path / "r.jsonl",
        run_record("r1", backend="gloo", world_size=2),
        measurement("r1", time_us=10.0),
        SKIP,
        run_record("r2", backend="nccl", world_size=8),
        measurement("r2", time_us=20.0, samples_us=[1.0, 2.0]),
    )
    frame = read_results(path)
    assert len(frame) == 2
    assert [name for name in CONTRACT_COLUMNS if name not in frame.columns] == []
    assert "kind" not in frame.columns
    assert frame["backend"].tolist() == ["gloo", "nccl"]
    assert frame["world_size"].tolist() == [2, 8]
    assert frame["time_us"].tolist() == [10.0, 20.0]
    assert frame["group_ranks"].tolist() == [[0, 1], [0, 1]]
    assert frame["samples_us"].tolist()[1] == [1.0, 2.0]
    assert frame["started"].notna().all()


def test_the_columns_are_there_even_where_nothing_is_known(tmp_path):
    bare = {"kind": "measurement", "run_id": "r1", "collective": "reduce", "size_bytes": 8, "time_us": 1.5,
            "timing": "pipelined"}  # fmt: skip
    for records in ([], [bare]):
        frame = read_results(write_lines(tmp_path / "r.jsonl", run_record(), *records))
        assert len(frame) == len(records)
        assert [name for name in CONTRACT_COLUMNS if name not in frame.columns] == []
    assert frame["busbw_GBps"].isna().all()


# --- torn and damaged files ------------------------------------------------------------------------------------------


def test_wherever_the_last_line_is_torn_it_is_dropped_and_overwritten(tmp_path):
    path = tmp_path / "r.jsonl"
    whole = "".join(line + "\n" for line in lines_of(run_record(), measurement(time_us=1.0)))
    last = lines_of(measurement(time_us=2.0, note="µ"))[0].encode()
    for kept in range(1, len(last), 7):
        path.write_bytes(whole.encode() + last[:kept])
        with pytest.warns(UserWarning, match=r"r\.jsonl:3: the last line is torn .* ignored"):
            results = load_results(path)
        assert [record["time_us"] for record in results.measurements] == [1.0]
        assert results.torn_at_byte == len(whole)
        append_all(path, measurement(time_us=3.0))
        assert [record["time_us"] for record in load_results(path).measurements] == [1.0, 3.0]
        assert path.read_bytes().startswith(whole.encode())


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join(lines_of(run_record(), measurement(time_us=1.0), measurement(time_us=2.0))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_results(path).torn_at_byte is None
    append_all(path, measurement(time_us=3.0))
    assert [record["time_us"] for record in load_results(path).measurements] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("tail", ["12", "[1]", '{"a":NaN}', '"x"', "[" * 100000])
def test_reader_and_writer_agree_on_what_is_torn(tmp_path, tail):
    path = tmp_path / "r.jsonl"
    path.write_text("\n".join([*lines_of(run_record()), tail]))
    with pytest.warns(UserWarning, match="torn"):
        load_results(path)
    append_all(path, measurement())
    assert len(load_results(path).measurements) == 1


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 10**6), st.binary(max_size=8))
def test_damage_is_an_input_error_never_another(at, length, garbage):
    whole = "".join(line + "\n" for line in lines_of(run_record(), measurement(), SKIP, END)).encode()
    at %= len(whole)
    damaged = whole[:at] + garbage + whole[at + length % 40 :]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "r.jsonl"
        path.write_bytes(damaged)
        try:
            assert load_results(path).runs
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)


def with_damage(*changed):
    """A file whose third line is `changed`, followed by one more good line."""
    return "".join(f"{line}\n" for line in [*lines_of(run_record(), measurement()), *changed, *lines_of(measurement())])


@pytest.mark.parametrize(
    "line",
    [
        '{"kind":"measurement","run_id":"r1","coll',
        "not JSON",
        "[1, 2]",
        "7",
        "null",
        '{"kind":"measurement"} trailing',
        "[" * 100000,
    ],
    ids=lambda line: line[:30],
)
def test_damage_in_the_middle_names_file_and_line(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text(with_damage(line))
    with pytest.raises(InputError, match=r"r\.jsonl:3: .*(not a record|restore)"):
        load_results(path)


@pytest.mark.parametrize(("field", "value"), [("time_us", "NaN"), ("time_us", "Infinity"), ("x", "-Infinity")])
def test_a_number_that_is_none_is_refused_wherever_it_stands(tmp_path, field, value):
    line = f'{json.dumps(measurement())[:-1]},"{field}":{value}}}'
    for text in (with_damage(line), "\n".join([*lines_of(run_record()), line, ""])):
        (tmp_path / "r.jsonl").write_text(text)
        with pytest.raises(InputError, match=rf"r\.jsonl:\d: .*holds {value}, .*an unknown value is null"):
            load_results(tmp_path / "r.jsonl")


def test_binary_garbage_is_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_bytes(bytes(range(256)) * 8)
    with pytest.raises(InputError, match=r"r\.jsonl:1: not a record of a collbench\.results/1 file"):
        load_results(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"collective": None}, "measurement without collective"),
        ({"size_bytes": None}, "measurement without size_bytes"),
        ({"time_us": None}, "measurement without time_us"),
        ({"timing": None}, "measurement without timing"),
        ({"collective": 7}, "collective is 7: expected text"),
        ({"size_bytes": -1}, "size_bytes is -1: expected a finite number of at least 0"),
        ({"size_bytes": 8.5}, "size_bytes is 8.5: expected a whole number"),
        ({"size_bytes": True}, "size_bytes is True: expected a whole number"),
        ({"time_us": "12"}, "time_us is '12': expected a number"),
        ({"time_us": 0}, "time_us is 0: expected a time above zero"),
        ({"time_us": -2.5}, "time_us is -2.5: expected a finite number of at least 0"),
        ({"time_us": False}, "time_us is False: expected a number"),
        ({"busbw_GBps": -1}, "busbw_GBps is -1"),
        ({"nranks": 0}, "nranks is 0: expected a finite number of at least 1"),
        ({"count": -3}, "count is -3"),
        ({"wrong": -1}, "wrong is -1"),
        ({"wrong": "none"}, "wrong is 'none'"),
        ({"timing": "mean"}, "timing is 'mean': expected pipelined or isolated"),
        ({"group_ranks": "0,1"}, "group_ranks is '0,1': expected a list"),
        ({"group_ranks": [[0], [1]]}, "group_ranks is .*expected a list of whole numbers"),
        ({"redop": 3}, "redop is 3: expected text"),
        ({"root": "first"}, "root is 'first': expected a whole number"),
        ({"in_place": 1}, "in_place is 1: expected true or false"),
        ({"run_id": ["r1"]}, r"measurement of run \['r1'\], which no run record before it describes"),
        ({"run_id": "r9"}, "measurement of run 'r9', which no run record before it describes"),
        ({"kind": "surprise"}, "unknown kind of record 'surprise'"),
        ({"kind": None}, "unknown kind of record None"),
    ],
)
def test_a_bad_measurement_names_file_line_and_field(tmp_path, changes, complaint):
    path = tmp_path / "r.jsonl"
    bad = {**measurement(), **changes}
    path.write_text(with_damage(json.dumps(bad)))
    with pytest.raises(InputError, match=rf"r\.jsonl:3: {complaint}"):
        load_results(path)


@pytest.mark.parametrize("digits", ["1e999", "1" + "0" * 400])
def test_a_number_beyond_a_float_is_refused(tmp_path, digits):
    line = json.dumps(measurement(time_us=12345.5, algbw_GBps=None, busbw_GBps=None)).replace("12345.5", digits)
    (tmp_path / "r.jsonl").write_text(with_damage(line))
    with pytest.raises(InputError, match=r"r\.jsonl:3: time_us is .*expected a finite number"):
        load_results(tmp_path / "r.jsonl")


@pytest.mark.parametrize("missing", ["collective", "group", "reason"])
def test_a_skip_says_what_was_skipped_and_why(tmp_path, missing):
    (tmp_path / "r.jsonl").write_text(with_damage(json.dumps({**SKIP, missing: None})))
    with pytest.raises(InputError, match=rf"r\.jsonl:3: skip without {missing}"):
        load_results(tmp_path / "r.jsonl")


def test_a_record_before_any_run_is_refused(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", measurement(), run_record())
    with pytest.raises(InputError, match=r"r\.jsonl:1: measurement of run 'r1', which no run record before it"):
        load_results(path)


@pytest.mark.parametrize("schema", ["collbench.results/2", "collbench.model/1", None, 1])
def test_another_schema_is_refused(tmp_path, schema):
    path = write_lines(tmp_path / "r.jsonl", run_record(schema=schema))
    with pytest.raises(InputError, match=rf"r\.jsonl:1: schema {schema!r}: this collbench reads collbench\.results/1"):
        load_results(path)


def test_a_run_without_an_id_is_refused(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_record(None))
    with pytest.raises(InputError, match=r"r\.jsonl:1: run record without a run_id"):
        load_results(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"backend": ["nccl"]}, r"backend is \['nccl'\]: expected text"), ({"world_size": "8"}, "world_size is '8'")],
)
def test_a_bad_run_names_file_line_and_field(tmp_path, changes, complaint):
    path = write_lines(tmp_path / "r.jsonl", run_record(**changes), measurement())
    with pytest.raises(InputError, match=rf"r\.jsonl:1: {complaint}"):
        read_results(path)


def test_an_empty_a_missing_file_and_a_folder_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=r"empty\.jsonl: holds no records: expected a collbench\.results/1 file"):
        load_results(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match=r"none\.jsonl: cannot be read \(No such file or directory\)"):
        load_results(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        load_results(tmp_path)
    with pytest.raises(InputError, match=r"cannot be written \(Is a directory\): name another file with -o"):
        ResultsWriter(tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        ResultsWriter(tmp_path / "empty.jsonl" / "below")


def test_a_json_file_of_another_kind_is_no_results_file(tmp_path):
    (tmp_path / "model.json").write_text('{"schema":"collbench.model/1","fits":[]}\n')
    with pytest.raises(InputError, match=r'model\.json:1: not a collbench\.results/1 file: .*"kind":"run"'):
        load_results(tmp_path / "model.json")


# --- one writer ------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path):
    path = tmp_path / "r.jsonl"
    first = ResultsWriter(path)
    first.append(run_record())
    with pytest.raises(InputError, match="another run is writing this file: wait for it, or name another file with -o"):
        ResultsWriter(path)
    first.append(measurement())
    first.close()
    append_all(path, measurement())
    assert len(load_results(path).measurements) == 2


def test_opening_a_file_does_not_change_it(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a results file, and no newline at its end")
    ResultsWriter(path).close()
    assert path.read_text() == "not a results file, and no newline at its end"


# --- cells -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"collective": "broadcast"},
        {"group": "inter"},
        {"group_ranks": [0, 2]},
        {"dtype": "float16"},
        {"redop": "max"},
        {"root": 1},
        {"in_place": False},
        {"size_bytes": 2048},
        {"timing": "isolated"},
        {"concurrent": False},
        {"pass": 1},
        {"mode": "hot"},
    ],
)
def test_a_cell_differs_in_each_of_its_fields(changes):
    assert cell_key(measurement(**changes)) != cell_key(measurement())


def test_a_repeated_measurement_is_the_same_cell(tmp_path):
    again = measurement("r2", time_us=7.0, wrong=3, iterations=1, slowest_rank=0)
    assert cell_key(again) == cell_key(measurement())
    read_back = load_results(write_lines(tmp_path / "r.jsonl", run_record(), measurement())).measurements[0]
    assert {cell_key(read_back)} == {cell_key(measurement(group_ranks=(0, 1)))}


def test_a_file_is_read_in_parts_as_it_is_line_by_line(tmp_path, monkeypatch):
    """Columns that a part lacks, that are null in one part and numbers in another, and damage in a later part."""
    import pandas

    from collbench import results_frame

    extra = [{}, {}, {"slowest_rank": None}, {"slowest_rank": 3}, {"note": "late"}, {"group_ranks": None}, {}]
    records = [run_record(), *(measurement(size_bytes=8 << n, **more) for n, more in enumerate(extra))]
    path = tmp_path / "r.jsonl"
    write_lines(path, *records)
    whole = read_results(path)
    monkeypatch.setattr(results_frame, "_PART_LINES", 2)
    pandas.testing.assert_frame_equal(read_results(path), whole)
    assert len(whole) == len(extra)
    path.write_text(path.read_text() + '{"kind":"measurement","run_id":"r1"}\n')
    with pytest.raises(InputError, match=r"r\.jsonl:9: measurement without collective"):
        read_results(path)
