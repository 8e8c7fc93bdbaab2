from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sample_records import measurement, run_record, write_lines

from collbench.errors import InputError
from collbench.results import ResultsWriter, load_results
from collbench.resume import done_cells
from collbench.sweep import Sweep

SWEEP = Sweep(maxbytes=1024)


def run_of(sweep=SWEEP, run_id="r1", **changes):
    return run_record(run_id, sweep=sweep.as_record(), **changes)


def done(path, sweep=SWEEP, world_size=2, backend="gloo", append=False):
    return done_cells(path, sweep, world_size, backend, append)


def test_a_new_and_an_empty_file_hold_nothing(tmp_path):
    assert done(tmp_path / "none.jsonl") == []
    (tmp_path / "empty.jsonl").touch()
    assert done(tmp_path / "empty.jsonl") == []


def test_the_same_sweep_goes_on(tmp_path):
    measured = [measurement(size_bytes=8), measurement(size_bytes=16)]
    path = write_lines(tmp_path / "r.jsonl", run_of(), *measured)
    assert done(path) == measured


def test_what_changes_no_value_changes_no_sweep(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_of(), measurement())
    patient = replace(SWEEP, name="other", question="?", timeout_s=600.0, samples=True, backend="gloo")
    assert done(path, patient) == [measurement()]


@pytest.mark.parametrize("passes", [1, 2, 0])
def test_more_passes_and_another_order_go_on_with_the_same_file(tmp_path, passes):
    measured = [measurement(**{"pass": number}) for number in range(4)]
    path = write_lines(tmp_path / "r.jsonl", run_of(replace(SWEEP, passes=2)), *measured)
    assert done(path, replace(SWEEP, passes=passes, order="table")) == measured


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"sweep": replace(SWEEP, maxbytes=2048)}, "maxbytes 1024, now 2048"),
        ({"sweep": replace(SWEEP, iters=5)}, "iters 20, now 5"),
        ({"sweep": replace(SWEEP, datatype=("float16",))}, r"datatype \['float32'\], now \['float16'\]"),
        ({"sweep": replace(SWEEP, concurrent=False)}, "concurrent True, now False"),
        ({"sweep": replace(SWEEP, hot=True)}, "hot False, now True"),
        ({"sweep": replace(SWEEP, blocking=3, agg_iters=2)}, "agg_iters 1, now 2; blocking 0, now 3"),
        ({"sweep": replace(SWEEP, precision=0.0, iters=5)}, r"iters 20, now 5; precision 0\.02, now 0\.0"),
        ({"sweep": replace(SWEEP, budget_s=3.0)}, r"budget_s 0\.5, now 3\.0"),
        ({"sweep": replace(SWEEP, unalign=1)}, "unalign 0, now 1"),
        ({"sweep": replace(SWEEP, root=-1)}, "root 0, now -1"),
        ({"world_size": 4}, "world size 2, now 4"),
        ({"backend": "nccl"}, "backend gloo, now nccl"),
    ],
)
def test_another_sweep_world_size_or_backend_is_refused(tmp_path, asked, complaint):
    path = write_lines(tmp_path / "r.jsonl", run_of(), measurement())
    with pytest.raises(InputError, match=rf"r\.jsonl: holds another run \({complaint}\): --append puts both in one"):
        done(path, **asked)
    assert done(path, **asked, append=True) == []


def test_an_imported_file_has_no_sweep_to_go_on_with(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_record(sweep=None), measurement())
    with pytest.raises(InputError, match=r"without a sweep, such as an imported log.*--append"):
        done(path)


def test_runs_of_one_sweep_count_together_and_others_do_not(tmp_path):
    other = replace(SWEEP, iters=5)
    path = write_lines(
        tmp_path / "r.jsonl",
        run_of(run_id="r1"),
        measurement("r1", size_bytes=8),
        run_of(other, run_id="r2"),
        measurement("r2", size_bytes=16),
        run_of(run_id="r3"),
        measurement("r3", size_bytes=32),
    )
    assert [record["size_bytes"] for record in done(path)] == [8, 32]
    assert [record["size_bytes"] for record in done(path, other, append=True)] == [16]


def test_a_file_killed_in_the_middle_keeps_all_but_the_torn_line(tmp_path):
    path = write_lines(tmp_path / "r.jsonl", run_of(), measurement(size_bytes=8))
    with path.open("a") as file:
        file.write(json.dumps(measurement(size_bytes=16))[:40])
    with pytest.warns(UserWarning, match="torn"):
        assert [record["size_bytes"] for record in done(path)] == [8]


@pytest.mark.parametrize("kept", [1, 5, 13, 14, 40, 200])
def test_a_file_killed_during_its_first_record_is_begun_anew(tmp_path, kept):
    path = tmp_path / "r.jsonl"
    first = json.dumps(run_of(), separators=(",", ":")).encode()
    assert len(first) > 200
    path.write_bytes(first[:kept])
    assert done(path) == []
    writer = ResultsWriter(path)
    writer.append(run_of())
    writer.append(measurement())
    writer.close()
    assert load_results(path).measurements == [measurement()]


FOREIGN = {
    "README.md": "# A project\n\nwith text\n",
    "one-line.txt": "no newline here",
    "model.json": '{"schema":"collbench.model/1","fits":[]}',
    "pretty.json": '{\n  "kind": "run"\n}\n',
    "data.csv": "a,b\n1,2\n",
    "image.png": "\x89PNG\r\n\x1a\n\x00",
    "array.json": "[1,2,3]",
    "json.jsonl": '{"kind":"event"}\n{"kind":"ev',
}


@pytest.mark.parametrize("append", [False, True], ids=["plain", "append"])
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.filterwarnings("ignore:.*torn")
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path, name, append):
    path = tmp_path / name
    path.write_bytes(FOREIGN[name].encode("latin-1"))
    writer = ResultsWriter(path)  # as the worker does: lock first, then look
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        done(path, append=append)
    writer.close()
    assert path.read_bytes() == FOREIGN[name].encode("latin-1")


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a regular file: name a results file with -o"):
        done(tmp_path)
