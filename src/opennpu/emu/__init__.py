"""The register-accurate NPU: executes register commands, never graphs.  Imports hw only.

machine.py      cores, program controller, groups, interrupts
units.py        the started units: what feeds what, and what they must agree on
cna.py core.py dpu.py dpu_rdma.py lut.py ppu.py ppu_rdma.py     one file per hardware unit
memory.py       IOVA space: mappings, faults, byte counters
numerics.py     one switch per open question; exact sums and roundings
violations.py   every rule a program can break, and what silicon does then
registers.py    register words per ping-pong group;  context.py  what a unit may touch
timing.py       predicted cycles; also what the compiler's cost function calls
"""

from __future__ import annotations
