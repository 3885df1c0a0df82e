"""Figures for print, by matplotlib: their common look, and one colour and one marker per mechanism.

Colours: the Okabe–Ito palette and darker companions. So many colours cannot all be told apart under every
colour-vision deficiency, so each mechanism has a marker, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from privmarket._lazy import late
from privmarket.errors import ConfigurationError

if TYPE_CHECKING:
    import matplotlib
    from matplotlib import figure as drawing
    from matplotlib.figure import Figure as Figure
else:
    matplotlib = late("matplotlib")
    drawing = late("matplotlib.figure")


_LOOKS: dict[str, tuple[str, Any]] = {
    "pac": ("#0072B2", "o"),
    "vcg": ("#56B4E9", "s"),
    "k-plus-one-price": ("#999933", "v"),
    "csra": ("#E69F00", "^"),
    "mfg-pricing": ("#CC79A7", "P"),
    "jsam": ("#882255", "X"),
    "proportional-share": ("#009E73", "D"),
    "mean-field-menu": ("#D55E00", "*"),
    "ration": ("#44AA99", "p"),
    "two-step": ("#AA4499", "H"),
    "graded-ration": ("#B59A00", "8"),
    "precision-menu": ("#117733", "P"),
    "regretnet": ("#8C6D46", "<"),
    "dm-regretnet": ("#88CC66", ">"),
    "mfg-regretnet": ("#332288", "h"),
    "mfg-menunet": ("#000000", "d"),
    "regretformer": ("#DDAA33", (4, 1, 0)),
}
_OTHER = ("#777777", ".")


def colour(mechanism: str) -> str:
    """The colour of a mechanism; its literal form has the same."""
    return _LOOKS.get(mechanism.partition(":")[0], _OTHER)[0]


def line_look(mechanism: str) -> dict[str, Any]:
    """How a mechanism's line is drawn; a literal or untrained form is dotted, with hollow markers."""
    shade, marker = _LOOKS.get(mechanism.partition(":")[0], _OTHER)
    look: dict[str, Any] = {
        "color": shade,
        "marker": marker,
        "ms": 8.0 if marker == "*" else 5.0,
        "mew": 0.0,
        "ls": "-",
    }
    if ":" in mechanism:
        look |= {"ls": ":", "mfc": "white", "mew": 1.0}
    return look


_OWN = ("#EE3377", "#117733", "#661100", "#DDCC77", "#6699CC", "#AA4466")
_OWN_MARKERS = ("o", "s", "^", "D", "v", "p")


def own_look(rule: str, number: int) -> dict[str, Any]:
    """As `line_look`, but no star, which here marks a broken promise.

    A rule that is not of this package gets a colour and a marker of its own, by its number, with a black edge.
    """
    look = line_look(rule)
    if look["marker"] == "*":
        look |= {"marker": "o", "fillstyle": "left", "ms": 6.0, "mew": 1.0}  # a half-filled disc
    if rule.partition(":")[0] not in _LOOKS:
        look |= {"color": _OWN[number % 6], "marker": _OWN_MARKERS[number % 6], "mec": "black", "mew": 0.8}
    return look


def new_figure(width: float = 7.0, height: float = 4.2) -> Figure:
    """An empty matplotlib figure of this size in inches; no display is needed."""
    return drawing.Figure(figsize=(width, height), dpi=150, layout="constrained")


def write(figure: Figure, path: str | Path) -> Path:
    """Writes the figure to `path` as PNG, SVG or PDF, by its ending; makes the folder where it is missing.

    Every figure of this package is written here, so that all PDF files have fonts that publishers take.

    Raises:
        ConfigurationError: matplotlib does not know the ending.
    """
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Publishers refuse the Type 3 fonts that matplotlib embeds by default: 42 embeds TrueType.
        with matplotlib.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
            figure.savefig(place)
    except ValueError as error:
        raise ConfigurationError(f"a figure called {place.name!r}: {error}", "use .png, .svg or .pdf") from error
    return place


def save(figure: Figure, stem: Path, formats: tuple[str, ...] = ("png",)) -> list[Path]:
    """Writes the figure to `stem.png` and so on, one file per format; returns their paths."""
    return [write(figure, stem.with_suffix(f".{kind}")) for kind in formats]
