"""Which runs the study has, the most important first.

Every run is a `Cell` of `privmarket_studies.reproduce`: it is kept on disk with its configuration, so that the
study can be stopped at any moment and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from privmarket.simulation._plan import PLANNED_RULES
from privmarket_studies.reproduce.cells import Cell, Scale
from privmarket_studies.what_money_buys.runs import EACH_SEED, KIND

POOLED = "money-pooled"
NOISE = "money-noise"
SCEPTIC = "money-sceptic"
COPIES = "money-copies"
TRUSTS = ("aggregate", "local")
# More than anyone can sell within a lifetime ε: then the wallet is the limit, and not money.
ENOUGH = 1e5
_ONE_PRICE: dict[str, Any] = {"rule": "ration", "settings": {"unit_price": 1.0}, "money": ENOUGH}
# A search among other rules is another run.
_PLANNED: dict[str, Any] = {"rule": "plan", "settings": {}, "tries": list(PLANNED_RULES)}


@dataclass(frozen=True)
class Market:
    """A task and who its clients are.

    Attributes:
        name: what pages call it.
        where: fields of a cell's configuration.
        rounds: numbers of rounds that public records choose from.
        money: sums of money of its curve, under aggregate and under local trust.
        rule: of its curve; "plan" searches as `privmarket plan` does.
    """

    name: str
    where: dict[str, Any]
    rounds: tuple[int, ...]
    money: Mapping[str, tuple[float, ...]]
    rule: Mapping[str, Any] = field(default_factory=lambda: _PLANNED)

    def capped(self, wallet: float, **changes: Any) -> dict[str, Any]:
        """The configuration of a run in which a lifetime ε is the limit: everybody sells, at a price of 1."""
        return {**self._base(), **_ONE_PRICE, "trust": "aggregate", "wallet": wallet, **changes}

    def priced(self, trust: str, money: float, **changes: Any) -> dict[str, Any]:
        """The configuration of a run in which money is the limit."""
        return {**self._base(), **self.rule, "trust": trust, "wallet": None, "money": money, **changes}

    def pooled(self) -> dict[str, Any]:
        """The configuration of the reference without privacy."""
        return dict(self.where)

    @property
    def is_shared_out(self) -> bool:
        """Whether clients and public records are drawn from one set of pictures, and not given by the data."""
        return "alpha" in self.where

    def _base(self) -> dict[str, Any]:
        # The buyer's rows of one seed of a table are other seeds' clients' and test records.
        choose = {} if self.is_shared_out else {"choose": EACH_SEED}
        return {**self.where, "rounds": list(self.rounds), **choose}


# Compared on pictures that neither clients nor tests hold.
_FEATURES = {
    "digits": "none",
    "mnist": "whitened-scattering",
    "fashion-mnist": "whitened-scattering",
    "cifar10": "patches-and-scattering",
}


def _pictures(name: str, alpha: float, public: int, clients: int = 100) -> dict[str, Any]:
    return {
        "task": name,
        "alpha": alpha,
        "clients": clients,
        "public": public,
        "features": _FEATURES[name],
    }


_FEW = {"aggregate": (3.0, 10.0, 30.0, 100.0, 300.0), "local": (30.0, 100.0, 300.0, 1000.0, 3000.0)}
# Numbers of rounds that public records choose from. A choice among several takes minutes for pictures, and 5, 10,
# 20 and 40 rounds differed by less than a per cent.
_ROUNDS = (10,)
_TABLE_ROUNDS = (5, 15, 50)
# With little money fewer may be better, so curves have them, too.
_CURVE_ROUNDS = (2, *_TABLE_ROUNDS)
MNIST = Market("MNIST, Dir 0.1, 600 public", _pictures("mnist", 0.1, 600), _ROUNDS, _FEW)
MNIST_100 = Market("MNIST, Dir 0.1, 100 public", _pictures("mnist", 0.1, 100), _ROUNDS, _FEW)
FASHION = Market("Fashion-MNIST, Dir 0.5, 600 public", _pictures("fashion-mnist", 0.5, 600), _ROUNDS, _FEW)
CIFAR = Market("CIFAR-10, Dir 0.5, 600 public", _pictures("cifar10", 0.5, 600), _ROUNDS, _FEW)
STRIKES = Market(
    "bird strikes, 41 airlines, 174 public", {"task": "bird-strikes", "public": 174}, _TABLE_ROUNDS, _FEW
)
PUPILS = Market(
    "test scores of pupils, 133 classes, 100 public", {"task": "nlschools", "public": 100}, _TABLE_ROUNDS, _FEW
)
# Fixed before any model of them was scored on test records; `money-first-look.md` says how they were decided on.
# As many public records as a client holds on average, the default of `pm.task`.
BENEFITS = Market(
    "unemployment benefits, 51 states, 95 public", {"task": "benefits", "public": 95}, _TABLE_ROUNDS, _FEW
)
INSURED = Market(
    "health insurance, 194 communes, 143 public", {"task": "insured", "public": 143}, _TABLE_ROUNDS, _FEW
)
# Fixed in the same way. The default of `pm.task` is 363 public records; whole men, of eight each, make 360.
WAGES = Market(
    "wages of young men, 12 industries, 360 public", {"task": "wages", "public": 360}, _TABLE_ROUNDS, _FEW
)
TEXTS = Market(
    "descriptions of packages, 408 maintainers, 600 public",
    {"task": "packages", "public": 600, "model": "linear"},
    (5, 10, 30),
    _FEW,
)
DIGITS = Market(
    "digits, Dir 0.5, 20 clients, 40 public",
    _pictures("digits", 0.5, 40, 20),
    (5,),
    {"aggregate": (3.0, 30.0), "local": (30.0, 300.0)},
    {"rule": "ration", "settings": {"unit_price": 1.0}},
)

PICTURES = (MNIST, MNIST_100, FASHION, CIFAR)
_COPIES = {MNIST.name: 9, MNIST_100.name: 30, FASHION.name: 6, CIFAR.name: 4}
FIRST_LOOKS = (BENEFITS, INSURED)
TABLES = (STRIKES, PUPILS, TEXTS, *FIRST_LOOKS)
WALLETS = (1.0, 3.0)
UNITS = ("record", "person")
PUBLIC_SIZES = (0, 100, 600, 2000, 5000)
CLIENTS = (30, 100, 300, 1000)
CURVE = replace(STRIKES, rounds=_CURVE_ROUNDS)
# What clients are like, where that is not Uniform valuations drawn at random and reported truthfully.
OTHER_CLIENTS: dict[str, dict[str, Any]] = {
    "LogNormal valuations": {"scenario": "lognormal"},
    "Bimodal valuations": {"scenario": "bimodal"},
    "clients that learn what to report": {"strategy": "learning"},
    "valuations measured, weights (0, 0, 1)": {"valuations": "measured"},
    "valuations measured, weights (1, 0, 0)": {"valuations": "measured", "valuation_weights": "1,0,0"},
}
_MIDDLE = 30.0


def _seeds(scale: Scale, full: int) -> range:
    """Seeds of figures begin at 1: seed 0 chose the settings."""
    return range(1, 1 + len(scale.seeds_or(full, 2)))


def _cells(configs: Iterable[dict[str, Any]], seeds: range, kind: str = KIND) -> list[Cell]:
    """Seed by seed, so that a task is made once for all configurations of a seed."""
    listed = list(configs)
    return [Cell(kind, config, seed) for seed in seeds for config in listed]


def headline_cells(scale: Scale, market: Market, seeds: int) -> list[Cell]:
    """A market at both lifetime ε."""
    return _cells([market.capped(wallet) for wallet in WALLETS], _seeds(scale, seeds))


def first_look_cells(scale: Scale, market: Market) -> list[Cell]:
    """A table at both lifetime ε, its reference without privacy, and what else a buyer could do."""
    listed = headline_cells(scale, market, 10) + _cells([market.pooled()], _seeds(scale, 10), POOLED)
    listed += _cells([as_fixed(market.capped(wallet)) for wallet in WALLETS], _seeds(scale, 10))
    for wallet in WALLETS:
        listed += _cells(baseline_configs(market, wallet).values(), _seeds(scale, 5))
    return listed


def as_fixed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run of a first look as it was fixed: the public rows of seed 0 choose for all seeds."""
    return {name: value for name, value in config.items() if name != "choose"}


def baseline_configs(market: Market, wallet: float) -> dict[str, dict[str, Any]]:
    """What a buyer could do instead, at the same lifetime ε and by the same engine.

    Central: a curator that everybody trusts adds one noise. Distributed: the secure sum of the headline, where
    everybody sells the same ε. Local: each update has its own noise.
    """
    return {
        "central": market.capped(wallet, honest_share=1.0),
        "distributed, one ε for all": market.capped(wallet),
        "local": market.capped(wallet, trust="local"),
    }


def curve_configs(market: Market, trust: str) -> list[dict[str, Any]]:
    """The points of a market's curve under a trust."""
    return [market.priced(trust, money) for money in market.money[trust]]


def public_config(size: int, wallet: float = 1.0) -> dict[str, Any]:
    """MNIST with so many public records."""
    return Market("", _pictures("mnist", 0.1, size), MNIST.rounds, _FEW).capped(wallet)


def noise_config(clients: int) -> dict[str, Any]:
    """Money for equal noise among so many clients."""
    return {"clients": clients, "money": 0.3, "scenario": "uniform"}


def person_configs(market: Market, wallet: float) -> dict[str, dict[str, Any]]:
    """A lifetime ε for a record, and the same for all records of a person at one client."""
    return {unit: market.capped(wallet, unit=unit) for unit in UNITS}


def other_configs(market: Market) -> dict[str, dict[str, Any]]:
    """A market with other clients than usual, at one sum of money."""
    usual = {"as usual": market.priced("aggregate", _MIDDLE)}
    return usual | {
        name: market.priced("aggregate", _MIDDLE, market=changes) for name, changes in OTHER_CLIENTS.items()
    }


def copies_config(market: Market) -> dict[str, Any]:
    """A market's own pictures with warped copies of each: fewer where pictures are many or features take long."""
    return {**market.where, "copies": _COPIES[market.name]}


def cells(scale: Scale) -> list[Cell]:
    """All runs, the most important first; in the quick form, one small market."""
    if scale.quick:
        return _small(scale)
    listed = _cells([noise_config(clients) for clients in CLIENTS], _seeds(scale, 10), NOISE)
    listed += _cells([STRIKES.pooled()], _seeds(scale, 10), SCEPTIC)
    listed += headline_cells(scale, STRIKES, 10) + _cells([STRIKES.pooled()], _seeds(scale, 10), POOLED)
    for trust in TRUSTS:
        listed += _cells(curve_configs(CURVE, trust), _seeds(scale, 10))
    for market in FIRST_LOOKS:
        listed += first_look_cells(scale, market)
    # A few seeds of everything first, so that a study that is stopped has the whole picture in small.
    for seeds in (3, 10):
        for market in (MNIST, FASHION, MNIST_100, CIFAR, PUPILS):
            listed += headline_cells(scale, market, seeds)
    for market in PICTURES:
        listed += _cells([copies_config(market)], _seeds(scale, 10), COPIES)
    listed += _cells([PUPILS.pooled()], _seeds(scale, 10), POOLED)
    # A choice takes a minute here, and every seed makes its own.
    listed += headline_cells(scale, TEXTS, 5) + _cells([TEXTS.pooled()], _seeds(scale, 5), POOLED)
    for market in (STRIKES, PUPILS):
        for wallet in WALLETS:
            listed += _cells(baseline_configs(market, wallet).values(), _seeds(scale, 5))
    listed += _cells(other_configs(CURVE).values(), _seeds(scale, 5))
    listed += _cells([WAGES.pooled()], _seeds(scale, 10), POOLED)
    for wallet in WALLETS:
        listed += _cells(person_configs(WAGES, wallet).values(), _seeds(scale, 10))
    listed += _cells([public_config(size) for size in PUBLIC_SIZES], _seeds(scale, 5))
    for wallet in WALLETS:
        listed += _cells(baseline_configs(CIFAR, wallet).values(), _seeds(scale, 5))
    # All training pictures are the same for every seed.
    listed += [Cell(POOLED, market.pooled(), 1) for market in PICTURES]
    return listed


def _small(scale: Scale) -> list[Cell]:
    seeds = _seeds(scale, 2)
    # One model of all records takes as long as six runs of the market.
    listed = _cells([DIGITS.pooled()], seeds[:1], POOLED) + headline_cells(scale, DIGITS, 2)
    for trust in TRUSTS:
        listed += _cells(curve_configs(DIGITS, trust), seeds)
    return listed
