"""OpenNPU: compile models for the RK3588 NPU, and run them on a board or on the emulator.

program = opennpu.compile("model.onnx")
with opennpu.InferenceSession(program) as session:
    outputs = session.run(None, {"x": x})
"""

from __future__ import annotations

from opennpu.compile import compile
from opennpu.device import open_device
from opennpu.errors import (
    DeviceError,
    DeviceFault,
    DeviceNotFound,
    DeviceTimeout,
    FieldRangeError,
    InputError,
    ModelError,
    NPUError,
    ProgramError,
    UnsupportedError,
    ViolationError,
)
from opennpu.program import Program, load
from opennpu.runtime.session import InferenceSession

__version__ = "0.1.0"

__all__ = [
    "DeviceError",
    "DeviceFault",
    "DeviceNotFound",
    "DeviceTimeout",
    "FieldRangeError",
    "InferenceSession",
    "InputError",
    "ModelError",
    "NPUError",
    "Program",
    "ProgramError",
    "UnsupportedError",
    "ViolationError",
    "compile",
    "load",
    "open_device",
]
