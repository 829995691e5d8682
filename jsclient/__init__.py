"""jsclient."""
