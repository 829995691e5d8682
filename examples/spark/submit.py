"""What spark-submit runs: `spark-submit --master ... submit.py orders.toml --once`.

The master is that of spark-submit, whatever the file says.
"""

import sys

from jsclient.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", "run", *sys.argv[1:]]))
