"""juicepy: a POSIX distributed file system in Python that shares volumes with JuiceFS 1.4."""

__version__ = "1.4.2"
