"""torchvision's MobileNetV2, from its .pth file to ONNX, without PyTorch.

The graph is as PyTorch's own exporter would leave it before any folding: Conv,
BatchNormalization and Clip are separate nodes, so that our compiler has to fuse them.

    python -m examples.mobilenet.export mobilenet_v2.onnx
"""

from __future__ import annotations

import argparse
import collections
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from examples.models.fetch import FetchError, fetch

Array = npt.NDArray[Any]

BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Table 2 of the paper (arXiv 1801.04381): expansion, output channels, repeats, first stride."""

STORAGES: dict[str, np.dtype[Any]] = {
    "FloatStorage": np.dtype("<f4"),
    "LongStorage": np.dtype("<i8"),
}


class WeightsError(Exception):
    """The weights file is not what it should be; one sentence."""


# -- reading a .pth file ---------------------------------------------------------------------
#
# Before PyTorch 1.6 (and torchvision's weights are older) torch.save wrote five pickles: magic,
# version, machine, the object, the list of its storages' keys; then, per key, an int64 count and
# that many elements.

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001


@dataclass(frozen=True, slots=True)
class _Storage:
    dtype: np.dtype[Any]


class _Unpickler(pickle.Unpickler):
    """A state dict of plain tensors; any other global in the pickle is refused."""

    def __init__(self, file: BinaryIO, file_bytes: int, storages: dict[str, Array]) -> None:
        super().__init__(file)
        self.file_bytes, self.storages = file_bytes, storages

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in STORAGES:
            return _Storage(STORAGES[name])
        raise WeightsError(
            f"its pickle asks for {module}.{name}, no plain state dict does. "
            "Save it again with torch.save(model.state_dict(), …)"
        )

    def persistent_load(self, pid: Any) -> Any:
        """The storage, still empty: its elements follow after the pickles."""
        kind, storage, key, _device, count, _view = pid
        if kind != "storage" or not 0 <= count * storage.dtype.itemsize <= self.file_bytes:
            raise WeightsError(
                f"storage {key} has {count} elements, the file has {self.file_bytes} bytes. "
                "Download it again"
            )
        return self.storages.setdefault(key, np.zeros(count, storage.dtype))


def _tensor(
    storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> Array:
    """A view of the storage."""
    end = offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if min((offset, *shape, *strides)) < 0 or (0 not in shape and end > storage.size):
        raise WeightsError(
            f"a tensor of shape {shape} needs {end} elements, its storage has {storage.size}. "
            "Download it again"
        )
    steps = tuple(s * storage.itemsize for s in strides)
    return np.lib.stride_tricks.as_strided(storage[offset:], shape, steps)


def read_state_dict(path: Path) -> dict[str, Array]:
    """Tensor name → array.  Raises WeightsError, OSError."""
    storages: dict[str, Array] = {}
    with path.open("rb") as file:
        size = path.stat().st_size

        def unpickle() -> Any:
            return _Unpickler(file, size, storages).load()

        try:
            head = unpickle(), unpickle()
            if head != (MAGIC, VERSION):
                raise ValueError(f"it starts with {head}")
            _machine, state, keys = unpickle(), unpickle(), unpickle()
            for key in keys:
                (count,) = np.frombuffer(file.read(8), "<i8")
                storage = storages[key]
                storage[:] = np.frombuffer(file.read(count * storage.itemsize), storage.dtype)
            tensors = {str(k): np.array(v, order="C") for k, v in state.items()}
        except WeightsError as e:
            raise WeightsError(f"{path}: {e}.") from e
        except Exception as e:  # a pickle can fail in any way
            raise WeightsError(f"{path}: not a .pth file ({e}). Download it again.") from e
    return tensors


# -- building the graph ----------------------------------------------------------------------


class _Builder:
    """Nodes and initializers in order of appearance; names as in torchvision."""

    def __init__(self, state: dict[str, Array]) -> None:
        self.state = state
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.constant("clip.min", np.float32(0))
        self.constant("clip.max", np.float32(6))

    def constant(self, name: str, array: Array | np.float32) -> str:
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, name: str) -> str:
        if name not in self.state:
            raise WeightsError(f"{name}: missing from the weights. Use torchvision's MobileNetV2.")
        return self.constant(name, self.state[name])

    def node(self, op: str, name: str, *inputs: str, **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}.out"], name, **attrs))
        return f"{name}.out"

    def conv(self, x: str, conv: str, norm: str, *, stride: int = 1, relu6: bool = True) -> str:
        """Conv, BatchNormalization and, unless the block is linear, Clip to 0 … 6."""
        out, per_group, k, _ = self.state[f"{conv}.weight"].shape
        x = self.node(
            "Conv",
            conv,
            x,
            self.weight(f"{conv}.weight"),
            kernel_shape=[k, k],
            strides=[stride, stride],
            pads=[k // 2] * 4,
            group=out if k > 1 and per_group == 1 else 1,
        )
        stats = [self.weight(f"{norm}.{s}") for s in ("weight", "bias", "running_mean")]
        x = self.node(
            "BatchNormalization", norm, x, *stats, self.weight(f"{norm}.running_var"), epsilon=1e-5
        )
        return self.node("Clip", f"{norm}.relu6", x, "clip.min", "clip.max") if relu6 else x


def _inverted_residuals() -> Iterator[tuple[int, int, bool]]:
    """Expansion, stride, and whether input and output are added, per block."""
    before = 32
    for expansion, channels, repeats, stride in BLOCKS:
        for i in range(repeats):
            step = stride if i == 0 else 1
            yield expansion, step, step == 1 and before == channels
            before = channels


def build(state: dict[str, Array], batch: int | str = 1) -> onnx.ModelProto:
    """The network as an ONNX model: image [batch, 3, 224, 224] -> logits [batch, 1000].

    batch: a number, or a name for a dynamic dimension.  The same weights give the same bytes.
    """
    b = _Builder(state)
    x = b.conv("image", "features.0.0", "features.0.1", stride=2)
    for i, (expansion, stride, residual) in enumerate(_inverted_residuals(), start=1):
        here, block = f"features.{i}.conv", x
        if expansion != 1:
            x = b.conv(x, f"{here}.0.0", f"{here}.0.1")
        k = 0 if expansion == 1 else 1
        x = b.conv(x, f"{here}.{k}.0", f"{here}.{k}.1", stride=stride)
        x = b.conv(x, f"{here}.{k + 1}", f"{here}.{k + 2}", relu6=False)
        if residual:
            x = b.node("Add", f"features.{i}.add", block, x)
    x = b.conv(x, "features.18.0", "features.18.1")
    x = b.node("GlobalAveragePool", "pool", x)
    x = b.node("Flatten", "flatten", x, axis=1)
    weights = b.weight("classifier.1.weight"), b.weight("classifier.1.bias")
    b.nodes.append(helper.make_node("Gemm", [x, *weights], ["logits"], "classifier.1", transB=1))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 224, 224])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 1000])
    graph = helper.make_graph(b.nodes, "mobilenet_v2", [image], [logits], b.initializers)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="opennpu examples",
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def mobilenet_v2(batch: int | str = 1) -> onnx.ModelProto:
    """ImageNet MobileNetV2.  Downloads the weights on first use; raises FetchError."""
    return build(read_state_dict(fetch("mobilenet-v2")), batch)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write MobileNetV2 as ONNX.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--batch", default="1", help="a number, or a name for a dynamic dimension")
    args = parser.parse_args()
    try:
        model = mobilenet_v2(int(args.batch) if args.batch.isdigit() else args.batch)
        args.output.write_bytes(model.SerializeToString(deterministic=True))
    except (FetchError, WeightsError, OSError) as e:
        print(e, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
