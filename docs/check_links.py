"""Every relative link in the Markdown files of this checkout leads to a file, and to a heading.

python -m docs.check_links
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def pages() -> list[Path]:
    """Markdown files of the root, and those below docs and kernel."""
    below = [f for folder in ("docs", "kernel") for f in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *below])


def prose(page: Path) -> str:
    """Its text without code blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"^ {4}.*$", "", text, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Its headings as GitHub names them."""
    names = (re.sub(r"[^\w\- ]", "", h.lower()).strip() for h in HEADING.findall(prose(page)))
    return {n.replace(" ", "-") for n in names}


def broken() -> Iterator[str]:
    """One sentence for each link that leads nowhere."""
    for page in pages():
        for link in LINK.findall(prose(page)):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            there = (page.parent / path).resolve() if path else page
            where = f"{page.relative_to(ROOT)}: the link {link}"
            if not there.exists():
                yield f"{where} leads to no file."
            elif anchor and anchor not in anchors(there):
                yield f"{where} leads to no heading."


def main() -> int:
    problems = list(broken())
    for sentence in problems:
        print(sentence, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
