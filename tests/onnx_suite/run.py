"""Run the official ONNX tests: ``python -m tests.onnx_suite.run [a] [b] [--shard i/n] [-k TEXT]``.

a: default placement, the suite's own tolerances, over the cases that onnxruntime passes.  What
   fails is kept in open.json with its reason; a failure that is not there fails the run.
b: every supported operator forced onto the emulator, the bound is what the operators document
   (for inputs that fp16 holds: where others leave it, rounded ones must keep it).
   The forced cases are kept in forced.json; one that is no longer forced fails the run.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import opennpu
from opennpu.errors import NPUError
from opennpu.ops import OPS
from tests.onnx_suite.cases import SuiteCase, all_cases, bound, show_op

FORCED = Path(__file__).with_name("forced.json")
OPEN = Path(__file__).with_name("open.json")
ort.set_default_logger_severity(4)


def different(got: Any, want: Any, rtol: float, atol: float) -> str:
    """How two values differ, as the suite's own runner compares them; "" if they do not."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"is {type(got).__name__}, not a list of {len(want)}"
        pairs = zip(got, want, strict=True)
        return next(filter(None, (different(g, w, rtol, atol) for g, w in pairs)), "")
    if want is None or got is None:
        return "" if want is got else f"is {got!r}, not {want!r}"
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        return f"has shape {list(got.shape)}, not {list(want.shape)}"
    if want.dtype.kind in "OUS":
        return "" if np.array_equal(got.astype(object), want.astype(object)) else "differs"
    if got.dtype != want.dtype:
        return f"is {got.dtype}, not {want.dtype}"
    try:
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
    except AssertionError as e:
        return " ".join(str(e).split())[:200]
    return ""


def compare(got: Iterable[Any], want: Iterable[Any], rtol: float, atol: float) -> str:
    """The first difference among outputs."""
    pairs = zip(got, want, strict=True)
    return next(filter(None, (different(g, w, rtol, atol) for g, w in pairs)), "")


def onnxruntime_says(case: SuiteCase) -> str:
    """Why onnxruntime itself fails a case; "" if it passes."""
    try:
        session = ort.InferenceSession(
            case.model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        for k, (_, want) in enumerate(case.sets):
            got = session.run(None, case.feeds(k))
            if problem := compare(got, want, case.rtol, case.atol):
                return problem
    except Exception as e:  # onnxruntime raises a dozen types of its own
        return " ".join(str(e).split())[:120]
    return ""


def run_default(case: SuiteCase) -> str:
    """What is wrong with a case under default placement; "" if nothing is."""
    try:
        program = opennpu.compile(case.model)
        with opennpu.InferenceSession(program, "emulator") as session:
            for k, (_, want) in enumerate(case.sets):
                got = session.run(None, case.feeds(k))
                if problem := compare(got, want, case.rtol, case.atol):
                    return problem
    except NPUError as e:
        return f"refused: {e}"
    except Exception as e:  # a bug of ours: the other cases still want to be seen
        return f"crashed: {type(e).__name__}: {e}"
    return ""


def run_forced(case: SuiteCase) -> tuple[str, str]:
    """("forced" | "refused" | "failed", why)."""
    try:
        return _forced(case)
    except Exception as e:  # a bug of ours: the other cases still want to be seen
        return "failed", f"crashed: {type(e).__name__}: {e}"


def _forced(case: SuiteCase) -> tuple[str, str]:
    why = "has no input"
    for model in (case.model, bound(case)):
        if model is None:
            continue
        try:
            program = opennpu.compile(model, placement="npu")
        except NPUError as e:
            why = str(e)
            continue
        on_npu = [n for n in program.meta["nodes"] if n["where"].startswith("NPU")]
        if not on_npu:
            reasons = [n["reason"] for n in program.meta["nodes"]]
            why = reasons[0] if reasons else "nothing is left to compute"
            continue
        names = {i.name for i in model.graph.input}
        with opennpu.InferenceSession(program, "emulator") as session:
            for k, (_, want) in enumerate(case.sets):
                feeds = {n: a for n, a in case.feeds(k).items() if n in names}
                got = session.run(None, feeds)
                problem = beyond(got, want, program.meta["nodes"])
                held = {n: _fp16(a) for n, a in feeds.items()}
                lossy = any(not np.array_equal(held[n], feeds[n], equal_nan=True) for n in held)
                if problem and lossy and _agree(_onnxruntime(model, feeds), want):
                    # bounds are said for inputs that fp16 holds
                    got = session.run(None, held)
                    problem = beyond(got, _onnxruntime(model, held), program.meta["nodes"])
                if problem:
                    return "failed", problem
                if session.last is not None and session.last.violations:
                    return "failed", session.last.violations[0]
        return "forced", f"{len(on_npu)} nodes"
    return "refused", why


def _fp16(a: Any) -> Any:
    """Numbers as fp16 holds them, in their own type."""
    a = np.asarray(a)
    if a.dtype.kind != "f":
        return a
    with np.errstate(over="ignore"):
        return a.astype(np.float16).astype(a.dtype)


def _onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def _agree(got: Iterable[Any], want: Iterable[Any]) -> bool:
    """Are the suite's numbers those of onnxruntime?"""
    return all(
        np.allclose(g, w, rtol=1e-3, atol=1e-6, equal_nan=True)
        for g, w in zip(got, want, strict=True)
    )


def beyond(got: Iterable[Any], want: Iterable[Any], nodes: Iterable[Mapping[str, Any]]) -> str:
    """How outputs leave the bound that the operators on the NPU document; "" if they do not.

    The bounds of nodes that follow each other add up.
    """
    limit = 0.0
    for n in nodes:
        if n["where"].startswith("NPU"):
            op = OPS.get(n["op"])
            limit += max((s.bound for s in op.samples if s.ok), default=2e-3) if op else 2e-3
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"is {g.dtype}{list(g.shape)}, not {w.dtype}{list(w.shape)}"
        if w.dtype.kind != "f":
            if not np.array_equal(g, w):
                return f"differs in {int((g != w).sum())} of {w.size} elements"
            continue
        finite = np.isfinite(w)
        if not np.array_equal(g[~finite], w[~finite], equal_nan=True):
            return "differs where infinities or NaNs are"
        if not finite.any():
            continue
        error = float(np.abs(g[finite].astype(np.float64) - w[finite]).max())
        top = float(np.abs(w[finite]).max())
        if not error <= limit * top:
            return f"is off by {error:g} of {top:g}, at most {limit * top:g} is allowed"
    return ""


def chosen(shard: str, text: str) -> list[SuiteCase]:
    """The cases of one shard whose names hold ``text``."""
    index, count = (int(n) for n in shard.split("/"))
    if not 0 <= index < count:
        raise SystemExit(f"--shard is {shard}, the first of {count} is 0/{count}")
    return [c for c in all_cases() if text in c.name][index::count]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 if nothing is worse than what is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="a, b; default both")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("-k", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("-v", action="store_true", help="print what is skipped or refused too")
    parser.add_argument("--update", action="store_true", help="keep the results of a whole run")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    cases, bad = chosen(args.shard, args.k), 0
    whole = args.shard == "0/1" and not args.k
    if args.update and not whole:
        parser.error("--update needs a whole run")
    if "a" in (args.parts or "a"):
        failed = part_a(cases, verbose=args.v)
        if args.update:
            OPEN.write_text(json.dumps(failed, indent=0, sort_keys=True) + "\n")
        bad += len(worse_a(failed))
    if "b" in (args.parts or "b"):
        results = part_b(cases, verbose=args.v)
        if args.update:
            forced = sorted(n for n, (what, _) in results.items() if what == "forced")
            FORCED.write_text(json.dumps(forced, indent=0) + "\n")
        bad += len(worse_b(results))
    return int(bad > 0)


def key(case: SuiteCase) -> str:
    """What a case is called in the files."""
    return f"{case.kind}/{case.name}"


def part_a(cases: list[SuiteCase], *, verbose: bool = False) -> dict[str, str]:
    """Default placement: what fails, and why."""
    tally: Counter[str] = Counter()
    failed: dict[str, str] = {}
    known = json.loads(OPEN.read_text()) if OPEN.exists() else {}
    for case in cases:
        if why := onnxruntime_says(case):
            tally["skipped: onnxruntime fails"] += 1
            if verbose:
                print(f"a  onnxruntime fails  {key(case)}: {why}")
        elif problem := run_default(case):
            failed[key(case)] = problem[:160]
            what = "known failure" if key(case) in known else "FAILED"
            tally["failed"] += 1
            if verbose or what == "FAILED":
                print(f"a  {what}  {key(case)}: {problem}")
        else:
            tally["passed"] += 1
    print("a:", ", ".join(f"{n} {what}" for what, n in sorted(tally.items())))
    return failed


def worse_a(failed: Mapping[str, str]) -> list[str]:
    """Failures that are not kept as open."""
    known = json.loads(OPEN.read_text()) if OPEN.exists() else {}
    return [f"{name}: {why}" for name, why in failed.items() if name not in known]


def part_b(cases: list[SuiteCase], *, verbose: bool = False) -> dict[str, tuple[str, str]]:
    """Forced onto the emulator: ("forced" | "refused" | "failed", why) of every case."""
    results: dict[str, tuple[str, str]] = {}
    for case in cases:
        results[key(case)] = what, why = run_forced(case)
        if what == "failed" or (verbose and what == "refused"):
            print(f"b  {what}  {key(case)} ({show_op(case.model)}): {why}")
    tally = Counter(what for what, _ in results.values())
    print("b:", ", ".join(f"{tally[what]} {what}" for what in ("forced", "refused", "failed")))
    return results


def worse_b(results: Mapping[str, tuple[str, str]]) -> list[str]:
    """Failures, and cases that are kept as forced and are not."""
    kept = set(json.loads(FORCED.read_text())) if FORCED.exists() else set()
    return [
        f"{name} is {what}: {why}"
        for name, (what, why) in results.items()
        if what == "failed" or (what == "refused" and name in kept)
    ]


if __name__ == "__main__":
    sys.exit(main())
