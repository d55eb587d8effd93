"""One started set of units: CNA → CORE → DPU, memory → DPU, memory → PPU, DPU → PPU.

Checks what the units must agree on, then passes data from one to the next.
"""

from __future__ import annotations

from opennpu.emu import cna, core, dpu, dpu_rdma, ppu, timing
from opennpu.emu.context import Context
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip
from opennpu.hw.rk3588 import core as core_regs
from opennpu.hw.rk3588 import dpu as dpu_regs
from opennpu.hw.rk3588 import dpu_rdma as rdma_regs
from opennpu.hw.rk3588.common import ConvMode, Precision

Groups = dict[str, Group]
"""The running group of each started unit, by unit name."""

CONVOLUTION = frozenset({"CNA", "CORE", "DPU"})
FLYING = frozenset({"DPU", "DPU_RDMA"})
POOLING = frozenset({"PPU", "PPU_RDMA"})
DIRECT_POOLING = frozenset({"PPU"})  # of what the DPU puts out
PARTIAL_GROUP_STEP = 16  # of fp16 kernel counts in CORE and DPU; reference/README.md, tails


def execute(ctx: Context, groups: Groups) -> None:
    """Run the started units once."""
    started = frozenset(groups)
    dpu_path, ppu_path = started - POOLING, started & POOLING
    ctx.require(
        dpu_path in (frozenset(), FLYING, CONVOLUTION, CONVOLUTION | FLYING)
        and ppu_path in (frozenset(), POOLING, DIRECT_POOLING)
        and bool(started),
        "start.incomplete",
        "PC",
        f"starts {', '.join(sorted(started)) or 'nothing'}",
    )
    direct = ppu_path == DIRECT_POOLING
    ctx.require(
        direct == (bool(dpu_path) and dpu.feeds_ppu(groups["DPU"])),
        "start.incomplete",
        "DPU",
        "does not feed the PPU, which waits" if direct else "feeds the PPU, which takes nothing",
    )
    made: ppu.FromDpu | None = None
    if dpu_path >= CONVOLUTION:
        made = convolve(ctx, groups)
    elif dpu_path:
        made = fly(ctx, groups)
    if direct and made is not None:
        ppu.execute(ctx, groups["PPU"], made)
    elif ppu_path:
        ppu.execute(ctx, groups["PPU"], groups["PPU_RDMA"])
    if not dpu_path >= CONVOLUTION:  # reuse needs the fetching task just before: register notes B.6
        ctx.chip.features.valid = ctx.chip.weights.valid = False


def convolve(ctx: Context, groups: Groups) -> ppu.FromDpu:
    """CNA, CORE, DPU, and DPU_RDMA where it is started.  Returns what the PPU gets."""
    c, m, d = groups["CNA"], groups["CORE"], groups["DPU"]
    rdma = groups.get("DPU_RDMA")
    flying = d.get(dpu_regs.FEATURE_MODE_CFG).flying_mode
    ctx.require(
        not flying, "start.incomplete", "DPU", "takes its input from memory while CORE runs"
    )
    geo = cna.geometry(ctx, c)
    _check_core(ctx, m, geo)
    _check_sizes(ctx, m, d, rdma, geo)
    _check_groups(ctx, m, d, geo)
    if rdma is not None:
        dpu_rdma.check(ctx, rdma, False)
        rdma_mode = rdma.get(rdma_regs.RDMA_FEATURE_MODE_CFG).conv_mode
        ctx.require(
            (rdma_mode == ConvMode.DEPTHWISE) == geo.depthwise,
            "core.conv_mode",
            "DPU_RDMA",
            f"has conv_mode {int(rdma_mode)} for a "
            f"{'depthwise' if geo.depthwise else 'direct'} task",
        )
    kernel_bytes = cna.check_weight_size(ctx, c, geo)
    whole = cna.check_cbuf(ctx, c, geo, kernel_bytes)
    outputs = geo.channels if geo.depthwise else geo.kernels
    ctx.charge("CORE", geo.pixels * geo.taps * outputs * (1 if geo.depthwise else geo.channels), 0)
    reach_h, reach_w = geo.reach
    ctx.charge("CORE", 0, -(-reach_h * reach_w * geo.channels // 4))  # what is laid out
    ctx.charge("CORE", 0, -(-geo.pixels * m.get(core_regs.DATAOUT_SIZE_1).dataout_channel // 4))
    ctx.macs += geo.pixels * geo.taps * outputs * (1 if geo.depthwise else geo.channels)
    ctx.mac_cycles += timing.mac_cycles(
        geo.precision, geo.pixels, geo.taps, geo.channels, outputs, geo.depthwise
    )
    features = cna.fetch_features(ctx, c, geo, whole)
    weights = cna.fetch_weights(ctx, c, geo)
    cna.check_channel_real(ctx, c, geo, weights)
    cube = core.execute(ctx, m, geo, features, weights)
    return _hand_over(d, dpu.execute(ctx, d, rdma, cube, geo.depthwise))


def fly(ctx: Context, groups: Groups) -> ppu.FromDpu:
    """DPU_RDMA feeds the DPU from memory.  Returns what the PPU gets."""
    d, rdma = groups["DPU"], groups["DPU_RDMA"]
    flying = d.get(dpu_regs.FEATURE_MODE_CFG).flying_mode
    ctx.require(bool(flying), "start.incomplete", "DPU", "waits for CORE, which is not started")
    dpu_rdma.check(ctx, rdma, True)
    rows, cols = dpu.size(d)
    channels = d.get(dpu_regs.DATA_CUBE_CHANNEL).channel
    _check_dpu_sizes(ctx, d, rdma, rows, cols, channels)
    fmt = d.get(dpu_regs.DATA_FORMAT)
    dpu_rdma.check_precision(ctx, rdma, fmt.proc_precision, fmt.in_precision)
    cube = dpu_rdma.main_stream(ctx, rdma)
    if cube.values.shape[1] > channels:  # CHANNEL counts whole atoms or the lanes that are used
        cube = dpu_rdma.crop(cube, channels)
    return _hand_over(d, dpu.execute(ctx, d, rdma, cube, False))


def _hand_over(d: Group, out: ppu.Array) -> ppu.FromDpu:
    flying = bool(d.get(dpu_regs.FEATURE_MODE_CFG).flying_mode)
    return ppu.FromDpu(out, dpu.size(d), dpu.output_type(d), flying)


# -- agreement between units -----------------------------------------------------------------


def _check_core(ctx: Context, m: Group, geo: cna.Geometry) -> None:
    misc = m.get(core_regs.MISC_CFG)
    core.check_gating(ctx, m)
    if misc.proc_precision in (Precision.INT32, Precision.FP32):
        ctx.report("core.precision", "CORE", f"has proc {int(misc.proc_precision)}, no type of it")
        return
    ctx.require(
        misc.proc_precision == geo.precision,
        "cna.precision",
        "CORE",
        f"has proc {int(misc.proc_precision)}, CNA has {int(geo.precision)}",
    )
    ctx.require(
        bool(misc.dw_en) == geo.depthwise,
        "core.conv_mode",
        "CORE",
        f"has DW_EN {misc.dw_en}, CNA is {'depthwise' if geo.depthwise else 'direct'}",
    )
    clip = m.get(core_regs.CLIP_TRUNCATE).clip_truncate
    ctx.require(
        not clip or geo.precision in (Precision.INT8, Precision.INT16, Precision.INT4),
        "core.clip_float",
        "CORE",
        f"has CLIP_TRUNCATE {clip} for {geo.precision.name}",
    )


def _check_sizes(ctx: Context, m: Group, d: Group, rdma: Group | None, geo: cna.Geometry) -> None:
    out = m.get(core_regs.DATAOUT_SIZE_0)
    ctx.require(
        (out.dataout_height, out.dataout_width) == geo.out,
        "cna.geometry",
        "CORE",
        f"has {out.dataout_height}x{out.dataout_width} outputs, CNA has {geo.out[0]}x{geo.out[1]}",
    )
    channels = m.get(core_regs.DATAOUT_SIZE_1).dataout_channel
    _check_dpu_sizes(ctx, d, rdma, *geo.out, channels)


def _check_dpu_sizes(
    ctx: Context, d: Group, rdma: Group | None, rows: int, cols: int, channels: int
) -> None:
    """DPU, its write DMA and DPU_RDMA against the size of the task."""
    wdma = d.get(dpu_regs.WDMA_SIZE_1)
    sizes = {"DPU": dpu.size(d)}
    counts = {"DPU": d.get(dpu_regs.DATA_CUBE_CHANNEL).channel}
    transposes = d.get(dpu_regs.BS_OW_CFG).tp_org_en or d.get(dpu_regs.FEATURE_MODE_CFG).tp_en
    if not transposes:  # a transposing writer has sizes of its own
        sizes["WDMA"] = (wdma.height_wdma, wdma.width_wdma)
        counts["WDMA"] = d.get(dpu_regs.WDMA_SIZE_0).channel_wdma
    if rdma is not None:
        sizes["DPU_RDMA"] = (
            rdma.get(rdma_regs.RDMA_DATA_CUBE_HEIGHT).height,
            rdma.get(rdma_regs.RDMA_DATA_CUBE_WIDTH).width,
        )
        counts["DPU_RDMA"] = rdma.get(rdma_regs.RDMA_DATA_CUBE_CHANNEL).channel
    for unit, have in sizes.items():
        ctx.require(
            have == (rows, cols),
            "dpu.geometry",
            unit,
            f"has {have[0]}x{have[1]} px, the task has {rows}x{cols}",
        )
    for unit, count in counts.items():
        ctx.require(
            count == channels,
            "core.channels",
            unit,
            f"has {count} channels, the task has {channels}",
        )


def _check_groups(ctx: Context, m: Group, d: Group, geo: cna.Geometry) -> None:
    """Kernel counts and groups (board notes A.4; reference/README.md, tails)."""
    channels = m.get(core_regs.DATAOUT_SIZE_1).dataout_channel
    out = d.get(dpu_regs.DATA_FORMAT).out_precision
    if geo.depthwise:
        lanes = chip.DEPTHWISE_GROUP[geo.precision]
        ctx.require(
            geo.kernels == 1 and channels >= geo.channels,
            "core.kernels",
            "CORE",
            f"has {geo.kernels} depthwise kernels, {channels} channels out of {geo.channels}",
        )
        if channels % lanes and ctx.strict:
            ctx.report(
                "core.partial_group",
                "CORE",
                f"has {channels} depthwise channels, groups have {lanes}",
            )
        return
    ctx.require(
        geo.kernels <= channels,
        "core.kernels",
        "CORE",
        f"has {channels} channels for {geo.kernels} kernels",
    )
    lanes = chip.KERNEL_GROUP[geo.precision]
    ragged = geo.kernels % lanes or channels % lanes
    if geo.precision is Precision.INT8 and out is Precision.INT8:
        # in hardware mode the DPU hangs after the whole groups; any number of kernels in whole
        # groups of channels is what Mesa runs on boards (register notes E.2, F.4)
        if channels % lanes and ctx.strict:
            ctx.report(
                "core.partial_group",
                "CORE",
                f"has {geo.kernels} kernels in {channels} channels, groups have {lanes}",
            )
    elif geo.precision in (Precision.INT8, Precision.INT4):
        ctx.require(
            not ragged,
            "core.partial_group_raw",
            "CORE",
            f"has {geo.kernels} kernels in {channels} channels, groups have {lanes}",
        )
    else:
        ctx.require(
            channels % PARTIAL_GROUP_STEP == 0,
            "core.channels",
            "CORE",
            f"has {channels} channels, {PARTIAL_GROUP_STEP} divide them on silicon",
        )
