"""The promise that no listener runs dry: who may still be let in, and how long a batch may keep the promised waiting."""

from __future__ import annotations

from omni_runtime.scheduler.cost import Costs
from omni_runtime.scheduler.goal import NEVER, Leg, Listener

RESERVE = 0.1  # of a device's time that is never promised


class Supply:
    """The streams that were promised, and what they need together.

    A second of sound needs, of each loop on the way, some units; n streams run theirs in one batch. The seconds of all these
    batches for a second of sound are the `load`: below 1 all streams can play at once, and a stream that gets ahead stays ahead.
    """

    def __init__(self, costs: Costs, limits: dict[tuple[str, str], tuple[int, int]]) -> None:
        self.costs = costs
        self.limits = limits  # (expert, op) -> units and size of a batch
        self.streams: dict[int, list[Listener]] = {}  # promised runs that were let in

    def known(self, listeners: list[Listener]) -> bool:
        """Whether such a request has ended before, so that its pace is known."""
        return all(leg.pace.second > 0.0 for listener in listeners for leg in listener.legs)

    def load(self, *others: list[Listener]) -> float:
        """Device-seconds for a second of sound of every promised stream and of `others`."""
        return sum(seconds * rate for seconds, rate in self.loads(*others).values())

    def loads(self, *others: list[Listener]) -> dict[tuple[str, str], tuple[float, float]]:
        """By op: the seconds that one unit of every stream takes, and how many units a second of sound needs."""
        needs: dict[tuple[str, str], list[Leg]] = {}
        for listeners in (*self.streams.values(), *others):
            for listener in listeners:
                if not listener.over:
                    for leg in listener.legs:
                        needs.setdefault(leg.op, []).append(leg)
        found = {}
        for op, legs in needs.items():
            n = len(legs)
            pace = [leg.pace for leg in legs]
            units, size = self.limits.get(op, (n, 1 << 30))
            wide = sum(p.size for p in pace)
            batches = max(1.0, n / units, wide / size)
            part = n / batches
            work, reach = sum(p.work for p in pace) / n, sum(p.reach for p in pace) / n
            model = legs[0].model
            seconds = batches * model.predict(part, part * work, part * reach) * (1.0 + model.spread)
            found[op] = (seconds, sum(p.second for p in pace) / n)
        return found

    def need(self, listener: Listener, load: float) -> float:
        """Seconds of sound that must lie ready so that the longest wait for more cannot drain it.

        The longest wait: what is left of the longest clause that was ever seen, at the pace of that load, one batch of each loop
        on the way, and the longest batch that can be in the way.
        """
        wait = way = 0.0
        for leg in listener.legs:
            way += leg.model.mean * (1.0 + leg.model.spread)
            if leg.pace.second > 0.0:
                wait = max(wait, max(0.0, leg.pace.gap - leg.begun()) / leg.pace.second * load)
        return wait + way + max((model.worst for model in self.costs.models.values()), default=0.0)

    def safe(self, listener: Listener, now: float, arrival: float) -> bool:
        """Whether a promised stream may begin to play."""
        if not self.known([listener]):  # it has given more sound than time has passed, and not just the first word
            return listener.made >= max(1.0, now - arrival)
        return listener.made >= self.need(listener, self.load())

    def never(self, listeners: list[Listener]) -> float:
        """The load of a stream that could not be kept supplied even alone, or 0."""
        if not self.known(listeners):
            return 0.0
        alone = Supply(self.costs, self.limits).load(listeners)
        return alone if alone > 1.0 - RESERVE else 0.0

    def fits(self, listeners: list[Listener], now: float) -> bool:
        """Whether one more can be promised without breaking a promise."""
        if not self.streams:
            return True
        if not self.known(listeners):
            return False
        load = self.load(listeners)
        if load > 1.0 - RESERVE:
            return False
        return all(
            listener.over or not listener.begun or listener.ready(now) >= self.need(listener, load)
            for mine in self.streams.values()
            for listener in mine
        )

    def wait(self, ahead: int) -> float:
        """Seconds until the promised stream with so many in front of it will be let in: when enough of those that play have been
        made, each taking as long as is usual."""
        load = max(self.load(), 1e-3)
        left = []
        for listeners in self.streams.values():
            longest = 0.0
            for listener in listeners:
                if not listener.over:
                    usual = max(
                        (leg.pace.units / leg.pace.second for leg in listener.legs if leg.pace.second > 0.0), default=10.0
                    )
                    longest = max(longest, max(usual - listener.made, 0.1 * usual))
            left.append(longest * load)
        left.sort()
        if not left:
            return 0.0
        rounds, place = divmod(ahead, len(left))
        return left[place] + rounds * left[-1]

    def allowed(self, op: tuple[str, str], now: float) -> float:
        """Seconds that a batch of an op may take: what no promised listener notices, or as long as all of them keep pace with
        their playing if every such batch takes that long."""
        loads = self.loads()
        _, rate = loads.pop(op, (0.0, 0.0))
        rest = 1.0 - RESERVE - sum(seconds * rate for seconds, rate in loads.values())
        return max(self.slack(now), rest / rate if rate else 0.0, 0.0)

    def slack(self, now: float) -> float:
        """Seconds that a batch may take without any promised listener running dry because of it."""
        least = NEVER
        for listeners in self.streams.values():
            for listener in listeners:
                if listener.begun and not listener.over:
                    lead = max((leg.lead for leg in listener.legs), default=0.0)
                    least = min(least, listener.by - lead - now)
        return least
