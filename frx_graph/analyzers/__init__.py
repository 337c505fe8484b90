"""Interpret evidence files: CUDA source, PTX, Nsight Compute metrics, traces and runs."""
