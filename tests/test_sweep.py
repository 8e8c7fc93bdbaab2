from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.collectives import COLLECTIVES, REDOPS
from collbench.dtypes import DTYPES
from collbench.errors import InputError
from collbench.results import cell_key
from collbench.sweep import Sweep, check_root, identity_of, in_order, load_sweep, plan_cells, refused_cell
from collbench.sweep_words import ALL_ROOTS, ENDLESS
from collbench.topology import Layout, default_group_kinds, form_groups, form_kinds

FOUR = ("broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
SWEEPS = Path(__file__).parents[1] / "sweeps"

CONTRACT_FILE = """\
name = "cluster"
question = "What does each link of this cluster give?"
collective = ["broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"]
group = ["world", "intra", "inter"]
minbytes = "8"
maxbytes = "1G"
stepfactor = 2
datatype = ["float32"]
timing = ["pipelined", "isolated"]
"""


@pytest.fixture
def toml(tmp_path):
    def write(text):
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return path

    return write


# --- what is read ----------------------------------------------------------------------------------------------------


def test_the_contracts_file_reads(toml):
    assert load_sweep(toml(CONTRACT_FILE)) == Sweep(
        name="cluster",
        question="What does each link of this cluster give?",
        collective=FOUR,
        group=("world", "intra", "inter"),
        minbytes=8,
        maxbytes=1073741824,
        stepfactor=2,
        datatype=("float32",),
        timing=("pipelined", "isolated"),
    )


def test_without_file_or_flag_the_defaults_are_the_cards():
    sweep = load_sweep()
    assert sweep.collective == FOUR
    assert sweep.group == ()
    assert (sweep.minbytes, sweep.maxbytes, sweep.stepfactor) == (8, 33554432, 2)
    assert (sweep.datatype, sweep.redop, sweep.root) == (("float32",), ("sum",), 0)
    assert set(sweep.timing) == {"pipelined", "isolated"}
    assert (sweep.iters, sweep.check, sweep.timeout_s, sweep.concurrent) == (20, 1, 60.0, True)
    assert (sweep.precision, sweep.budget_s, sweep.passes, sweep.order, sweep.seed) == (0.02, 0.5, 1, "shuffled", 0)
    assert (sweep.agg_iters, sweep.blocking, sweep.cudagraph, sweep.unalign, sweep.per_iter) == (1, 0, 0, 0, 0)
    assert not (sweep.hot or sweep.contention or sweep.with_compute or sweep.samples)
    assert [sweep.mode(timing) for timing in sweep.timing] == [None, None]


# word, value, the same as TOML, attribute, what is read
WORDS = [
    ("collective", "all_reduce,all_gather", '["all_reduce", "all_gather"]', "collective",
     ("all_reduce", "all_gather_into_tensor")),
    ("collective", "reduce_scatter", '"reduce_scatter"', "collective", ("reduce_scatter_tensor",)),
    ("group", "world,intra,inter", '["world", "intra", "inter"]', "group", ("world", "intra", "inter")),
    ("minbytes", "4", "4", "minbytes", 4),
    ("minbytes", "0", "0", "minbytes", 0),
    ("maxbytes", "1G", '"1G"', "maxbytes", 2**30),
    ("maxbytes", "25MB", '"25MB"', "maxbytes", 25_000_000),
    ("stepfactor", "4", "4", "stepfactor", 4),
    ("stepbytes", "1M", '"1M"', "stepbytes", 2**20),
    ("datatype", "float", '"float"', "datatype", ("float32",)),
    ("datatype", "half,double,bfloat16,float", '["half", "double", "bfloat16", "float"]', "datatype",
     ("float16", "float64", "bfloat16", "float32")),
    ("datatype", "float,float32", '["float", "float32"]', "datatype", ("float32",)),
    ("redop", "sum,prod,max,min,avg", '["sum", "prod", "max", "min", "avg"]', "redop",
     ("sum", "prod", "max", "min", "avg")),
    ("root", "3", "3", "root", 3),
    ("timing", "both", '"both"', "timing", ("pipelined", "isolated")),
    ("timing", "isolated", '["isolated"]', "timing", ("isolated",)),
    ("timing", "pipelined", '"pipelined"', "timing", ("pipelined",)),
    ("iters", "100", "100", "iters", 100),
    ("warmup_iters", "0", "0", "warmup_iters", 0),
    ("check", "0", "0", "check", 0),
    ("precision", "2%", '"2%"', "precision", 0.02),
    ("precision", "0.05", "0.05", "precision", 0.05),
    ("seed", "7", "7", "seed", 7),
    ("timeout", "90", "90", "timeout_s", 90.0),
    ("timeout", "1.5s", '"1.5s"', "timeout_s", 1.5),
    ("backend", "gloo", '"gloo"', "backend", "gloo"),
    ("concurrent", False, "false", "concurrent", False),
    ("samples", True, "true", "samples", True),
    ("name", "x", '"x"', "name", "x"),
    ("question", "why?", '"why?"', "question", "why?"),
    ("collective", "all", '"all"', "collective", tuple(COLLECTIVES)),
    ("collective", "hypercube,all", '["hypercube", "all"]', "collective",
     ("hypercube", *(name for name in COLLECTIVES if name != "hypercube"))),
    ("collective", "broadcast, reduce", '["broadcast", " reduce"]', "collective", ("broadcast", "reduce")),
    ("datatype", "all", '"all"', "datatype", tuple(DTYPES)),
    ("redop", "all", '"all"', "redop", REDOPS),
    ("redop", "max, all", '["max", " all"]', "redop", ("max", "sum", "prod", "min", "avg", "mulsum")),
    ("op", "max", '"max"', "redop", ("max",)),
    ("group", "pairs,pairs:rank,mesh:2x4", '["pairs", "pairs:rank", "mesh:2x4"]', "group",
     ("pairs", "pairs:rank", "mesh:2x4")),
    ("root", "all", '"all"', "root", ALL_ROOTS),
    ("root", "-1", "-1", "root", ALL_ROOTS),
    ("budget", "3", "3", "budget_s", 3.0),
    ("budget", "1.5s", '"1.5s"', "budget_s", 1.5),
    ("passes", "4", "4", "passes", 4),
    ("passes", "0", "0", "passes", ENDLESS),
    ("run_cycles", "2", "2", "passes", 2),
    ("order", "table", '"table"', "order", "table"),
    ("order", "shuffled", '"shuffled"', "order", "shuffled"),
    ("contention", True, "true", "contention", True),
    ("one_at_a_time", True, "true", "concurrent", False),
    ("one_at_a_time", False, "false", "concurrent", True),
    ("agg_iters", "4", "4", "agg_iters", 4),
    ("blocking", "3", "3", "blocking", 3),
    ("blocking", "0", "0", "blocking", 0),
    ("cudagraph", "2", "2", "cudagraph", 2),
    ("unalign", "1", "1", "unalign", 1),
    ("hot", True, "true", "hot", True),
    ("per_iter_timing", "1", "1", "per_iter", 1),
    ("with_compute", True, "true", "with_compute", True),
]  # fmt: skip


@pytest.mark.parametrize(("word", "flag", "in_file", "field", "value"), WORDS)
def test_a_word_reads_the_same_as_a_flag_and_in_a_file(toml, word, flag, in_file, field, value):
    assert getattr(load_sweep(flags={word: flag}), field) == value
    assert getattr(load_sweep(toml(f"{word} = {in_file}\n")), field) == value


def test_a_flag_overrides_the_file(toml):
    path = toml('maxbytes = "1G"\ncollective = ["broadcast"]\niters = 5\n')
    sweep = load_sweep(path, {"maxbytes": "1K", "collective": "all_reduce"})
    assert (sweep.maxbytes, sweep.collective, sweep.iters) == (1024, ("all_reduce",), 5)


def test_the_first_iterations_are_left_out_of_each_ones_times(toml):
    flags = {"per_iter_timing": "1", "per_iter_skip": "3", "iters": "4"}
    sweep = load_sweep(flags=flags)
    assert (sweep.per_iter, sweep.per_iter_skip) == (1, 3)
    assert load_sweep(toml("per_iter_timing = 1\nper_iter_skip = 3\niters = 4\n")) == sweep


@pytest.mark.parametrize(
    ("in_file", "flags", "precision", "iters"),
    [
        ("", {}, 0.02, 20),
        ("", {"iters": "7"}, 0.0, 7),
        ("", {"iters": "20"}, 0.0, 20),  # said, though it is the default
        ("", {"iters": "7", "precision": "5%"}, 0.05, 7),
        ("", {"precision": "5%"}, 0.05, 20),
        ("iters = 7\n", {}, 0.0, 7),
        ("iters = 7\nprecision = 0.01\n", {}, 0.01, 7),
        ("iters = 7\n", {"precision": "0.1"}, 0.1, 7),
        ("precision = 0.1\n", {"iters": "7"}, 0.1, 7),
    ],
)
def test_a_number_of_iterations_is_fixed_unless_a_precision_is_asked_for(toml, in_file, flags, precision, iters):
    sweep = load_sweep(toml(in_file) if in_file else None, flags)
    assert (sweep.precision, sweep.iters) == (precision, iters)


@pytest.mark.parametrize(
    ("changes", "pipelined", "isolated"),
    [
        ({}, None, None),
        ({"hot": True}, "hot", "hot"),
        ({"unalign": 2}, "unalign=2", "unalign=2"),
        ({"agg_iters": 4}, "agg_iters=4", None),
        ({"blocking": 3}, "blocking=3", None),
        ({"cudagraph": 5}, "cudagraph=5", None),
        ({"hot": True, "unalign": 1, "agg_iters": 2, "blocking": 1}, "unalign=1 hot agg_iters=2 blocking=1",
         "unalign=1 hot"),
        ({"iters": 7, "precision": 0.1, "per_iter": 1, "check": 0, "warmup_iters": 0}, None, None),
    ],
)  # fmt: skip
def test_what_training_does_not_see_is_a_mode_of_the_record(changes, pipelined, isolated):
    sweep = Sweep(collective=("all_reduce",), minbytes=64, maxbytes=64, **changes)
    assert (sweep.mode("pipelined"), sweep.mode("isolated")) == (pipelined, isolated)
    for cell in plan_cells(sweep, {"world": [(0, 1)]}):
        mode = pipelined if cell.timing == "pipelined" else isolated
        assert cell.mode == mode
        assert cell.record((0, 1)).get("mode") == mode
        assert ("mode" in cell.record((0, 1))) == (mode is not None)


# nccl-tests steps by -i where -f is not said (or 1)
@pytest.mark.parametrize(
    ("in_file", "flags", "sizes"),
    [
        ("", {}, [8, 16, 32, 64]),
        ("", {"stepbytes": "8"}, [8, 16, 24, 32, 40, 48, 56, 64]),
        ("", {"stepfactor": "4"}, [8, 32]),
        ("", {"stepfactor": "4", "stepbytes": "8"}, [8, 32]),
        ("", {"stepfactor": "1", "stepbytes": "16"}, [8, 24, 40, 56]),
        ("stepbytes = 16\n", {}, [8, 24, 40, 56]),
        ("stepfactor = 4\n", {"stepbytes": "16"}, [8, 24, 40, 56]),
        ("stepbytes = 16\n", {"stepfactor": "2"}, [8, 16, 32, 64]),
        ("stepbytes = 8\nstepfactor = 2\n", {}, [8, 16, 32, 64]),
        ("stepbytes = 8\nstepfactor = 2\n", {"stepbytes": "16"}, [8, 24, 40, 56]),
        ("stepbytes = 8\n", {"stepbytes": "16"}, [8, 24, 40, 56]),
    ],
)
def test_the_step_is_the_one_said_last(toml, in_file, flags, sizes):
    path = toml(in_file) if in_file else None
    assert list(load_sweep(path, {"minbytes": "8", "maxbytes": "64", **flags}).sizes()) == sizes


@pytest.mark.parametrize(
    ("minbytes", "maxbytes", "step", "sizes"),
    [
        (8, 64, {}, [8, 16, 32, 64]),
        (8, 63, {}, [8, 16, 32]),
        (12, 100, {"stepfactor": 3}, [12, 36]),
        (1024, 1024, {}, [1024]),
        (1000, 3500, {"stepfactor": 1, "stepbytes": 1000}, [1000, 2000, 3000]),
        (0, 32, {}, [0, 8, 16, 32]),
    ],
)
def test_sizes_step_as_nccl_tests_steps(minbytes, maxbytes, step, sizes):
    assert list(Sweep(minbytes=minbytes, maxbytes=maxbytes, **step).sizes()) == sizes


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            'name = "x"\n\nmaxbites = "1G"\n',
            r":3: maxbites: unknown key 'maxbites' \(did you mean maxbytes\?\): one of",
        ),
        ('collectives = "all_reduce"\n', r":1: collectives: unknown key .*did you mean collective\?"),
        ("[layers]\nx = 1\n", ":1: layers: unknown key 'layers'"),
        ('collective = ["allreduce"]\n', r":1: collective: unknown collective 'allreduce' \(did you mean all_reduce\?"),
        ('# c\ndatatype = "floot32"\n', r":2: datatype: unknown datatype 'floot32' \(did you mean float32\?"),
        ('group = "inner"\n', ":1: group: unknown group 'inner'.*: one of world, intra, inter"),
        ('redop = "mul"\n', ":1: redop: unknown reduction operator 'mul'"),
        ('timing = "pipelind"\n', r":1: timing: unknown timing 'pipelind' \(did you mean pipelined\?\)"),
        ('backend = "mpi"\n', ":1: backend: unknown backend 'mpi'.*: one of nccl, gloo"),
        ('minbytes = "8Q"\n', ":1: minbytes: .*unknown unit 'Q'"),
        ("minbytes = -8\n", ":1: minbytes: .*below zero"),
        ("minbytes = 8.5\n", ":1: minbytes: is 8.5: expected a size"),
        ("minbytes = true\n", ":1: minbytes: is True: expected a size"),
        ("minbytes = [8]\n", r":1: minbytes: is \[8\]: expected a size"),
        ("collective = 7\n", ":1: collective: is 7: expected a word or a list of words"),
        ("collective = []\n", r":1: collective: is \[\]: expected a word"),
        ("datatype = [4]\n", r":1: datatype: is \[4\]: expected a word"),
        ('iters = "many"\n', ":1: iters: is 'many': expected a whole number of at least 1"),
        ("iters = 0\n", ":1: iters: is 0: expected a whole number of at least 1"),
        ("iters = 2.5\n", ":1: iters: is 2.5: expected a whole number"),
        ("iters = true\n", ":1: iters: is True: expected a whole number"),
        ("warmup_iters = -1\n", ":1: warmup_iters: is -1: expected a whole number of at least 0"),
        ("root = -2\n", ":1: root: is -2: expected a whole number of at least 0"),
        ('root = "none"\n', ":1: root: is 'none': expected a whole number of at least 0"),
        ("root = true\n", ":1: root: is True: expected a whole number"),
        ('group = "all"\n', ":1: group: unknown group 'all'"),
        ('group = "mesh:3"\n', ":1: group: group 'mesh:3': expected mesh:RxS, such as mesh:2x8"),
        ("passes = -1\n", ":1: passes: is -1: expected a whole number of at least 0"),
        ('order = "random"\n', ":1: order: unknown order 'random'.*: one of shuffled, table"),
        ("order = 1\n", ":1: order: unknown order '1'"),
        ("blocking = 4\n", ":1: blocking: is 4: expected a whole number from 0 to 3"),
        ("blocking = -1\n", ":1: blocking: is -1: expected a whole number from 0 to 3"),
        ("agg_iters = 0\n", ":1: agg_iters: is 0: expected a whole number of at least 1"),
        ("cudagraph = -1\n", ":1: cudagraph: is -1: expected a whole number of at least 0"),
        ("unalign = -1\n", ":1: unalign: is -1: expected a whole number of at least 0"),
        ("unalign = 0.5\n", ":1: unalign: is 0.5: expected a whole number of at least 0"),
        ("per_iter_timing = 2\n", ":1: per_iter_timing: is 2: expected a whole number from 0 to 1"),
        ("per_iter_skip = -1\n", ":1: per_iter_skip: is -1: expected a whole number of at least 0"),
        ("budget = 0\n", ":1: budget: is 0: expected seconds above zero"),
        ('hot = "yes"\n', ":1: hot: is 'yes': expected true or false"),
        ("contention = 1\n", ":1: contention: is 1: expected true or false"),
        ("one_at_a_time = 1\n", ":1: one_at_a_time: is 1: expected true or false"),
        ("stepfactor = 1\nmaxbytes = '1G'\nstepbytes = 8\n", ":3: stepbytes: makes 134217727 sizes: expected at most"),
        (
            "one_at_a_time = true\n\ncontention = true\n",
            ":3: contention does not go with .*sweep.toml:1: one_at_a_time: contention measures the groups of",
        ),
        ('backend = "gloo"\ncudagraph = 1\n', ":2: cudagraph does not go with .*sweep.toml:1: backend: gloo runs on"),
        ("stepfactor = 0\n", ":1: stepfactor: is 0: expected a whole number of at least 1"),
        ("timeout = 0\n", ":1: timeout: is 0: expected seconds above zero"),
        ('timeout = "soon"\n', ":1: timeout: is 'soon': expected seconds"),
        ("timeout = nan\n", ":1: timeout: is nan: expected seconds"),
        ("timeout = true\n", ":1: timeout: is True: expected seconds"),
        ("precision = 2\n", ":1: precision: is 2: expected a fraction"),
        ("precision = true\n", ":1: precision: is True: expected a fraction"),
        ('concurrent = "yes"\n', ":1: concurrent: is 'yes': expected true or false"),
        ("name = 3\n", ":1: name: is 3: expected text"),
        ('minbytes = "1M"\nmaxbytes = "1K"\n', ":1: minbytes: minbytes 1048576 is above maxbytes 1024: expected"),
        ('maxbytes = "4"\n', ":1: maxbytes: minbytes 8 is above maxbytes 4"),
        ('\nstepbytes = "0"\n', ":2: stepbytes: a step of 0 bytes never ends"),
        ("name = \n", ":1: not TOML: .*: expected a sweep"),
        ('name = "a"\nname = "b"\n', ":2: not TOML"),
        ("", ":1: is empty: expected a sweep"),
        ("# only a comment\n", ":1: is empty: expected a sweep"),
    ],
)
def test_a_bad_file_names_its_line_and_what_was_expected(toml, text, complaint):
    with pytest.raises(InputError, match=rf"sweep\.toml{complaint}") as refusal:
        load_sweep(toml(text))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"minbytes": "lots"}, "--minbytes: size 'lots' is not understood"),
        ({"collective": "all_reduce,nothing"}, "--collective: unknown collective 'nothing'"),
        ({"collective": "all_reduce,"}, "--collective: unknown collective ''"),
        ({"warmup_iters": "x"}, "--warmup-iters: is 'x': expected a whole number of at least 0"),
        ({"stepbytes": "0"}, "--stepbytes: a step of 0 bytes never ends"),
        ({"stepfactor": "1", "stepbytes": "0"}, "--stepbytes: a step of 0 bytes never ends"),
        ({"minbytes": "1G", "maxbytes": "1M"}, "--minbytes: minbytes 1073741824 is above maxbytes 1048576"),
        ({"minbytes": "64M"}, "--minbytes: minbytes 67108864 is above maxbytes 33554432"),
        ({"precision": "0"}, "--precision: is '0': expected a fraction"),
        ({"stepfactor": "1.5"}, "--stepfactor: is '1.5': expected a whole number"),
        ({"blocking": "4"}, "--blocking: is '4': expected a whole number from 0 to 3"),
        ({"run_cycles": "-1"}, "--run-cycles: is '-1': expected a whole number of at least 0"),
        ({"contention": True, "concurrent": False}, "--contention does not go with --concurrent: contention measures"),
        (
            {"contention": True, "one_at_a_time": True},
            "--contention does not go with --one-at-a-time: contention measures the groups of",
        ),
        ({"cudagraph": "2", "backend": "gloo"}, "--cudagraph does not go with --backend: gloo runs on the CPU"),
        ({"cudagraph": "2", "blocking": "1"}, "--cudagraph does not go with --blocking: a graph replays without"),
        ({"cudagraph": "2", "per_iter_timing": "1"}, "--cudagraph does not go with --per-iter-timing: a graph replays"),
        (
            {"per_iter_timing": "1", "timing": "isolated"},
            "--per-iter-timing does not go with --timing: it times the op",
        ),
        ({"per_iter_skip": "1"}, "--per-iter-skip: there are no times of single operations without -I 1"),
        (
            {"per_iter_timing": "1", "per_iter_skip": "5", "iters": "5"},
            "--per-iter-skip does not go with --iters: of 5 iterations none would be left",
        ),
        ({"agg_iters": "4", "timing": "isolated"}, "--agg-iters does not go with --timing"),
        ({"blocking": "1", "timing": "isolated"}, "--blocking does not go with --timing"),
        ({"cudagraph": "1", "timing": "isolated"}, "--cudagraph does not go with --timing"),
    ],
)
def test_a_bad_flag_is_named(flags, complaint):
    with pytest.raises(InputError, match=rf"^{complaint}") as refusal:
        load_sweep(flags=flags)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "flags",
    [
        {"contention": True},
        {"cudagraph": "2"},
        {"cudagraph": "2", "backend": "nccl", "blocking": "0"},
        {"cudagraph": "2", "agg_iters": "4"},
        {"blocking": "1", "per_iter_timing": "1"},
        {"per_iter_timing": "1", "per_iter_skip": "19", "iters": "20"},
        {"agg_iters": "4", "timing": "both"},
        {"per_iter_timing": "0", "timing": "isolated"},
    ],
)
def test_what_goes_together_is_not_refused(flags):
    load_sweep(flags=flags)


def test_a_flag_that_contradicts_the_file_says_so(toml):
    with pytest.raises(InputError, match="minbytes 8 is above maxbytes 4: expected the smaller first"):
        load_sweep(toml("minbytes = 8\n"), {"maxbytes": "4"})


@pytest.mark.parametrize("name", ["quick", "node", "cluster"])
def test_the_sweeps_that_come_with_collbench_load(name):
    path = SWEEPS / f"{name}.toml"
    if not path.exists():
        pytest.skip(f"{path} is not there yet")
    sweep = load_sweep(path)
    assert sweep.question
    assert set(FOUR) <= set(sweep.collective)


# --- cells -----------------------------------------------------------------------------------------------------------


def cells_of(sweep, layout, kinds=None):
    kinds = kinds or sweep.group or default_group_kinds(layout)
    return plan_cells(sweep, {kind: form_groups(kind, layout) for kind in kinds})


def test_cells_go_by_collective_group_type_operator_and_size():
    sweep = Sweep(
        collective=("all_reduce", "broadcast"),
        minbytes=16,
        maxbytes=32,
        datatype=("float32", "int8"),
        redop=("sum", "max"),
        timing=("pipelined",),
    )
    cells = cells_of(sweep, Layout.regular(2, 2))
    order = [(cell.collective, cell.group, cell.dtype, cell.redop, cell.requested_bytes) for cell in cells]
    expected = []
    for collective, redops in (("all_reduce", ("sum", "max")), ("broadcast", (None,))):
        for group in ("world", "intra", "inter"):
            for dtype in ("float32", "int8"):
                for redop in redops:
                    expected += [(collective, group, dtype, redop, size) for size in (16, 32) for _ in range(2)]
    assert order == expected


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("sweep_pass", [0, 3])
def test_both_halves_of_a_row_are_measured(collective, sweep_pass):
    sweep = Sweep(collective=(collective,), minbytes=1024, maxbytes=1024, timing=("isolated",), passes=4)
    cells = plan_cells(sweep, {"world": [(0, 1)]}, sweep_pass)
    halves = [(cell.in_place, cell.repeat) for cell in cells]
    first = 2 * sweep_pass
    if collective in ("broadcast", "all_reduce", "reduce"):
        assert halves == [(True, first), (True, first + 1)]
    elif collective in ("all_to_all_single", "send_recv"):
        assert halves == [(False, first), (False, first + 1)]
    else:
        assert halves == [(False, sweep_pass), (True, sweep_pass)]


def test_both_regimes_of_a_size_stand_side_by_side():
    sweep = Sweep(collective=("all_reduce",), minbytes=8, maxbytes=16)
    cells = cells_of(sweep, Layout.regular(1, 2))
    assert [(cell.requested_bytes, cell.timing) for cell in cells[::2]] == [
        (8, "pipelined"), (8, "isolated"), (16, "pipelined"), (16, "isolated"),
    ]  # fmt: skip


def test_only_reductions_have_an_operator_and_only_rooted_ones_a_root():
    sweep = Sweep(minbytes=1024, maxbytes=1024, root=1, redop=("max",))
    says = {(cell.collective, cell.redop, cell.root) for cell in cells_of(sweep, Layout.regular(1, 2))}
    assert says == {
        ("broadcast", None, 1),
        ("all_reduce", "max", None),
        ("all_gather_into_tensor", None, None),
        ("reduce_scatter_tensor", "max", None),
    }


def test_of_all_ten_only_reductions_and_rooted_ones_have_more_than_none():
    sweep = Sweep(collective=tuple(COLLECTIVES), minbytes=1024, maxbytes=1024)
    says = {cell.collective: (cell.redop, cell.root) for cell in cells_of(sweep, Layout.regular(1, 2))}
    assert {name for name, (redop, _) in says.items() if redop} == {"all_reduce", "reduce_scatter_tensor", "reduce"}
    assert {name for name, (_, root) in says.items() if root == 0} == {"broadcast", "reduce", "gather", "scatter"}


def test_all_roots_are_every_rank_of_the_smallest_group():
    sweep = Sweep(collective=("reduce", "all_reduce"), minbytes=64, maxbytes=64, root=ALL_ROOTS, timing=("isolated",))
    uneven = Layout((0, 0, 0, 1, 1), (0, 1, 2, 0, 1))
    roots = {}
    for cell in cells_of(sweep, uneven, ["world", "intra"]):
        roots.setdefault((cell.collective, cell.group), set()).add(cell.root)
    assert roots == {
        ("reduce", "world"): {0, 1, 2, 3, 4},
        ("reduce", "intra"): {0, 1},
        ("all_reduce", "world"): {None},
        ("all_reduce", "intra"): {None},
    }


def test_contention_measures_together_and_alone_where_there_is_more_than_one_group():
    layout = Layout.regular(2, 2)
    kinds = ["world", "intra", "pairs"]
    sweep = Sweep(collective=("all_reduce",), minbytes=64, maxbytes=64, timing=("isolated",), contention=True)
    seen = [(cell.group, cell.repeat, cell.concurrent) for cell in cells_of(sweep, layout, kinds)]
    assert sorted(seen) == sorted([
        *(("world", half, True) for half in (0, 1)),
        *(("intra", half, together) for together in (True, False) for half in (0, 1)),
        *(("pairs", half, True) for half in (0, 1)),
    ])  # fmt: skip
    alone = Sweep(collective=("all_reduce",), minbytes=64, maxbytes=64, concurrent=False)
    assert {cell.concurrent for cell in cells_of(alone, layout, kinds)} == {False}


def test_a_hypercube_on_groups_of_other_sizes_is_refused():
    sweep = Sweep(collective=("hypercube", "all_reduce"), minbytes=64, maxbytes=64)
    cells = {cell.collective: cell for cell in cells_of(sweep, Layout.regular(1, 4))}
    for of_kind, refusal in (
        ([(0, 1, 2, 3)], None),
        ([(0,)], None),
        ([(0, 1, 2)], "3 ranks are not a power of 2"),
        ([(0, 1), (2, 3, 4, 5, 6, 7)], "6 ranks are not a power of 2"),
    ):
        assert refused_cell(cells["hypercube"], of_kind) == refusal
        assert refused_cell(cells["all_reduce"], of_kind) is None


def test_a_mesh_is_planned_as_rows_and_columns():
    sweep = load_sweep(flags={"group": "mesh:2x4", "collective": "all_reduce", "maxbytes": "8"})
    groups, reasons = form_kinds(sweep.group, Layout.regular(2, 4))
    assert reasons == {}
    assert {cell.group for cell in plan_cells(sweep, groups)} == {"mesh:2x4:shard", "mesh:2x4:replicate"}


def test_sizes_that_round_alike_are_one_cell():
    # 8 ranks x 16 bytes: 8 .. 64 all round to 0, 128 is the first that moves anything
    sweep = Sweep(collective=("all_gather_into_tensor",), minbytes=8, maxbytes=256, timing=("pipelined",))
    cells = [cell for cell in cells_of(sweep, Layout.regular(1, 8)) if not cell.in_place]
    assert [cell.message(8).size_bytes for cell in cells] == [0, 128, 256]
    assert cells[0].requested_bytes == 8
    sweep = Sweep(collective=("all_reduce",), minbytes=8, maxbytes=12, stepfactor=1, stepbytes=1, timing=("pipelined",))
    cells = [cell for cell in cells_of(sweep, Layout.regular(1, 2)) if cell.repeat == 0]
    assert [cell.message(2).size_bytes for cell in cells] == [8, 12]


def test_a_group_that_is_not_formed_has_no_cells():
    assert plan_cells(Sweep(), {}) == []
    assert {cell.group for cell in cells_of(Sweep(), Layout.regular(2, 2), ["inter"])} == {"inter"}


any_sweep = st.builds(
    lambda minbytes, span, **changes: Sweep(minbytes=minbytes, maxbytes=minbytes + span, stepbytes=97, **changes),
    minbytes=st.integers(0, 200),
    span=st.integers(0, 3000),
    stepfactor=st.integers(1, 3),
    collective=st.lists(st.sampled_from(list(COLLECTIVES)), min_size=1, max_size=4, unique=True).map(tuple),
    datatype=st.lists(st.sampled_from(["float32", "bfloat16", "uint64"]), min_size=1, max_size=2, unique=True).map(
        tuple
    ),
    redop=st.lists(st.sampled_from(REDOPS), min_size=1, max_size=2, unique=True).map(tuple),
    root=st.sampled_from([0, ALL_ROOTS]),
    contention=st.booleans(),
    hot=st.booleans(),
)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([(1, 1), (1, 2), (2, 2), (3, 2), (4, 1), (2, 4)]), any_sweep)
def test_every_planned_cell_of_every_pass_has_its_own_key(shape, sweep):
    layout = Layout.regular(*shape)
    groups = {kind: form_groups(kind, layout) for kind in default_group_kinds(layout)}
    keys = [
        cell_key(cell.record(ranks))
        for sweep_pass in range(3)
        for cell in plan_cells(sweep, groups, sweep_pass)
        for ranks in groups[cell.group]
    ]
    assert len(keys) == len(set(keys)) > 0


# --- the order of the cells ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(any_sweep, st.integers(0, 2**31), st.integers(0, 5))
def test_shuffled_cells_are_the_planned_ones_each_once(sweep, seed, sweep_pass):
    planned = plan_cells(sweep, {"world": [(0, 1)]}, sweep_pass)
    before = list(planned)
    ordered = in_order(replace(sweep, seed=seed), planned, sweep_pass)
    assert planned == before  # the table's order is still needed
    assert sorted(map(repr, ordered)) == sorted(map(repr, planned))
    assert in_order(replace(sweep, order="table", seed=seed), planned, sweep_pass) == planned


def test_the_order_is_by_the_seed_and_the_pass_alone():
    groups = {"world": [(0, 1)]}
    planned = plan_cells(Sweep(), groups)
    orders = {
        (seed, sweep_pass): tuple(in_order(Sweep(seed=seed), planned, sweep_pass))
        for seed in (0, 1, 11)
        for sweep_pass in (0, 1, 11)
    }
    assert len(set(orders.values())) == 9
    assert tuple(planned) not in orders.values()
    for (seed, sweep_pass), order in orders.items():
        # Every rank works it out by itself, and a run that goes on does so again.
        again = Sweep(seed=seed, name="other", timeout_s=5, samples=True)
        assert tuple(in_order(again, plan_cells(again, groups), sweep_pass)) == order


def test_shuffling_puts_neither_sizes_nor_collectives_nor_regimes_in_a_row():
    planned = plan_cells(Sweep(), {"world": [(0, 1)]})
    ordered = in_order(Sweep(), planned)
    for name in ("collective", "timing", "requested_bytes"):
        changes = sum(getattr(one, name) != getattr(other, name) for one, other in pairwise(ordered))
        assert changes > len(planned) / 3


def test_a_cell_becomes_the_records_first_half():
    sweep = Sweep(collective=("reduce_scatter_tensor",), minbytes=1000000, maxbytes=1000000, timing=("isolated",))
    record = cells_of(sweep, Layout.regular(1, 8))[0].record(tuple(range(8)))
    assert record == {
        "collective": "reduce_scatter_tensor",
        "group": "world",
        "group_ranks": [0, 1, 2, 3, 4, 5, 6, 7],
        "nranks": 8,
        "dtype": "float32",
        "redop": "sum",
        "root": None,
        "in_place": False,
        "pass": 0,
        "size_bytes": 999936,
        "count": 31248,
        "timing": "isolated",
        "concurrent": True,
    }


# --- the root --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "kinds", "root", "refused"),
    [
        (Layout.regular(1, 4), ["world"], 3, None),
        (Layout.regular(1, 4), ["world"], 4, "world has 4 ranks: .*0 to 3"),
        (Layout.regular(2, 4), ["world", "intra", "inter"], 1, None),
        (Layout.regular(2, 4), ["world", "intra", "inter"], 2, "inter has 2 ranks: .*0 to 1"),
        (Layout((0, 0, 0, 1, 1), (0, 1, 2, 0, 1)), ["intra"], 2, "intra has 2 ranks"),
    ],
)
def test_a_root_must_be_inside_every_group(layout, kinds, root, refused):
    groups = {kind: form_groups(kind, layout) for kind in kinds}
    if refused is None:
        check_root(Sweep(root=root), groups)
        return
    with pytest.raises(InputError, match=f"root {root}: a group of kind {refused}"):
        check_root(Sweep(root=root), groups)


def test_a_root_is_nothing_to_collectives_without_one():
    check_root(Sweep(root=7, collective=("all_reduce",)), {"world": [(0, 1)]})


@pytest.mark.parametrize("root", [2, 3])
@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_a_root_outside_is_refused_for_every_rooted_collective_with_its_flag(collective, root):
    sweep = load_sweep(flags={"collective": collective, "root": str(root)})
    with pytest.raises(
        InputError, match=rf"^--root: root {root}: a group of kind world has 2 ranks: .* 0 to 1, or all$"
    ):
        check_root(sweep, {"world": [(0, 1)]})


def test_all_roots_are_inside_every_group():
    check_root(Sweep(root=ALL_ROOTS, collective=tuple(COLLECTIVES)), {"world": [(0, 1)], "intra": [(0,), (1,)]})


def test_identity_covers_what_a_value_depends_on():
    fields = set(Sweep().identity())
    assert {"collective", "group", "minbytes", "datatype", "redop", "root", "timing", "iters", "concurrent"} <= fields
    assert {"precision", "budget_s", "agg_iters", "blocking", "cudagraph", "unalign", "hot", "contention"} <= fields
    assert not {"name", "question", "timeout_s", "samples", "passes", "order"} & fields
    record = Sweep(name="n").as_record()
    assert record["name"] == "n" and record["collective"] == list(FOUR)


def test_more_passes_go_on_in_the_same_file():
    assert Sweep(passes=1).identity() == Sweep(passes=5).identity() == identity_of(Sweep(passes=ENDLESS).as_record())
    assert Sweep(hot=True).identity() != Sweep().identity()


def test_a_sweep_as_its_record_is_json(toml):
    sweep = load_sweep(toml(CONTRACT_FILE), {"iters": "5", "root": "all"})
    record = sweep.as_record()
    assert json.loads(json.dumps(record)) == record
    assert record["precision"] == 0.0 and record["root"] == -1 and "origins" not in record


def test_sizes_always_grow():
    for sweep in (Sweep(), Sweep(minbytes=0), Sweep(stepfactor=1, stepbytes=2**18), Sweep(stepfactor=7)):
        sizes = list(sweep.sizes())
        assert all(first < second for first, second in pairwise(sizes)) and len(sizes) > 5


def test_sizes_that_round_alike_are_one_cell_that_knows_how_many_rows_it_is():
    sweep = load_sweep(None, {"collective": "all_gather", "minbytes": "8", "maxbytes": "64"})
    cells = plan_cells(sweep, {"world": [(0, 1)]})
    rows = [(cell.message(2).size_bytes, cell.requests) for cell in cells[:: len(cells) // 3]]
    assert rows == [(0, 2), (32, 1), (64, 1)]  # 8 and 16 bytes are less than 16 a rank
    assert cells[0].record((0, 1))["requests"] == 2 and "requests" not in cells[-1].record((0, 1))
