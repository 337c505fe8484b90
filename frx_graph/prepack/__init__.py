"""Store weights in the layout that their convolutions want."""
