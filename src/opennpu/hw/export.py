"""The register description in three other forms: C header, Markdown pages, rules-ng XML.

    python -m opennpu.hw.export            writes them into this checkout
    python -m opennpu.hw.export --check    fails if the files there are not what would be written

The header serves kernel/rkopnu; the pages are docs/reference/registers/; the XML has the form of
Mesa's registers.xml, so that a diff tool can compare the two.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import sys
import typing
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from opennpu.hw import rk3588
from opennpu.hw.regs import REGISTERS, Block, Field, Register, Trust

HEADER = Path("kernel/rkopnu/rkopnu_regs.h")
PAGES = Path("docs/reference/registers")
XML = PAGES / "rk3588.xml"
REMAKE = "Made by `python -m opennpu.hw.export` from src/opennpu/hw/rk3588/; edit that."


def _blocks() -> dict[Block, list[type[Register]]]:
    """Registers of each unit, by address."""
    units: dict[Block, list[type[Register]]] = {}
    for _, reg in sorted(REGISTERS.items()):
        units.setdefault(reg.block, []).append(reg)
    return units


def _doc(obj: object) -> list[str]:
    """Docstring as paragraphs of one line each."""
    return [" ".join(p.split()) for p in (inspect.getdoc(obj) or "").split("\n\n")]


def _bits(field: Field) -> str:
    return f"{field.high}:{field.low}" if field.width > 1 else f"{field.low}"


def c_header() -> str:
    """Offsets inside a core's window, and GENMASK-style masks."""
    lines = [
        "/* SPDX-License-Identifier: GPL-2.0 */",
        "/*",
        " * RK3588 NPU registers, by offset inside the 64 KiB window of a core.",
        f" * {REMAKE}",
        " */",
        "#ifndef RKOPNU_REGS_H",
        "#define RKOPNU_REGS_H",
        "",
        "#include <linux/bits.h>",
    ]
    for block, regs in _blocks().items():
        lines += ["", f"/* {_doc(sys.modules[regs[0].__module__])[0]} */"]
        lines.append(f"#define RKOPNU_{block.name}_TARGET 0x{block.target:04x}")
        for reg in regs:
            name = f"RKOPNU_{block.name}_{reg.__name__}"
            lines += ["", f"#define {name} 0x{reg.address:04x}"]
            if reg.reset:
                lines.append(f"#define {name}__RESET 0x{reg.reset:08x}")
            for field, f in reg.fields.items():
                mask = f"GENMASK({f.high}, {f.low})" if f.width > 1 else f"BIT({f.low})"
                lines.append(f"#define {name}__{field.upper()} {mask}")
    return "\n".join([*lines, "", "#endif /* RKOPNU_REGS_H */", ""])


def _holds(field: Field) -> str:
    """How the bits relate to the value: ``size - 1``, ``bytes / 16``, signed."""
    parts = ["signed"] * field.signed
    if field.scale > 1:
        parts.append(f"value / {field.scale}")
    if field.bias:
        parts.append(f"value - {field.bias}")
    return ", ".join(parts)


def _codes(reg: type[Register], name: str) -> type[enum.IntEnum] | None:
    kind = typing.get_type_hints(reg)[name]
    return kind if issubclass(kind, enum.IntEnum) else None


def _table(rows: Iterable[Iterable[str]]) -> list[str]:
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def unit_page(block: Block, regs: list[type[Register]]) -> str:
    """Markdown reference of one unit: every register, every field, trust and source."""
    module = sys.modules[regs[0].__module__]
    lines = [f"# {block.name}", "", f"<!-- {REMAKE} -->", ""]
    lines += [p + "\n" for p in _doc(module)]
    lines.append(f"Target of register commands: `0x{block.target:04x}`.")
    for reg in regs:
        facts = [f"`0x{reg.address:04x}`", reg.access]
        facts += [f"reset `0x{reg.reset:08x}`"] * bool(reg.reset)
        facts += ["one per group" if reg.shadowed else "not grouped"]
        lines += ["", f"## {reg.__name__}", "", ", ".join(facts), ""]
        lines += [p + "\n" for p in _doc(reg)]
        head = ("bits", "field", "value", "meaning", "trust", "source")
        rows = [head, ("---",) * len(head)]
        for name, f in sorted(reg.fields.items(), key=lambda item: -item[1].low):
            unit = f" {f.unit}" if f.unit else ""
            held = _holds(f)
            value = f"{f.min}..{f.max}{unit}" + (f" ({held})" if held else "")
            codes = _codes(reg, name)
            if codes:
                value = f"[{codes.__name__}](index.md#{codes.__name__.lower()})"
            rows.append((_bits(f), f"`{name}`", value, f.doc, f.trust.value, f.source))
        lines += _table(rows)
    return "\n".join([*lines, ""])


def trust_counts() -> dict[Trust, int]:
    """Number of fields by trust."""
    counts = dict.fromkeys(Trust, 0)
    for reg in REGISTERS.values():
        for f in reg.fields.values():
            counts[f.trust] += 1
    return counts


def index_page() -> str:
    """Markdown index: units, what trust means and how much of it there is, codes."""
    counts = trust_counts()
    lines = [
        "# Registers of the RK3588 NPU",
        "",
        f"<!-- {REMAKE} -->",
        "",
        "Each core has these units in a 64 KiB window.  A register command names a unit by its",
        "target and a register by its offset in the window.",
        "",
    ]
    rows = [("unit", "window", "target", "registers", "fields", "measured", "what"), ("---",) * 7]
    for block, regs in _blocks().items():
        fields = [f for r in regs for f in r.fields.values()]
        measured = sum(f.trust is Trust.MEASURED for f in fields)
        rows.append(
            (
                f"[{block.name}]({block.module.rstrip('_')}.md)",
                f"`0x{block.base:04x}`",
                f"`0x{block.target:04x}`",
                str(len(regs)),
                str(len(fields)),
                str(measured),
                _doc(sys.modules[regs[0].__module__])[0].partition(": ")[2],
            )
        )
    lines += [*_table(rows), "", "## Trust", ""]
    meaning = {
        Trust.MEASURED: "a run on a board pins it down",
        Trust.DOCUMENTED: "a public manual or driver says so",
        Trust.GUESSED: "it fits what was seen; no test yet",
    }
    lines += _table(
        [("trust", "fields", "meaning"), ("---",) * 3]
        + [(t.value, str(n), meaning[t]) for t, n in counts.items()]
    )
    lines += ["", "## Codes", ""]
    kinds = {c for r in REGISTERS.values() for n in r.fields if (c := _codes(r, n))}
    for kind in sorted(kinds, key=lambda k: k.__name__):
        lines += [f"### {kind.__name__}", "", *(p + "\n" for p in _doc(kind))]
        lines += [
            *_table([("code", "name"), ("---", "---")]),
            *_table((str(int(m)), m.name) for m in kind),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def rules_ng() -> str:
    """rules-ng XML in the form of Mesa's registers.xml, reserved ranges left out."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<!-- {REMAKE} -->",
        '<database xmlns="http://nouveau.freedesktop.org/">',
    ]
    for block, regs in _blocks().items():
        lines.append(f'<domain name="{block.name}" width="32">')
        for reg in regs:
            lines.append(f'   <reg32 offset="0x{reg.address:04X}" name="{reg.__name__}">')
            lines.append(f"      <doc>{_escape(_doc(reg)[0])}</doc>")
            for name, f in sorted(reg.fields.items(), key=lambda item: -item[1].low):
                at = f'low="{f.low}" high="{f.high}"' if f.width > 1 else f'pos="{f.low}"'
                kind = "int" if f.signed else "uint"
                lines.append(
                    f"      <bitfield name={quoteattr(name.upper())} {at} type={quoteattr(kind)}/>"
                )
            lines.append("   </reg32>")
        lines.append("</domain>")
    return "\n".join([*lines, "</database>", ""])


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def exports() -> dict[Path, str]:
    """Everything that is exported: path inside the repository -> text."""
    assert rk3588.UNITS  # importing it has described the registers
    pages = {PAGES / f"{b.module.rstrip('_')}.md": unit_page(b, r) for b, r in _blocks().items()}
    return {HEADER: c_header(), XML: rules_ng(), PAGES / "index.md": index_page(), **pages}


def stale(root: Path) -> list[Path]:
    """Exports that are missing in ``root``, or differ from what would be written."""
    return [
        path
        for path, text in exports().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m opennpu.hw.export", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if stale")
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(__file__).parents[3],
        help="root of the repository (default: the checkout this file is in)",
    )
    args = parser.parse_args(argv)
    old = stale(args.root)
    if args.check:
        for path in old:
            print(f"{path}: stale. Run python -m opennpu.hw.export.")
        return bool(old)
    texts = exports()
    for path in old:
        (args.root / path).parent.mkdir(parents=True, exist_ok=True)
        (args.root / path).write_text(texts[path], encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
