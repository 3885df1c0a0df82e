"""One colour per mechanism, the same in every figure, and the figures' common look.

Colours: the Okabe–Ito palette and darker companions, told apart under the common colour-vision deficiencies.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {
    "pac": "#0072B2",
    "vcg": "#56B4E9",
    "k-plus-one-price": "#999933",
    "csra": "#E69F00",
    "mfg-pricing": "#CC79A7",
    "jsam": "#882255",
    "proportional-share": "#009E73",
    "mean-field-menu": "#D55E00",
    "regretnet": "#44AA99",
    "dm-regretnet": "#117733",
    "mfg-regretnet": "#332288",
    "mfg-menunet": "#000000",
}


def colour(mechanism: str) -> str:
    """The colour of a mechanism; its literal form has the same."""
    return _COLOURS.get(mechanism.partition(":")[0], "#777777")


def new_figure(width: float = 7.0, height: float = 4.2) -> Figure:
    """An empty figure that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def save(figure: Figure, stem: Path, formats: tuple[str, ...] = ("png",)) -> list[Path]:
    """Writes `stem.png` and so on; returns the paths."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(f".{kind}") for kind in formats]
    for path in paths:
        figure.savefig(path)
    return paths
