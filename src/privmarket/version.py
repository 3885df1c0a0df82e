"""The version of this package, below everything, so that no module imports the front door for it."""

__version__ = "0.2.0"
