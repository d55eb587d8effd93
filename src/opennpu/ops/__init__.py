"""All operators.  Importing this package registers every module beside this file."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil

from opennpu.ops.base import OPS, Expansion, Op, Operand, Sample, Site, Target

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
for _entry in importlib.metadata.entry_points(group="opennpu.ops"):
    _entry.load()

__all__ = ["OPS", "Expansion", "Op", "Operand", "Sample", "Site", "Target"]
