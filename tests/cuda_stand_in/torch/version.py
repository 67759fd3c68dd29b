__version__ = "0.0+stand-in"
cuda = "0.0"
