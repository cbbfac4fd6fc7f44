"""The promise that no listener runs dry: who may still be let in, and how long a batch may keep the promised waiting."""

from __future__ import annotations

from collections.abc import Iterable

from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.goal import NEVER, Leg, Listener

RESERVE = 0.1  # of an executor's time that is never promised

Op = tuple[str, str]  # expert, op


class Supply:
    """The streams that were promised, and what they need together.

    A second of sound needs, of each loop on the way, some units; the n streams of an executor run theirs in one batch. The
    seconds of all these batches for a second of sound are its `load`: below 1 all its streams can play at once, and a stream
    that gets ahead stays ahead.

    Args:
        limits: (expert, op) -> units and size of a batch.
    """

    def __init__(self, costs: Costs, limits: dict[Op, tuple[int, int]]) -> None:
        self.costs = costs
        self.limits = limits
        self.streams: dict[int, list[Listener]] = {}  # promised runs that were let in

    def playing(self) -> Iterable[Listener]:
        return (listener for listeners in self.streams.values() for listener in listeners if not listener.over)

    def known(self, listeners: Iterable[Listener]) -> bool:
        """Whether such a request has ended before, so that its pace is known."""
        return all(leg.pace.second > 0.0 for listener in listeners for leg in listener.legs)

    def loads(self, listeners: Iterable[Listener], careful: bool = True) -> dict[str, dict[Op, tuple[float, float]]]:
        """By executor and op: the seconds that one unit of every stream takes, and how many units a second of sound needs. If
        careful, as much longer as prices are usually off."""
        needs: dict[tuple[str, Op], list[Leg]] = {}
        for listener in listeners:
            for leg in listener.legs:
                needs.setdefault((listener.home(leg), leg.op), []).append(leg)
        found: dict[str, dict[Op, tuple[float, float]]] = {}
        for (home, op), legs in needs.items():
            n = len(legs)
            pace = [leg.pace for leg in legs]
            units, size = self.limits.get(op, (n, 1 << 30))
            batches = max(1.0, n / units, sum(p.size for p in pace) / size)
            part = n / batches
            work, reach = sum(p.work for p in pace) / n, sum(p.reach for p in pace) / n
            model = legs[0].model
            seconds = batches * model.predict(part, part * work, part * reach) * (1.0 + model.spread * careful)
            found.setdefault(home, {})[op] = (seconds, sum(p.second for p in pace) / n)
        return found

    def load(self, *others: Listener) -> dict[str, float]:
        """By executor: its seconds for a second of sound of every promised stream there, and of `others`."""
        loads = self.loads([*self.playing(), *others])
        return {home: sum(seconds * rate for seconds, rate in ops.values()) for home, ops in loads.items()}

    def need(self, listener: Listener, load: dict[str, float]) -> float:
        """Seconds of sound that must lie ready so that the longest wait for more cannot drain it.

        The longest wait: what is left of the longest clause that was ever seen, at the pace of that load, one batch of each loop
        on the way, and the longest batch that can be in the way.
        """
        wait = way = 0.0
        for leg in listener.legs:
            way += leg.model.mean * (1.0 + leg.model.spread)
            if leg.pace.second > 0.0:
                pace = load.get(listener.home(leg), 0.0) / (1.0 - RESERVE) / leg.pace.second
                wait = max(wait, max(0.0, leg.pace.gap - leg.begun()) * pace)
        return wait + way + max((model.worst for model in self.costs.models.values()), default=0.0)

    def safe(self, listener: Listener, now: float, arrival: float) -> bool:
        """Whether a promised stream may begin to play."""
        if not self.known([listener]):  # it has given more sound than time has passed, and not just the first word
            return listener.made >= max(1.0, now - arrival)
        return listener.made >= self.need(listener, self.load())

    def never(self, listeners: list[Listener]) -> float:
        """The load of a stream that could not be kept supplied even alone, or 0. Nobody is sent away for ever because young
        prices are uncertain: after six requests one was told 1.04 where 0.72 was true."""
        if not self.known(listeners):
            return 0.0
        ops = self.loads(listeners, careful=False).values()
        alone = max((sum(seconds * rate for seconds, rate in op.values()) for op in ops), default=0.0)
        return alone if alone > 1.0 - RESERVE else 0.0

    def fits(self, listeners: list[Listener], now: float) -> bool:
        """Whether one more can be promised without breaking a promise."""
        if not self.streams:
            return True
        if not self.known(listeners):
            return False
        load = self.load(*listeners)
        return max(load.values(), default=0.0) <= 1.0 - RESERVE and self._short(load, now) <= 0.0

    def _short(self, load: dict[str, float], now: float) -> float:
        """Seconds of sound that the stream which lacks most lacks for such a load."""
        lacks = (self.need(one, load) - one.ready(now) for one in self.playing() if one.begun)
        return max(0.0, max(lacks, default=0.0))

    def wait(self, listeners: list[Listener], ahead: int, now: float) -> float:
        """Seconds until a promised stream with so many in front of it will be let in, as far as can be told: when buffers have
        grown enough at the pace of now, or when enough of those that play have been made, each taking as long as is usual."""
        playing = list(self.playing())
        load = self.load()
        after = self.load(*listeners)
        heavy = max((after[home] for home in after), default=0.0)
        if heavy <= 1.0 - RESERVE and self.known(listeners):
            gain = 1.0 / max(0.05, max(load.values(), default=0.05)) - 1.0
            return (1 + ahead) * max(0.1, self._short(after, now) / max(0.1, gain))
        busy = max(load.values(), default=0.0) or 1.0  # of what nobody knows it is assumed to be made as fast as it is heard
        left = []
        busy = max(load.values(), default=0.0) or 1.0  # nothing is known of those that play: as long as they are heard
        for listener in playing:
            usual = max((leg.pace.units / leg.pace.second for leg in listener.legs if leg.pace.second > 0.0), default=10.0)
            left.append(max(usual - listener.made, 0.1 * usual) * busy)
        left.sort()
        if not left:
            return 0.1
        rounds, place = divmod(ahead, len(left))
        return left[place] + rounds * left[-1]

    def allowed(self, home: str, op: Op, now: float) -> float:
        """Seconds that a batch of an op may take on an executor: what no promised listener there notices, or as long as all of
        them keep pace with their playing if every such batch takes that long."""
        here = [listener for listener in self.playing() if listener.uses(home)]
        if not here:
            return NEVER
        loads = self.loads(here).get(home, {})
        _, rate = loads.pop(op, (0.0, 0.0))
        rest = 1.0 - RESERVE - sum(seconds * rate for seconds, rate in loads.values())
        return max(_slack(here, now), rest / rate if rate else 0.0, 0.0)

    def slack(self, home: str, now: float) -> float:
        """Seconds for which an executor may do something else without any promised listener running dry because of it."""
        return _slack((listener for listener in self.playing() if listener.uses(home)), now)


def _slack(listeners: Iterable[Listener], now: float) -> float:
    """Seconds that a batch may take without any of these running dry because of it."""
    least = NEVER
    for listener in listeners:
        if listener.begun:
            lead = max((leg.lead for leg in listener.legs), default=0.0)
            least = min(least, listener.by - lead - now)
    return least
