"""Input data of tools: a folder of samples, or random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from opennpu.errors import InputError
from opennpu.program import Array, ValueInfo

Feeds = dict[str, Array]


def load_folder(folder: Path, inputs: Sequence[ValueInfo]) -> list[Feeds]:
    """Samples in a folder, by file name: .npz with an array per input, or .npy for one input.

    Raises InputError.
    """
    if not folder.is_dir():
        raise InputError(
            str(folder), "there is no such folder", "Give a folder of .npz files, one per sample"
        )
    files = sorted(f for f in folder.iterdir() if f.suffix in (".npz", ".npy"))
    if not files:
        raise InputError(
            str(folder),
            "holds 0 .npz and 0 .npy files, at least 1 is needed",
            "Save samples with numpy.savez(FILE, INPUT=array)",
        )
    return [_checked(file, _read(file, inputs), inputs) for file in files]


def _read(file: Path, inputs: Sequence[ValueInfo]) -> Mapping[str, Array]:
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if len(inputs) != 1:
                raise InputError(
                    str(file),
                    f"holds 1 array, the model has {len(inputs)} inputs",
                    "Save a .npz file with an array per input",
                )
            return {inputs[0].name: loaded}
        with loaded:
            return dict(loaded)
    except (ValueError, OSError, EOFError) as e:
        raise InputError(
            str(file), f"is no {file.suffix} file ({e})", "Save it with numpy.savez"
        ) from None


def _checked(file: Path, feeds: Mapping[str, Array], inputs: Sequence[ValueInfo]) -> Feeds:
    known = [v.name for v in inputs]
    for name in feeds:
        if name not in known:
            raise InputError(
                str(file),
                f"holds an array {name!r}, the model's {len(known)} inputs are {known}",
                "Name the arrays as the inputs",
            )
    for v in inputs:
        if v.name not in feeds:
            raise InputError(
                str(file),
                f"lacks {v.name!r}: it holds {len(feeds)} of {len(known)} inputs",
                "Save an array for each input",
            )
        a = feeds[v.name]
        if a.shape != v.shape or a.dtype.name != v.dtype:
            raise InputError(
                str(file),
                f"{v.name!r} is {a.dtype.name}{list(a.shape)}, the model takes "
                f"{v.dtype}{list(v.shape)}",
                "Convert or reshape it",
            )
    return dict(feeds)


def random_feeds(inputs: Sequence[ValueInfo], seed: int = 0) -> Feeds:
    """Standard normal numbers; zeros and ones for integers and booleans."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for v in inputs:
        kind = np.dtype(v.dtype).kind if v.dtype != "bfloat16" else "?"
        numbers = rng.normal(size=v.shape) if kind == "f" else rng.integers(0, 2, v.shape)
        feeds[v.name] = np.asarray(numbers).astype(v.dtype)
    return feeds
