"""The convolution program: CNA → CORE → DPU.  Conv, Gemm, MatMul and average pools share it.

Register values follow the board-proved programs (rockchip-npu-notes; vendor captures: 683
task rows).  Tiles are chosen so that no field can overflow and a whole tile lies in the CBUF.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from opennpu.emu import timing
from opennpu.hw.layout import align, pack_depthwise_weights, pack_requant, pack_weights
from opennpu.hw.regs import Register
from opennpu.hw.rk3588 import chip, cna, core, dpu, dpu_rdma, global_
from opennpu.hw.rk3588.common import Algo, ConvMode, Precision
from opennpu.hw.rk3588.pc import DPU_DONE
from opennpu.ops.base import MAX_SHIFT, Operand, Site
from opennpu.program import At, Cost, Emitted, Ref, Task

Array = npt.NDArray[Any]

START = global_.OPERATION_ENABLE(cna_op_en=1, core_op_en=1, dpu_op_en=1, dpu_rdma_op_en=1).word

EDATA_SIZE = {Precision.INT8: 1, Precision.INT16: 2, Precision.FP16: 2, Precision.INT32: 3}
PER_PIXEL = 1  # EW and ERDMA data modes: an operand for every element
COMB_ALTERNATE = 5  # MRDMA reads the even surfaces of a residual, ERDMA the odd ones

FRACTION_BITS = 10  # of the int8 pipeline behind BS: one output step is 2**10 there
MAX_STRIDE = cna.CONV_CON3.fields["conv_x_stride"].max
MAX_KERNEL = cna.WEIGHT_SIZE2.fields["weight_width"].max
MAX_PAD = cna.PAD_CON0.fields["pad_left"].max
MAX_DILATION = cna.CONV_CON3.fields["atrous_x_dilation"].max
MAX_WIDTH = cna.DATA_SIZE0.fields["datain_width"].max
MAX_ROWS = cna.CONV_CON2.fields["feature_grains"].max - 1  # grains = rows + 1
MAX_KERNELS = dpu.DATA_CUBE_CHANNEL.fields["channel"].max // 64 * 64
FP16_MAX = float(np.finfo(np.float16).max)
MAX_NOTCH = dpu.DATA_CUBE_NOTCH_ADDR.fields["notch_addr_0"].max
MAX_TASKS = chip.TASKS_PER_START


@dataclass(frozen=True, slots=True)
class Window:
    """How the kernel walks over the input.  Pairs are (vertical, horizontal), in pixels."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)  # top, left; bottom and right follow from the output size
    dilation: tuple[int, int] = (1, 1)

    def span(self, axis: int, outputs: int) -> int:
        """Input pixels under ``outputs`` neighbouring output pixels."""
        reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1
        return (outputs - 1) * self.stride[axis] + reach


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What BS and BN do after the bias: ``clip`` to [low, high] in real numbers."""

    low: float = -np.inf
    high: float = np.inf


@dataclass(frozen=True, slots=True)
class Behind:
    """A function behind the bias: registers instead of those that only convert.

    step: of int8, what one unit behind BS is in real numbers; 0 for the usual one.
    """

    registers: tuple[Register, ...]
    step: float = 0.0


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution, dense or depthwise, of cube ``x`` into cube ``y``."""

    site: Site
    x: Operand
    y: Operand
    window: Window
    weights: Array  # [OC, KH, KW, IC]; depthwise [C, KH, KW]; float16 or int8
    bias: Array | None  # [OC] float32, in real numbers
    weight_scale: Array | None  # [OC] float32 for int8
    depthwise: bool
    epilogue: Epilogue = Epilogue()
    behind: Behind | None = None

    @property
    def step(self) -> float:
        """One unit of the int8 pipeline behind BS, in real numbers."""
        usual = self.y.scale / (1 << FRACTION_BITS)
        return (self.behind.step or usual) if self.behind else usual

    @property
    def residual(self) -> Operand | None:
        """Cube that EW adds before the clip."""
        return self.site.residual

    @property
    def precision(self) -> Precision:
        return self.site.precision

    @property
    def element_bytes(self) -> int:
        return chip.ELEMENT_BITS[self.precision] // 8

    @property
    def in_channels(self) -> int:
        """Channels as the CNA is told: whole atoms; for depthwise whole groups."""
        if self.depthwise:
            return self.out_channels
        return align(self.x.nhwc[3], chip.elements_per_atom(self.precision))

    @property
    def out_channels(self) -> int:
        """Kernels, filled up to the groups that silicon writes whole (rockchip-npu-notes).

        fp16 fills all the room of the output: a consumer may multiply those lanes by zero, and
        only a number times zero is zero.
        """
        real = self.y.nhwc[3]
        if self.precision is Precision.FP16:
            real = max(real, self.y.channels)
        return align(real, kernel_step(self.precision, self.depthwise))

    @property
    def kernel_bytes(self) -> int:
        """Bytes of one kernel."""
        kh, kw = self.window.kernel
        return kh * kw * (1 if self.depthwise else self.in_channels) * self.element_bytes


def two_parts(weights: Array) -> tuple[Array, Array] | None:
    """Weights of nine bits as the sum of two int8 arrays; None for others."""
    if weights.dtype != np.int16 or weights.max(initial=0) > 254 or weights.min(initial=0) < -256:
        return None
    first = np.clip(weights, -128, 127)
    return first.astype(np.int8), (weights - first).astype(np.int8)


def kernel_step(precision: Precision, depthwise: bool) -> int:
    """Output channels come in multiples of this: partial int8 and depthwise groups hang."""
    return chip.DEPTHWISE_GROUP[precision] if depthwise else chip.KERNEL_GROUP[precision]


@dataclass(frozen=True, slots=True)
class Tile:
    """One task: a rectangle of output pixels of image ``n``, channels [c0, c0 + channels)."""

    n: int
    y0: int
    rows: int
    x0: int
    cols: int
    c0: int
    channels: int
    data_banks: int


def row_entries(width: int, channels: int, element_bytes: int) -> int:
    """CBUF entries of one input row (explains every captured stream)."""
    atoms = -(-channels * element_bytes // chip.ATOM_BYTES)
    whole, rest = divmod(atoms, 4)
    return width * whole + (width if rest == 3 else -(-width * rest // 4))


def _input_span(
    first: int, outputs: int, window: Window, axis: int, size: int
) -> tuple[int, int, int]:
    """(first input pixel, count, padding before it) for a run of output pixels."""
    start = first * window.stride[axis] - window.pad[axis]
    end = min(start + window.span(axis, outputs), size)
    pad = max(0, -start)
    start = max(0, start)
    return start, max(end - start, 1), pad


def check(conv: Convolution) -> None:
    """Refuse what no tiling can bring into the registers."""
    site, w = conv.site, conv.window
    names = ("height", "width")
    for axis in (0, 1):
        if w.kernel[axis] > MAX_KERNEL:
            raise site.refuse(
                f"kernel {names[axis]} is {w.kernel[axis]} px, the CNA takes at most {MAX_KERNEL}"
            )
        if w.pad[axis] > MAX_PAD:
            raise site.refuse(
                f"padding before {names[axis]} is {w.pad[axis]} px, the CNA takes at most {MAX_PAD}"
            )
        if w.dilation[axis] > MAX_DILATION:
            raise site.refuse(
                f"dilation is {w.dilation[axis]}, the CNA takes at most {MAX_DILATION}"
            )
    if conv.precision is Precision.FP16:
        check_fp16(site, "weights", conv.weights)
    elif conv.weights.dtype != np.int8:
        raise site.refuse(f"has {conv.weights.dtype} weights between int8 tensors")
    else:
        int8_operands(conv)
        if conv.residual:
            _residual_scale(conv, conv.residual)
    limit = cna.WEIGHT_SIZE1.fields["weight_bytes_per_kernel"].max
    if conv.kernel_bytes > limit:
        raise site.refuse(
            f"kernel is {conv.kernel_bytes} bytes, WEIGHT_SIZE1 holds at most {limit}"
        )
    for tile in tiles(conv):
        for axis, first in enumerate((tile.y0, tile.x0)):
            start, size = first * w.stride[axis] - w.pad[axis], conv.x.nhwc[1 + axis]
            if start >= size:
                raise site.refuse(
                    f"has a tile that reads padding only: it starts at {start} px of {size}"
                )


MIN_RESIDUAL_PIXELS = 12  # below, upper surfaces are mis-strided (board sweeps)


def check_residual(conv: Convolution) -> None:
    """A residual is read by MRDMA and ERDMA, surface by surface in turn.

    Boards ran that for whole planes only; the strides of a smaller tile are not settled.
    """
    site, pixels = conv.site, conv.y.plane_atoms
    if conv.depthwise:
        raise site.refuse("is depthwise, a residual joins dense convolutions")
    if pixels < MIN_RESIDUAL_PIXELS:
        raise site.refuse(f"writes {pixels} px, a residual needs at least {MIN_RESIDUAL_PIXELS}")
    first = tiles(conv)[0]
    if (first.rows, first.cols) != conv.y.nhwc[1:3]:
        raise site.refuse(
            f"is tiled to {first.rows}x{first.cols} px of {conv.y.nhwc[1]}x{conv.y.nhwc[2]}, "
            "a residual needs one tile"
        )
    low, high = conv.epilogue.low, conv.epilogue.high
    if low not in (0.0, -np.inf) or (low == -np.inf and high != np.inf) or high <= low:
        raise site.refuse(
            f"clips to [{low:g}, {high:g}] after a residual, EW clamps from 0 up only"
        )


def check_fp16(site: Site, what: str, a: Array) -> None:
    """Refuse constants that fp16 cannot hold."""
    top = float(np.abs(a).max(initial=0.0))
    if not top <= FP16_MAX:  # NaN is refused too
        raise site.refuse(f"has {what} up to {top:g}, fp16 holds at most {FP16_MAX:g}")


def tiles(conv: Convolution) -> list[Tile]:
    """Tiles that move the fewest bytes: weights are fetched anew for each."""
    site, w, eb = conv.site, conv.window, conv.element_bytes
    n, oh, ow, _ = conv.y.nhwc
    _, ih, iw, _ = conv.x.nhwc
    oc = conv.out_channels
    group = kernel_step(conv.precision, conv.depthwise)
    group_bytes = group * conv.kernel_bytes
    bank = chip.CBUF_BANK_BYTES
    max_oh = 1 if w.stride[0] > MAX_STRIDE else oh
    max_ow = 1 if w.stride[1] > MAX_STRIDE else ow

    def slack_banks(cols: int) -> int:
        """int8 tiles one pixel wide need a bank more than they fill (board sweeps)."""
        if conv.precision is not Precision.INT8:
            return 0
        even = -(-ow // -(-ow // cols))
        return int(
            any(_input_span(x, min(even, ow - x), w, 1, iw)[1] == 1 for x in range(0, ow, even))
        )

    def search(channels: int) -> tuple[int, int, int, int] | None:
        """(bytes moved, columns, rows, data banks) for tiles of ``channels`` output channels."""
        in_c = channels if conv.depthwise else conv.in_channels
        w_all = -(-channels * conv.kernel_bytes // bank)
        w_min = max(1, -(-group_bytes // bank))
        best: tuple[int, int, int, int] | None = None
        for w_banks in sorted({w_min, min(w_min + 1, 11), w_all}):
            if w_banks < w_min or w_banks > chip.CBUF_BANKS - 1:
                continue
            cols = max_ow
            while cols:
                slack = slack_banks(cols)
                room = (chip.CBUF_BANKS - w_banks - slack) * bank // chip.CBUF_ENTRY_BYTES
                _, in_w, _ = max(
                    (
                        _input_span(x, cols, w, 1, iw)
                        for x in (0, max(0, (ow - cols) // 2), ow - cols)
                    ),
                    key=lambda s: s[1],
                )
                in_w = min(w.span(1, cols), iw) if cols < ow else in_w
                entries = row_entries(in_w, in_c, eb)
                fit = min(room // entries, MAX_ROWS)
                rows = min(max_oh, (fit - (w.kernel[0] - 1) * w.dilation[0] - 1) // w.stride[0] + 1)
                if fit >= ih and max_oh == oh:
                    rows = oh
                if in_w <= MAX_WIDTH and rows >= 1:
                    t_rows, t_cols = -(-oh // rows), -(-ow // cols)
                    rows, cols = -(-oh // t_rows), -(-ow // t_cols)  # even tiles
                    in_rows = min(w.span(0, rows), ih)
                    banks = -(-in_rows * entries * chip.CBUF_ENTRY_BYTES // bank) + slack
                    moved = (
                        t_rows
                        * t_cols
                        * (in_rows * in_w * in_c * eb + channels * conv.kernel_bytes)
                    )
                    if best is None or (moved, t_rows * t_cols) < (
                        best[0],
                        -(-oh // best[2]) * -(-ow // best[1]),
                    ):
                        best = (moved, cols, rows, max(1, banks))
                    break
                cols = cols // 2
        return best

    channels = min(oc, MAX_KERNELS)
    found = search(channels)
    while found is None and conv.depthwise and channels > group:
        channels = align(channels // 2, group)
        found = search(channels)
    if found is None:
        need = row_entries(min(w.span(1, 1), iw), conv.in_channels, eb) * chip.CBUF_ENTRY_BYTES
        need = need * min(w.span(0, 1), ih) + group_bytes
        raise site.refuse(
            f"needs {need} bytes of CBUF for one output pixel and one kernel group, "
            f"the CBUF has {chip.CBUF_BANKS * bank}"
        )
    _, cols, rows, banks = found
    out = [
        Tile(i, y, min(rows, oh - y), x, min(cols, ow - x), c, min(channels, oc - c), banks)
        for i in range(n)
        for c in range(0, oc, channels)
        for y in range(0, oh, rows)
        for x in range(0, ow, cols)
    ]
    gap = ow - min(t.cols for t in out)
    if gap > MAX_NOTCH:
        raise site.refuse(
            f"is {ow} px wide in tiles of {cols} px: the DPU skips at most {MAX_NOTCH} px a line, "
            f"not {gap}"
        )
    if len(out) > MAX_TASKS:
        raise site.refuse(f"needs {len(out)} tasks, one start takes at most {MAX_TASKS}")
    return out


@dataclass(frozen=True, slots=True)
class Constants:
    """Where weights and per-channel operands lie, and the numbers that go into registers."""

    weights: Ref
    operands: Ref | None  # bias, or bias and multiplier
    operand_bytes: int  # per channel
    shift: int = 0  # of the BS multiplier
    relu: bool = False
    relux: int | None = None  # bits of BS_RELUX_CMP_VALUE
    bn_add: int | None = None  # bits of BN_ALU_CFG
    ew_relu: bool = False
    ew_relux: int = 0
    ew_offset: int = 0  # of the residual's codes
    ew_scale: int = 1
    ew_shift: int = 0


def float_bits(x: float) -> int:
    """Bits of ``x`` as fp32."""
    return int(np.float32(x).view(np.uint32))


def place(conv: Convolution, weights: Ref | None = None) -> Constants:
    """Pack weights, unless they are in memory already, and operands into the constant buffer."""
    site, oc = conv.site, conv.out_channels
    real = conv.y.nhwc[3]
    dtype = np.float16 if conv.precision is Precision.FP16 else np.int8
    if weights is None:
        full = np.zeros((oc, *conv.weights.shape[1:]), dtype)
        full[:real] = conv.weights
        if conv.depthwise:
            data = pack_depthwise_weights(full, conv.precision, oc)
        else:
            data = pack_weights(full, conv.precision, conv.in_channels)
        weights = site.place(data)
    bias = np.zeros(oc, np.float64)
    if conv.bias is not None:
        bias[:real] = conv.bias
    low, high = conv.epilogue.low, conv.epilogue.high
    if conv.precision is Precision.FP16:
        if conv.residual:
            operands = (
                site.place(bias.astype("<f4").view(np.uint8)) if conv.bias is not None else None
            )
            cap = float_bits(high) if low == 0.0 and high != np.inf else 0
            return Constants(weights, operands, 4, ew_relu=low == 0.0, ew_relux=cap)
        bn_add = None
        if low not in (0.0, -np.inf):  # clip(v) = relux(relu(v - low)) + low
            bias, bn_add, high = bias - low, float_bits(low), high - low
        relu = low != -np.inf
        used = conv.bias is not None or bn_add is not None
        operands = site.place(bias.astype("<f4").view(np.uint8)) if used else None
        relux = float_bits(high) if relu and high != np.inf else None
        return Constants(weights, operands, 4, 0, relu, relux, bn_add)
    if conv.weight_scale is None:
        raise AssertionError("int8 weights come with scales")
    return _place_int8(conv, weights)


def fixed_point(site: Site, ratio: float, what: str, bits: int = 63) -> tuple[int, int]:
    """(int16 multiplier, right shift) with ratio ≈ multiplier / 2**shift, as exact as fits."""
    if ratio <= 0 or not math.isfinite(ratio):
        raise site.refuse(f"has {what} {ratio:g}", "Check the quantization of its operands")
    shift = min(max(math.floor(math.log2(32767 / ratio)), 0), bits)
    scale = round(ratio * 2.0**shift)
    if not 1 <= scale <= 32767:
        raise site.refuse(
            f"rescales int8 by {ratio:g}, the multiplier takes 2**-{bits} to 32767",
            "Check the quantization of its operands",
        )
    return scale, shift


def multipliers(conv: Convolution) -> tuple[Array, int]:
    """(int16 multiplier per channel, shift): acc · C >> s is the output in 2**-10 steps."""
    scale = np.zeros(conv.out_channels)
    if conv.weight_scale is None:
        raise AssertionError("int8 weights come with scales")
    scale[: conv.y.nhwc[3]] = conv.x.scale * conv.weight_scale.astype(np.float64) / conv.step
    top = float(scale.max())
    limit = dpu.BS_MUL_CFG.fields["bs_mul_shift_value"].max
    shift = int(np.clip(np.floor(np.log2(32767 / top)), 0, limit)) if top > 0 else 0
    c = np.rint(scale * 2.0**shift)
    if c.max(initial=0) > 32767:
        raise conv.site.refuse(
            f"rescales int8 by {top / (1 << FRACTION_BITS):g}, the multiplier takes at most "
            f"{32767 / 1024:g}",
            "Check the quantization of its output: its scale is too small",
        )
    return c.astype(np.int16), shift


def int8_operands(conv: Convolution) -> tuple[Array, Array, int]:
    """(int32 [OC] that holds bias and zero points, int16 [OC] multipliers, their shift).

    Refuses what the registers cannot hold.
    """
    c, shift = multipliers(conv)
    real = conv.y.nhwc[3]
    assert conv.weight_scale is not None
    a = np.zeros(conv.out_channels, np.float64)
    if conv.bias is not None:
        step = conv.x.scale * conv.weight_scale.astype(np.float64)
        a[:real] = np.rint(np.asarray(conv.bias, np.float64) / step)
    a[:real] -= conv.x.zero_point * conv.weights.reshape(real, -1).astype(np.int64).sum(1)
    top, most = float(np.abs(a).max()), np.iinfo(np.int32).max
    if not top <= most:  # NaN is refused too
        raise conv.site.refuse(
            f"bias is {top:g} in accumulator steps, int32 holds at most {most}",
            "Check the quantization of its input: its scale is too small",
        )
    return a, c, shift


def _residual_scale(conv: Convolution, residual: Operand) -> tuple[int, int]:
    """(multiplier, shift) of the residual's codes."""
    step = conv.y.scale / (1 << FRACTION_BITS)
    return fixed_point(conv.site, residual.scale / step, "a residual scale of")


def _place_int8(conv: Convolution, weights: Ref) -> Constants:
    """Zero points and bias folded into one int32 per channel; scales into one int16."""
    a, c, shift = int8_operands(conv)
    operands = conv.site.place(pack_requant(a, np.zeros(conv.out_channels), c))
    step = conv.y.scale / (1 << FRACTION_BITS)
    low, high = conv.epilogue.low, conv.epilogue.high
    q_low = conv.y.zero_point + low / conv.y.scale
    q_high = conv.y.zero_point + high / conv.y.scale
    if conv.residual:
        scale, ew_shift = _residual_scale(conv, conv.residual)
        return Constants(
            weights,
            operands,
            8,
            shift,
            ew_relu=low == 0.0,
            ew_relux=max(1, round(high / step)) if low == 0.0 and q_high < 127 else 0,
            ew_offset=-conv.residual.zero_point,
            ew_scale=scale,
            ew_shift=ew_shift,
        )
    relu, relux = False, None
    if q_low > -128 + 0.5 or q_high < 127 - 0.5:  # else saturation does it
        relu = True
        if q_high < 127:  # else saturation cuts off first
            relux = round(high / step)
    return Constants(weights, operands, 8, shift, relu, relux)


def check_clip(site: Site, low: float, high: float, y: Operand) -> None:
    """Which clips BS can do: fp16 any lower bound; int8 zero or what saturation does."""
    if low == -np.inf and high == np.inf:
        return
    if not low < high:
        raise site.refuse(f"clips to [{low:g}, {high:g}], which leaves one number")
    if site.precision is Precision.FP16:
        if low == -np.inf:
            raise site.refuse(f"clips at {high:g} from above only, BS clamps above only after ReLU")
        if abs(low) > MAX_SHIFT and low != -np.inf:
            raise site.refuse(
                f"clips at {low:g} from below, in fp32 the shift there and back keeps fp16 whole "
                f"up to {MAX_SHIFT:g}"
            )
        return
    q_low = y.zero_point + low / y.scale
    q_high = y.zero_point + high / y.scale
    if low != 0.0 and not (q_low <= -127.5 and q_high >= 126.5):
        raise site.refuse(
            f"clips int8 to [{low:g}, {high:g}], BS clamps at 0 only and the codes end at "
            f"[{(-128 - y.zero_point) * y.scale:g}, {(127 - y.zero_point) * y.scale:g}]"
        )


def tasks(conv: Convolution) -> Iterator[Task]:
    """All tasks of the convolution."""
    consts = place(conv)
    for tile in tiles(conv):
        yield Task(
            conv.site.node.name,
            tuple(words(conv, consts, tile)),
            START,
            DPU_DONE,
            cost(conv, consts, tile),
        )


def cost(conv: Convolution, consts: Constants, t: Tile) -> Cost:
    """Bytes and cycles of one tile."""
    w, eb = conv.window, conv.element_bytes
    _, ih, iw, ic = conv.x.nhwc
    _, rows, _ = _input_span(t.y0, t.rows, w, 0, ih)
    _, cols, _ = _input_span(t.x0, t.cols, w, 1, iw)
    in_c = t.channels if conv.depthwise else conv.in_channels
    taps = w.kernel[0] * w.kernel[1]
    real = min(t.channels, conv.y.nhwc[3] - t.c0)
    pixels = t.rows * t.cols
    return Cost(
        macs=pixels * taps * real * (1 if conv.depthwise else ic),
        mac_cycles=timing.mac_cycles(
            conv.precision, pixels, taps, in_c, t.channels, conv.depthwise
        ),
        read_bytes=rows * cols * in_c * eb
        + t.channels * conv.kernel_bytes
        + (t.channels * consts.operand_bytes if consts.operands else 0)
        + (pixels * t.channels * eb if conv.residual else 0),
        write_bytes=pixels * t.channels * chip.ELEMENT_BITS[conv.y.precision] // 8,
    )


def words(conv: Convolution, consts: Constants, t: Tile) -> Iterator[Emitted]:
    """Register writes of one tile, in the order of the board-proved program."""
    w, p = conv.window, conv.precision
    x, y = conv.x, conv.y
    _, ih, iw, _ = x.nhwc
    _, _, ow, _ = y.nhwc
    iy, in_rows, pad_top = _input_span(t.y0, t.rows, w, 0, ih)
    ix, in_cols, pad_left = _input_span(t.x0, t.cols, w, 1, iw)
    in_c = t.channels if conv.depthwise else conv.in_channels
    mode = ConvMode.DEPTHWISE if conv.depthwise else ConvMode.DIRECT
    float_mode = p is Precision.FP16
    by_line = in_cols != iw  # a tile narrower than the stored row is fetched line by line
    pointer = dict(pointer_pp_en=1, executer_pp_en=1, pointer_pp_mode=1)
    strides = [1 if s > MAX_STRIDE else s for s in w.stride]
    kernels = 1 if conv.depthwise else t.channels
    per_kernel = conv.kernel_bytes * (t.channels if conv.depthwise else 1)
    zero = 0 if float_mode else x.zero_point & 0xFF  # int8 pads with it in every byte (A.8)
    pad_value = int.from_bytes(bytes([zero] * 4), "little", signed=True)
    notch = ow - t.cols

    yield dpu.S_POINTER(**pointer)
    yield dpu_rdma.RDMA_S_POINTER(**pointer)
    yield cna.CONV_CON1(conv_mode=mode, in_precision=p, proc_precision=p, group_line_off=by_line)
    yield cna.CONV_CON2(feature_grains=in_rows + 1)
    yield cna.CONV_CON3(
        conv_x_stride=strides[1],
        conv_y_stride=strides[0],
        atrous_x_dilation=w.dilation[1],
        atrous_y_dilation=w.dilation[0],
    )
    yield cna.DATA_SIZE0(datain_width=in_cols, datain_height=in_rows)
    yield cna.DATA_SIZE1(datain_channel_real=in_c, datain_channel=in_c)
    yield cna.DATA_SIZE2(dataout_width=t.cols)
    yield cna.DATA_SIZE3(dataout_atomics=t.cols * t.rows)
    yield cna.WEIGHT_SIZE0(weight_bytes=per_kernel * kernels)
    yield cna.WEIGHT_SIZE1(weight_bytes_per_kernel=per_kernel)
    yield cna.WEIGHT_SIZE2(
        weight_width=w.kernel[1], weight_height=w.kernel[0], weight_kernels=kernels
    )
    yield cna.CBUF_CON0(data_bank=t.data_banks, weight_bank=chip.CBUF_BANKS - t.data_banks)
    yield cna.CBUF_CON1(data_entries=row_entries(in_cols, in_c, conv.element_bytes))
    yield cna.CVT_CON0(cvt_bypass=1, cvt_type=1, data_sign=1)
    yield cna.CVT_CON1(cvt_scale0=1)
    yield cna.CVT_CON2(cvt_scale1=1)
    yield cna.CVT_CON3(cvt_scale2=1)
    yield cna.CVT_CON4(cvt_scale3=1)
    yield cna.FC_CON0()
    yield cna.FC_CON1()
    yield cna.PAD_CON0(pad_top=pad_top, pad_left=pad_left)
    yield At(cna.FEATURE_DATA_ADDR, x.at(t.n, t.c0 if conv.depthwise else 0, iy, ix))
    yield cna.FC_CON2()
    yield cna.DMA_CON0(data_burst_len=15, weight_burst_len=15)
    yield cna.DMA_CON1(line_stride=iw if by_line else 4 * iw)
    yield cna.DMA_CON2(surf_stride=x.plane_atoms - (in_cols if by_line else 4 * iw))
    yield cna.FC_DATA_SIZE0(dma_width=in_cols, dma_height=in_rows)
    yield cna.FC_DATA_SIZE1(dma_channel=in_c)
    yield cna.DCOMP_CTRL()
    yield cna.DCOMP_REGNUM()
    yield At(cna.DCOMP_ADDR0, consts.weights + t.c0 * conv.kernel_bytes)
    for amount in _AMOUNTS:
        yield amount()
    yield cna.CVT_CON5()
    yield cna.PAD_CON1(pad_value=pad_value)
    yield core.MISC_CFG(qd_en=1, dw_en=conv.depthwise, proc_precision=p)
    yield core.DATAOUT_SIZE_0(dataout_width=t.cols, dataout_height=t.rows)
    yield core.DATAOUT_SIZE_1(dataout_channel=t.channels)
    yield core.CLIP_TRUNCATE()
    yield core.UNDOC_3030()
    instead = {type(r): r for r in conv.behind.registers} if conv.behind else {}
    for word in _dpu_words(conv, consts, t, mode, notch):
        yield instead.get(type(word), word) if isinstance(word, Register) else word
    yield dpu_rdma.RDMA_DATA_CUBE_WIDTH(width=t.cols)
    yield dpu_rdma.RDMA_DATA_CUBE_HEIGHT(height=t.rows)
    yield dpu_rdma.RDMA_DATA_CUBE_CHANNEL(channel=t.channels)
    res = conv.residual
    if res:
        yield At(dpu_rdma.RDMA_SRC_BASE_ADDR, res.at(t.n, t.c0))
    else:
        yield dpu_rdma.RDMA_SRC_BASE_ADDR()
    if consts.operands:
        # data_use bits: ALU, CPEND, MUL.  fp16 reads a bias, int8 the whole block
        yield dpu_rdma.RDMA_BRDMA_CFG(brdma_data_use=1 if float_mode else 7)
        yield At(dpu_rdma.RDMA_BS_BASE_ADDR, consts.operands + t.c0 * consts.operand_bytes)
    else:
        yield dpu_rdma.RDMA_BRDMA_CFG()
        yield dpu_rdma.RDMA_BS_BASE_ADDR()
    yield dpu_rdma.RDMA_NRDMA_CFG()
    yield dpu_rdma.RDMA_BN_BASE_ADDR()
    if res:
        plane = res.plane_atoms
        yield dpu_rdma.RDMA_ERDMA_CFG(erdma_data_mode=PER_PIXEL, erdma_data_size=EDATA_SIZE[p])
        yield At(dpu_rdma.RDMA_EW_BASE_ADDR, res.at(t.n, t.c0) + plane * chip.ATOM_BYTES)
        yield dpu_rdma.RDMA_EW_SURF_STRIDE(ew_surf_stride=plane)
        yield dpu_rdma.RDMA_FEATURE_MODE_CFG(
            proc_precision=p, comb_use=COMB_ALTERNATE, burst_len=15, in_precision=p
        )
    else:
        plane = 0
        yield dpu_rdma.RDMA_ERDMA_CFG(erdma_disable=1)
        yield dpu_rdma.RDMA_EW_BASE_ADDR()
        yield dpu_rdma.RDMA_EW_SURF_STRIDE()
        yield dpu_rdma.RDMA_FEATURE_MODE_CFG(
            conv_mode=mode, mrdma_fp16tofp32_en=float_mode, mrdma_disable=1, burst_len=15
        )
    yield dpu_rdma.RDMA_SRC_DMA_CFG()
    yield dpu_rdma.RDMA_SURF_NOTCH(surf_notch_addr=plane)
    yield dpu_rdma.RDMA_PAD_CFG()
    yield dpu_rdma.RDMA_WEIGHT(m_weight=1, b_weight=1, n_weight=1, e_weight=1)
    yield dpu_rdma.RDMA_EW_SURF_NOTCH(ew_surf_notch=plane)


_AMOUNTS: tuple[type[Register], ...] = tuple(
    getattr(cna, f"DCOMP_AMOUNT{lane}") for lane in range(16)
)


def _dpu_words(
    conv: Convolution, consts: Constants, t: Tile, mode: ConvMode, notch: int
) -> Iterator[Emitted]:
    """The DPU part: bias, requantization, clip, write-out."""
    y, p = conv.y, conv.precision
    float_mode = p is Precision.FP16
    out = y.precision
    size_e = kernel_step(p, conv.depthwise) * chip.ELEMENT_BITS[out] // 8 // chip.ATOM_BYTES - 1
    stride = y.plane_atoms
    yield dpu.FEATURE_MODE_CFG(output_mode=2, conv_mode=mode, burst_len=15)
    yield dpu.DATA_FORMAT(
        proc_precision=p,
        in_precision=p,
        out_precision=out,
        bs_mul_shift_value_neg=0 if float_mode else consts.shift,
    )
    yield dpu.OFFSET_PEND()
    yield At(dpu.DST_BASE_ADDR, y.at(t.n, t.c0, t.y0, t.x0))
    yield dpu.DST_SURF_STRIDE(dst_surf_stride=stride)
    yield dpu.DATA_CUBE_WIDTH(width=t.cols)
    yield dpu.DATA_CUBE_HEIGHT(height=t.rows)
    yield dpu.DATA_CUBE_NOTCH_ADDR(notch_addr_0=notch, notch_addr_1=notch)
    yield dpu.DATA_CUBE_CHANNEL(channel=t.channels, orig_channel=t.channels)
    bs_off = consts.operands is None and not consts.relu
    yield dpu.BS_CFG(
        bs_bypass=bs_off,
        bs_alu_bypass=consts.operands is None,
        bs_mul_bypass=float_mode,
        bs_relu_bypass=not consts.relu,
        bs_relux_en=consts.relux is not None,
        bs_alu_src=consts.operands is not None,
        bs_alu_algo=Algo.ADD if consts.operands else Algo.MAX,
    )
    yield dpu.BS_ALU_CFG()
    yield dpu.BS_MUL_CFG(
        bs_mul_src=not float_mode, bs_mul_shift_value=0 if float_mode else consts.shift
    )
    yield dpu.BS_RELUX_CMP_VALUE(bs_relux_cmp_dat=consts.relux or 0)
    # CPEND: on with a zero operand where boards ran it so (Mesa int8, depthwise), else off
    yield dpu.BS_OW_CFG(
        od_bypass=float_mode and not conv.depthwise,
        size_e_0=size_e,
        size_e_1=size_e,
        size_e_2=size_e,
    )
    yield dpu.BS_OW_OP()
    yield dpu.WDMA_SIZE_0(channel_wdma=t.channels)
    yield dpu.WDMA_SIZE_1(width_wdma=t.cols, height_wdma=t.rows)
    add = consts.bn_add is not None
    yield dpu.BN_CFG(
        bn_bypass=not add,
        bn_alu_bypass=not add,
        bn_mul_bypass=1,
        bn_relu_bypass=1,
        bn_alu_algo=Algo.ADD if add else Algo.MAX,
    )
    yield dpu.BN_ALU_CFG(bn_alu_operand=consts.bn_add or 0)
    yield dpu.BN_MUL_CFG()
    yield dpu.BN_RELUX_CMP_VALUE()
    if conv.residual:
        yield dpu.EW_CFG(
            ew_op_src=1,
            ew_lut_bypass=1,
            ew_relu_bypass=not consts.ew_relu,
            ew_relux_en=bool(consts.ew_relux),
            ew_alu_algo=Algo.ADD,
            edata_size=EDATA_SIZE[p],
            ew_data_mode=PER_PIXEL,
            ew_cvt_type=not float_mode,
        )
    else:
        yield dpu.EW_CFG(
            ew_bypass=1, ew_op_bypass=1, ew_lut_bypass=1, ew_op_cvt_bypass=1, ew_relu_bypass=1
        )
    yield dpu.EW_CVT_OFFSET_VALUE(ew_op_cvt_offset=consts.ew_offset)
    yield dpu.EW_CVT_SCALE_VALUE(ew_op_cvt_scale=consts.ew_scale, ew_op_cvt_shift=consts.ew_shift)
    yield dpu.EW_RELUX_CMP_VALUE(ew_relux_cmp_dat=consts.ew_relux)
    yield from out_cvt(float_mode, y)
    yield dpu.SURFACE_ADD(surf_add=(size_e + 1) * stride)
    yield dpu.UNDOC_40C4()


def out_cvt(float_mode: bool, y: Operand, fraction_bits: int = FRACTION_BITS) -> Iterator[Emitted]:
    """Output converter: narrow to fp16, or round 2**-``fraction_bits`` steps to int8 codes."""
    if float_mode:
        yield dpu.OUT_CVT_OFFSET()
        yield dpu.OUT_CVT_SCALE(out_cvt_scale=1, fp32tofp16_en=1)
        yield dpu.OUT_CVT_SHIFT()
    else:
        yield dpu.OUT_CVT_OFFSET(out_cvt_offset=y.zero_point)
        yield dpu.OUT_CVT_SCALE(out_cvt_scale=1)
        yield dpu.OUT_CVT_SHIFT(out_cvt_shift=fraction_bits)
