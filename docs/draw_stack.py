"""Draw ``_static/stack.png`` by the code of the page: ``python docs/draw_stack.py``."""

import re
from pathlib import Path

DOCS = Path(__file__).parent

page = (DOCS / "user_guide/stacking.rst").read_text(encoding="utf-8")
code = re.findall(r"\.\. testcode::\n\n((?:   .*\n|\n)+)", page.partition(".. figure::")[0])
names: dict[str, object] = {}
exec(re.sub(r"(?m)^   ", "", "".join(code)), names)
names["figure"].savefig(DOCS / "_static/stack.png", dpi=100)
print(names["reg"].summary_)
