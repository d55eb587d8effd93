"""The RK3588 NPU, unit by unit: the single source of truth about its registers."""

from __future__ import annotations

from opennpu.hw.rk3588 import (
    cna,
    core,
    ddma,
    dpu,
    dpu_rdma,
    global_,
    pc,
    ppu,
    ppu_rdma,
    sdma,
)

UNITS = {
    "pc": pc,
    "cna": cna,
    "core": core,
    "dpu": dpu,
    "dpu_rdma": dpu_rdma,
    "ppu": ppu,
    "ppu_rdma": ppu_rdma,
    "ddma": ddma,
    "sdma": sdma,
    "global_": global_,
}
