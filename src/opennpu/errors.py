"""Every error this package raises on purpose.

    NPUError
    ├─ FieldRangeError      a value does not fit its register field (also a ValueError)
    ├─ UnsupportedError     the NPU cannot run this node as it stands
    ├─ ModelError           the model file or graph is broken or incomplete
    ├─ ProgramError         the .npu file is broken, newer than we are, or lacks an extra
    ├─ InputError           an input is missing, unknown, or of the wrong shape or dtype
    ├─ ViolationError       strict emulator: a program does what silicon corrupts or hangs on
    └─ DeviceError          the device or its driver
       ├─ DeviceNotFound    no such device here
       ├─ DeviceFault       the job failed: a DMA fault, an interrupt that never matched
       └─ DeviceTimeout     the job did not finish in time

Each message says where (the user's name for it), what, with both numbers, and what to do.
"""

from __future__ import annotations


class NPUError(Exception):
    """Base class.  Catch this to catch all of ours."""


class FieldRangeError(NPUError, ValueError):
    """A value does not fit the register field it was given to."""


class _Sentence(NPUError):
    """where: what, with both numbers. What to do."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        self.where, self.what, self.remedy = where, what, remedy
        super().__init__(f"{where}: {what}. {remedy}.")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), (self.where, self.what, self.remedy)


class UnsupportedError(_Sentence):
    """The NPU cannot run this node as it stands.

    Attributes:
        where: name of the node in the model, as the user wrote it.
        what: the rule that failed, with both numbers in it.
        remedy: what the user can do about it.
    """


class ModelError(_Sentence):
    """The model cannot be read, or is not complete."""


class ProgramError(_Sentence):
    """The compiled program cannot be read or run by this installation."""


class InputError(_Sentence):
    """What was passed to a program does not match its inputs."""


class ViolationError(_Sentence):
    """Strict emulation: silicon would corrupt data or hang here."""


class DeviceError(_Sentence):
    """The device or its kernel driver."""


class DeviceNotFound(DeviceError):
    """No such device on this machine."""


class DeviceFault(DeviceError):
    """A job failed on the device."""


class DeviceTimeout(DeviceError):
    """A job did not finish within its time."""
