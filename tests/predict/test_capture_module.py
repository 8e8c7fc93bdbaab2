"""A torch module as a workload, with what torch issues for it. One process group a process: captures run in turn."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
import torch_models
from conftest import clean_environment
from torch import nn

import collbench
from collbench.errors import InputError
from collbench.predict.capture.loading import Inputs, build, find_function, parse_inputs
from collbench.predict.capture.module import Request, from_function
from collbench.predict.captured import Computed
from collbench.predict.step import predict_step
from collbench.predict.workload import Workload

SHARDED = {"param_dtype": "bf16", "reduce_dtype": "float32"}


def capture(function, **options):
    return from_function(f"torch_models:{function.__name__}", None, Request(**options))


def calls(workload, kind=""):
    return [
        (event.unit, event.size_bytes, event.dtype, event.nranks)
        for event in workload.captured.issued
        if event.collective.startswith(kind)
    ]


def reducer_says(module, x, **options):
    """Bucket sizes by torch's own reducer over the real module: its third step."""
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        ddp = nn.parallel.DistributedDataParallel(module, **options)
        for _ in range(3):
            ddp(x).sum().backward()
        logged = ddp._get_ddp_logging_data()
        sizes = logged["bucket_sizes"] if options.get("find_unused_parameters") else logged["rebuilt_bucket_sizes"]
        return [int(size) for size in sizes.split(", ")]
    finally:
        torch.distributed.destroy_process_group()


SMALL_INPUTS = {torch_models.gpt2: torch_models.tokens(1, 8), torch_models.resnet50: torch.zeros(2, 3, 32, 32)}


@pytest.mark.parametrize(
    ("function", "options"),
    [
        *((torch_models.twenty_linears, {"bucket_cap_mb": cap}) for cap in (None, 1.0, 25.0)),
        (torch_models.gpt2, {}),
        (torch_models.resnet50, {}),
        (torch_models.awkward, {}),
        (torch_models.awkward, {"bucket_cap_mb": 0.5}),
        (torch_models.awkward_with_unused, {"find_unused_parameters": True, "bucket_cap_mb": 0.5}),
        (torch_models.awkward_with_unused, {"find_unused_parameters": True}),
    ],
)
def test_ddps_buckets_are_those_of_the_reducer_over_the_real_module(function, options):
    workload = capture(function, **options)
    buckets = [size for unit, size, _, _ in calls(workload, "all_reduce") if unit.startswith("bucket")]
    module, x = function()
    assert buckets == reducer_says(module, SMALL_INPUTS.get(function, x), **options)
    unused = options.get("find_unused_parameters", False)
    assert workload.captured.plan.startswith("differs" if unused else "as issued")
    assert [unit for unit, *_ in calls(workload)].count("unused parameters") == unused


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_gradients_too_large_to_hold_are_assigned_by_torchs_function(monkeypatch, options):
    function = torch_models.awkward_with_unused if options else torch_models.resnet50
    recorded = capture(function, bucket_cap_mb=1.0, **options)
    monkeypatch.setattr("collbench.predict.capture.reducer.LARGEST_REAL_BYTES", 0)
    assigned = capture(function, bucket_cap_mb=1.0, **options)
    assert assigned.captured.calls == recorded.captured.calls
    assert "recorded" in recorded.captured.source and "function" in assigned.captured.source


def test_what_takes_no_part_stops_ddp():
    with pytest.raises(InputError, match=r"unused\.weight and 1 more took no part .*--find-unused-parameters"):
        capture(torch_models.awkward_with_unused)


@pytest.mark.parametrize("nranks", [2, 8, 1024])
@pytest.mark.parametrize("reshard", [None, True, False, 2])
def test_fsdp_of_four_layers_is_as_planned(nranks, reshard):
    if reshard == 2 and nranks == 2:
        reshard = True
    workload = capture(
        torch_models.llama_four_layers, strategy="fsdp", nranks=nranks, reshard_after_forward=reshard, **SHARDED
    )
    assert workload.captured.plan == "as issued"
    gathers = [unit for unit, *_ in calls(workload, "all_gather")]
    blocks = [f"layers.{number}" for number in range(4)]
    again = [] if reshard is False else blocks[::-1]
    root = [] if reshard in (None, False) else ["root"]
    assert gathers == ["root", *blocks, *root, *again]
    assert [unit for unit, *_ in calls(workload, "reduce_scatter")] == [*blocks[::-1], "root"]
    assert {dtype for *_, dtype, _ in calls(workload, "all_gather")} == {"bfloat16"}
    degrees = {event.nranks for event in workload.captured.issued}
    assert degrees == ({2, nranks} if reshard == 2 else {nranks})


def test_hsdp_of_four_layers_is_as_planned():
    workload = capture(torch_models.llama_four_layers, strategy="hsdp", mesh="2x4", **SHARDED)
    assert workload.captured.plan == "as issued"
    reduced, scattered = calls(workload, "all_reduce"), calls(workload, "reduce_scatter")
    assert [(unit, 4 * size, dtype, 4) for unit, size, dtype, _ in reduced] == scattered
    assert {nranks for *_, nranks in reduced} == {2}


MEASURED_MAIN = """
import resource, sys
from collbench.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.study
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_seventy_billion_parameters_on_1024_ranks(strategy):
    words = ["capture", f"{torch_models.__file__}:llama3_70b", "--nranks", "1024", "--strategy", strategy]
    done = subprocess.run(
        [sys.executable, "-c", MEASURED_MAIN, *words, "-o", "/dev/null"], env=clean_environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "70,553,706,496 parameters" in done.stdout and "as issued" in done.stdout
    seconds, kibibytes = map(float, done.stderr.splitlines()[-1].split())
    assert seconds < 30 and kibibytes < 4e6, done.stderr


# What a user's file may have in it.
USERS = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch_models import Gpt2, llama_four_layers, tokens

def on_the_cpu():
    model = nn.Linear(6, 6, device="cpu")
    model.register_buffer("scale", torch.ones(6, device="cpu"))
    return model, torch.zeros(2, 6)

def nested():
    model, x = llama_four_layers()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer.attention, mp_policy=policy)
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model, x

def prefetching():
    model, x = llama_four_layers()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    for layer, after in zip(model.layers, model.layers[1:]):
        layer.set_modules_to_forward_prefetch([after])
    return model, x

def tied():
    model = Gpt2(50, 16, 32, 3, 2)
    for block in model.h:
        fully_shard(block)
    fully_shard([model.wte, model.lm_head])
    fully_shard(model)
    return model, tokens(2, 16)

def tied_across_units():
    model = Gpt2(50, 16, 32, 3, 2)
    fully_shard(model.wte)
    fully_shard(model)
    return model, tokens(2, 16)

def data_first():
    model = nn.Sequential(*(nn.Linear(16 + 8 * i, 24 + 8 * i) for i in range(3)))
    model.scale = nn.Parameter(torch.ones(8))
    for layer in list(model)[:3]:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.zeros(4, 16)

def on_a_mesh():
    model, x = llama_four_layers()
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, x

def only_parts():
    model, x = llama_four_layers()
    for layer in model.layers:
        fully_shard(layer)
    return model, x

def partly_frozen():
    model, x = llama_four_layers()
    for layer in model.layers:
        layer.attention.requires_grad_(False)
    return model, x

def no_module():
    return {"a": 1}

def takes_a_size(size):
    return nn.Linear(size, 3)

def reads_a_value():
    return nn.Linear(int(torch.ones(()).item()), 3)

def fails_in_forward():
    return nn.Linear(3, 3), torch.zeros(2, 4)

def trains_nothing():
    return nn.Linear(3, 3).requires_grad_(False), torch.zeros(2, 3)

def without_inputs():
    return nn.Linear(3, 3)
"""


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.py"
    path.write_text(USERS)
    return path


def of_user(users, name, strategy="fsdp", **options):
    return from_function(f"{users}:{name}", None, Request(strategy=strategy, **options))


def test_units_within_units_are_gathered_in_the_order_that_torch_has(users):
    workload = of_user(users, "nested")
    assert [layer.name for layer in workload.layers if layer.wrap][:2] == ["layers.0", "layers.0.attention"]
    gathers = [unit for unit, *_ in calls(workload, "all_gather")]
    assert gathers[-4:] == ["layers.1", "layers.1.attention", "layers.0", "layers.0.attention"]
    scattered = [unit for unit, *_ in calls(workload, "reduce_scatter")]
    assert scattered[:2] == ["layers.3.attention", "layers.3"]
    assert workload.captured.plan.startswith("differs at collective 10 of 26: torch all_gather_into_tensor")
    types = (workload.storage_dtype, workload.param_dtype, workload.grad_dtype, workload.reduce_dtype)
    assert types == ("float32", "bfloat16", "float32", "float32")


def test_the_users_prefetching_is_captured(users):
    events = of_user(users, "prefetching").captured.calls
    begins = events.index(Computed(direction="forward", layer="layers.0"))
    assert [event.unit for event in events[begins - 2 : begins]] == ["layers.0", "layers.1"]


def test_tied_modules_are_one_unit(users):
    workload = of_user(users, "tied")
    assert [unit for unit, *_ in calls(workload, "all_gather")].count("wte") == 2
    assert calls(workload, "reduce_scatter")[-1][0] == "wte"  # its input is data: reduced when all is over
    assert "lm_head" not in {layer.name for layer in workload.layers}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_function_may_name_a_device_itself(users, strategy):
    assert of_user(users, "on_the_cpu", strategy).numel == 42


def test_a_unit_fed_with_data_is_reduced_after_the_root(users):
    assert [unit for unit, *_ in calls(of_user(users, "data_first"), "reduce_scatter")][-1] in ("0", "root")


def test_the_users_mesh_is_held_against_the_request(users):
    assert of_user(users, "on_a_mesh", "hsdp", mesh="2x4").captured.plan == "as issued"
    with pytest.raises(InputError, match=r"over a mesh of 2 x 4 ranks: capture it with --strategy hsdp --mesh 2x4"):
        of_user(users, "on_a_mesh", "fsdp", nranks=8)
    with pytest.raises(InputError, match="wrap: the function itself applies fully_shard"):
        of_user(users, "nested", wrap=("LlamaBlock",))
    with pytest.raises(InputError, match="capture it with --strategy fsdp --nranks 8"):
        of_user(users, "nested", "ddp")


def test_frozen_parameters_of_a_unit_are_gathered_and_not_reduced(users):
    workload = of_user(users, "partly_frozen")
    assert workload.captured.plan == "as issued"
    assert workload.layers[1].frozen_tensors == ((48, 48), (24, 48), (24, 48), (48, 48))
    assert workload.numel - workload.trainable_numel == 4 * (2 * 48 * 48 + 2 * 24 * 48)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_module", "returned a dict: expected a torch.nn.Module"),
        ("takes_a_size", "takes size: expected a function that is called without arguments"),
        ("reads_a_value", "cannot be built on the meta device"),
        ("fails_in_forward", "forward fails: RuntimeError"),
        ("trains_nothing", "no parameters that train"),
        ("without_inputs", "--input 8x2048:int64"),
        ("only_parts", "apply it to the outermost one too"),
        ("tied_across_units", "forward fails|fully_shard"),
        ("partly_frzen", "did you mean partly_frozen?"),
        ("USERS", "has no 'USERS'"),
        ("nn", "expected a function"),
    ],
)
def test_what_cannot_be_captured_is_said_in_one_line(users, name, message):
    with pytest.raises(InputError, match=message) as error:
        of_user(users, name)
    assert "\n" not in str(error.value)
    assert not torch.distributed.is_initialized()


def test_functions_that_are_not_there(tmp_path):
    for spec, message in (
        ("train", "expected MODULE:FUNCTION"),
        ("no_such_module:build", "cannot be imported: ModuleNotFoundError"),
        (f"{tmp_path}/none.py:build", "none.py: no such file"),
    ):
        with pytest.raises(InputError, match=message):
            find_function(spec)
    assert build(nn.Identity, "x:y")[1] is None


def test_inputs_are_read():
    inputs = parse_inputs(["8x16:int64", "2x3"])
    assert [(tuple(t.shape), t.dtype) for t in inputs.args] == [((8, 16), torch.int64), ((2, 3), torch.float32)]
    assert inputs.tokens == 128
    assert Inputs(kwargs={"x": torch.ones(3), "mask": torch.ones(3, dtype=torch.bool)}).tokens is None
    for text in ("8xtwo", "", "0x4", "8:int99"):
        with pytest.raises(InputError):
            parse_inputs([text])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "zero1"}, "unknown strategy"),
        ({"strategy": "fsdp", "bucket_cap_mb": 1.0}, "bucket_cap_mb = 1.0 does not belong"),
        ({"param_dtype": "bf16"}, "param_dtype = 'bf16' does not belong to strategy ddp"),
        ({"strategy": "hsdp"}, "needs a mesh"),
        ({"strategy": "hsdp", "mesh": "2by4"}, "expected RxS"),
        ({"strategy": "hsdp", "mesh": "2x4", "nranks": 6}, "mesh 2x4 has 8 ranks"),
        ({"nranks": 0}, "nranks = 0"),
        ({"nranks": 1}, "2 ranks or more"),
        ({"strategy": "hsdp", "mesh": "4x1"}, "2 ranks or more"),
        ({"mfu": "40%"}, "need both"),
        ({"mfu": "140%", "peak_tflops": 1.0}, "--mfu '140%'"),
        ({"mfu": "40%", "peak_tflops": 1.0, "trace": "t.json"}, "exclude each other"),
        ({"strategy": "fsdp", "param_dtype": "bf17"}, "unknown datatype 'bf17'"),
        ({"wrap": ("Lineer",)}, "did you mean Linear?"),
    ],
)
def test_requests_that_do_not_fit(options, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        capture(torch_models.twenty_linears, **options)


def test_times_come_from_flops_and_say_so():
    workload = capture(torch_models.twenty_linears, mfu="50%", peak_tflops=1.0)
    one_ms = 2 * 4 * 1024 * 1024 / 0.5e12 * 1e3  # 4 rows through 1024 x 1024, at 50 % of 10^12 a second
    assert [layer.forward_ms for layer in workload.layers] == pytest.approx([one_ms] * 20)
    # backward twice that, but for the first: its input needs no gradient
    assert [layer.backward_ms for layer in workload.layers] == pytest.approx([one_ms] + [2 * one_ms] * 19)
    assert workload.times == "from FLOPs: 50 % of 1 TFLOP/s (MFU, assumed)"


def test_recomputed_activations_lengthen_backward():
    class Checkpointed(torch_models.LlamaBlock):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)

    module, x = torch_models.llama_four_layers()
    options = {"strategy": "fsdp", "mfu": 1.0, "peak_tflops": 0.001}
    plain = Workload.from_module(module, x, **options)
    module.layers = nn.ModuleList(Checkpointed(48, 4, 2, 100) for _ in range(4))
    again = Workload.from_module(module, x, **options)
    assert again.layers[1].forward_ms == plain.layers[1].forward_ms
    assert 1.3 < again.layers[1].backward_ms / plain.layers[1].backward_ms <= 1.5
    assert again.captured.calls == plain.captured.calls


def test_the_python_api_leaves_the_module_alone():
    module = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.zeros(2, 3, dtype=torch.int64)
    workload = collbench.Workload.from_module(module, x, strategy="fsdp", wrap=("Linear",), mfu=0.5, peak_tflops=1.0)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert (workload.numel, workload.tokens_per_micro_batch, workload.captured.plan) == (80, 6, "as issued")
    assert all(p.grad is None for p in module.parameters()) and not torch.distributed.is_initialized()


def test_a_process_with_a_group_of_its_own_is_not_touched():
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        with pytest.raises(InputError, match="process group of its own"):
            capture(torch_models.awkward)
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


def test_times_are_measured():
    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            if x.device.type != "meta":
                time.sleep(0.02)
            return x * self.weight

    module = nn.Sequential(Slow(), nn.Linear(3, 3))
    workload = Workload.from_module(module, torch.zeros(2, 3), device="cpu")
    slow, fast = workload.layers
    assert 20 <= slow.forward_ms < 200 and fast.forward_ms < slow.forward_ms
    assert workload.times.startswith("measured on ")


def test_a_file_reads_back_and_predicts_the_captured_order(users, tmp_path):
    workload = of_user(users, "nested", mfu="50%", peak_tflops=0.001)
    workload.save(tmp_path / "w.toml")
    read = Workload.from_toml(tmp_path / "w.toml")
    assert read.captured == workload.captured and read.times == workload.times
    link = collbench.LinkModel(bandwidth_GBps=1.0)
    step = predict_step(read, link, "fsdp", nodes=1, ranks_per_node=4)
    gathers = [
        placed.name for placed in sorted(step.timeline, key=lambda each: each.start_ms) if "gather" in placed.name
    ]
    assert gathers[-2:] == ["all_gather layers.0", "all_gather layers.0.attention"]
    assert Path(tmp_path / "w.toml").read_text().count("[[layers]]") == len(read.layers)
