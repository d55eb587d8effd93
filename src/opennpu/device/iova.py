"""Who lives where in an IOVA space: first fit, whole pages."""

from __future__ import annotations

import bisect

from opennpu.hw.layout import align
from opennpu.hw.rk3588 import chip


class IovaAllocator:
    """Ranges of a 4 GiB space.

    start: first address that is given away.
    gap_bytes: kept free behind every range, so that overruns hit nothing.
    """

    def __init__(self, start: int = 0, gap_bytes: int = 0) -> None:
        self.start, self.gap_bytes = start, gap_bytes
        self._ranges: list[tuple[int, int]] = []  # sorted (first, end), gap included

    def alloc(self, nbytes: int, lowest: int = 0) -> int | None:
        """The first free range from ``lowest``, page-aligned; None if there is no room."""
        need = align(nbytes, chip.PAGE_BYTES) + self.gap_bytes
        at = max(self.start, lowest)
        for first, end in self._ranges:
            if first - at >= need:
                break
            at = max(at, end)
        if at + need > chip.IOVA_BYTES:
            return None
        bisect.insort(self._ranges, (at, at + need))
        return at

    def free(self, iova: int) -> None:
        """Give back the range that starts at ``iova``."""
        i = bisect.bisect_left(self._ranges, (iova, 0))
        if i == len(self._ranges) or self._ranges[i][0] != iova:
            raise ValueError(f"no range starts at {iova:#x}")
        del self._ranges[i]
