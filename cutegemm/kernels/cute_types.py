"""The DSL's numeric type of each dtype name."""

from __future__ import annotations

import cutlass

NUMERIC = {
    "fp16": cutlass.Float16,
    "bf16": cutlass.BFloat16,
    "fp32": cutlass.Float32,
    "fp64": cutlass.Float64,
}
