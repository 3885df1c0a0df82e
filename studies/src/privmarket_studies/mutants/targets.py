"""Which modules get faults, and which tests have to notice them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Rules of the laws and transcripts that need torch; they are no classical mechanisms.
_CLASSICAL = "not regretnet and not menunet and not MenuNet and not postgresql"
_MARKETS = ("tests/golden/test_transcripts.py", "tests/property/test_markets.py", "tests/laws/test_invariance.py")
_LAWS = ("tests/laws/test_brute_force.py",)


@dataclass(frozen=True)
class Target:
    """A folder of modules, or one module.

    Attributes:
        path: below `src/privmarket`.
        unit: folder of its unit tests; `test_<module>.py` in it comes first.
        more: further tests that cover it, the quick ones first.
        faults: how many are tried.
    """

    path: str
    unit: str
    more: tuple[str, ...]
    faults: int

    def modules(self, root: Path) -> list[Path]:
        """The files that get faults."""
        place = root / "src" / "privmarket" / self.path
        found = [place] if place.suffix == ".py" else sorted(place.glob("*.py"))
        return [path for path in found if path.name != "__init__.py"]

    def tests(self, module: Path, root: Path) -> list[str]:
        """Arguments for pytest, the module's own tests first."""
        unit = root / self.unit
        mine = [unit] if unit.suffix == ".py" else sorted(unit.glob("test_*.py"))
        mine.sort(key=lambda path: (path.name != f"test_{module.stem}.py", path.name))
        files = [str(path.relative_to(root)) for path in mine]
        return [*files, *(name for name in self.more if (root / name).exists()), "-k", _CLASSICAL]


_RULES = ("tests/unit/mechanisms/test_known_answers.py", "tests/unit/mechanisms/test_ration_menu.py")
_PRIVACY = (
    "tests/property/test_privacy_laws.py",
    "tests/laws/test_wallet_stores.py",
    "tests/hostile/test_arithmetic.py",
)
_NOISE = ("tests/statistical/test_noise_law.py", "tests/statistical/test_integer_noise_law.py")
_ROUNDS = (
    "tests/property/test_round_money.py",
    "tests/laws/test_round_ports.py",
    "tests/laws/test_budget_schemes.py",
)
_BROKER = (
    "tests/unit/broker/test_broker.py",
    "tests/unit/broker/test_breaks.py",
    "tests/unit/broker/test_verify.py",
    "tests/unit/broker/test_migrations.py",
)

TARGETS = (
    Target("market", "tests/unit/market", (*_RULES, *_MARKETS), 90),
    Target("mechanisms", "tests/unit/mechanisms", (*_MARKETS, *_LAWS), 90),
    Target("privacy", "tests/unit/privacy", (*_PRIVACY, *_NOISE), 100),
    Target("rounds", "tests/unit/rounds", _ROUNDS, 40),
    Target("broker/ledger.py", "tests/unit/broker/test_ledger.py", _BROKER, 10),
    Target("broker/verify.py", "tests/unit/broker/test_verify.py", (*_BROKER[:2], *_BROKER[3:]), 20),
)

# Faults that every sample holds: (end of the path, function, before, after). They once survived.
NAMED = (
    ("mechanisms/csra.py", "_merit", "merit * bids.accuracy", "merit / bids.accuracy"),
    (
        "privacy/calibration.py",
        "ReleaseFamily.epsilon",
        "np.searchsorted(table.noise_multiplier, noise, side='right') - 1",
        "np.searchsorted(table.noise_multiplier, noise, side='right') + 1",
    ),
    (
        "privacy/calibration.py",
        "ReleaseFamily._bound",
        "self.exact_delta / self.steps",
        "self.exact_delta * self.steps",
    ),
    (
        "market/bounds.py",
        "SupplyCurve.price_that_spends",
        "np.searchsorted(self.spend, budget, side='right') - 1",
        "np.searchsorted(self.spend, budget, side='right') + 1",
    ),
    ("privacy/gaussian.py", "literal_noise_multiplier", "1.25 / delta", "1.25 * delta"),
    (
        "privacy/gaussian.py",
        "literal_noise_multiplier",
        "factors[form] * np.sqrt(np.log(1.25 / delta))",
        "factors[form] / np.sqrt(np.log(1.25 / delta))",
    ),
    ("privacy/accountant.py", "RdpAccountant.__init__", "clients < 1", "clients <= 1"),
)
