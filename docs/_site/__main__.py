"""`python -m docs._site build FOLDER` builds the site. `serve FOLDER` shows it, and builds it again when its text changes.

`write` updates the generated tables in the pages of the project.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from . import build

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", folder]:
            shutil.rmtree(folder, ignore_errors=True)  # an earlier build may have pages that do not exist any more
            sys.exit(build.build(Path(folder)))
        case ["serve", folder]:
            build.serve(Path(folder))
        case ["write"]:
            from tests.support.contract import tables

            tables.write()
        case _:
            sys.exit(__doc__)
