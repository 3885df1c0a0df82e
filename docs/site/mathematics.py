"""Formulas between dollar signs become MathML when the site is built.

`$x^2$` stands in a line, `$$ … $$` on lines of its own; a code host shows both as mathematics, too. Browsers show
MathML without a script or a font from elsewhere. Code is left alone.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

_CODE = re.compile(r"(^ *(```|~~~).*?^ *\2[^\n]*$|`[^`\n]+`)", flags=re.S | re.M)
_BLOCK = re.compile(r"^[ \t]*\$\$(.+?)\$\$[ \t]*$", flags=re.S | re.M)
_INLINE = re.compile(r"(?<![\\$\w])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![\w$])")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs' hook: replaces formulas outside code."""
    parts = _CODE.split(markdown)
    # The pattern has two groups: text, code, its fence, text, code, …
    texts = [_formulas(part) if at % 3 == 0 else part for at, part in enumerate(parts) if at % 3 != 2]
    return "".join(texts)


def _formulas(text: str) -> str:
    text = _BLOCK.sub(lambda found: f'\n<div class="formula">{_parts(found[1])}</div>\n', text)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), text)


def _parts(latex: str) -> str:
    """A formula on lines of its own; what `\\qquad` divides may stand below each other where there is no room."""
    return "".join(_mathml(part, "block") for part in latex.split(r"\qquad"))


def _mathml(latex: str, display: str) -> str:
    return str(convert(" ".join(latex.split()), display=display))
