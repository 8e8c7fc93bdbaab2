"""A DeepSpeed JSON config: which ZeRO stage, what it calls at a time, and what it keeps. Sizes in it count elements.

Read with DeepSpeed 0.18's names and defaults (deepspeed/runtime/config.py and zero/config.py). Every key is one that
is used here, one that moves no data between ranks, or one that must be off; any other is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from collbench.dtypes import find_dtype
from collbench.errors import InputError, one_of

# Keys that change no collective, or only small ones.
_IRRELEVANT = {
    "": frozenset(
        [
            "steps_per_print",
            "wall_clock_breakdown",
            "memory_breakdown",
            "dump_state",
            "optimizer",
            "scheduler",
            "gradient_clipping",
            "prescale_gradients",
            "gradient_predivide_factor",
            "zero_allow_untested_optimizer",
            "zero_force_ds_cpu_optimizer",
            "activation_checkpointing",
            "flops_profiler",
            "tensorboard",
            "wandb",
            "csv_monitor",
            "comet",
            "comms_logger",
            "autotuning",
            "checkpoint",
            "dataloader_drop_last",
            "aio",
            "data_types",
        ]
    ),
    "zero_optimization": frozenset(
        [
            "contiguous_gradients",
            "allgather_bucket_size",
            "sub_group_size",
            "load_from_fp32_weights",
            "elastic_checkpoint",
            "ignore_unused_parameters",
            "round_robin_gradients",
            "stage3_gather_16bit_weights_on_model_save",
            "stage3_gather_fp16_weights_on_model_save",
            "gather_16bit_weights_on_model_save",
            "memory_efficient_linear",
            "pipeline_loading_checkpoint",
            "override_module_apply",
            "log_trace_cache_warnings",
            "enable_sanity_checks",
        ]
    ),
    "fp16": frozenset(
        [
            "loss_scale",
            "auto_cast",
            "initial_scale_power",
            "loss_scale_window",
            "hysteresis",
            "consecutive_hysteresis",
            "min_loss_scale",
            "fp16_master_weights_and_grads",
        ]
    ),
    "bf16": frozenset(["immediate_grad_update", "check_grad_overflow"]),
}
# Keys whose other values are not predicted.
_OFF: dict[str, dict[str, tuple[Any, ...]]] = {
    "": {
        "disable_allgather": (False,),
        "sparse_gradients": (False,),
        "amp": ({"enabled": False},),
        "torch_autocast": ({"enabled": False},),
    },
    "zero_optimization": {
        "reduce_scatter": (True, False),  # gradients are summed over all ranks either way
        "use_multi_rank_bucket_allreduce": (True,),
        "allgather_partitions": (True,),
        "legacy_stage1": (False,),
        "cpu_offload": (False, None),
        "offload_param": (None, {"device": "none"}),
        "offload_optimizer": (None, {"device": "none"}),
        "zero_hpz_partition_size": (1,),
        "zero_quantized_weights": (False,),
        "zero_quantized_nontrainable_weights": (False,),
        "zero_quantized_gradients": (False,),
        "mics_shard_size": (-1,),
        "mics_hierarchical_params_gather": (False,),
        "stage3_module_granularity_threshold": (0,),
        "stage3_use_all_reduce_for_fetch_params": (False,),
    },
    "fp16": {},
    "bf16": {},
}
_USED = {
    "": (
        "zero_optimization",
        "fp16",
        "bf16",
        "gradient_accumulation_steps",
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "communication_data_type",
    ),
    "zero_optimization": (
        "stage",
        "reduce_bucket_size",
        "overlap_comm",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
    ),
    "fp16": ("enabled",),
    "bf16": ("enabled",),
}
_DTYPES = ("fp16", "bf16", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeed:
    """What of a config decides about communication; `*_numel` count elements.

    dtype: fp16 or bf16 parameters, None where the workload's own stay.  comm_dtype: what gradients are sent in, None
    for their own.  accumulate, micro_batch, train_batch: micro-batches a step, samples of one on a rank, samples of a
    step on all ranks; None where the config leaves it open.
    """

    stage: int = 0
    reduce_bucket_numel: int = 500_000_000
    overlap_comm: bool | None = None
    prefetch_numel: int = 50_000_000
    persistence_numel: int = 100_000
    max_live_numel: int = 1_000_000_000
    reuse_numel: int = 1_000_000_000
    dtype: str | None = None
    comm_dtype: str | None = None
    accumulate: int | None = None
    micro_batch: int | None = None
    train_batch: int | None = None

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        return f"zero{self.stage}" if self.stage else "ddp"

    @property
    def overlaps(self) -> bool:
        """DeepSpeed's own choice where the config has none: stage 3 alone."""
        return self.stage == 3 if self.overlap_comm is None else self.overlap_comm

    def accumulates(self, nranks: int) -> int:
        """Micro-batches per step on so many ranks, by the rules of DeepSpeed's _set_batch_related_parameters.

        Raises InputError where the three batch sizes do not go together, which DeepSpeed refuses.
        """
        if self.train_batch is None:
            return self.accumulate or 1
        known = {
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.accumulate if self.accumulate or self.micro_batch else 1,
            "ranks": nranks,
        }
        factors = {name: count for name, count in known.items() if count is not None}
        others, rest = divmod(self.train_batch, prod(factors.values()))
        if rest or not others or (len(factors) == len(known) and others != 1):
            relation = "" if len(factors) == len(known) else "a multiple of "
            raise InputError(
                f"train_batch_size = {self.train_batch} is not {relation}{' x '.join(factors)} = "
                f"{' x '.join(map(str, factors.values()))}: DeepSpeed refuses that: change the config or the ranks"
            )
        return factors.get("gradient_accumulation_steps", others)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> DeepSpeed:
        """From a file; InputError names it and the key."""
        try:
            table = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise InputError(f"{path}: is not JSON ({error})") from None
        return cls.from_dict(table, str(path))

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], where: str = "deepspeed") -> DeepSpeed:
        """From a config as a mapping; InputError names `where` and the key."""
        config = _Table(table, "", where)
        zero, fp16, bf16 = (config.table(name) for name in ("zero_optimization", "fp16", "bf16"))
        on = [name for name, section in (("fp16", fp16), ("bf16", bf16)) if section.flag("enabled", default=False)]
        if len(on) == 2:
            raise InputError(f"{where}: fp16 and bf16 are both enabled: DeepSpeed takes one of them")
        usual = cls()
        overlap = zero.flag("overlap_comm", default=None)
        return cls(
            stage=zero.count("stage", usual.stage, most=3),
            reduce_bucket_numel=zero.count("reduce_bucket_size", usual.reduce_bucket_numel, least=1),
            overlap_comm=overlap,
            prefetch_numel=zero.count("stage3_prefetch_bucket_size", usual.prefetch_numel),
            persistence_numel=zero.count("stage3_param_persistence_threshold", usual.persistence_numel),
            max_live_numel=zero.count("stage3_max_live_parameters", usual.max_live_numel),
            reuse_numel=zero.count("stage3_max_reuse_distance", usual.reuse_numel),
            dtype=find_dtype(on[0]).name if on else None,
            comm_dtype=config.dtype("communication_data_type"),
            accumulate=config.batch("gradient_accumulation_steps"),
            micro_batch=config.batch("train_micro_batch_size_per_gpu", auto=True),
            train_batch=config.batch("train_batch_size", auto=True),
        )


class _Table:
    """A table of the config, whose keys are all known, and its values by type."""

    def __init__(self, table: Any, name: str, where: str) -> None:
        self._where = f"{where}: {name}." if name else f"{where}: "
        self._in = f"{where}: {name}: " if name else f"{where}: "
        if not isinstance(table, Mapping):
            raise InputError(f"{where}: {name or 'the config'} = {table!r} must be an object")
        self._table, self._source = table, where
        known = [*_USED[name], *_OFF[name], *sorted(_IRRELEVANT[name])]
        for key, value in table.items():
            if key not in known:
                raise InputError(f"{self._in}{one_of('key', key, known)}")
            off = _OFF[name].get(key)
            if off is not None and not any(_same(value, each) for each in off):
                raise InputError(
                    f"{self._where}{key} = {json.dumps(value)}: is not predicted, only {json.dumps(off[0])}"
                )

    def table(self, key: str) -> _Table:
        """A table in this one; empty where it is missing."""
        return _Table(self._table.get(key, {}), key, self._source)

    def count(self, key: str, default: int, *, least: int = 0, most: int | None = None) -> int:
        """A whole number, which JSON may write as 5e8."""
        value = self._table.get(key, default)
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
        if not whole or value < least or (most is not None and value > most):
            limits = f" from {least} to {most}" if most is not None else f", {least} or more"
            raise self._bad(key, value, f"a whole number{limits}")
        return int(value)

    def batch(self, key: str, *, auto: bool = False) -> int | None:
        """A number of samples or of micro-batches. auto: whether "auto", a launcher's to fill in, leaves it open."""
        value = self._table.get(key)
        return None if value is None or (auto and value == "auto") else self.count(key, 1, least=1)

    def flag(self, key: str, default: bool | None) -> bool | None:
        value = self._table.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self._bad(key, value, "true or false")
        return value

    def dtype(self, key: str) -> str | None:
        value = self._table.get(key)
        if value is not None and value not in _DTYPES:
            raise self._bad(key, value, ", ".join(_DTYPES))
        return None if value is None else find_dtype(value).name

    def _bad(self, key: str, value: Any, expected: str) -> InputError:
        hint = " (the number that it stands for)" if value == "auto" else ""
        return InputError(f"{self._where}{key} = {value!r}: expected {expected}{hint}")


def _same(value: Any, off: Any) -> bool:
    """Equal, and of one type: 1 is not True. Of a table, only the keys that `off` has."""
    if isinstance(off, dict) and isinstance(value, Mapping):
        return all(value.get(key) == each for key, each in off.items())
    return type(value) is type(off) and bool(value == off)
