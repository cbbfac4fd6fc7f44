"""Which executors are made for some cards: one for the host's experts, and those of the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from omni_runtime.card import ExpertSpec, ModelCard
from omni_runtime.errors import CardError, unknown
from omni_runtime.executors.base import Executor
from omni_runtime.executors.loopback import LoopbackExecutor
from omni_runtime.executors.process import ProcessExecutor
from omni_runtime.executors.thread import ThreadExecutor

Kind = Literal["thread", "process", "loopback"]
KINDS: tuple[Kind, ...] = ("thread", "process", "loopback")
KEEPS_LOOPS = 1 << 16  # slots of an expert whose state has no positions


def kind_named(name: str) -> Kind:
    """
    Raises:
        CardError: there is none of that name.
    """
    for kind in KINDS:
        if kind == name:
            return kind
    raise CardError(f"executor={name!r}: " + unknown("executor", name, KINDS))


def usual_slots(device: str) -> int:
    """Batches at an executor of a device at once, where nobody says otherwise."""
    return 2 if device.partition(":")[0] == "cuda" else 1


def lineup(
    cards: Sequence[ModelCard],
    kind: Kind = "thread",
    device: str = "cpu",
    kv_bytes: int = 1 << 30,
    *,
    workers: Mapping[str, Sequence[str]] | None = None,
    replicas: int = 1,
    slots: int | None = None,
    threads: int | None = None,
    reuse: bool = True,
    batch_invariant: bool = False,
) -> list[Executor]:
    """The host's experts in a thread; the device's in an executor of this kind, or in several.

    Args:
        kind: "thread"; "process"; or "loopback", a thread to which every message is encoded both ways.
        device: as torch names it.
        kv_bytes: memory for the KV caches of each expert that has one, on each executor.
        slots: batches that may be at an executor at once, running or waiting. By default 2 on a GPU, where the second is launched
            while the first is running, and 1 elsewhere.
        workers: executors by name, each with its "card/expert"s; what stands in several is served by all of them.
        replicas: executors with all experts of the device each; not with `workers`.
        batch_invariant: results are the same to the bit in any company and after any loss (designs/0029-batch-invariant.md).

    Raises:
        CardError: an expert that does not exist, or that nobody would host.
    """
    kind = kind_named(kind)
    if type(batch_invariant) is not bool:
        raise CardError(f"batch_invariant={batch_invariant!r}: True or False is needed")
    host = {f"{c.name}/{n}": spec for c in cards for n, spec in c.experts.items() if spec.place == "host"}
    ours = {f"{c.name}/{n}": spec for c in cards for n, spec in c.experts.items() if spec.place == "device"}
    name = device.replace(":", "")
    slots = usual_slots(device) if slots is None else slots
    if workers:
        groups = _checked(workers, ours, replicas)
    elif replicas > 1:
        groups = {f"{name}-{i}": tuple(ours) for i in range(1, replicas + 1)}
    else:
        groups = {name: tuple(ours)}
    made: list[Executor] = []
    if host:
        exact = _exact(cards, host) if batch_invariant else None
        made.append(ThreadExecutor("host#1", host, _pools(cards, host, kv_bytes), exact=exact))
    for group, experts in groups.items():
        if not experts:
            continue
        specs = {expert: ours[expert] for expert in experts}
        build = ProcessExecutor if kind == "process" else ThreadExecutor
        exact = _exact(cards, specs) if batch_invariant else None
        made.append(build(f"{group}#1", specs, _pools(cards, specs, kv_bytes), device, slots, threads, reuse, exact))
    return [LoopbackExecutor(one) for one in made] if kind == "loopback" else made


def _exact(cards: Sequence[ModelCard], experts: Mapping[str, ExpertSpec]) -> dict[str, tuple[str, ...]]:
    """By expert, ops whose rows come in granted sizes: running them row by row would not make them exact."""
    found: dict[str, tuple[str, ...]] = {}
    for card in cards:
        for loop in card.loops.values():
            if (name := f"{card.name}/{loop.expert}") in experts and loop.sized:
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), loop.op)))
    return found


def _checked(workers: Mapping[str, Sequence[str]], ours: Mapping[str, ExpertSpec], replicas: int) -> dict[str, tuple[str, ...]]:
    if replicas > 1:
        raise CardError(f"replicas={replicas}: workers were given; name an expert in several of them instead")
    for worker, experts in workers.items():
        if not worker or worker == "host" or "#" in worker:
            raise CardError(f"workers: {worker!r} cannot be the name of one; take letters and digits, and not 'host'")
        if not experts:
            raise CardError(f"workers[{worker!r}]: no expert is named; leave it out")
        for expert in experts:
            if expert not in ours:
                raise CardError(f"workers[{worker!r}]: " + unknown("expert of the device", expert, ours))
    if left := sorted(ours.keys() - {expert for experts in workers.values() for expert in experts}):
        raise CardError(f"workers: nobody hosts {', '.join(left)}; name each expert of the device in at least one")
    return {worker: tuple(dict.fromkeys(experts)) for worker, experts in workers.items()}


def _pools(cards: Sequence[ModelCard], experts: Mapping[str, ExpertSpec], kv_bytes: int) -> dict[str, int]:
    pools = {}
    for card in cards:
        for loop in card.loops.values():
            name, spec = f"{card.name}/{loop.expert}", card.experts[loop.expert]
            if name in experts and (spec.bytes_per_position or loop.state_blocks):
                per_block = spec.bytes_per_position * spec.block
                if per_block > kv_bytes:
                    raise CardError(f"kv_bytes={kv_bytes}: a block of {name!r} takes {per_block} bytes, give that at least")
                pools[name] = kv_bytes // per_block if per_block else KEEPS_LOOPS
    return pools
