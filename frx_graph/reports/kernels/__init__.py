"""Render kernel evidence: CUDA source, PTX, Nsight Compute, comparisons."""
