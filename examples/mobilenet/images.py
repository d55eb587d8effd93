"""The nine photographs of the demo, others to calibrate with, and ImageNet's preprocessing.

All are files inside wheels: scikit-image's and scikit-learn's (installed by `make demo`), and
foolbox's (see examples/models/fetch.py).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from examples.models.fetch import FetchError, fetch_all

Float32 = npt.NDArray[np.float32]

PHOTOGRAPHS = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "camera": ("skimage", "data/camera.png"),
    "chelsea": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "coins": ("skimage", "data/coins.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "motorcycle_left": ("skimage", "data/motorcycle_left.png"),
    "china": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
}
"""What the demo classifies."""

CALIBRATION = (
    ("skimage", "data/brick.png"),
    ("skimage", "data/clock_motion.png"),
    ("skimage", "data/grass.png"),
    ("skimage", "data/gravel.png"),
)
"""Photographs beside foolbox's; motorcycle_right is the other eye of motorcycle_left: not here."""

RESIZE, CROP = 256, 224
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)

PACKAGES = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


def photograph(name: str) -> Image.Image:
    """One of the nine, as RGB."""
    return _open(*PHOTOGRAPHS[name])


def photographs() -> Iterator[tuple[str, Image.Image]]:
    """All nine, by name."""
    for name in PHOTOGRAPHS:
        yield name, photograph(name)


def calibration_images() -> Iterator[Image.Image]:
    """Each calibration photograph and its mirror image."""
    for image in _calibration_photographs():
        yield image
        yield image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def calibration_feeds(name: str = "image") -> Iterator[dict[str, Float32]]:
    """`calibration_images` as a session takes them."""
    for image in calibration_images():
        yield {name: preprocess(image)}


def preprocess(image: Image.Image) -> Float32:
    """An image -> [1, 3, 224, 224], as torchvision evaluates ImageNet."""
    w, h = image.size
    scale = RESIZE / min(w, h)
    size = (max(RESIZE, int(w * scale)), max(RESIZE, int(h * scale)))
    resized = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    left, top = (size[0] - CROP) // 2, (size[1] - CROP) // 2
    pixels = np.asarray(resized.crop((left, top, left + CROP, top + CROP)), np.float32)
    normal: npt.NDArray[Any] = (pixels / np.float32(255) - MEAN) / STD
    return np.ascontiguousarray(normal.transpose(2, 0, 1)[np.newaxis], np.float32)


def _calibration_photographs() -> Iterator[Image.Image]:
    for path in fetch_all("imagenet-photos"):
        with Image.open(path) as image:
            yield image.convert("RGB")
    for package, file in CALIBRATION:
        yield _open(package, file)


def _open(package: str, file: str) -> Image.Image:
    with Image.open(_folder(package) / file) as image:
        return image.convert("RGB")


def _folder(package: str) -> Path:
    """Where a package lies; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise FetchError(
            f"{PACKAGES[package]}: not installed, and its wheel carries the photographs. "
            f"Run pip install {PACKAGES[package]}."
        )
    return Path(spec.origin).parent
