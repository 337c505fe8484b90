"""Find the fastest configuration of a training script by trials of the whole script: `frx tune`."""
