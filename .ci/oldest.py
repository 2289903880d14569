"""Print the lowest version of everything that the package needs, as ``pip install`` takes them.

python .ci/oldest.py [extra ...]
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = [name for extra in sys.argv[1:] for name in project["optional-dependencies"][extra]]
print(*(re.sub(">=", "==", name) for name in project["dependencies"] + extras))
