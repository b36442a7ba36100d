"""The version, apart from the package's front door, so that importing it imports nothing else."""

__version__ = "0.1.0"
