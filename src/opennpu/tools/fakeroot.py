"""What a board's /dev, /sys and /proc show of its NPU, as a folder for programs to find.

Sources: the device tree binding of the RK3588 (register notes G.3), the layout that Linux gives to
every device of sysfs, and what programs look for (board notes B.4).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from opennpu.hw.rk3588 import chip

COMPATIBLE = b"rockchip,rk3588\0"
CORES = ("fdab0000.npu", "fdac0000.npu", "fdad0000.npu")
OF_NODE = (
    "OF_NAME=npu",
    "OF_FULLNAME=/npu@fdab0000",
    "OF_COMPATIBLE_0=rockchip,rk3588-rknpu",
    "OF_COMPATIBLE_N=1",
)
MERGED = (
    "dev/accel",
    "dev/dri",
    "sys/class/accel",
    "sys/class/drm",
    "sys/dev/char",
    "sys/bus/platform/drivers",
    "sys/devices/platform",
)
"""Folders in which ours stand beside what the computer has."""


@contextlib.contextmanager
def fake_root(nodes: Mapping[str, tuple[int, int]]) -> Iterator[Path]:
    """A folder with ``nodes`` (path: major, minor) and what belongs to them.

    The nodes are empty files; the library of ``opennpu emulate`` knows better.
    """
    with tempfile.TemporaryDirectory(prefix="opennpu-root-") as name:
        root = Path(os.path.realpath(name))
        for path, numbers in nodes.items():
            _node(root, path, numbers)
        if nodes:
            _file(root / "proc/device-tree/compatible", COMPATIBLE)
            _file(root / "sys/firmware/devicetree/base/compatible", COMPATIBLE)
        for folder in MERGED:
            if (root / folder).is_dir():
                _merge(root / folder, Path("/", folder))
        yield root


def _node(root: Path, path: str, numbers: tuple[int, int]) -> None:
    kind, name = Path(path).parts[-2:]
    number = f"{numbers[0]}:{numbers[1]}"
    accel = kind == "accel"
    subsystem = "accel" if accel else "drm"
    parent = root / "sys/devices/platform" / ("rknn" if accel else CORES[0])
    device = parent / subsystem / name
    _file(root / path[1:], b"")
    _file(device / "dev", f"{number}\n".encode())
    event = (f"MAJOR={numbers[0]}", f"MINOR={numbers[1]}", f"DEVNAME={kind}/{name}")
    _lines(device / "uevent", *event, f"DEVTYPE={subsystem}_minor")
    _link(device / "device", parent)
    _link(device / "subsystem", root / "sys/class" / subsystem)
    _link(root / "sys/class" / subsystem / name, device)
    _link(root / "sys/dev/char" / number, device)
    _link(parent / "subsystem", root / "sys/bus/platform")
    driver = root / "sys/bus/platform/drivers" / ("rocket" if accel else "RKNPU")
    if accel:  # a device of its own stands for all cores
        _lines(parent / "uevent", "MODALIAS=platform:rknn")
        for core in CORES[: chip.CORES]:
            bound = root / "sys/devices/platform" / core
            bound.mkdir(parents=True, exist_ok=True)
            _link(driver / core, bound)
        _file(root / "sys/module/rocket/initstate", b"live\n")
    else:
        _lines(parent / "uevent", "DRIVER=RKNPU", *OF_NODE)
        _link(driver / CORES[0], parent)
        _link(parent / "driver", driver)
        role = "card" if name.startswith("card") else "render"
        _link(root / f"dev/dri/by-path/platform-{CORES[0]}-{role}", root / path[1:])


def _file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _lines(path: Path, *lines: str) -> None:
    _file(path, "".join(f"{line}\n" for line in lines).encode())


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(os.path.relpath(target, path.parent))


def _merge(ours: Path, real: Path) -> None:
    """Links to what a folder of the computer has and ours has not."""
    with contextlib.suppress(OSError):
        for name in os.listdir(real):
            with contextlib.suppress(FileExistsError):
                (ours / name).symlink_to(real / name)
