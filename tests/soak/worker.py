"""Runs cases one after another, and prints a line of JSON before and after."""

import json
import sys
import traceback
import warnings
from itertools import count

from soak import cases
from soak.report import OutOfRange


def result(number):
    """What a case has shown, in JSON's types."""
    kind, report, error = cases.run(number)
    found = {"case": number, "kind": kind, "shares": report.shares}
    if isinstance(error, OutOfRange):
        return {**found, "out_of_range": str(error)}
    if error is not None:
        lines = traceback.format_exception(error)
        return {**found, "drawn": report.case, "error": "".join(lines)}
    return found


def main(first, output):
    """Run cases until the process is killed.

    Args:
        first: the number of the first case.
        output: the stream for the lines of JSON.
    """
    warnings.simplefilter("ignore")
    for number in count(first):
        print(json.dumps({"begins": number}), file=output, flush=True)
        print(json.dumps(result(number)), file=output, flush=True)


if __name__ == "__main__":
    # Frameworks print to standard output too.
    output, sys.stdout = sys.stdout, sys.stderr
    main(int(sys.argv[1]), output)
