"""Which modules are layers of the workload, which of these are FSDP units, and whose the parameters are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from collbench.errors import InputError, one_of

ROOT_PARAMETERS = "parameters"  # the layer of what the outermost module registers itself


@dataclass
class Part:
    """A layer: modules that compute together, and the parameters that are theirs alone.

    name: of the first of them in the whole.  wrapped: one FSDP unit; else its parameters are the root unit's.
    """

    name: str
    modules: list[nn.Module]
    wrapped: bool
    parameters: list[nn.Parameter] = field(default_factory=list)


def is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` was applied to any of it."""
    return any(isinstance(each, FSDPModule) for each in module.modules())


def split(module: nn.Module, wrap: Sequence[str] | None) -> list[Part]:
    """The layers with parameters, in the order of registration: units, and each module of the rest by itself.

    A module that `fully_shard` was applied to has its units; else `wrap` has the names of the classes that are units;
    None takes the blocks: the members of every outermost list of two or more modules of one class.
    InputError for a class that is not there.
    """
    units = _sharded(module) if is_sharded(module) else [[each] for each in _wrapped(module, wrap)]
    names = {id(each): name for name, each in module.named_modules()}
    parts = {id(modules[0]): Part(names[id(modules[0])], modules, wrapped=True) for modules in units}
    unit_of = {id(each): parts[id(modules[0])] for modules in units for each in modules}
    found: list[Part] = []
    seen: set[int] = set()
    for name, each, unit in _walk(module, "", None, unit_of):
        part = unit or Part(name or ROOT_PARAMETERS, [each] if name else [], wrapped=False)
        for parameter in each.parameters(recurse=False):
            if id(parameter) not in seen:  # a tied one is its first owner's
                seen.add(id(parameter))
                part.parameters.append(parameter)
        if part.parameters and all(part is not other for other in found):
            found.append(part)
    return found


def _walk(
    module: nn.Module, name: str, unit: Part | None, units: dict[int, Part]
) -> Iterator[tuple[str, nn.Module, Part | None]]:
    """Every module with its name and the innermost unit that it is in."""
    unit = units.get(id(module), unit)
    yield name, module, unit
    for child_name, child in module.named_children():
        yield from _walk(child, f"{name}.{child_name}" if name else child_name, unit, units)


def _sharded(module: nn.Module) -> list[list[nn.Module]]:
    """The modules of each `fully_shard` call but the root's."""
    calls: dict[int, list[nn.Module]] = {}
    for each in module.modules():
        if isinstance(each, FSDPModule) and each is not module:
            state = fully_shard.state(each)  # type: ignore[attr-defined]
            calls.setdefault(id(state), []).append(each)
    return list(calls.values())


def _wrapped(module: nn.Module, wrap: Sequence[str] | None) -> list[nn.Module]:
    if wrap is None:
        return list(_blocks(module))
    known = sorted({type(each).__name__ for each in module.modules() if each is not module})
    for name in wrap:
        if name not in known:
            raise one_of("class of --wrap", name, known)
    found = [each for each in module.modules() if each is not module and type(each).__name__ in wrap]
    if wrap and not any(True for each in found for _ in each.parameters()):
        raise InputError(f"--wrap {','.join(wrap)}: has no parameters to gather")
    return found


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    children = list(module.children())
    is_list = isinstance(module, nn.ModuleList | nn.Sequential)
    if is_list and len(children) > 1 and len({type(child) for child in children}) == 1:
        yield from (child for child in children if any(True for _ in child.parameters()))
        return
    for child in children:
        yield from _blocks(child)
