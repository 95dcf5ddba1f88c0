"""Every error that cutegemm raises on purpose.

All of them derive from :class:`CuteGemmError` and from the built-in exception a caller would expect, so both
``except CuteGemmError`` and ``except ValueError`` work. They are raised before anything is launched or
written.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "BundleError",
    "CuteGemmError",
    "DTypeError",
    "DeviceError",
    "EpilogueError",
    "KernelNotBuiltError",
    "NotAvailableError",
    "OverlapError",
    "ShapeError",
    "UnsupportedArchitectureError",
]


class CuteGemmError(Exception):
    """The base of every error that cutegemm raises on purpose."""


class ShapeError(CuteGemmError, ValueError):
    """Sizes that do not fit together."""


class DTypeError(CuteGemmError, TypeError):
    """A dtype that an argument cannot have, or that no path serves."""


class OverlapError(CuteGemmError, ValueError):
    """An output that shares bytes with an input, or with itself."""


class ArgumentError(CuteGemmError, ValueError):
    """An option's value, or an argument's kind, that is not accepted."""


class EpilogueError(CuteGemmError, TypeError):
    """An epilogue that the expression graph cannot hold, or operands that do not bind to it."""


class UnsupportedArchitectureError(CuteGemmError, RuntimeError):
    """No kernel family can serve this architecture."""


class KernelNotBuiltError(CuteGemmError, RuntimeError):
    """A kernel is needed, has not been built, and may not be compiled here."""


class BundleError(CuteGemmError, ValueError):
    """A bundle of built kernels that is damaged, or was not made for this machine, GPU or version."""


class NotAvailableError(CuteGemmError, NotImplementedError):
    """A keyword, feature or device that this version does not serve yet, named in the message."""


class DeviceError(CuteGemmError, RuntimeError):
    """No driver, no such GPU, or operands on different devices."""
