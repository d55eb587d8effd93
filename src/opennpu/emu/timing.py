"""Cycle model: pure functions of counts.  The compiler's cost function calls it too.

Every result is *predicted*.  The model is serial: a task takes its array cycles plus its
traffic plus a start cost; the roofline max(compute, traffic) is rejected by board data
(board notes C.5: it predicts 82 µs where 117 were measured, and no gain from DATA_REUSE).
This file imports nothing of the emulator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588.common import Precision

FITTED_BYTES_PER_SECOND = 15.3e9  # board notes C.5: fit on the five cleanest points, 600 MHz
SAFE_BYTES_PER_SECOND = 10e9  # board notes C.5: suggested start value, DRAM-cold streams
SHARED_BYTES_PER_SECOND = 17e9  # board notes C.5, A.16: all cores together, practical DRAM
VENDOR_CLOCK_HZ = 1e9  # register notes H: highest operating point, 0.85 V; benchmarks use it
FITTED_CLOCK_HZ = 600e6  # clock of the fit; traffic scaled with the clock in its hold-out
KICK_CHAINED_S = 2e-6  # board notes C.5: next task inside one start
KICK_GAPPED_S = 20e-6  # board notes C.5: one start per task, interrupt between
SUBMIT_S = 38e-6  # board notes C.5: 31 to 54 µs, by interrupt core and IOMMU attach
ATTACH_S = 18e-6  # board notes C.5: IOMMU attach, each job of stock rocket
SYNC_PAGE_S = 0.31e-6  # board notes A.16, C.5: cache sync, each page of the buffer, each time
PACK_BYTES_PER_SECOND = 0.9e9  # board notes C.2, C.5: host writes cubes
UNPACK_BYTES_PER_SECOND = 1e9  # board notes C.5: host reads cubes; C.2 has 0.4 to 1.1
DEPTHWISE_LANES = chip.DEPTHWISE_GROUP  # channels per cycle and tap; register notes H: a guess


@dataclass(frozen=True, slots=True)
class Rates:
    """The parameters of the model."""

    clock_hz: float = VENDOR_CLOCK_HZ
    bytes_per_second: float = SAFE_BYTES_PER_SECOND  # one core
    shared_bytes_per_second: float = SHARED_BYTES_PER_SECOND  # all cores together
    kick_chained_s: float = KICK_CHAINED_S
    kick_gapped_s: float = KICK_GAPPED_S
    submit_s: float = SUBMIT_S
    cores: int = 1  # cores that share the bandwidth
    attach_s: float = 0.0  # each job
    sync_page_s: float = SYNC_PAGE_S
    pack_bytes_per_second: float = PACK_BYTES_PER_SECOND
    unpack_bytes_per_second: float = UNPACK_BYTES_PER_SECOND

    @property
    def core_bytes_per_second(self) -> float:
        """Bandwidth one core gets while ``cores`` of them are busy."""
        return min(self.bytes_per_second, self.shared_bytes_per_second / self.cores)


SAFE = Rates()
"""The start values that board notes C.5 suggests."""

FITTED = Rates(clock_hz=FITTED_CLOCK_HZ, bytes_per_second=FITTED_BYTES_PER_SECOND)
"""The fit on warm tiles at 600 MHz (board notes C.5)."""

ROCKET = replace(SAFE, attach_s=ATTACH_S)
"""`SAFE` with what each job costs on stock rocket."""


def at_clock(params: Rates, clock_hz: float) -> Rates:
    """The rates at another NPU clock: one core's traffic scales with it (board notes C.5: the
    200 MHz point is off by -11 % if it does, by -29 % if it does not)."""
    bandwidth = params.bytes_per_second * clock_hz / params.clock_hz
    return replace(params, clock_hz=clock_hz, bytes_per_second=bandwidth)


def mac_cycles(
    precision: Precision,
    out_pixels: int,
    taps: int,
    in_channels: int,
    out_channels: int,
    depthwise: bool,
) -> int:
    """Array cycles: one (kernel group × channel group) block a cycle, pixel and tap.

    Source: register notes B.1 and H (documented rates; the depthwise rate is a guess).  An
    unknown precision counts as int8.
    """
    if depthwise:
        lanes = DEPTHWISE_LANES.get(precision, DEPTHWISE_LANES[Precision.INT8])
        return out_pixels * taps * -(-out_channels // lanes)
    kernels = chip.KERNEL_GROUP.get(precision, chip.KERNEL_GROUP[Precision.INT8])
    channels = chip.CHANNEL_GROUP.get(precision, chip.CHANNEL_GROUP[Precision.INT8])
    return out_pixels * taps * -(-in_channels // channels) * -(-out_channels // kernels)


def task_seconds(cycles: int, bytes_total: int, params: Rates = SAFE) -> float:
    """Time of one task without its start cost: array cycles, then traffic (board notes C.5)."""
    return cycles / params.clock_hz + bytes_total / params.core_bytes_per_second


def task_cycles(cycles: int, bytes_total: int, params: Rates = SAFE) -> int:
    """`task_seconds` plus a chained start, in NPU clock cycles."""
    seconds = task_seconds(cycles, bytes_total, params) + params.kick_chained_s
    return round(seconds * params.clock_hz)


def job_seconds(
    tasks: Iterable[tuple[int, int]], params: Rates = SAFE, *, chained: bool = True
) -> float:
    """Time of one submit.  ``tasks``: (array cycles, bytes) of each task."""
    kick = params.kick_chained_s if chained else params.kick_gapped_s
    start = params.submit_s + params.attach_s
    return start + sum(task_seconds(c, b, params) + kick for c, b in tasks)


def host_seconds(
    packed_bytes: int, unpacked_bytes: int, synced_bytes: int, params: Rates = SAFE
) -> float:
    """Host time around a job: inputs to cubes, cubes to outputs, cache syncs of whole pages.

    synced_bytes: sum over syncs of the size of the buffer (a sync walks all of it).
    """
    pages = -(-synced_bytes // chip.PAGE_BYTES)
    return (
        packed_bytes / params.pack_bytes_per_second
        + unpacked_bytes / params.unpack_bytes_per_second
        + pages * params.sync_page_s
    )
