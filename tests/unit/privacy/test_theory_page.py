"""The code on the theory page runs and says what the page says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "theory" / "privacy.md"


def test_the_audit_on_the_page_gives_what_the_page_says():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    *lines, last = code.strip().splitlines()
    names: dict[str, object] = {}
    exec("\n".join(lines), names)
    assert "about 3.6" in last
    assert 3.5 <= eval(last.split("#")[0], names) <= 3.7
