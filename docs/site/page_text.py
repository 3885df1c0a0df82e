"""What the site shows otherwise than the file says.

GitHub shows a list right below a sentence as a list, Python-Markdown as running text. And the directions to our tests
(`# doctest: …`) are of no use to a reader.
"""

from __future__ import annotations

import re
from typing import Any

# What may end a paragraph in CommonMark: a bullet, or the number 1.
_FIRST_ITEM = re.compile(r"(?:[-*+]|1[.)]) +\S")
# A short cell that begins with a number: 4e-03, 0.116% ± 0.008%.
_FIGURE = re.compile(r"<td((?: style=\"[^\"]*\")?)>([−<+-]?\s?\d[^<>]{0,19})</td>")
# A picture that stands alone in its paragraph.
_PICTURE = re.compile(r'<p>\s*(<img [^>]*?\bsrc="(?!data:)([^"]+)"[^>]*>)\s*</p>')
_FENCE = re.compile(r"\s*(```|~~~)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A blank line before each list that follows a line of text; Python with prompts as a Python console."""
    markdown = re.sub(r"^( *)```python\n(?= *>>> )", r"\1```pycon\n", markdown, flags=re.M)
    lines: list[str] = []
    in_code = in_list = False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code and _FIRST_ITEM.match(line):
            if lines and lines[-1].strip() and not in_list:
                lines.append("")
            in_list = True
        elif not in_code and line and not line[0].isspace() and (not lines or not lines[-1].strip()):
            in_list = bool(re.match(r"(?:[-*+]|\d+[.)]) ", line))
        lines.append(line)
    return "\n".join(lines)


def on_page_content(html: str, **_: Any) -> str:
    """A picture links to itself, so that it can be opened by itself and enlarged; figures in tables in one piece.

    No directions to doctest, neither in a page's code nor in that of a docstring.
    """
    html = _PICTURE.sub(r'<p><a class="figure" href="\2">\1</a></p>', html)
    html = re.sub(r' *<span class="c1"># doctest: [^<]*</span>| +# doctest: [^<\n]*', "", html)
    return _FIGURE.sub(r'<td\1 class="figure">\2</td>', html)
