"""Describe this machine: processors, memory, devices, disturbances."""
