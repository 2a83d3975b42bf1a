"""`python -m _site build FOLDER`: the site. `serve FOLDER`: the same, built again when its text changes.

`write` brings the tables up to date that stand in pages of the project and are made by running code.
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
            sys.path.append(str(Path(__file__).parents[2] / "tests/support/contract"))
            import tables

            tables.write()
        case _:
            sys.exit(__doc__)
