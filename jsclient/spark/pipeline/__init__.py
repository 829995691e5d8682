"""Pipelines: from streams through SQL to files, tables and other streams.

A TOML file describes one; `jsclient pipeline run FILE` runs it.
"""
