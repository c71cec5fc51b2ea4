"""`fuseplan tour`: eight short programs to read, in the order of `command.PROGRAMS`; start with `convolution`."""
