"""The models of the suite: one function per kind, numbers from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tests.teflon import mesa
from tests.teflon.flatmodel import Conv, Net, Quantized
from tests.teflon.kernels import accumulate, convolution

Rng = np.random.Generator

SYMMETRIC = (127, 128)  # zero points that PAD_CON1 holds in both of its bytes; 0 too from 3x3 on
SCALES = (0.002, 0.2)
SPREAD = 2.5  # standard deviations of an output that 8 bits hold
MODEST = 64  # counts: a convolution whose scale is given does not come near saturation


def log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.float32(math.exp(rng.uniform(math.log(low), math.log(high)))))


class Drawer:
    """Builds nets convolution by convolution; each output scale fits what comes out."""

    def __init__(self, rng: Rng, name: str, size: int, channels: int, zero: int) -> None:
        self.rng, self.name, self.size, self.channels = rng, name, size, channels
        self.input = Quantized(log_uniform(rng, *SCALES), zero)
        self.x = rng.integers(0, 256, (2, size, size, channels), dtype=np.uint8)
        self.convs: list[Conv] = []
        self._after = self.x[0]

    @property
    def _q(self) -> Quantized:
        return self.convs[-1].output if self.convs else self.input

    def conv(
        self,
        kernel: int,
        out: int = 0,
        stride: int = 1,
        *,
        same: bool = True,
        zero: int | None = None,
        weight_zero: int | None = None,
        weight_scale: float | None = None,
        output: Quantized | None = None,
        ratio: float | None = None,
    ) -> Drawer:
        """``out`` 0: depthwise.  ``output``, ``ratio``: of the scales, else what fits."""
        rng, depthwise = self.rng, not out
        channels = self._after.shape[2]
        shape = (channels, kernel, kernel) if depthwise else (out, kernel, kernel, channels)
        zw = int(rng.integers(90, 170)) if weight_zero is None else weight_zero
        scale = log_uniform(rng, *SCALES) if weight_scale is None else weight_scale
        weights = Quantized(scale, zw)
        unit = float(np.float32(self._q.scale) * np.float32(scale))
        bias = rng.integers(-2000, 2000, shape[0]).astype(np.int32)
        for spread in (128, 64, 32, 16, 8, 4):
            w = np.clip(rng.integers(zw - spread, zw + spread, shape), 0, 255).astype(np.uint8)
            made = Conv(w, bias, weights, Quantized(1.0, 128), stride, same, depthwise)
            acc = accumulate(self._after, self._q, made)
            if output is None or np.abs(acc).max() * unit < MODEST * output.scale:
                break
        if output is None:
            deviation = max(float(acc.std()), 1.0)
            fit = unit * deviation * SPREAD / 128
            if ratio is not None:  # mantissa asked for, exponent that fits
                fit = unit / math.ldexp(ratio, round(math.log2(unit / fit)))
            middle = 128 - acc.mean() * unit / fit + rng.uniform(-20, 20)
            z = int(np.clip(middle, 0, 255)) if zero is None else zero
            output = Quantized(float(np.float32(fit)), z)
        final = Conv(w, bias, weights, output, stride, same, depthwise)
        self._after = convolution(self._after, self._q, final)
        self.convs.append(final)
        return self

    def net(
        self, samples: int = 2, residual: int | None = None, add: Quantized | None = None
    ) -> Net:
        """The model; ``residual``: the convolution whose input is added to the last output."""
        return Net(
            self.name,
            self.size,
            self.channels,
            self.input,
            tuple(self.convs),
            residual,
            add or Quantized(1.0, 128),
            self.x[:samples],
        )


def _zero(rng: Rng, symmetric: bool, kernel: int, depthwise: bool = False) -> int:
    choices = [*SYMMETRIC, *((0,) if kernel >= 3 else ()), *((0x8B,) if depthwise else ())]
    if symmetric:
        return int(rng.choice(choices))
    return int(rng.choice([z for z in range(1, 256) if z not in (*choices, 0x8B)]))


def convolutions(rng: Rng) -> Iterator[Net]:
    """1x1, 3x3, 5x5; strides 1, 2; valid and same padding; zero points of both kinds."""
    for kernel in (1, 3, 5):
        for stride in (1, 2):
            for same in (False, True):
                for symmetric in (True, False) if same and kernel > 1 else (False,):
                    size = int(rng.integers(kernel + 2, 20))
                    channels = int(rng.choice((3, 5, 8, 12, 16, 32, 33, 40, 48, 50, 64, 72, 96)))
                    out = int(rng.choice((1, 2, 7, 10, 16, 24, 32, 40, 64, 65, 100)))
                    zero = _zero(rng, symmetric, kernel)
                    kind = "same" if same else "valid"
                    name = f"conv{kernel}s{stride}{kind}{'' if symmetric else 'a'}"
                    yield (
                        Drawer(rng, name, size, channels, zero)
                        .conv(kernel, out, stride, same=same)
                        .net()
                    )


def depthwise(rng: Rng) -> Iterator[Net]:
    """3x3 and one 5x5, strides 1 and 2.

    More than 16 channels: for fewer Mesa allocates 32 bytes a pixel and the DPU writes 64, over
    the command list or into an IOMMU fault.
    """
    for stride in (1, 2):
        for same, symmetric in ((False, False), (True, True), (True, False)):
            size, zero = int(rng.integers(6, 20)), _zero(rng, symmetric, 3, True)
            channels = int(rng.choice((20, 32, 40, 48, 64, 72, 96, 128)))
            kind = "same" if same else "valid"
            name = f"depthwise3s{stride}{kind}{'' if symmetric else 'a'}"
            yield Drawer(rng, name, size, channels, zero).conv(3, stride=stride, same=same).net()
    yield Drawer(rng, "depthwise5s1same", 9, 32, 128).conv(5).net()
    yield Drawer(rng, "depthwise3zero139", 9, 64, 0x8B).conv(3).net()


def chains(rng: Rng) -> Iterator[Net]:
    """What networks are made of, without additions."""
    for i, symmetric in enumerate((True, False)):
        zero = 128 if symmetric else int(rng.integers(1, 127))
        d = Drawer(rng, f"bottleneck{i}", 14, 32, zero)
        d.conv(1, 96, zero=zero).conv(3, stride=2, zero=zero).conv(1, 48)
        yield d.net()
        d = Drawer(rng, f"separable{i}", 16, 3, zero)
        d.conv(3, 32, 2, zero=zero).conv(3, zero=zero).conv(1, 64, zero=zero)
        d.conv(3, stride=2, zero=zero).conv(1, 40)
        yield d.net(1)
        d = Drawer(rng, f"plain{i}", 9, 33, zero)
        yield d.conv(3, 50, zero=zero).conv(3, 70, 2, zero=zero).conv(1, 10).net()


# Scale of an addition's second operand -> the words that Mesa writes for it: operand factor and
# shift, output converter's factor, shift and, unless it is that of the convolution, zero point.
# Read off traces.  The factor is that of models which Mesa was tried with; for other operand
# scales it is 0 (register notes F.5).
KNOWN: dict[float, tuple[int, int, int, int, int | None]] = {
    0.364902: (24971, 5, 18589, 24, 132),
    0.204098: (16826, 6, 23272, 23, 128),
    0.094560: (26651, 6, 20432, 23, 133),
    0.100618: (20075, 6, 16874, 23, None),
}


def known_addition(rng: Rng, b: float, first: bool) -> Net:
    """The literals fit: Mesa's sum is right.  ``first``: the model's input is the operand."""
    factor, shift, scale, out_shift, zero = KNOWN[b]
    unit = b / math.ldexp(factor, -shift)  # of the accumulator
    total = unit * math.ldexp(1, out_shift) / scale
    zero = int(rng.integers(110, 146)) if zero is None else zero
    d = Drawer(
        rng, f"known{round(b * 1e6)}{'in' if first else ''}", int(rng.integers(5, 8)), 32, 128
    )
    ahead = Quantized(b, int(rng.integers(110, 146)))
    if first:
        d.input = ahead
    else:
        d.conv(1, 32, output=ahead)
    q = d.convs[-1].output if d.convs else d.input
    # no stage in between may saturate, the fused one has none there
    d.conv(1, 32, weight_scale=unit / q.scale, output=Quantized(total, zero))
    return d.net(residual=len(d.convs) - 1, add=Quantized(total, zero))


def additions(rng: Rng) -> Iterator[Net]:
    """Residual sums: with operand scales that Mesa knows, and with others."""
    for i, b in enumerate(KNOWN):
        yield known_addition(rng, b, bool(i % 2))
    for kernel, size, channels in ((1, 10, 32), (3, 12, 48), (3, 6, 16), (1, 3, 96), (1, 8, 64)):
        # width 8 is computed as 16 (rkt_task.c); what a wider kernel finds there is not known
        zero = 128 if size == 12 else int(rng.integers(100, 156))
        d = Drawer(rng, f"sum{kernel}x{size}", size, channels, zero)
        d.conv(1, channels, zero=zero).conv(kernel, channels)
        q = d.convs[-1].output
        yield d.net(residual=1, add=Quantized(q.scale * 1.5, q.zero))
    d = Drawer(rng, "inverted", 7, 32, 128)
    d.conv(1, 96, zero=128).conv(3, zero=128).conv(1, 32)
    yield d.net(residual=0, add=Quantized(d.convs[-1].output.scale * 2, 120))


def corners(rng: Rng) -> Iterator[Net]:
    """What Mesa is known to lose, and what takes other words."""
    lost = float(np.uint32(0x3F7FFF00).view(np.float32))  # 0.99998: 14 mantissa bits are ones
    yield Drawer(rng, "carry", 6, 32, 128).conv(1, 32, ratio=lost).net()
    yield Drawer(rng, "carrydepthwise", 6, 64, 128).conv(3, ratio=lost * 2).net()
    for i, bits in enumerate(mesa.TRUNCATED):
        scale = float(np.uint32(bits).view(np.float32))
        yield Drawer(rng, f"truncate{i}", 7, 32, 128).conv(1 + 2 * i, 32, weight_scale=scale).net()
    yield Drawer(rng, "narrow24", 7, 24, 128).conv(1, 32).net()
    yield Drawer(rng, "narrowdepthwise", 7, 40, 128).conv(3).net()
    yield Drawer(rng, "gray", 20, 1, 128).conv(3, 32).net()
    yield Drawer(rng, "graynarrow", int(rng.integers(5, 16)), 1, 128).conv(3, 40).net()
    yield Drawer(rng, "graystride", 24, 1, 90).conv(5, 16, 2, same=False).net()


def large(rng: Rng) -> Iterator[Net]:
    """More than the CBUF holds: several tasks that reuse the weights; weights that do not fit.

    Both at once ends Mesa 26.1.6: the jobs of a node share one array of handles, and it frees it
    once for each (rkt_ml.c).
    """
    yield Drawer(rng, "slices3", 80, 64, 128).conv(3, 32).net(1)
    yield Drawer(rng, "slices3s2", 84, 64, 128).conv(3, 32, 2).net(1)
    yield Drawer(rng, "slices1", 96, 64, 100).conv(1, 32).net(1)
    yield Drawer(rng, "slicesdepthwise", 80, 64, 128).conv(3).net(1)
    yield Drawer(rng, "weights", 9, 512, 128).conv(1, 704).net(1)


def models(seed: int, small: bool = False) -> list[Net]:
    """All of them; ``small``: those that a unit test has the time for."""
    rng = np.random.default_rng(seed)
    nets = [*convolutions(rng), *depthwise(rng), *chains(rng), *additions(rng), *corners(rng)]
    if small:
        kept = ("conv1s1valid", "conv3s2same", "conv3s1samea", "depthwise3s1", "plain", "known")
        kept += ("sum1x10", "carry", "truncate", "narrow24", "gray")
        return [n for n in nets if n.name.startswith(kept)]
    return nets + list(large(rng))
