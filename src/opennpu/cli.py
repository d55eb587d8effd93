"""The command line: thin, one function per command.

Errors are one sentence on standard error and exit code 2; tables and JSON go to standard output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

import opennpu
from opennpu.device import list_devices
from opennpu.errors import InputError, NPUError
from opennpu.hw.regcmd import listing
from opennpu.program import MAGIC, Array, NpuSegment, Program, ValueInfo

if TYPE_CHECKING:
    from opennpu.emu.timing import Rates
    from opennpu.selftest import Report

app = typer.Typer(
    help="Compile models for the RK3588 NPU, and run them on a board or on the emulator.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)
FAILED = 2
NONE: Set[int] = frozenset()

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Target = Annotated[str, typer.Option(help="Kernel driver: rknpu (vendor) or rocket (mainline).")]
FixDim = Annotated[
    list[str] | None, typer.Option("--fix-dim", help="Size of an open dimension: NAME=SIZE.")
]
Device = Annotated[
    str | None, typer.Option(help="emulator, null, rknpu, rocket; default: a board if found.")
]
Precision = Annotated[str, typer.Option(help="fp16 or int8.")]
Calibration = Annotated[
    Path | None, typer.Option(help="Folder of .npz files, one sample each with an array per input.")
]
Method = Annotated[str, typer.Option(help="Calibration: minmax, percentile, mse or entropy.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page there.")]
Clock = Annotated[float | None, typer.Option("--clock", help="Of predictions: NPU clock in MHz.")]
Bandwidth = Annotated[
    float | None, typer.Option("--bandwidth", help="Of predictions: GB/s of one core.")
]


def main() -> None:
    """Entry point of the ``opennpu`` command."""
    try:
        app()
    except NPUError as e:
        _fail(str(e))
    except ModuleNotFoundError as e:
        extra = "onnx" if (e.name or "").startswith("onnx") else "vision"
        _fail(
            f"opennpu: the package {e.name} is missing, this command needs it. "
            f"Install it with: pip install 'opennpu[{extra}]'."
        )
    except OSError as e:
        _fail(f"{e.filename or 'opennpu'}: {e.strerror or e}. Check the path.")
    except KeyboardInterrupt:
        _fail("opennpu: interrupted.")


def _fail(sentence: str) -> NoReturn:
    err.print(sentence, style="red", markup=False, highlight=False)
    sys.exit(FAILED)


def _print_json(data: Any) -> None:
    print(json.dumps(data, indent=2, default=str))


def _dims(pairs: Sequence[str] | None) -> dict[str, int]:
    dims = {}
    for pair in pairs or ():
        name, _, size = pair.rpartition("=")
        if not name or not size.isdigit():
            raise InputError("--fix-dim", f"{pair!r} is not NAME=SIZE", "Write for example batch=1")
        dims[name] = int(size)
    return dims


@contextmanager
def _progress(label: str) -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[stage]}"))
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(label, total=1.0, stage="")

        def step(stage: str, done: float) -> None:
            bar.update(task, completed=done, stage=stage)

        yield step


def _table(*columns: str) -> Table:
    """A table that folds long cells: names are never cut off."""
    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]], red: Set[int] = NONE) -> None:
    """A table with more columns than a terminal may have: a line a row, never folded.

    Columns after the third hold numbers.
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for i, row in enumerate([columns, *rows]):
        cells = (
            c.ljust(w) if k < 3 else c.rjust(w)
            for k, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        style = "bold" if i == 0 else "red" if i - 1 in red else None
        out.print("  ".join(cells).rstrip(), style=style, markup=False, highlight=False)


@app.command()
def check(
    model: Path, target: Target = "rknpu", fix_dim: FixDim = None, as_json: Json = False
) -> None:
    """Say of every node where it runs, and why not on the NPU."""
    from opennpu.passes.timed import Times
    from opennpu.tools.check import check_model

    with _progress("checking") as step:
        reports = check_model(model, target, _dims(fix_dim), progress=step)
    if as_json:
        _print_json([asdict(r) for r in reports])
    else:
        table = _table("node", "operator", "where", "tasks", "MACs", "reason")
        for r in reports:
            why = r.reason
            if not why and r.npu_s is not None and r.host_s is not None:
                why = Times(r.npu_s, r.host_s).sentence
            table.add_row(r.name, r.op, r.where, str(r.tasks), f"{r.macs:,}", why)
        out.print(table)
        total = sum(r.macs for r in reports) or 1
        npu = sum(r.macs for r in reports if r.where.startswith("NPU"))
        count = sum(r.where.startswith("NPU") for r in reports)
        out.print(
            f"{count} of {len(reports)} nodes and {100 * npu / total:.1f} % of the MACs on the NPU."
        )
    if any(r.where == "impossible" for r in reports):
        raise typer.Exit(FAILED)


@app.command("compile")
def compile_(
    model: Path,
    output: Annotated[Path, typer.Option("-o", "--output", help="The .npu file to write.")],
    precision: Annotated[str, typer.Option(help="fp16 or int8.")] = "fp16",
    calibration: Annotated[
        Path | None,
        typer.Option(help="Folder of .npz files, one sample each with an array per input."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="Calibration: minmax, percentile, mse or entropy.")
    ] = "mse",
    target: Target = "rknpu",
    fix_dim: FixDim = None,
    sample: Annotated[
        Path | None,
        typer.Option(help=".npz file with an array per input: stored with onnxruntime's outputs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile an ONNX or TFLite model to a .npu file."""
    data = None if calibration is None else _samples(calibration)
    with _progress("compiling") as step:
        program = opennpu.compile(
            model,
            precision=precision,  # type: ignore[arg-type]  # refused by name if it is another
            calibration=data,
            calibration_method=method,
            target=target,
            fix_dims=_dims(fix_dim),
            sample=None if sample is None else _load_npz(sample),
            progress=step,
        )
    program.save(output)
    summary = {"output": str(output), **_summary(program)}
    if as_json:
        _print_json(summary)
    else:
        out.print(
            f"{output}: {summary['npu_nodes']} nodes in {summary['tasks']} tasks on the NPU, "
            f"{summary['host_nodes']} nodes in onnxruntime, {summary['bytes']:,} bytes."
        )


def _samples(folder: Path) -> list[dict[str, Array]]:
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise InputError(
            str(folder), "holds 0 .npz files, at least 1 is needed", "Save samples with numpy.savez"
        )
    return [dict(_load_npz(f)) for f in files]


def _load_npz(file: Path) -> Mapping[str, Array]:
    try:
        return dict(np.load(file, allow_pickle=False))
    except (ValueError, OSError, EOFError) as e:
        raise InputError(str(file), f"is no .npz file ({e})", "Save it with numpy.savez") from None


def _summary(program: Program) -> dict[str, Any]:
    nodes = program.meta.get("nodes", [])
    npu = [s for s in program.segments if isinstance(s, NpuSegment)]
    host = [n for n in nodes if not n["where"].startswith("NPU")]
    return {
        "npu_nodes": len(nodes) - len(host),
        "host_nodes": len(host),
        "segments": len(program.segments),
        "tasks": sum(len(s.tasks) for s in npu),
        "constant_bytes": sum(len(s.const) for s in npu),
        "arena_bytes": max((s.arena_bytes for s in npu), default=0),
        "bytes": len(program.to_bytes()),
    }


@app.command()
def run(
    program: Path,
    inputs: Annotated[
        list[str] | None,
        typer.Option("-i", "--input", help="NAME=FILE (.npy, or an image); NAME may be left out."),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Run the stored sample and compare its outputs.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="emulator, null, rknpu, rocket; default: a board if found.")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Write each output there as NAME.npy.")
    ] = None,
    mean: Annotated[
        str, typer.Option(help="Of images: subtracted from 0..1 values, one or three numbers.")
    ] = "0",
    std: Annotated[str, typer.Option(help="Of images: divides what is left.")] = "1",
    as_json: Json = False,
) -> None:
    """Run a .npu file on data."""
    compiled = opennpu.load(program)
    if sample:
        feeds = _stored(compiled, program)
    else:
        feeds = _feeds(compiled, inputs or [], _numbers("--mean", mean), _numbers("--std", std))
    with opennpu.InferenceSession(compiled, device) as session:
        results = session.run(None, feeds)
        last, info = session.last, session.device.info
    assert last is not None
    names = [v.name for v in compiled.outputs]
    if output_dir:
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, a in zip(names, results, strict=True):
            np.save(output_dir / f"{name.replace('/', '_')}.npy", a)
    described = [_describe(n, a) for n, a in zip(names, results, strict=True)]
    if sample:
        for line, a in zip(described, results, strict=True):
            line["cosine"] = _cosine(a, compiled.samples[f"output/{line['name']}"])
    report = {
        "device": info.name,
        "tasks": last.tasks,
        "jobs": last.jobs,
        "bytes_moved": last.bytes_moved,
        "npu_s": last.npu_s,
        "npu_s_is": "measured" if last.measured else "predicted",
        "host_nodes": last.host_nodes,
        "outputs": described,
    }
    if as_json:
        _print_json(report)
        return
    for line in described:
        out.print(
            f"{line['name']}: {line['dtype']}{line['shape']} "
            f"min {line['min']:.6g} max {line['max']:.6g} argmax {line['argmax']}"
            + (f" cosine to the stored output {line['cosine']:.6f}" if sample else "")
        )
    out.print(
        f"{info.name}: {last.tasks} tasks in {last.jobs} jobs, {last.bytes_moved:,} bytes moved, "
        f"{1000 * last.npu_s:.3f} ms on the NPU ({report['npu_s_is']})."
    )


def _describe(name: str, a: Array) -> dict[str, Any]:
    numbers = a.astype(np.float64) if a.size and a.dtype.kind in "fiub" else np.zeros(1)
    return {
        "name": name,
        "shape": list(a.shape),
        "dtype": str(a.dtype),
        "min": float(numbers.min()),
        "max": float(numbers.max()),
        "argmax": int(numbers.argmax()),
    }


def _stored(program: Program, file: Path) -> dict[str, Array]:
    if not program.samples:
        raise InputError(
            str(file), "holds 0 samples, --sample needs 1", "Compile it with --sample FILE.npz"
        )
    return {v.name: program.samples[f"input/{v.name}"] for v in program.inputs}


def _cosine(a: Array, b: Array) -> float:
    x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norm if norm else float(np.array_equal(x, y))


def _numbers(option: str, text: str) -> Array:
    try:
        return np.array([float(p) for p in text.split(",")], np.float32)
    except ValueError:
        raise InputError(
            option, f"{text!r} is not a list of numbers", "Write 0.5,0.5,0.5"
        ) from None


def _feeds(program: Program, pairs: Sequence[str], mean: Array, std: Array) -> dict[str, Array]:
    infos = {v.name: v for v in program.inputs}
    feeds: dict[str, Array] = {}
    for pair in pairs:
        name, _, file = pair.rpartition("=")
        if not name and len(infos) == 1:
            name = next(iter(infos))
        if name not in infos:
            raise InputError(
                name or pair,
                f"the program has {len(infos)} inputs, none of that name",
                f"Use one of {sorted(infos)}",
            )
        feeds[name] = _read(Path(file), infos[name], mean, std)
    return feeds


def _read(file: Path, info: ValueInfo, mean: Array, std: Array) -> Array:
    if file.suffix == ".npy":
        try:
            return np.asarray(np.load(file, allow_pickle=False))
        except (ValueError, EOFError) as e:
            raise InputError(
                str(file), f"is no .npy file ({e})", "Save it with numpy.save"
            ) from None
    from PIL import Image, UnidentifiedImageError

    try:
        opened = Image.open(file)
        opened.load()
    except (UnidentifiedImageError, ValueError, SyntaxError):
        raise InputError(
            str(file), "is neither .npy nor an image that Pillow reads", "Convert it to PNG or JPEG"
        ) from None
    except OSError as e:
        if e.errno is not None:
            raise
        raise InputError(str(file), f"is a broken image ({e})", "Copy it again") from None
    shape = info.shape
    last = len(shape) == 4 and shape[1] not in (1, 3)  # channels last, as in TFLite
    if len(shape) != 4 or shape[0] != 1 or shape[3 if last else 1] not in (1, 3):
        raise InputError(
            info.name,
            f"takes shape {list(shape)}, an image has [1, 3, height, width]",
            "Pass a .npy file",
        )
    height, width, planes = shape[1:] if last else (*shape[2:], shape[1])
    if not info.dtype.startswith("float"):
        raise InputError(
            info.name,
            f"takes {info.dtype} codes, --mean and --std make 32-bit floats of an image",
            "Pass a .npy file of codes",
        )
    image = opened.convert("RGB" if planes == 3 else "L").resize((width, height))
    pixels = np.asarray(image, np.float32).reshape(height, width, planes) / 255
    scaled = ((pixels - mean) / std)[None].astype(info.dtype)
    return scaled if last else scaled.transpose(0, 3, 1, 2)


@app.command()
def accuracy(
    model: Path,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of .npz files (or .npy for one input), one sample each."),
    ] = None,
    random: Annotated[
        int | None, typer.Option("--random", help="This many samples of normal noise instead.")
    ] = None,
    precision: Precision = "fp16",
    calibration: Calibration = None,
    method: Method = "mse",
    target: Target = "rknpu",
    fix_dim: FixDim = None,
    device: Device = None,
    min_cosine: Annotated[
        float, typer.Option(help="A layer below it is bad, and the exit code 1.")
    ] = 0.99,
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Compare every layer with the float model; name the first bad one (exit code 1)."""
    from opennpu.tools import accuracy as tool
    from opennpu.tools.data import load_folder, random_feeds

    if (data is None) == (random is None):
        raise InputError(
            "accuracy",
            f"{0 if data is None else 2} of --data and --random were given, it takes 1",
            "Give --data FOLDER, or --random 3 for a quick look",
        )
    if random is not None and random < 1:
        raise InputError("--random", f"{random} samples, at least 1 is needed", "Give 3")

    def samples(inputs: Sequence[ValueInfo]) -> list[dict[str, Array]]:
        if data is not None:
            return load_folder(data, inputs)
        return [random_feeds(inputs, seed) for seed in range(random or 0)]

    with _progress("comparing") as step:
        report = tool.accuracy(
            model,
            samples,
            device=device,
            min_cosine=min_cosine,
            progress=step,
            precision=precision,
            calibration=None if calibration is None else _samples(calibration),
            calibration_method=method,
            target=target,
            fix_dims=_dims(fix_dim),
        )
    if html is not None:
        html.write_text(report.to_html(), encoding="utf-8")
    if as_json:
        print(tool.dumps(report))
    else:
        bad = {i for i, layer in enumerate(report.layers) if layer.bad(min_cosine)}
        _lines(tool.COLUMNS, [tool.row(layer) for layer in report.layers], bad)
        for layer in report.layers:
            if layer.note:
                out.print(f"{layer.name}: {layer.note}.", markup=False, highlight=False)
        out.print(report.sentence, markup=False, highlight=False)
    if report.first_bad:
        raise typer.Exit(1)


def _program(
    path: Path,
    precision: str,
    calibration: Path | None,
    method: str,
    target: str,
    fix_dim: Sequence[str] | None,
) -> Program:
    """A .npu file, or a model compiled now."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            return opennpu.load(path)
    with _progress("compiling") as step:
        return opennpu.compile(
            path,
            precision=precision,  # type: ignore[arg-type]  # refused by name if it is another
            calibration=None if calibration is None else _samples(calibration),
            calibration_method=method,
            target=target,
            fix_dims=_dims(fix_dim),
            progress=step,
        )


def _rates(program: Program, clock: float | None, bandwidth: float | None) -> Rates:
    from opennpu.emu.timing import at_clock
    from opennpu.tools.profile import rates_of

    for option, value in (("--clock", clock), ("--bandwidth", bandwidth)):
        if value is not None and not value > 0:
            raise InputError(option, f"{value:g} is not more than 0", "Give a positive number")
    rates = rates_of(program)
    if clock is not None:
        rates = at_clock(rates, 1e6 * clock)
    if bandwidth is not None:
        rates = replace(rates, bytes_per_second=1e9 * bandwidth)
    return rates


@app.command()
def profile(
    program: Annotated[Path, typer.Argument(help="A .npu file, or a model to compile first.")],
    device: Device = None,
    precision: Precision = "fp16",
    calibration: Calibration = None,
    method: Method = "mse",
    target: Target = "rknpu",
    fix_dim: FixDim = None,
    clock: Clock = None,
    bandwidth: Bandwidth = None,
    html: Html = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write a trace for Perfetto or chrome://tracing there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time, work, traffic and bound of every layer: measured on a board, else predicted."""
    from opennpu.tools import profile as tool

    compiled = _program(program, precision, calibration, method, target, fix_dim)
    found = tool.profile(compiled, device, rates=_rates(compiled, clock, bandwidth))
    if html is not None:
        html.write_text(found.to_html(), encoding="utf-8")
    if trace is not None:
        trace.write_text(json.dumps(found.to_trace(), allow_nan=False), encoding="utf-8")
    if as_json:
        print(tool.dumps(found))
        return
    _lines(tool.COLUMNS, [tool.row(layer) for layer in found.layers])
    for line in tool.total_lines(found):
        out.print(line, markup=False, highlight=False)
    for key, value in found.conditions.items():
        out.print(f"{key}: {value}", markup=False, highlight=False)


@app.command()
def bench(
    program: Path,
    runs: Annotated[int, typer.Option("-n", "--runs", help="Runs after a warm-up.")] = 10,
    device: Device = None,
    clock: Clock = None,
    bandwidth: Bandwidth = None,
    as_json: Json = False,
) -> None:
    """Latency of a .npu file: least / median / largest, each with its conditions."""
    from opennpu.tools.bench import bench as measure

    compiled = opennpu.load(program)
    found = measure(compiled, device, runs=runs, rates=_rates(compiled, clock, bandwidth))
    if as_json:
        _print_json(found.to_json())
        return
    for latency in found.latencies:
        out.print(str(latency), markup=False, highlight=False)


@app.command()
def disasm(
    program: Annotated[Path, typer.Argument(help="A .npu file, a trace or an RKG1 capture.")],
    as_json: Json = False,
) -> None:
    """Print register commands as Python.  Addresses are buffer + offset."""
    from opennpu.tools import replay, trace

    if trace.is_trace(program):
        jobs = {j.name: list(replay.lines(j)) for j in trace.load(program)}
        if as_json:
            _print_json(jobs)
        else:
            print("\n".join(line for job in jobs.values() for line in job))
        return
    compiled = opennpu.load(program)
    segments = [s for s in compiled.segments if isinstance(s, NpuSegment)]
    if as_json:
        _print_json({s.name: list(_listing(s)) for s in segments})
        return
    for s in segments:
        print(f"# segment {s.name}")
        for line in _listing(s):
            print(line)


def _listing(segment: NpuSegment) -> Iterator[str]:
    addresses = {r.word: f"  # + &{r.buffer}[{r.addend:#x}]" for r in segment.relocs}
    starts = {t.word: t for t in segment.tasks}
    end = 0
    for word, line in enumerate(listing(segment.code)):
        if word in starts:
            end = word + starts[word].words
            yield f"# task {starts[word].node}"
        if word < end:
            yield line + addresses.get(word, "")


@app.command()
def inspect(program: Path, as_json: Json = False) -> None:
    """What a .npu file holds."""
    compiled = opennpu.load(program)
    data = {
        "inputs": [asdict(v) for v in compiled.inputs],
        "outputs": [asdict(v) for v in compiled.outputs],
        **_summary(compiled),
        "meta": compiled.meta,
    }
    if as_json:
        _print_json(data)
        return
    for kind in ("inputs", "outputs"):
        for v in data[kind]:
            out.print(f"{kind[:-1]} {v['name']}: {v['dtype']}{list(v['shape'])}")
    for key, value in _summary(compiled).items():
        out.print(f"{key}: {value:,}")
    for key, value in compiled.meta.get("options", {}).items():
        out.print(f"{key}: {value}")


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def emulate(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    abi: Annotated[
        str | None, typer.Option(help="Show the nodes of rocket or of rknpu only; default: both.")
    ] = None,
    rocket_interface: Annotated[
        str, typer.Option(help="0.0 is stock Linux; 1.1, 1.3, 1.4, 1.5 are out of tree.")
    ] = "0.0",
    trace: Annotated[
        Path | None, typer.Option(help="Record every job there: see replay and disasm.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--hardware", help="Refuse what silicon corrupts or hangs on, or do the same."
        ),
    ] = False,
    cc: Annotated[
        str | None, typer.Option(help="C compiler; a cross compiler for programs in qemu-user.")
    ] = None,
) -> None:
    """Run a program that talks to an NPU driver, on the emulator; its exit code is passed on."""
    from opennpu.tools.emulate import emulate as run_program

    raise typer.Exit(
        run_program(
            command, abi=abi, rocket_interface=rocket_interface, strict=strict, trace=trace, cc=cc
        )
    )


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="A trace of emulate, or an RKG1 capture.")],
    device: Annotated[
        str, typer.Option(help="emulator, emulator:hardware, rknpu, rocket.")
    ] = "emulator:hardware",
    as_json: Json = False,
) -> None:
    """Run recorded jobs again and compare what they write, byte for byte; exit code 1 if not."""
    from opennpu.tools.replay import replay as run_again
    from opennpu.tools.trace import load

    jobs = load(trace)
    results = []
    for c in run_again(jobs, device):
        results.append(c)
        if not as_json:
            out.print(str(c), markup=False, highlight=False)
    equal = sum(c.equal for c in results)
    if as_json:
        _print_json({"equal": equal, "jobs": [{**asdict(c), "equal": c.equal} for c in results]})
    else:
        out.print(f"{equal} of {len(jobs)} jobs are equal.")
    if equal < len(jobs):
        raise typer.Exit(1)


@app.command()
def selftest(
    device: Annotated[
        str | None, typer.Option(help="emulator, rknpu, rocket, with or without a path.")
    ] = None,
    only: Annotated[str, typer.Option(help="Run the tests whose names contain this.")] = "",
    faults: Annotated[
        bool, typer.Option("--faults", help="Also run jobs that hang or fault.")
    ] = False,
    fields: Annotated[
        bool, typer.Option("--fields", help="Also list the register fields that passes confirm.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write the report as JSON there.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Print the names, run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Run known programs on a device: does it do what we believe of it?  Exit code 1 if not."""
    from opennpu.selftest import runner

    if show:
        print("\n".join(runner.names()))
        return
    with _progress("selftest") as step:
        found = runner.selftest(device, only=only, faults=faults, fields=fields, progress=step)
    data = found.to_json()
    if report is not None:
        report.write_text(json.dumps(data, indent=2) + "\n")
    if as_json:
        _print_json(data)
    else:
        _print_selftest(found)
    if found.count("failed"):
        raise typer.Exit(1)


def _print_selftest(found: Report) -> None:
    facts = {k: v for k, v in found.device.items() if k in ("name", "driver", "path") and v}
    for key, value in {**facts, **found.host}.items():
        out.print(f"{key}: {value}", markup=False, highlight=False)
    table = _table("test", "status", "source", "problem")
    for t in found.tests:
        table.add_row(t.name, t.status, t.source, t.problem)
    out.print(table)
    answers = _table("question", "device", "emulator")
    for q in found.questions:
        answer = q.problem or " or ".join(q.device) or "none of the known readings"
        answers.add_row(q.question, answer, q.emulator)
    out.print(answers)
    for name, entry in found.fields.items():
        out.print(f"{name} ({entry['trust']}): {', '.join(entry['cases'])}", highlight=False)
    counts = ", ".join(f"{found.count(s)} {s}" for s in ("passed", "failed", "skipped"))
    out.print(counts)


@app.command()
def devices(as_json: Json = False) -> None:
    """What programs can run on here."""
    found = list_devices()
    if as_json:
        _print_json([asdict(d) for d in found])
        return
    table = _table("device", "driver", "path", "cores", "note")
    for d in found:
        table.add_row(d.name, d.driver, d.path, str(d.cores), d.reason)
    out.print(table)


if __name__ == "__main__":
    main()
