"""ctypes: Python's dlopen and dlsym. Argument: the driver's name or path."""

import ctypes
import os
import sys
from pathlib import Path


def check(result: int) -> None:
    if result != 0:
        sys.exit(f"driver error {result}")


def main() -> None:
    trace = os.environ.get("EXPLSCHED_TRACE")
    if trace:
        Path(trace).write_text("")
    cuda = ctypes.CDLL(sys.argv[1])
    context, module, add = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), b"image"))
    check(cuda.cuModuleGetFunction(ctypes.byref(add), module, b"add"))
    for _ in range(3):
        check(cuda.cuLaunchKernel(add, 4, 1, 1, 256, 1, 1, 0, None, None, None))
    cuda.fakecuda_kernels_run.restype = ctypes.c_uint64
    if cuda.fakecuda_kernels_run() != 3:
        sys.exit("the driver did not run three kernels")
    if trace:
        lines = [line.rsplit(" ", 1)[0] for line in Path(trace).read_text().splitlines()]
        if lines != ["launch cuLaunchKernel add 4,1,1 256,1,1 0"] * 3:
            sys.exit(f"trace: {lines}")


if __name__ == "__main__":
    main()
