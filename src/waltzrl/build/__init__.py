"""The composition root: settings in, objects out; the only package that knows every class."""
