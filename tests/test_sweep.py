from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import InputError
from collbench.results import cell_key
from collbench.sweep import Sweep, check_root, load_sweep, plan_cells
from collbench.topology import Layout, default_group_kinds, form_groups

FOUR = ("broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
IN_PLACE_ONLY = ("broadcast", "all_reduce")
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
]  # fmt: skip


@pytest.mark.parametrize(("word", "flag", "in_file", "field", "value"), WORDS)
def test_a_word_reads_the_same_as_a_flag_and_in_a_file(toml, word, flag, in_file, field, value):
    assert getattr(load_sweep(flags={word: flag}), field) == value
    assert getattr(load_sweep(toml(f"{word} = {in_file}\n")), field) == value


def test_a_flag_overrides_the_file(toml):
    path = toml('maxbytes = "1G"\ncollective = ["broadcast"]\niters = 5\n')
    sweep = load_sweep(path, {"maxbytes": "1K", "collective": "all_reduce"})
    assert (sweep.maxbytes, sweep.collective, sweep.iters) == (1024, ("all_reduce",), 5)


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
        ("root = -1\n", ":1: root: is -1: expected a whole number of at least 0"),
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
    ],
)
def test_a_bad_flag_is_named(flags, complaint):
    with pytest.raises(InputError, match=rf"^{complaint}"):
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


@pytest.mark.parametrize("collective", FOUR)
def test_both_halves_of_a_row_are_measured(collective):
    sweep = Sweep(collective=(collective,), minbytes=1024, maxbytes=1024, timing=("isolated",))
    halves = [(cell.in_place, cell.repeat) for cell in cells_of(sweep, Layout.regular(1, 2))]
    assert halves == ([(True, 0), (True, 1)] if collective in IN_PLACE_ONLY else [(False, 0), (True, 0)])


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


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([(1, 1), (1, 2), (2, 2), (3, 2), (4, 1), (2, 8)]),
    st.integers(0, 200),
    st.integers(0, 5000),
    st.integers(1, 3),
    st.lists(st.sampled_from(["float32", "bfloat16", "int8"]), min_size=1, unique=True),
    st.lists(st.sampled_from(["sum", "max", "avg"]), min_size=1, unique=True),
)
def test_every_planned_cell_has_its_own_key(shape, minbytes, span, stepfactor, dtypes, redops):
    sweep = Sweep(
        minbytes=minbytes,
        maxbytes=minbytes + span,
        stepfactor=stepfactor,
        stepbytes=97,
        datatype=tuple(dtypes),
        redop=tuple(redops),
    )
    layout = Layout.regular(*shape)
    groups = {kind: form_groups(kind, layout) for kind in default_group_kinds(layout)}
    keys = [cell_key(cell.record(ranks)) for cell in plan_cells(sweep, groups) for ranks in groups[cell.group]]
    assert len(keys) == len(set(keys)) > 0


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


def test_identity_covers_what_a_value_depends_on():
    fields = set(Sweep().identity())
    assert {"collective", "group", "minbytes", "datatype", "redop", "root", "timing", "iters", "concurrent"} <= fields
    assert not {"name", "question", "timeout_s", "samples"} & fields
    record = Sweep(name="n").as_record()
    assert record["name"] == "n" and record["collective"] == list(FOUR)


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
