"""Epilogues as expression graphs: traced once from a Python function (`trace`), kept as plain data (`graph`),
and lowered to torch (`to_torch`), to the CuTe DSL (`to_cute`) and to CUDA C++ text (`to_cuda`). `registry` finds
the ready-made ones that packages provide.

The lowerings are imported by whoever needs them: this package itself needs neither torch nor the DSL.
"""

from cutegemm.fusion.graph import IDENTITY, Graph, Node, OperandSpec, OutputSpec
from cutegemm.fusion.trace import BoundEpilogue, Col, Epilogue, Row, Scalar, Tile, Value, as_bound, epilogue

__all__ = [
    "IDENTITY",
    "BoundEpilogue",
    "Col",
    "Epilogue",
    "Graph",
    "Node",
    "OperandSpec",
    "OutputSpec",
    "Row",
    "Scalar",
    "Tile",
    "Value",
    "as_bound",
    "epilogue",
]
