"""CNA: fetches features and weights into the CBUF and lays them out for CORE.

Address rule of the feature DMA (board notes A.3, register notes B.5; explains 752 of 752 captured
vendor tasks): row h, column w, 16-byte channel surface p lie at

    base + 16 * (p * (G * W + SURF_STRIDE) + (h div G) * LINE_STRIDE + (h mod G) * W + w)

with G = 4, or 1 when GROUP_LINE_OFF is set.  Taken literally: programs with a wrong stride read
what silicon reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu import dcomp, numerics
from opennpu.emu.context import CbufImage, Context
from opennpu.emu.registers import Group
from opennpu.hw.rk3588 import chip, cna
from opennpu.hw.rk3588.common import ConvMode, Precision

Array = npt.NDArray[Any]

UNIT = "CNA"
ATOM = chip.ATOM_BYTES
BANK = chip.CBUF_BANK_BYTES
PAD_GROUP = 64  # channels after which the pad lanes repeat; board notes A.8
DECONV_STRIDES = (2, 4, 8)  # others act as a forward convolution; board notes A.13
PACKED = {8: 1, 9: 2, 10: 3, 11: 4}  # ARGB_IN -> interleaved channels; register notes B.5
CONVERTER_LANES = 4  # constants of the input converter; channel c takes number c mod 4
INT8_SLACK_FILL = 15 / 16
"""Of the data banks: 10 of the 11 failing shapes of board notes A.6 fill 97 to 99.6 %, one 94 %."""


@dataclass(frozen=True, slots=True)
class Converter:
    """The input converter (register notes B.8): four constants, and the lanes that take them."""

    scale: tuple[int, ...]
    offset: tuple[int, ...]
    shift: tuple[int, ...]
    add_first: bool
    ties_up: bool
    signed: bool
    lanes: int  # CVT_CON5: bit n = channel n of an atom is converted


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution as the CNA registers say it.  Pairs are (vertical, horizontal), in pixels."""

    precision: Precision
    depthwise: bool
    size: tuple[int, int]  # input
    channels: int  # programmed: the atoms that are fetched
    out: tuple[int, int]
    kernel: tuple[int, int]
    kernels: int
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]  # top, left
    pad_word: int
    upsample: tuple[int, int]  # zero insertion of DECONV; 1 = off
    padded: int = 0  # channels past DATAIN_CHANNEL_REAL
    packed: int = 0  # interleaved channels of a packed input; 0 = a cube
    converter: Converter | None = None
    fetched: int = 0  # columns of a cube that come from memory

    @property
    def taps(self) -> int:
        """Kernel positions."""
        return self.kernel[0] * self.kernel[1]

    @property
    def pixels(self) -> int:
        """Output positions."""
        return self.out[0] * self.out[1]

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return chip.ELEMENT_BITS[self.precision]

    @property
    def surfaces(self) -> int:
        """16-byte channel surfaces of the input."""
        return -(-self.channels * self.bits // (8 * ATOM))

    @property
    def reach(self) -> tuple[int, int]:
        """Padded input pixels under all output pixels."""
        h, w = (
            (self.out[a] - 1) * self.stride[a] + (self.kernel[a] - 1) * self.dilation[a] + 1
            for a in (0, 1)
        )
        return h, w


def geometry(ctx: Context, g: Group) -> Geometry:
    """Read the registers; report what is inconsistent or not modelled."""
    con1, con2, con3 = g.get(cna.CONV_CON1), g.get(cna.CONV_CON2), g.get(cna.CONV_CON3)
    s0, s1, s2, s3 = (
        g.get(cna.DATA_SIZE0),
        g.get(cna.DATA_SIZE1),
        g.get(cna.DATA_SIZE2),
        g.get(cna.DATA_SIZE3),
    )
    w2, fc0, fc1 = g.get(cna.WEIGHT_SIZE2), g.get(cna.FC_DATA_SIZE0), g.get(cna.FC_DATA_SIZE1)
    precision = con1.proc_precision
    depthwise = con1.conv_mode == ConvMode.DEPTHWISE
    ctx.require(
        precision in chip.KERNEL_GROUP
        and con1.in_precision == precision
        and (not depthwise or precision in chip.DEPTHWISE_GROUP),
        "cna.precision",
        UNIT,
        f"has precisions in {int(con1.in_precision)} and proc {int(precision)}"
        f"{' in depthwise mode' * depthwise}",
    )
    ctx.require(
        con1.conv_mode in (ConvMode.DIRECT, ConvMode.DEPTHWISE),
        "core.conv_mode",
        UNIT,
        f"has conv_mode {int(con1.conv_mode)}, 0 and 3 exist",
    )
    packed = PACKED.get(con1.argb_in, 0)
    if con1.argb_in or con1.nonalign_dma:
        ctx.require(
            packed > 0
            and con1.nonalign_dma == con1.group_line_off == 1
            and precision in (Precision.INT8, Precision.INT16, Precision.FP16, Precision.BF16)
            and not con1.deconv
            and s1.datain_channel == chip.elements_per_atom(precision),
            "cna.packed_input",
            UNIT,
            f"has ARGB_IN {con1.argb_in}, NONALIGN_DMA {con1.nonalign_dma}, GROUP_LINE_OFF "
            f"{con1.group_line_off} and {s1.datain_channel} channels of precision {int(precision)}",
        )
    ctx.require(
        not (con2.csc_do_en or con2.csc_wo_en or con2.cmd_fifo_srst),
        "cna.debug",
        UNIT,
        "suppresses the sequencer",
    )
    ctx.require(
        con2.kernel_group == 1, "cna.kernel_group", UNIT, f"has KERNEL_GROUP {con2.kernel_group}"
    )
    ctx.require(not con3.nn_mode, "cna.nn_mode", UNIT, f"has NN_MODE {con3.nn_mode}")
    ctx.require(s3.surf_mode <= 1, "cna.surf_mode", UNIT, f"has SURF_MODE {s3.surf_mode}")
    fc = g.get(cna.FC_CON0)
    ctx.require(not fc.fc_skip_en, "cna.zero_skip", UNIT, "has FC_SKIP_EN set")
    ctx.idle(UNIT, fc, "FC_SKIP_EN", "fc_skip_data")
    ctx.idle(UNIT, g.get(cna.FC_CON1), "FC_SKIP_EN", "data_offset")
    ctx.idle(UNIT, g.get(cna.FC_CON2), "FC_SKIP_EN", "weight_offset")
    sizes = (
        s0.datain_width,
        s0.datain_height,
        s1.datain_channel,
        s2.dataout_width,
        s3.dataout_atomics,
        w2.weight_width,
        w2.weight_height,
        w2.weight_kernels,
        con3.conv_x_stride,
        con3.conv_y_stride,
    )
    ctx.require(all(sizes), "cna.empty", UNIT, f"has a size of 0 among {sizes}")
    ctx.require(
        precision == Precision.INT4 or s1.datain_channel * chip.ELEMENT_BITS[precision] % 128 == 0,
        "cna.channels",
        UNIT,
        f"has {s1.datain_channel} channels of {precision.name}",
    )
    rows, rest = divmod(s3.dataout_atomics, s2.dataout_width)
    ctx.require(
        rest == 0,
        "cna.geometry",
        UNIT,
        f"has {s3.dataout_atomics} output pixels, width {s2.dataout_width} does not divide them",
    )
    pad = g.get(cna.PAD_CON0)
    upsample = (1, 1)
    if con1.deconv:
        upsample = (
            con3.deconv_y_stride if con3.deconv_y_stride in DECONV_STRIDES else 1,
            con3.deconv_x_stride if con3.deconv_x_stride in DECONV_STRIDES else 1,
        )
        ctx.require(
            not (2 in upsample and max(pad.pad_top, pad.pad_left) >= 12),
            "cna.deconv",
            UNIT,
            f"transposes by {upsample} with pads {pad.pad_top}, {pad.pad_left}",
        )
    geo = Geometry(
        precision=precision,
        depthwise=depthwise,
        size=(s0.datain_height, s0.datain_width),
        channels=s1.datain_channel,
        out=(rows, s2.dataout_width),
        kernel=(w2.weight_height, w2.weight_width),
        kernels=w2.weight_kernels,
        stride=(con3.conv_y_stride, con3.conv_x_stride),
        dilation=(con3.atrous_y_dilation, con3.atrous_x_dilation),
        pad=(pad.pad_top, pad.pad_left),
        pad_word=g.get(cna.PAD_CON1).word,
        upsample=upsample,
        padded=_padded(s1.datain_channel, s1.datain_channel_real),
        packed=packed,
        converter=_converter(ctx, g, precision),
        fetched=fc0.dma_width,
    )
    ctx.require(
        (fc0.dma_height, fc1.dma_channel) == (s0.datain_height, s1.datain_channel)
        and _fetches_enough(geo),
        "cna.dma_size",
        UNIT,
        f"fetches {fc0.dma_height}x{fc0.dma_width}x{fc1.dma_channel}, "
        f"computes {s0.datain_height}x{s0.datain_width}x{s1.datain_channel}",
    )
    return geo


def _fetches_enough(geo: Geometry) -> bool:
    """Is every column that the kernel reaches fetched?

    Mesa computes wider rows than it fetches in two cases (rkt_task.c): packed rows end with an
    atom, whose rest is fetched too; of 16 columns where a sum has 8, no 1x1 kernel reaches the
    others.  What a kernel finds there is not known.
    """
    width = geo.size[1]
    if geo.packed and geo.fetched < width:
        lanes = chip.elements_per_atom(geo.precision)
        return -(-geo.fetched * geo.packed // lanes) * lanes == width * geo.packed
    reached = geo.reach[1] - geo.pad[1]
    return geo.fetched == width or (reached <= geo.fetched < width and geo.upsample == (1, 1))


def _converter(ctx: Context, g: Group, precision: Precision) -> Converter | None:
    """The input converter, None while it is bypassed."""
    con0, lanes = g.get(cna.CVT_CON0), g.get(cna.CVT_CON5).per_channel_cvt_en
    if con0.cvt_bypass:
        return None
    ctx.require(
        precision in (Precision.INT8, Precision.INT16),
        "cna.converter",
        UNIT,
        f"converts precision {int(precision)}",
    )
    one, two, three, four = (
        g.get(cna.CVT_CON1),
        g.get(cna.CVT_CON2),
        g.get(cna.CVT_CON3),
        g.get(cna.CVT_CON4),
    )
    return Converter(
        scale=(one.cvt_scale0, two.cvt_scale1, three.cvt_scale2, four.cvt_scale3),
        offset=(one.cvt_offset0, two.cvt_offset1, three.cvt_offset2, four.cvt_offset3),
        shift=(
            con0.cvt_truncate_0,
            con0.cvt_truncate_1,
            con0.cvt_truncate_2,
            con0.cvt_truncate_3,
        ),
        add_first=bool(con0.cvt_type),
        ties_up=bool(con0.round_type),
        signed=bool(con0.data_sign),
        lanes=lanes,
    )


# -- CBUF ------------------------------------------------------------------------------------


def row_entries(width: int, channels: int, bits: int) -> int:
    """CBUF entries of one input row (board notes A.2: explains every captured stream)."""
    whole, rest = divmod(-(-channels * bits // (8 * ATOM)), 4)
    return width * whole + (width if rest == 3 else -(-width * rest // 4))


def check_cbuf(ctx: Context, g: Group, geo: Geometry, kernel_bytes: int) -> bool:
    """Bank accounting (board notes A.6, register notes B.6).  True when the whole tile fits."""
    con0, con1 = g.get(cna.CBUF_CON0), g.get(cna.CBUF_CON1)
    grains = g.get(cna.CONV_CON2).feature_grains
    ctx.require(
        con0.data_bank > 0
        and con0.weight_bank > 0
        and con0.data_bank + con0.weight_bank <= chip.CBUF_BANKS,
        "cbuf.banks",
        UNIT,
        f"has {con0.data_bank} data and {con0.weight_bank} weight banks of {chip.CBUF_BANKS}",
    )
    ctx.require(
        not con0.fc_data_bank, "cbuf.fc_data_bank", UNIT, f"has FC_DATA_BANK {con0.fc_data_bank}"
    )
    height, width = geo.size
    held = geo.packed or geo.channels  # what a packed row takes is open: at least its bytes
    least = -(-width * held * geo.bits // (8 * chip.CBUF_ENTRY_BYTES))
    refined = least if geo.packed else row_entries(width, geo.channels, geo.bits)
    if con1.data_entries < least:
        ctx.report("cna.entries", UNIT, f"has {con1.data_entries} entries a row, it takes {least}")
    elif con1.data_entries < refined:
        ctx.report(
            "cna.entries_tight",
            UNIT,
            f"has {con1.data_entries} entries a row, the refined rule gives {refined}",
        )
    entries = least if geo.packed else max(con1.data_entries, least)
    row_bytes = entries * chip.CBUF_ENTRY_BYTES
    room = con0.data_bank * BANK
    reach = min(height, (geo.kernel[0] - 1) * geo.dilation[0] + 1)
    if reach * row_bytes > room:
        ctx.report(
            "cbuf.rows", UNIT, f"needs {reach} rows of {row_bytes} bytes, has room for {room} bytes"
        )
    whole = height * row_bytes <= room
    if not whole:
        ctx.report(
            "cbuf.tile", UNIT, f"streams a tile of {height * row_bytes} bytes through {room} bytes"
        )
    if geo.precision is Precision.INT8 and width == 1:
        used = height * geo.channels
        ctx.require(
            not INT8_SLACK_FILL * room <= used < room,
            "cbuf.int8_slack",
            UNIT,
            f"fills its {con0.data_bank} data banks to {used} of {room} bytes at width 1",
        )
    group = chip.KERNEL_GROUP[geo.precision]
    group_bytes = min(group, geo.kernels) * kernel_bytes
    if geo.depthwise:
        lanes = chip.DEPTHWISE_GROUP[geo.precision]
        group_bytes = geo.taps * min(lanes, geo.channels) * geo.bits // 8
    ctx.require(
        group_bytes <= con0.weight_bank * BANK,
        "cbuf.kernel_group",
        UNIT,
        f"has a kernel group of {group_bytes} bytes, {con0.weight_bank} banks hold "
        f"{con0.weight_bank * BANK}",
    )
    if grains < geo.kernel[0]:
        ctx.report("cna.grains", UNIT, f"has {grains} grains, the kernel has {geo.kernel[0]} rows")
    if min(grains, height) * row_bytes > room:
        ctx.report("cna.grains", UNIT, f"has {grains} grains, the banks hold {room // row_bytes}")
    return whole


def _stored(
    ctx: Context,
    image: CbufImage,
    reuse: int,
    tag: tuple[Any, ...],
    shape: tuple[int, ...],
    what: str,
) -> Array | None:
    """The region's contents when the reuse bit is set: right, stale or poison; else None."""
    if not reuse:
        return None
    if not (image.valid and image.whole and image.tag == tag):
        ctx.report("cbuf.reuse", UNIT, f"reuses {what} that are not in the CBUF")
        if image.data.shape != shape:
            return np.full(shape, ctx.policy.poison, np.uint8)
    return image.data


# -- features --------------------------------------------------------------------------------


def fetch_features(ctx: Context, g: Group, geo: Geometry, whole: bool) -> Array:
    """uint8 [surface, row, column, 16]."""
    con0 = g.get(cna.CBUF_CON0)
    group = 1 if g.get(cna.CONV_CON1).group_line_off else 4
    line, surf = g.get(cna.DMA_CON1).line_stride, g.get(cna.DMA_CON2).surf_stride
    base = g.get(cna.FEATURE_DATA_ADDR).feature_base_addr + ctx.dma_base
    height, width = geo.size[0], geo.size[1] if geo.packed else geo.fetched
    shape = (geo.surfaces, height, width, ATOM)
    tag = (base, shape, geo.precision, group, line, surf, con0.data_bank, geo.packed)
    stored = _stored(ctx, ctx.chip.features, con0.data_reuse, tag, shape, "features")
    if stored is not None:
        return stored
    if geo.packed:
        return _keep(ctx, tag, _fetch_packed(ctx, geo, base, line), whole)
    if group == 4 and line != 4 * width:
        ctx.report(
            "cna.line_stride", UNIT, f"has LINE_STRIDE {line}, 4 lines are {4 * width} atoms"
        )
    pitch = (group * width + surf) * ATOM
    ctx.charge(UNIT, 0, geo.surfaces * height * width)

    def gather(first: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        at = base + first * line * ATOM
        return ctx.space.gather(
            at, (geo.surfaces, *counts, width), (pitch, *strides, ATOM), "feature", UNIT
        )

    row = width * ATOM
    if group == 4 and ctx.policy.group_rows == "stride":
        row = line * ATOM // 4
    if group == 1 or line == 4 * width:
        out = gather(0, (height,), (line * ATOM if group == 1 else row,))
    else:
        blocks, rest = divmod(height, group)
        parts = []
        if blocks:
            parts.append(gather(0, (blocks, group), (line * ATOM, row)))
        if rest:
            parts.append(gather(blocks, (1, rest), (0, row)))
        flat = [p.reshape(geo.surfaces, -1, width, ATOM) for p in parts]
        out = np.concatenate(flat, axis=1)
    return _keep(ctx, tag, out.copy(), whole)


def _keep(ctx: Context, tag: tuple[Any, ...], data: Array, whole: bool) -> Array:
    """Remember what the CBUF holds now."""
    image = ctx.chip.features
    image.tag, image.data, image.whole, image.valid = tag, data, whole, True
    return data


def _fetch_packed(ctx: Context, geo: Geometry, base: int, line_px: int) -> Array:
    """Pixels of 1 to 4 interleaved channels, spread over the first lanes of an atom each.

    LINE_STRIDE counts pixels.  Lanes without a channel hold 0, and the converter leaves them
    alone: GUESSED, and no stream that pads its weights with their zero point can tell.
    """
    height, width = geo.size
    size = geo.packed * geo.bits // 8
    pitch = line_px * size
    if pitch % ATOM:
        ctx.report(
            "cna.packed_rows", UNIT, f"has packed rows {pitch} bytes apart, atoms have {ATOM}"
        )
    ctx.charge(UNIT, 0, height * width)
    out = np.zeros((1, height, width, ATOM), np.uint8)
    for y in range(height):
        row = ctx.space.read(base + y * pitch, width * size, "feature", UNIT)
        out[0, y, :, :size] = row.reshape(width, size)
    return out


def convert(geo: Geometry, x: Array) -> Array:
    """Input converter on elements [surface, row, column, lane]: saturated to their type.

    cvt_type 0: round(x * scale >> shift) + offset; 1: round((x + offset) * scale >> shift).
    The bits of an atom's lane enable it (register notes B.8; order and saturation GUESSED).
    """
    c = geo.converter
    if c is None:
        return x
    lanes = geo.packed or x.shape[-1]
    chosen = np.array([n for n in range(lanes) if c.lanes >> n & 1], np.int64)
    if not chosen.size:
        return x
    which = chosen % CONVERTER_LANES
    scale, offset, shift = (
        np.array(values, np.float64)[which] for values in (c.scale, c.offset, c.shift)
    )
    v = x[..., chosen].astype(np.float64)
    if not c.signed:
        v = np.where(v < 0, v + 2.0**geo.bits, v)
    if c.add_first:
        v = v + offset
    v = v * scale * 2.0**-shift
    v = np.floor(v + 0.5) if c.ties_up else np.rint(v)
    if not c.add_first:
        v = v + offset
    out = x.copy()
    out[..., chosen] = numerics.saturate(v, geo.bits).astype(x.dtype)
    return out


def pad_lanes(ctx: Context, geo: Geometry) -> Array:
    """What a padding pixel reads, per channel (board notes A.8)."""
    word, p = geo.pad_word, geo.precision
    if p is Precision.INT8:
        low = numerics.signed(word, 8)
        lanes = np.full(geo.channels, low, np.float32)
        if ctx.policy.int8_pad == "lanes":
            at = np.arange(geo.channels) % PAD_GROUP
            lanes[(at < PAD_GROUP // 2) & (at % 2 == 1)] = numerics.signed(word >> 8, 8)
        return lanes
    if p is Precision.FP16:
        return np.full(geo.channels, numerics.float16_of_bits(word), np.float32)
    if p is Precision.BF16:  # the low half, as for fp16: GUESSED
        return np.full(geo.channels, numerics.float32_of_bits(word << 16), np.float32)
    if p is Precision.INT16:
        return np.full(geo.channels, numerics.signed(word, 16), np.float32)
    if p is Precision.TF32:  # the whole word, cut like any element: GUESSED
        return np.full(geo.channels, numerics.float32_of_bits(word & 0xFFFF_E000), np.float32)
    ctx.require(
        word == 0, "cna.padding_value", UNIT, f"pads {p.name} with {word:#x}: which lanes is open"
    )
    return np.zeros(geo.channels, np.float32)


def lay_out(ctx: Context, geo: Geometry, raw: Array, dtype: npt.DTypeLike) -> Array:
    """Fetched atoms -> [rows, columns, channels] of all padded pixels the kernel reaches."""
    x = convert(geo, numerics.elements(raw, geo.precision))  # [S, H, W, L]
    surfaces, height, width, lanes = x.shape
    up_y, up_x = geo.upsample
    high, wide = (height - 1) * up_y + 1, (width - 1) * up_x + 1
    top, left = geo.pad
    need_h, need_w = geo.reach
    use_h, use_w = max(0, min(high, need_h - top)), max(0, min(wide, need_w - left))
    full = surfaces * lanes
    padded = top or left or use_h + top < need_h or use_w + left < need_w
    if padded:
        out = np.empty((need_h, need_w, full), dtype)
        out[:, :, : geo.channels] = pad_lanes(ctx, geo)
        out[:, :, geo.channels :] = 0
    else:
        out = np.empty((need_h, need_w, full), dtype)
    inside = out[top : top + use_h, left : left + use_w]
    if (up_y, up_x) != (1, 1):
        ctx.require(
            geo.precision in numerics.FLOATS or geo.pad_word == 0,
            "cna.deconv",
            UNIT,
            f"inserts zeros into {geo.precision.name} with padding value {geo.pad_word:#x}",
        )
        inside[...] = 0
        inside = inside[::up_y, ::up_x]
    rows, cols = inside.shape[:2]
    view = np.lib.stride_tricks.as_strided(
        inside,
        (rows, cols, surfaces, lanes),
        (*inside.strides[:2], lanes * inside.itemsize, inside.itemsize),
    )
    view[...] = x[:, :rows, :cols].transpose(1, 2, 0, 3)
    return out[:, :, : geo.channels]


# -- weights ---------------------------------------------------------------------------------


def fetch_weights(ctx: Context, g: Group, geo: Geometry) -> Array:
    """Raw bytes of all kernels, flat."""
    con0 = g.get(cna.CBUF_CON0)
    base = g.get(cna.DCOMP_ADDR0).decompress_addr0 + ctx.dma_base
    count = weight_bytes(geo)
    control = g.get(cna.DCOMP_CTRL)
    squeezed = bool(control.decomp_control) and not control.wt_dec_bypass
    tag = (base, count, geo.precision, geo.kernel, con0.data_bank, con0.weight_bank, squeezed)
    stored = _stored(ctx, ctx.chip.weights, con0.weight_reuse, tag, (count,), "weights")
    if stored is not None:
        return stored
    ctx.charge(UNIT, 0, -(-count // ATOM))
    image = ctx.chip.weights
    if squeezed:
        image.data = dcomp.fetch(ctx, g, base, count, geo.precision)
    else:
        image.data = ctx.space.read(base, count, "weight", UNIT).copy()
    image.tag, image.valid = tag, True
    image.whole = count <= con0.weight_bank * BANK
    return image.data


def weight_bytes(geo: Geometry) -> int:
    """Bytes that the kernels take in memory (register notes B.3, E.2: tails are not padded)."""
    per = geo.taps * geo.channels * geo.bits // 8
    return per if geo.depthwise else per * geo.kernels


def check_weight_size(ctx: Context, g: Group, geo: Geometry) -> int:
    """Compare the size registers with the geometry.  Returns bytes of one kernel."""
    total = g.get(cna.WEIGHT_SIZE0).weight_bytes
    per = g.get(cna.WEIGHT_SIZE1).weight_bytes_per_kernel
    want = geo.taps * geo.channels * geo.bits // 8
    ctx.require(
        total == weight_bytes(geo)
        and per == want & cna.WEIGHT_SIZE1.fields["weight_bytes_per_kernel"].max,
        "cna.weight_size",
        UNIT,
        f"has {total} weight bytes of {per} a kernel, "
        f"its geometry has {weight_bytes(geo)} of {want}",
    )
    return want


def check_channel_real(ctx: Context, g: Group, geo: Geometry, raw: Array) -> None:
    """DATAIN_CHANNEL_REAL against the programmed channels and the weights of the rest.

    Producers write it in full (Mesa) or modulo 64 (vendor); no result is known to depend on it
    as long as the weights of padded channels cancel, which only equal ones do.
    """
    real, padded = g.get(cna.DATA_SIZE1).datain_channel_real, geo.padded
    lanes = chip.elements_per_atom(geo.precision)
    if not 0 <= padded < lanes:
        ctx.report(
            "cna.channel_real", UNIT, f"has {real} real channels of {geo.channels} programmed"
        )
    elif padded and not geo.packed:
        rest = unpack_weights(geo, raw)[..., geo.channels - padded :]
        if (rest != rest.flat[0]).any():
            ctx.report(
                "cna.channel_real", UNIT, f"has different weights for {padded} padded channels"
            )


def _padded(channels: int, real: int) -> int:
    """Channels past the real ones, which are given in full or modulo 64; negative if too many."""
    last = (channels - 1) % PAD_GROUP + 1
    padded = channels - real
    return last - real if padded != 0 and real <= PAD_GROUP and last >= real else padded


def unpack_weights(geo: Geometry, raw: Array) -> Array:
    """Bytes -> [tap, kernel, channel]; depthwise [tap, channel].

    Memory order (board notes A.2, register notes E.2): kernel groups, channel groups, ky, kx,
    kernel, channel; the last group of either kind is as narrow as what remains.
    """
    w = numerics.elements(raw, geo.precision)
    c, k, taps = geo.channels, geo.kernels, geo.taps
    if geo.depthwise:
        lanes = chip.DEPTHWISE_GROUP[geo.precision]
        flat = np.empty((taps, c), w.dtype)
        for at in range(0, c, lanes):
            n = min(lanes, c - at)
            flat[:, at : at + n] = w[at * taps : (at + n) * taps].reshape(taps, n)
        return flat
    kg, cg = chip.KERNEL_GROUP[geo.precision], chip.CHANNEL_GROUP[geo.precision]
    out = np.empty((taps, k, c), w.dtype)
    whole = c // cg * cg
    for first, last, n in ((0, k // kg * kg, kg), (k // kg * kg, k, k % kg)):
        if first == last:
            continue
        block = w[first * taps * c : last * taps * c].reshape(-1, n * taps * c)
        into = out[:, first:last].reshape(taps, -1, n, c)  # splitting axes keeps a view
        if whole:
            part = block[:, : n * taps * whole].reshape(-1, whole // cg, taps, n, cg)
            target = into[..., :whole].reshape(taps, -1, n, whole // cg, cg)
            target[...] = part.transpose(2, 0, 3, 1, 4)
        if whole < c:
            part = block[:, n * taps * whole :].reshape(-1, taps, n, c - whole)
            into[..., whole:] = part.transpose(1, 0, 2, 3)
    return out
