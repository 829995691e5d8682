"""What jsclient costs, measured beside a raw C socket and the other installed clients.

`python -m bench` runs it; README.md in this folder says what is measured and how.
Nothing here is part of the package that users install.
"""
