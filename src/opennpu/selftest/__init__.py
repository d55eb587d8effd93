"""Known programs on a device: does this board do what we believe of it?

Three parts: `opennpu.selftest.cases` (programs by hand, exact results), the operators' samples as
the compiler makes them, and `opennpu.selftest.questions` (which of several readings is right).
"""

from opennpu.selftest.runner import Outcome, Report, selftest

__all__ = ["Outcome", "Report", "selftest"]
