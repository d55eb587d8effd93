"""SDMA: tuning of the second AXI port.

Registers 0x9000..0x9fff of a core's window; on core 0 IOMMU banks lie there.  Target 0x0401 is
that of the RV1106; no RK3588 stream writes here.
"""

from __future__ import annotations

from opennpu.hw.regs import Block, Register, bits
from opennpu.hw.rk3588.common import TRM

SDMA = Block("SDMA", base=0x9000, target=0x0401)


class CFG_OUTSTANDING(Register, block=SDMA, offset=0x000, shadowed=False):
    """Requests in flight."""

    rd_os_cnt: int = bits(7, 0, default=0, source=TRM, doc="reads in flight, at most")
    wr_os_cnt: int = bits(15, 8, default=0, source=TRM, doc="writes in flight, at most")


class RD_WEIGHT_0(Register, block=SDMA, offset=0x004, shadowed=False):
    """Read arbiter."""

    rd_weight_feature: int = bits(7, 0, default=0, source=TRM, doc="share of the features")
    rd_weight_kernel: int = bits(15, 8, default=0, source=TRM, doc="share of the weights")
    rd_weight_dpu: int = bits(23, 16, default=0, source=TRM, doc="share of the DPU")
    rd_weight_pdp: int = bits(31, 24, default=0, source=TRM, doc="share of the PPU")


class WR_WEIGHT_0(Register, block=SDMA, offset=0x008, shadowed=False):
    """Write arbiter."""

    wr_weight_dpu: int = bits(7, 0, default=0, source=TRM, doc="share of the DPU")
    wr_weight_pdp: int = bits(15, 8, default=0, source=TRM, doc="share of the PPU")


class CFG_ID_ERROR(Register, block=SDMA, offset=0x00C, shadowed=False):
    """AXI ids of the last failed transfers."""

    rd_resp_id: int = bits(4, 0, default=0, source=TRM, doc="id of the failed read")
    wr_resp_id: int = bits(9, 6, default=0, source=TRM, doc="id of the failed write")


class RD_WEIGHT_1(Register, block=SDMA, offset=0x010, shadowed=False):
    """Read arbiter, fifth share."""

    rd_weight_pc: int = bits(7, 0, default=0, source=TRM, doc="share of the PC")


class CFG_DMA_FIFO_CLR(Register, block=SDMA, offset=0x014, shadowed=False):
    """Clear the FIFOs."""

    dma_fifo_clr: int = bits(0, default=0, source=TRM, doc="1 = clear")


class CFG_DMA_ARB(Register, block=SDMA, offset=0x018, shadowed=False):
    """Arbiter mode."""

    rd_fix_arb: int = bits(2, 0, default=0, source=TRM, doc="fixed order of reads")
    wr_fix_arb: int = bits(6, 4, default=0, source=TRM, doc="fixed order of writes")
    rd_arbit_model: int = bits(8, default=0, source=TRM, doc="reads: by weight or in fixed order")
    wr_arbit_model: int = bits(9, default=0, source=TRM, doc="writes: by weight or in fixed order")


class CFG_DMA_RD_QOS(Register, block=SDMA, offset=0x020, shadowed=False):
    """AXI QoS of reads, per client."""

    rd_feature_qos: int = bits(1, 0, default=0, source=TRM, doc="features")
    rd_kernel_qos: int = bits(3, 2, default=0, source=TRM, doc="weights")
    rd_dpu_qos: int = bits(5, 4, default=0, source=TRM, doc="DPU")
    rd_ppu_qos: int = bits(7, 6, default=0, source=TRM, doc="PPU")
    rd_pc_qos: int = bits(9, 8, default=0, source=TRM, doc="PC")


class CFG_DMA_RD_CFG(Register, block=SDMA, offset=0x024, shadowed=False):
    """AXI attributes of reads."""

    rd_arsize: int = bits(2, 0, default=0, source=TRM, doc="ARSIZE")
    rd_arburst: int = bits(4, 3, default=0, source=TRM, doc="ARBURST")
    rd_arprot: int = bits(7, 5, default=0, source=TRM, doc="ARPROT")
    rd_arcache: int = bits(11, 8, default=0, source=TRM, doc="ARCACHE")
    rd_arlock: int = bits(12, default=0, source=TRM, doc="ARLOCK")


class CFG_DMA_WR_CFG(Register, block=SDMA, offset=0x028, shadowed=False):
    """AXI attributes of writes."""

    wr_awsize: int = bits(2, 0, default=0, source=TRM, doc="AWSIZE")
    wr_awburst: int = bits(4, 3, default=0, source=TRM, doc="AWBURST")
    wr_awprot: int = bits(7, 5, default=0, source=TRM, doc="AWPROT")
    wr_awcache: int = bits(11, 8, default=0, source=TRM, doc="AWCACHE")
    wr_awlock: int = bits(12, default=0, source=TRM, doc="AWLOCK")


class CFG_DMA_WSTRB(Register, block=SDMA, offset=0x02C, shadowed=False):
    """Byte strobes of writes."""

    wr_wstrb: int = bits(31, 0, default=0, source=TRM, doc="byte strobes")


class CFG_STATUS(Register, block=SDMA, offset=0x030, shadowed=False):
    """State of the port."""

    idel: int = bits(8, default=0, source=TRM, doc="1 = idle")
