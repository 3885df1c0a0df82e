"""Subscripts and powers that a page writes as `v_i`, `a_{m+1}`, `2^m` or `e^(−x)` are set as such on the site.

Before an underscore only one letter counts (perhaps with an accent or a prime), and only text outside of code, formulas
and drawings is changed, so names of files and options stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

_TAG = re.compile(r"(<[^>]+>)")
_LEFT_ALONE = re.compile(r"<(/?)(code|pre|math|script|style|svg|title)\b")
_SUBSCRIPT = re.compile(r"(?<![\w.-])([^\W\d_][\u0300-\u036f]?′?)_(?:\{([^{}<>]{1,12})\}|([^\W_]{1,4}))(?!\w)")
_POWER = re.compile(
    r"(?<=[\w)ₛ>])\^(?:\(((?:[^()<>]|\([^()<>]*\)){1,40})\)|\{([^{}<>]{1,24})\}|(∞|−?\w{1,4}))(?!\w)"
)


def on_page_content(html: str, **_: Any) -> str:
    """MkDocs' hook: sets subscripts and powers in the text of a page."""
    inside = 0
    parts = _TAG.split(html)
    for at, part in enumerate(parts):
        if at % 2:
            tag = _LEFT_ALONE.match(part)
            if tag and not part.endswith("/>"):
                inside += -1 if tag[1] else 1
        elif not inside:
            part = _SUBSCRIPT.sub(lambda found: f"{found[1]}<sub>{found[2] or found[3]}</sub>", part)
            parts[at] = _POWER.sub(lambda found: f"<sup>{found[1] or found[2] or found[3]}</sup>", part)
    return "".join(parts)
