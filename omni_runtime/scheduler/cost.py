"""What a batch takes: one model per (expert, op), fitted while it runs. Plain floats, so a replay fits the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_runtime.card import OpCost
from omni_runtime.scheduler.pace import Pace

MEMORY = 0.998  # of a batch's weight after the next one: half of it is on the last 350
ANCHOR = 0.3  # weight of the seed for each coefficient: as much as so many batches that are off by all of it
CLIP = 3.0  # a batch off by more than so many usual errors counts less
EVERY = 16  # batches from one fit to the next, after the first few
LEAST = 1e-7  # seconds; nothing takes less


class OpModel:
    """Seconds of a batch: speed * (batch + unit * units + work * work + reach * reach).

    `work` is size times weight, summed over the units; `reach` is size times the positions of KV that each looks back on.
    Least squares of the relative error, with forgetting, Huber's weights (Huber 1964), no coefficient below 0, and a pull
    towards the seed scaled by how fast the machine is: what was never tried keeps the seed's shape. `speed` follows the last
    twenty batches or so, since a neighbour on the machine slows everything down at once; the shape follows hundreds.
    """

    __slots__ = ("_moments", "_target", "batches", "mean", "pace", "seed", "speed", "spread", "theta", "usual", "worst")

    def __init__(self, seed: OpCost) -> None:
        self.seed = (seed.batch, seed.unit, seed.work, seed.reach)
        self.theta = self.seed
        self.speed = 1.0  # seconds now over seconds as the shape has them
        self.usual = 1.0  # the same, over hundreds of batches: what a simulation takes
        self.pace = 1.0  # seconds here over seconds of the seed
        self.spread = 0.25  # usual relative error
        self.mean = seed.batch + seed.unit  # seconds of a usual batch
        self.worst = 0.0  # seconds of the longest batch, forgotten slowly
        self.batches = 0
        self._moments = [0.0] * 10  # upper triangle of the weighted sum of x x'
        self._target = [0.0] * 4

    def predict(self, units: float, work: float, reach: float = 0.0) -> float:
        """Seconds of a batch of so many units."""
        b, u, w, r = self.theta
        return self.speed * (b + u * units + w * work + r * reach)

    def learn(self, units: float, work: float, reach: float, seconds: float) -> None:
        """A batch took so long. Zero or less is no measurement and is left out."""
        if seconds <= 0.0:
            return
        seconds = max(LEAST, seconds)
        self.batches = n = self.batches + 1
        s = self.seed
        shape = max(LEAST, s[0] + s[1] * units + s[2] * work + s[3] * reach)
        if n == 1:
            self.pace = seconds / shape
            self.theta = (s[0] * self.pace, s[1] * self.pace, s[2] * self.pace, s[3] * self.pace)
            self.mean = self.worst = seconds
        told = max(LEAST, self.predict(units, work, reach))
        off = seconds / told - 1.0
        error = abs(off)
        limit = CLIP * self.spread
        weight = 1.0 if error <= limit else limit / error
        # it learns from what it clips too, or a machine that turned slow would be an outlier for ever
        self.spread += max(0.05, 1.0 / (n + 3)) * (min(error, 2.0 * limit) - self.spread)
        if self.spread < 0.01:
            self.spread = 0.01
        self.speed *= 1.0 + 0.05 * min(max(off, -0.5), limit)
        self.usual += max(0.005, 1.0 / (n + 1)) * (self.speed - self.usual)
        self.pace += weight * max(0.01, 1.0 / n) * (seconds / shape - self.pace)
        self.mean += 0.1 * (min(seconds, told * (1.0 + limit)) - self.mean)
        self.worst = seconds if seconds > self.worst else self.worst * MEMORY + seconds * (1.0 - MEMORY)
        seconds /= self.speed
        weight *= (self.speed / told) ** 2
        m, t = self._moments, self._target
        for i in range(10):
            m[i] *= MEMORY
        wu, ww, wr = weight * units, weight * work, weight * reach
        m[0] += weight
        m[1] += wu
        m[2] += ww
        m[3] += wr
        m[4] += wu * units
        m[5] += wu * work
        m[6] += wu * reach
        m[7] += ww * work
        m[8] += ww * reach
        m[9] += wr * reach
        y = weight * seconds
        t[0] = t[0] * MEMORY + y
        t[1] = t[1] * MEMORY + y * units
        t[2] = t[2] * MEMORY + y * work
        t[3] = t[3] * MEMORY + y * reach
        if n <= 8 or n % EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        m = self._moments
        prior = [c * self.pace for c in self.seed]
        free = [i for i in range(4) if prior[i] > 0.0]
        while free:
            rows = []
            for i in free:
                pull = ANCHOR / (prior[i] * prior[i])
                row = [m[PLACE[i][j]] for j in free]
                row[free.index(i)] += pull
                rows.append([*row, self._target[i] + pull * prior[i]])
            found = _solve(rows)
            low = [i for i, x in zip(free, found, strict=True) if x < 0.0]
            if not low:
                theta = [0.0] * 4
                for i, x in zip(free, found, strict=True):
                    theta[i] = x
                self.theta = (theta[0], theta[1], theta[2], theta[3])
                return
            free = [i for i in free if i not in low]

    def save(self) -> dict[str, Any]:
        """All of it as plain numbers."""
        return {
            "seed": list(self.seed),
            "theta": list(self.theta),
            "moments": list(self._moments),
            "target": list(self._target),
            **{name: getattr(self, name) for name in SINGLE},
        }

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> OpModel:
        """
        Raises:
            ValueError: something is missing, unknown, of another length or no number from 0 on.
        """
        lengths = {"seed": 4, "theta": 4, "moments": 10, "target": 4}
        if odd := set(saved) ^ {*lengths, *SINGLE}:
            raise ValueError(f"{min(odd)} is {'unknown' if min(odd) in saved else 'missing'}")
        for name, length in lengths.items():
            if not isinstance(saved[name], list) or len(saved[name]) != length or not all(map(_number, saved[name])):
                raise ValueError(f"{name}: {length} numbers from 0 on are needed, not {saved[name]!r}")
        for name in SINGLE:
            if not _number(saved[name]):
                raise ValueError(f"{name}: a number from 0 on is needed, not {saved[name]!r}")
        batch, unit, work, reach = saved["seed"]
        model = cls(OpCost(batch=batch, unit=unit, work=work, reach=reach))
        model.theta = tuple(saved["theta"])
        for name in SINGLE:
            setattr(model, name, float(saved[name]))
        model.batches = int(saved["batches"])
        model._moments, model._target = list(saved["moments"]), list(saved["target"])
        return model


SINGLE = ("pace", "speed", "usual", "spread", "mean", "worst", "batches")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value < float("inf")


PLACE = ((0, 1, 2, 3), (1, 4, 5, 6), (2, 5, 7, 8), (3, 6, 8, 9))  # of a pair in the upper triangle


def _solve(rows: list[list[float]]) -> list[float]:
    """Gaussian elimination with pivoting; the matrix is positive definite, since every diagonal has its pull."""
    n = len(rows)
    for i in range(n):
        best = max(range(i, n), key=lambda k: abs(rows[k][i]))
        rows[i], rows[best] = rows[best], rows[i]
        pivot = rows[i][i]
        for k in range(i + 1, n):
            if factor := rows[k][i] / pivot:
                rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i], strict=True)]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (rows[i][n] - sum(rows[i][j] * found[j] for j in range(i + 1, n))) / rows[i][i]
    return found


class Costs:
    """What was learned: the price of every op, and the pace of every loop of the programs that ran.

    Args:
        seeds: (expert, op) -> what its card says before anything was measured.
    """

    def __init__(self, seeds: Mapping[tuple[str, str], OpCost] | None = None) -> None:
        self.models: dict[tuple[str, str], OpModel] = {}
        self.paces: dict[tuple[str, str], Pace] = {}  # (program, node)
        self.gap = 0.0  # seconds from one batch to the next that no executor spends: the price of everything around them
        self.gaps = 0
        for key, seed in (seeds or {}).items():
            self.models[key] = OpModel(seed)

    def model(self, expert: str, op: str) -> OpModel:
        found = self.models.get((expert, op))
        if found is None:
            found = self.models[expert, op] = OpModel(OpCost())
        return found

    def pace(self, program: str, node: str) -> Pace:
        found = self.paces.get((program, node))
        if found is None:
            found = self.paces[program, node] = Pace()
        return found

    def beside(self) -> float:
        """Seconds of a usual batch of the op whose batches take longest."""
        longest = 0.0
        for model in self.models.values():
            if model.mean > longest and model.batches:
                longest = model.mean
        return longest

    def between(self, seconds: float) -> None:
        """An executor with work waiting stood idle for so long between two batches."""
        self.gaps += 1
        usual = max(self.gap, 1e-4)
        self.gap += max(0.02, 1.0 / self.gaps) * (min(seconds, 5.0 * usual if self.gaps > 8 else seconds) - self.gap)

    def save(self) -> dict[str, Any]:
        """As it goes into a JSON file."""
        return {
            "version": 1,
            "gap": self.gap,
            "models": {f"{expert}.{op}": model.save() for (expert, op), model in sorted(self.models.items())},
            "paces": {f"{program}.{node}": pace.save() for (program, node), pace in sorted(self.paces.items())},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Takes over what was saved. Ops and programs that are not known here are kept: they may come.

        Raises:
            ValueError: it is not what `save` gives; says where.
        """
        if saved.get("version") != 1 or set(saved) != {"version", "gap", "models", "paces"}:
            raise ValueError(f"keys version (1), gap, models and paces are needed, not {sorted(saved)}")
        if not _number(saved["gap"]):
            raise ValueError(f"gap: seconds are needed, not {saved['gap']!r}")
        self.gap = float(saved["gap"])
        self.gaps = 8
        for kind in ("models", "paces"):
            if not isinstance(saved[kind], Mapping):
                raise ValueError(f"{kind}: a mapping is needed, not {saved[kind]!r}")
            for name, value in saved[kind].items():
                owner, _, member = name.rpartition(".")
                if not owner or not isinstance(value, Mapping):
                    raise ValueError(f"{kind}.{name}: a name with a dot and a mapping are needed")
                try:
                    if kind == "models":
                        self.models[owner, member] = OpModel.load(value)
                    else:
                        self.paces[owner, member] = Pace.load(value)
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{kind}.{name}: {error}") from None
