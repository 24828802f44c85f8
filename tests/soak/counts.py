"""The counts of a soak, kept in a JSON file."""

import json
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path


@dataclass
class Counts:
    """What a soak has run so far.

    Attributes:
        backend: the backend of all its cases.
        next_case: the number of the first case not run yet.
        minutes: how long it has run.
        cases: by kind, how many cases have passed.
        checks: by name, how many cases made that check and passed.
        largest_shares: by check, the largest error as a share of its bound.
        out_of_range: how many cases their dtypes could not hold.
        failures: the cases that failed, each with its number, the command that
            repeats it, what it drew and the error.
    """

    backend: str
    next_case: int = 0
    minutes: float = 0.0
    cases: dict = field(default_factory=dict)
    checks: dict = field(default_factory=dict)
    largest_shares: dict = field(default_factory=dict)
    out_of_range: int = 0
    failures: list = field(default_factory=list)

    @classmethod
    def read(cls, path, backend, seed):
        """The counts of a file, or new ones if there is none."""
        if path is None or not Path(path).exists():
            return cls(backend, seed)
        counts = cls(**json.loads(Path(path).read_text()))
        if counts.backend != backend:
            raise ValueError(
                f"`--counts` should name a file of the backend {backend}. "
                f"Received: {path}, of {counts.backend}"
            )
        return counts

    def write(self, path):
        """Replace the file at once: a soak may be stopped at any time."""
        if path is None:
            return
        beside = Path(path).with_suffix(".part")
        beside.write_text(json.dumps(asdict(self), indent=1))
        beside.replace(path)

    def add(self, result):
        """Count the result of a case, as the worker prints it."""
        self.next_case = result["case"] + 1
        if "error" in result:
            kept = ("case", "command", "kind", "drawn", "error")
            self.failures.append(
                {name: result[name] for name in kept if name in result}
            )
            return
        if "out_of_range" in result:
            self.out_of_range += 1
            return
        kind = result["kind"]
        self.cases[kind] = self.cases.get(kind, 0) + 1
        for check, share in result["shares"].items():
            self.checks[check] = self.checks.get(check, 0) + 1
            largest = max(self.largest_shares.get(check, 0.0), share)
            self.largest_shares[check] = largest

    def summary(self):
        passed = sum(self.cases.values())
        return (
            f"{self.backend}: {passed} cases and {sum(self.checks.values())} "
            f"checks passed in {self.minutes:.1f} minutes, "
            f"{len(self.failures)} failed, {self.out_of_range} out of range"
        )
