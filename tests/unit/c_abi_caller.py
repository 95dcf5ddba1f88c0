"""Calls functions of a C library, in a process that has no other CUDA runtime than the fake one.

Arguments: the fake runtime, the library. Stdin: a JSON list of calls, each with "symbol", "types" and "values" of the
parameters (types as ctypes names them), "kernel" (the kernel's own argument types) and "fake" (variables to set).
Stdout: for each call what it returned, the last error, and what the fake runtime has written down.
"""

from __future__ import annotations

import ctypes
import json
import sys

fake = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library = ctypes.CDLL(sys.argv[2])
library.cutegemm_last_error.restype = ctypes.c_char_p
SETTINGS = {"capability": 80, "sm_count": 108, "device_result": 0, "load_result": 0, "launch_result": 0}

COUNTS = ("libraries", "loads", "launches", "grid", "block")
integers = (ctypes.c_int64 * 128).in_dll(fake, "fake_integers")
floats = (ctypes.c_float * 128).in_dll(fake, "fake_floats")

results = []
for call in json.load(sys.stdin):
    for name, value in (SETTINGS | call.get("fake", {})).items():
        ctypes.c_int.in_dll(fake, f"fake_{name}").value = value
    kernel = call.get("kernel", "")
    (ctypes.c_char * 128).in_dll(fake, "fake_types").value = kernel.encode()
    function = getattr(library, call["symbol"])
    function.argtypes = [getattr(ctypes, name) for name in call.get("types", [])]
    returned = function(*call.get("values", []))
    counts = {name: ctypes.c_int.in_dll(fake, f"fake_{name}").value for name in COUNTS}
    passed = [floats[i] if kind == "f" else integers[i] for i, kind in enumerate(kernel)]
    stream = ctypes.c_void_p.in_dll(fake, "fake_stream").value
    error = library.cutegemm_last_error().decode()
    results.append({"returned": returned, "error": error, "passed": passed, "stream": stream, **counts})
print(json.dumps(results))
