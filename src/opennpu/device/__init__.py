"""Devices: find one, open one by name.

Names: "emulator" (strict), "emulator:hardware" (does as silicon does), "null", "rknpu" (vendor
kernel driver), "rocket" (mainline Linux), and the last two with a path: "rocket:/dev/accel/accel0".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from opennpu.device.base import Device, DeviceInfo
from opennpu.device.kernel import NODES, Kernel, LinuxKernel, find_nodes
from opennpu.errors import DeviceError, DeviceNotFound

NAMES = ("emulator", "emulator:hardware", "null", "rknpu", "rocket")
_log = logging.getLogger("opennpu")
_said: set[str] = set()


def open_device(name: str | None = None, **options: Any) -> Device:
    """Open a device by name; without one, find a board, else take the emulator.

    options: for the back end, as `EmulatorDevice`, `RknpuDevice` or `RocketDevice` takes them;
        ``kernel`` stands in for the operating system.
    Raises DeviceNotFound, DeviceError.
    """
    if name is None:
        return _find(options)
    kind, _, path = name.partition(":")
    if name not in NAMES and (kind not in NODES or not path):
        raise DeviceNotFound(
            "open_device",
            f"{name!r} is none of the {len(NAMES)} devices",
            f"Use one of {', '.join(NAMES)}; rknpu and rocket may be followed by :/dev/…",
        )
    device = _open(kind, path, options)
    return _because(device, f"asked for by name: {name}")


def list_devices(kernel: Kernel | None = None) -> list[DeviceInfo]:
    """What `open_device` can open here: boards first, then the emulator."""
    found = []
    for kind, path in _boards(kernel or LinuxKernel())[0]:
        try:
            device = _open(kind, path, {"kernel": kernel} if kernel else {})
        except DeviceError as e:
            found.append(DeviceInfo(kind, path=path, reason=f"cannot be opened: {e}"))
        else:
            found.append(device.info)
            device.close()
    for name in ("emulator", "emulator:hardware", "null"):
        device = _open(name.partition(":")[0], name.partition(":")[2], {})
        found.append(device.info)
        device.close()
    return found


def _find(options: dict[str, Any]) -> Device:
    """A board, else the emulator; says which and why."""
    kernel = options.get("kernel") or LinuxKernel()
    boards, refused = _boards(kernel)
    for kind, path in boards:
        mine = {k: v for k, v in options.items() if k == "kernel"}
        try:
            return _because(_open(kind, path, mine), f"found {kind} at {path}")
        except DeviceError as e:
            refused.append(str(e))
    emulator = _open("emulator", "", {k: v for k, v in options.items() if k != "kernel"})
    return _because(emulator, "; ".join(["no board found", *refused]))


def _boards(kernel: Kernel) -> tuple[list[tuple[str, str]], list[str]]:
    """(driver, path) of the first node of each driver; and why other nodes were left out."""
    boards: list[tuple[str, str]] = []
    refused: list[str] = []
    for kind in NODES:
        found, others = find_nodes(kernel, kind)
        boards += [(kind, path) for path in found[:1]]  # card and render node: one device
        refused += others
    return boards, refused


def _open(kind: str, path: str, options: dict[str, Any]) -> Device:
    makers: dict[str, Callable[..., Device]] = {
        "emulator": _emulator,
        "null": _null,
        "rknpu": _rknpu,
        "rocket": _rocket,
    }
    return makers[kind](path, **options)


def _emulator(mode: str, **options: Any) -> Device:
    from opennpu.device.emulator import EmulatorDevice

    return EmulatorDevice(**{"strict": mode != "hardware", **options})


def _null(_: str) -> Device:
    from opennpu.device.null import NullDevice

    return NullDevice()


def _rknpu(path: str, **options: Any) -> Device:
    from opennpu.device.rknpu import RknpuDevice

    return RknpuDevice(path or None, **options)


def _rocket(path: str, **options: Any) -> Device:
    from opennpu.device.rocket import RocketDevice

    return RocketDevice(path or None, **options)


def _because(device: Device, reason: str) -> Device:
    """Note why this device was chosen; say it once per reason."""
    device.info = replace(device.info, reason=reason)
    line = f"{device.info.name}: {reason}"
    if line not in _said:
        _said.add(line)
        _log.info("device %s", line)
    return device


__all__: Sequence[str] = ["NAMES", "list_devices", "open_device"]
