"""`profile_kernels`, under the name that scripts import it by."""

from frx_graph.runs.sdk.kernel_windows import profile_kernels

__all__ = ["profile_kernels"]
