"""A page for every notebook of the documentation, with its outputs as they are stored in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File


def on_files(files: Any, config: Any) -> Any:
    """Adds `notebooks/NAME.md` beside each `notebooks/NAME.ipynb`."""
    for path in sorted((Path(config["docs_dir"]) / "notebooks").glob("*.ipynb")):
        text = as_markdown(json.loads(path.read_text(encoding="utf-8")))
        text += f"\n\nThe notebook itself: [{path.name}]({path.name})\n"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of other pages to a notebook lead to its page."""
    if page.file.src_uri.startswith("notebooks/"):
        return markdown
    return re.sub(r"(\([^)\s]*notebooks/[\w-]+)\.ipynb\)", r"\1.md)", markdown)


def as_markdown(notebook: dict[str, Any]) -> str:
    """Text cells as they are, code cells with what they showed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts)


def _shown(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return "```text\n" + "".join(output["text"]) + "```"
    data = output["data"]
    if "image/png" in data:
        return f'<img alt="figure" src="data:image/png;base64,{data["image/png"]}">'
    if "text/html" in data:
        # The theme leaves tables with a class alone, and pandas gives its own one.
        return "".join(data["text/html"]).replace('<table border="1" class="dataframe">', "<table>")
    return "```text\n" + "".join(data["text/plain"]) + "\n```"
