"""What Nsight Compute has measured, as it exports it."""
