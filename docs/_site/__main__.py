"""`python -m _site build FOLDER`: the site. `serve FOLDER`: the same, built again when its text changes. `write`: see below.

`write` brings up to date what is generated from the code and stands in the project: tables and pictures.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from . import build

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", folder]:
            shutil.rmtree(folder, ignore_errors=True)  # with the pages of an earlier build that are gone now
            sys.exit(build.build(Path(folder)))
        case ["serve", folder]:
            build.serve(Path(folder))
        case ["write"]:
            from . import pictures, tables

            tables.write()
            pictures.write()
        case _:
            sys.exit(__doc__)
