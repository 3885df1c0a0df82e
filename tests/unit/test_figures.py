"""Figures are written in one place, with fonts that publishers take."""

from __future__ import annotations

from pathlib import Path

import pytest

import privmarket
from privmarket._figures import new_figure, write

SOURCE = Path(privmarket.__file__).parent


@pytest.mark.parametrize("kind", ["pdf", "ps"])
def test_fonts_are_not_type_3(tmp_path, kind):
    """Submission systems of conferences refuse PDF files with Type 3 fonts."""
    figure = new_figure(2.0, 1.0)
    figure.text(0.5, 0.5, "ε bought")
    text = write(figure, tmp_path / f"figure.{kind}").read_bytes()
    assert b"Type3" not in text
    assert b"/FontType 3" not in text
    assert (b"/FontFile2" if kind == "pdf" else b"/FontType 42") in text


def test_nobody_else_writes_figures():
    elsewhere = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        if path.name != "_figures.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if ".savefig(" in line and 'format="png"' not in line
    ]
    assert elsewhere == []
