"""Epilogues that cutegemm does not have."""

from cutegemm import Scalar, epilogue, ops


@epilogue
def squared_relu(acc):
    """relu(x) ** 2 (So et al., arXiv 2109.08668)."""
    return ops.relu(acc) ** 2


@epilogue
def shrink(acc, by: Scalar):
    """x moved towards 0 by a run-time number, and 0 where it is nearer than that."""
    return ops.where(abs(acc) > by, ops.where(acc > 0, acc - by, acc + by), 0.0)
