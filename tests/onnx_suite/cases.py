"""The official ONNX test cases: those that onnx computes itself, and those in its wheel."""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, numpy_helper

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class SuiteCase:
    """A model, feeds and expected outputs; tolerances as the suite says them."""

    kind: str
    name: str
    model: onnx.ModelProto
    sets: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float

    def feeds(self, k: int) -> dict[str, Any]:
        """Inputs of the data set ``k`` by name."""
        constants = {i.name for i in self.model.graph.initializer}
        names = [i.name for i in self.model.graph.input if i.name not in constants]
        if len(names) != len(self.sets[k][0]):  # data for inputs with a default too
            names = [i.name for i in self.model.graph.input]
        pairs = zip(names, self.sets[k][0], strict=False)
        return {n: a for n, a in pairs if a is not None and n not in constants}


def all_cases() -> list[SuiteCase]:
    """Every case, in one fixed order."""
    return [*node_cases(), *stored_cases(), *light_cases()]


def node_cases() -> Iterator[SuiteCase]:
    """Cases of single operators; onnx computes their data when asked."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    for c in sorted(collected, key=lambda c: c.name):
        sets = tuple((_arrays(a), _arrays(b)) for a, b in c.data_sets)
        yield SuiteCase("node", c.name, c.model, sets, c.rtol, c.atol)


def _arrays(values: Iterable[Any]) -> list[Any]:
    """Types that NumPy has no name for come as protobuf, scalars as NumPy's own."""
    return [
        numpy_helper.to_array(v)
        if isinstance(v, TensorProto)
        else np.asarray(v)
        if isinstance(v, np.generic)
        else v
        for v in values
    ]


def stored_cases() -> Iterator[SuiteCase]:
    """Cases that lie in the wheel as files."""
    for folder in FOLDERS:
        for path in sorted((DATA / folder).iterdir()):
            if not (path / "model.onnx").exists():
                continue
            model = onnx.load(path / "model.onnx")
            types = [[i.type for i in model.graph.input], [o.type for o in model.graph.output]]
            sets = []
            for at in sorted(glob.glob(os.path.join(path, "test_data_set_*"))):
                read = [
                    [_read(Path(at) / f"{what}_{i}.pb", t) for i, t in enumerate(kinds)]
                    for what, kinds in zip(("input", "output"), types, strict=True)
                ]
                sets.append((read[0], read[1]))
            yield SuiteCase(folder, path.name, model, tuple(sets), 1e-3, 1e-7)


def light_cases() -> Iterator[SuiteCase]:
    """Well-known topologies with made-up weights: their input counts up, as onnx has it."""
    for path in sorted((DATA / "light").glob("*.onnx")):
        model = onnx.load(path)
        constants = {i.name for i in model.graph.initializer}
        feeds = []
        for value in model.graph.input:
            if value.name in constants:
                continue
            dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
            size = int(np.prod(dims))
            feeds.append((np.arange(size, dtype=np.float32) / size).reshape(dims))
        want = _read(path.with_name(f"{path.stem}_output_0.pb"), model.graph.output[0].type)
        tolerance = 2e-3 if "densenet" in path.stem else 1e-3
        yield SuiteCase("light", path.stem, model, ((feeds, [want]),), tolerance, 1e-7)


def _read(path: Path, kind: TypeProto) -> Any:
    """A stored value; None where there is no file."""
    if not path.exists():
        return None
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(TensorProto.FromString(data))


def bound(case: SuiteCase) -> onnx.ModelProto | None:
    """The model with its inputs after the first as constants: what exporters write.

    The suite feeds weights, shapes and axes at run time; operators of the NPU want them constant.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    feeds = case.feeds(0)
    if len(feeds) < 2:
        return None
    first = next(iter(feeds))
    for name, a in feeds.items():
        if name == first:
            continue
        if not isinstance(a, np.ndarray):
            return None
        info = next(i for i in model.graph.input if i.name == name)
        tensor = numpy_helper.from_array(a, name)
        if tensor.data_type != info.type.tensor_type.elem_type:
            return None
        model.graph.initializer.append(tensor)
        model.graph.input.remove(info)
    model.ir_version = max(model.ir_version, 4)
    return model


def show_op(model: onnx.ModelProto) -> str:
    """Operator types of a model, for reports."""
    return "+".join(dict.fromkeys(n.op_type for n in model.graph.node))
