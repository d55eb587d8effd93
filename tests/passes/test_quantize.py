"""int8: from calibration, and from models that bring their own quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

import opennpu
from nets import cosine, random_feeds, small_cnn
from opennpu.errors import InputError, ModelError
from opennpu.ir.graph import Node
from opennpu.passes.quantize import METHODS, activation_quant, rounding_shift, weight_quant

FEEDS = [random_feeds(small_cnn(), seed) for seed in range(4)]


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.rest = list(FEEDS)

    def get_next(self) -> Any:
        return self.rest.pop() if self.rest else None


def qdq_model(folder: Path, **options: Any) -> onnx.ModelProto:
    """small_cnn as onnxruntime's own tool quantizes it."""
    source, target = folder / "float.onnx", folder / "qdq.onnx"
    onnx.save(small_cnn(), str(source))
    quantize_static(str(source), str(target), Reader(), quant_format=QuantFormat.QDQ, **options)
    return onnx.load(str(target))


def outputs(program: opennpu.Program, feeds: dict[str, Any]) -> Any:
    with opennpu.InferenceSession(program, "emulator") as session:
        return session.run(None, feeds)[0]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_calibrated_model_follows_the_float_one(method: str) -> None:
    m = small_cnn()
    program = opennpu.compile(m, precision="int8", calibration=FEEDS, calibration_method=method)
    kinds = {n["name"]: n.get("precision") for n in program.meta["nodes"]}
    assert {kinds[k] for k in ("stem", "dw", "pw", "fc")} == {"int8"}
    (want,) = ort.InferenceSession(m.SerializeToString()).run(None, FEEDS[0])
    assert cosine(outputs(program, FEEDS[0]), want) > 0.995


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_qdq_model_runs_in_its_own_int8(tmp_path: Path, per_channel: bool, kind: Any) -> None:
    m = qdq_model(
        tmp_path, per_channel=per_channel, activation_type=kind, weight_type=QuantType.QInt8
    )
    program = opennpu.compile(m)
    int8 = [n["op"] for n in program.meta["nodes"] if n.get("precision") == "int8"]
    assert int8.count("Conv") == 4  # BatchNormalization, quantized on its own, is one too
    assert int8.count("Gemm") == 1
    for feeds in FEEDS:
        (want,) = ort.InferenceSession(m.SerializeToString()).run(None, feeds)
        assert np.abs(outputs(program, feeds) - want).max() < 0.03  # of probabilities


def test_int8_without_data_is_refused() -> None:
    with pytest.raises(ModelError, match="0 samples, at least 1 is needed"):
        opennpu.compile(small_cnn(), precision="int8")
    with pytest.raises(ModelError, match="there are 0 samples"):
        opennpu.compile(small_cnn(), precision="int8", calibration=[])


def test_samples_that_do_not_fit_are_refused() -> None:
    bad = [{"x": np.zeros((1, 3, 8, 8), np.float32)}]
    with pytest.raises(InputError, match="a sample does not fit the model"):
        opennpu.compile(small_cnn(), precision="int8", calibration=bad)


def test_unknown_method_is_refused() -> None:
    with pytest.raises(ModelError, match="method is 'magic', of 4"):
        opennpu.compile(
            small_cnn(), precision="int8", calibration=FEEDS, calibration_method="magic"
        )


spans = st.floats(0, 1e6, width=32)


@given(spans, spans)
def test_zero_is_a_code_and_the_ends_are_within_one_step(down: float, up: float) -> None:
    q = activation_quant(-down, up)
    assert -128 <= int(q.zero_point) <= 127
    ends = np.array([-down, 0.0, up], np.float32)
    back = (q.quantize(ends).astype(np.float64) - int(q.zero_point)) * float(q.scale)
    assert back[1] == 0
    assert np.abs(back - ends).max() <= 1.001 * float(q.scale)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_weights_round_to_half_a_step(rows: int, cols: int, seed: int) -> None:
    w = np.random.default_rng(seed).normal(size=(rows, cols)).astype(np.float32)
    codes, q = weight_quant(w, 0)
    back = codes * q.scale[:, None]
    assert (np.abs(back - w) <= 0.5001 * q.scale[:, None]).all()


def test_bias_takes_up_what_rounding_the_weights_moves() -> None:
    """The mean output of a grouped convolution over constant images is that of the float one."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(6, 2, 3, 3)).astype(np.float32)
    codes, q = weight_quant(w, 0)
    mean = rng.normal(size=4)
    node = Node("c", "Conv", ("x", "w"), ("y",), {"group": 2})
    shift = rounding_shift(node, w, codes, q, mean)
    assert shift is not None
    inputs = np.repeat(mean.reshape(2, 2), 3, axis=0)  # what each output channel sees
    wide = codes * q.scale.reshape(-1, 1, 1, 1).astype(np.float64)
    want = ((wide - w).sum((2, 3)) * inputs).sum(1)
    np.testing.assert_allclose(shift, want, rtol=1e-12)
