"""What a terminal would obey: texts of models and tools are shown without it. How, is for whoever shows them."""

from __future__ import annotations

# All controls but the line break and the tabulator; the last two ranges turn the direction of writing, so that a call
# would read differently from what runs.
OBEYED = (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
