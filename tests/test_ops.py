"""Every operator against independent references, on every sample it brings.

reference = onnxruntime (fp32); emulator = reference within the sample's bound (fp16) or within
one count (int8).  Adding an operator adds its tests.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from opcase import Case, all_cases
from opennpu.emu import timing
from opennpu.errors import UnsupportedError
from opennpu.hw.rk3588 import global_
from opennpu.hw.rk3588.common import Precision
from opennpu.ops import Op, Sample

CASES = all_cases()
GOOD = [c for c in CASES if c.values[1].ok]
ON_NPU = [c for c in GOOD if not c.values[0].aliases]
ALIASES = [c for c in GOOD if c.values[0].aliases]
BAD = [c for c in CASES if not c.values[1].ok]


@pytest.mark.parametrize(("op", "sample", "precision"), GOOD)
def test_reference_equals_onnxruntime(op: type[Op], sample: Sample, precision: Precision) -> None:
    case = Case(op, sample, Precision.FP16)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(case.model().SerializeToString(), options)
    (want,) = session.run(None, case.feeds)
    np.testing.assert_allclose(case.want, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "sample", "precision"), ON_NPU)
def test_emulator_equals_reference(op: type[Op], sample: Sample, precision: Precision) -> None:
    assert not Case(op, sample, precision).problem("emulator")


@pytest.mark.parametrize(("op", "sample", "precision"), ALIASES)
def test_alias_is_the_same_bytes_under_another_view(
    op: type[Op], sample: Sample, precision: Precision
) -> None:
    case = Case(op, sample, precision)
    (x,) = case.feeds.values()
    site = case.site()
    (before, *_), after = op.views(site)
    assert before is not None
    cube = x.transpose(before.perm).reshape(before.nhwc)
    inverse = np.argsort(after.perm)
    moved = cube.reshape([case.want.shape[a] for a in after.perm]).transpose(inverse)
    np.testing.assert_array_equal(moved, case.want)


@pytest.mark.parametrize(("op", "sample", "precision"), BAD)
def test_refused_samples_say_both_numbers(
    op: type[Op], sample: Sample, precision: Precision
) -> None:
    with pytest.raises(UnsupportedError) as e:
        Case(op, sample, precision).check()
    assert str(e.value).startswith("case: ")
    assert (
        sum(part.isdigit() for part in str(e.value).replace("[", " ").replace(",", " ").split())
        >= 1
    )


@pytest.mark.parametrize(("op", "sample", "precision"), ON_NPU)
def test_same_input_gives_same_words(op: type[Op], sample: Sample, precision: Precision) -> None:
    first, second = (Case(op, sample, precision).segment() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("op", "sample", "precision"), ON_NPU)
def test_cost_counts_real_work(op: type[Op], sample: Sample, precision: Precision) -> None:
    segment = Case(op, sample, precision).segment()
    for task in segment.tasks:
        assert task.cost.read_bytes > 0 and task.cost.write_bytes > 0
        on_array = global_.OPERATION_ENABLE.decode(task.units).core_op_en
        assert not on_array or task.cost.mac_cycles > 0
    assert not op.macs or any(task.cost.macs for task in segment.tasks)
    assert timing is not None
