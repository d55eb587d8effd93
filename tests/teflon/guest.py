"""Runs inside the arm64 root: every MODEL.tflite of a folder on MODEL.npy.

guest.py FOLDER cpu            TFLite's reference kernels   -> MODEL.cpu.npy
guest.py FOLDER npu TEFLON.so  Mesa's Teflon delegate       -> MODEL.npu.npy
"""

import sys
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType, load_delegate

folder, kind, *delegate = sys.argv[1:]
delegates = [load_delegate(path) for path in delegate]
for model in sorted(Path(folder).glob("*.tflite")):
    interpreter = Interpreter(
        str(model),
        num_threads=1,
        experimental_delegates=delegates,
        experimental_op_resolver_type=OpResolverType.BUILTIN_REF,
    )
    interpreter.allocate_tensors()
    (before,), (after,) = interpreter.get_input_details(), interpreter.get_output_details()
    outputs = []
    for x in np.load(model.with_suffix(".npy")):
        interpreter.set_tensor(before["index"], x[np.newaxis])
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(after["index"])[0].copy())
    np.save(model.with_suffix(f".{kind}.npy"), np.stack(outputs))
    print(model.name, outputs[0].shape, flush=True)
    del interpreter
