"""Keys such as [GhoshRoth2011] become links to a page of references, made from `references.bib`.

The page lists every entry; a key that is not in the file is left as it is (a test finds those in docstrings).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

PAGE = "references.md"
_ADDRESS = PAGE.replace(".md", ".html")
_ENTRY = re.compile(r"^@\w+\{(\w+),(.*)\}\s*$", flags=re.M)
_FIELD = re.compile(r"(\w+) = \{((?:[^{}]|\{[^{}]*\})*)\}")
_KEY = re.compile(r"\[([A-Z][A-Za-z]+\d{4}[a-z]?)\]")
_UNTOUCHED = re.compile(r"(<pre\b.*?</pre>|<code\b.*?</code>|<a\b.*?</a>|<[^>]*>)", flags=re.S)
_ACCENTS = {"'": "\u0301", "`": "\u0300", '"': "\u0308", "^": "\u0302", "~": "\u0303", "c": "\u0327", "v": "\u030c"}
_read: dict[str, dict[str, str]] = {}


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' hook: adds the page of references."""
    _read.clear()
    _read.update(entries((Path(config["docs_dir"]) / "references.bib").read_text(encoding="utf-8")))
    files.append(File.generated(config, PAGE, content=page(_read)))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """MkDocs' hook: links keys in the text, docstrings' included; code and other links stay as they are."""
    if page.file.src_uri == PAGE:
        return html
    up = "../" * page.file.src_uri.count("/")
    return "".join(part if _UNTOUCHED.match(part) else linked(part, up, _read) for part in _UNTOUCHED.split(html))


def linked(text: str, up: str, known: Collection[str]) -> str:
    """`text` with each known key in brackets as a link; `up` leads from the page to the site's root."""

    def link(found: re.Match[str]) -> str:
        key = found[1]
        return f'<a href="{up}{_ADDRESS}#{key.lower()}">{found[0]}</a>' if key in known else found[0]

    return _KEY.sub(link, text)


def entries(text: str) -> dict[str, dict[str, str]]:
    """Key → its fields, in the order of the file."""
    return {key: {name: _plain(value) for name, value in _FIELD.findall(body)} for key, body in _ENTRY.findall(text)}


def page(found: dict[str, dict[str, str]]) -> str:
    """The page of references, by key."""
    lines = ["# References", ""]
    for key in sorted(found):
        fields = found[key]
        where = fields.get("journal") or fields.get("booktitle") or ""
        rest = ", ".join(part for part in (where, fields.get("year", ""), fields.get("note", "")) if part)
        lines += [f'<a id="{key.lower()}"></a>**{key}.** {_authors(fields.get("author", ""))}. *{fields["title"]}.* {rest}.', ""]
    return "\n".join(lines)


def _authors(names: str) -> str:
    people = [" ".join(reversed(name.split(", ", 1))) for name in names.split(" and ")]
    people = ["others" if name == "others" else name for name in people]
    return people[0] if len(people) == 1 else ", ".join(people[:-1]) + " and " + people[-1]


def _plain(value: str) -> str:
    value = re.sub(r"\{?\\([\'`\"^~cv])\s*\{?(\w)\}?\}?", lambda found: found[2] + _ACCENTS[found[1]], value)
    return re.sub(r"[{}]", "", value).replace("--", "–")
