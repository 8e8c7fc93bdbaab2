"""What collectives and computation cost one another: from results files, through a model file, to an answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_data import frame, rows, write_results

from collbench.errors import InputError
from collbench.model.fit import fit_results
from collbench.model.slowdown import Overlap, Slowdown, find_slowdown, pool_overlaps
from collbench.model.store import load_model
from collbench.results_frame import read_results


def record(comm: float | None = 1.5, compute: float | None = 1.25, **changes: Any) -> dict[str, Any]:
    made = {
        "kind": "overlap", "run_id": "r1", "collective": "all_reduce", "group": "world", "nranks": 8, "nnodes": 2,
        "group_ranks": list(range(8)), "size_bytes": 1024, "comm_slowdown": comm, "compute_slowdown": compute,
    }  # fmt: skip
    return made | changes


def of_nccl(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each | {"backend": "nccl"} for each in records]


def overlap(comm: float = 1.5, compute: float = 1.25, **changes: Any) -> Overlap:
    made: dict[str, Any] = {
        "collective": "all_reduce", "group": "world", "nranks": 8, "nnodes": 2, "backend": "nccl", "size_bytes": 1024,
    }  # fmt: skip
    return Overlap(**made | changes, comm_slowdown=comm, compute_slowdown=compute)


def ask(*overlaps: Overlap, size: float = 1024, group: str = "world", nranks: int = 8, nnodes: int = 2) -> Any:
    return find_slowdown(overlaps, "all_reduce", size, group, nranks, nnodes, "nccl")


def factors(found: Slowdown | None) -> Any:
    return None if found is None else pytest.approx((found.comm, found.compute))


def test_passes_are_one_by_their_median_and_groups_by_the_slowest() -> None:
    one = {"group": "intra", "nranks": 2, "nnodes": 1, "group_ranks": [0, 1]}
    other = one | {"group_ranks": [2, 3]}
    records = [
        *(record(comm, 1.0, **one) for comm in (1.1, 9.0, 1.2)),
        *(record(comm, 1.4, **other) for comm in (1.3, 1.0)),
        record(1.7, 1.6),
    ]
    intra = {"group": "intra", "nranks": 2, "nnodes": 1}
    assert pool_overlaps(of_nccl(records)) == (overlap(1.2, 1.4, **intra), overlap(1.7, 1.6))


def test_what_never_ran_beside_a_product_tells_nothing() -> None:
    records = [record(1.5, None), record(None, 1.5), record(nranks=1, group_ranks=[0])]
    assert pool_overlaps(of_nccl(records)) == ()


def test_factors_are_read_between_sizes_and_held_beyond_them() -> None:
    small, large = overlap(1.1, 1.0, size_bytes=2**10), overlap(1.5, 1.2, size_bytes=2**20)
    for size, expected in ((1, (1.1, 1.0)), (2**10, (1.1, 1.0)), (2**15, (1.3, 1.1)), (2**30, (1.5, 1.2))):
        assert factors(ask(large, small, size=size)) == expected
    assert factors(ask(small, size=0)) == (1.1, 1.0)


def test_noise_makes_nothing_faster() -> None:
    assert factors(ask(overlap(0.97, 0.5))) == (1, 1)


def test_only_the_same_collective_links_and_backend_speak() -> None:
    inside = overlap(group="intra", nranks=8, nnodes=1)
    for other in (inside, overlap(collective="broadcast"), overlap(backend="gloo")):
        assert ask(other) is None
    assert ask() is None
    assert factors(ask(inside, group="intra", nnodes=1)) == (1.5, 1.25)


def test_the_same_group_speaks_before_others_and_the_nearest_count_before_the_rest() -> None:
    mesh, four, sixteen = overlap(2.0, group="mesh:2x4"), overlap(1.4, nranks=4), overlap(1.6, nranks=16, nnodes=4)
    assert factors(ask(mesh, four, sixteen)) == (1.6, 1.25)
    assert factors(ask(mesh, four, nranks=5)) == (1.4, 1.25)
    assert factors(ask(mesh, nranks=64, nnodes=8)) == (2.0, 1.25)
    # sizes of other counts have no part in it
    assert factors(ask(overlap(1.0, nranks=16, size_bytes=2**30), overlap(1.4), size=2**30)) == (1.4, 1.25)


def test_fit_carries_them_into_the_model_file(tmp_path: Path) -> None:
    path = write_results(tmp_path / "results.jsonl", rows())
    with path.open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in (record(), record(2.0, 1.5, size_bytes=4096)))
    model = fit_results(path)
    assert model.overlaps == (overlap(), overlap(2.0, 1.5, size_bytes=4096))
    model.save(tmp_path / "model.json")
    loaded = load_model(tmp_path / "model.json")
    assert loaded == model
    assert factors(loaded.slowdown("all_reduce", 2048, "world", 8, 2, "nccl")) == (1.75, 1.375)
    assert factors(loaded.slowdown("all_reduce", 2048, "world", 8, 2)) == (1.75, 1.375)
    assert loaded.slowdown("all_gather", 2048, "world", 8, 2) is None


def test_a_frame_carries_what_its_file_does(tmp_path: Path) -> None:
    path = write_results(tmp_path / "one.jsonl", rows())
    other = write_results(tmp_path / "two.jsonl", rows(run_id="r2", alpha_us=9, nranks=4), run_id="r2", backend="nccl")
    for file, found in ((path, record()), (other, record(run_id="r2", nranks=4, size_bytes=4096))):
        with file.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
    frames = [read_results(path), read_results(other)]
    assert len(frames[0]) == len(rows())  # a row per measurement, and none for these
    assert fit_results(frames).to_dict() == fit_results(path, other).to_dict()
    assert fit_results(frames[0], other).to_dict() == fit_results(path, other).to_dict()
    # through what users do to frames
    some = frames[0][frames[0].size_bytes > 64].sort_values("time_us").reset_index(drop=True)
    assert fit_results(some).overlaps == (overlap(),)
    assert fit_results(frames[0].assign(run_id="other")).overlaps == ()  # its runs are not in it any more
    json.dumps(frames[0].attrs)  # as parquet keeps attributes


def test_a_file_with_a_torn_last_line_keeps_its_own(tmp_path: Path) -> None:
    path = write_results(tmp_path / "results.jsonl", rows())
    with path.open("a") as file:
        file.write(json.dumps(record()) + '\n{"kind": "overl')
    with pytest.warns(UserWarning, match="torn"):
        assert fit_results(path).overlaps == (overlap(),)


def test_a_model_of_runs_without_them_has_no_such_key(tmp_path: Path) -> None:
    for model in (fit_results(write_results(tmp_path / "r.jsonl", rows())), fit_results(frame(rows()))):
        assert "overlaps" not in model.to_dict()
        assert model.slowdown("all_reduce", 2048, "world", 8, 2) is None


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"comm_slowdown": 0}, "comm_slowdown is 0: expected a finite number above zero"),
        ({"compute_slowdown": None}, "compute_slowdown is None"),
        ({"size_bytes": 0.5}, "size_bytes is 0.5"),
        ({"collective": "all_redoos"}, "collective is 'all_redoos'"),
    ],
)
def test_a_damaged_model_file_is_named_by_key(tmp_path: Path, damage: dict[str, Any], says: str) -> None:
    path = write_results(tmp_path / "results.jsonl", rows())
    document = fit_results(path).to_dict()
    good = {name: value for name, value in record().items() if name in Overlap.__slots__}
    document["overlaps"] = [good | {"backend": "nccl"}, good | {"backend": "nccl"} | damage]
    model = tmp_path / "model.json"
    model.write_text(json.dumps(document))
    with pytest.raises(InputError, match=rf"model.json: overlaps\[1\]\.{says}"):
        load_model(model)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"comm_slowdown": "much"}, "comm_slowdown 'much': expected a factor"),
        ({"compute_slowdown": -1}, "compute_slowdown -1: expected a factor"),
        ({"group_ranks": ...}, "is without group_ranks"),
    ],
)
def test_a_damaged_results_file_is_one_line(tmp_path: Path, damage: dict[str, Any], says: str) -> None:
    bad = {name: value for name, value in (record() | damage).items() if value is not ...}
    path = write_results(tmp_path / "results.jsonl", rows())
    with path.open("a") as file:
        file.write(json.dumps(bad) + "\n")
    with pytest.raises(InputError, match=says):
        fit_results(path)
