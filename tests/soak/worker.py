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


def say(**message):
    print(json.dumps(message), file=OUTPUT, flush=True)


def main(first):
    warnings.simplefilter("ignore")
    for number in count(first):
        say(begins=number)
        say(**result(number))


if __name__ == "__main__":
    # Frameworks print too.
    OUTPUT, sys.stdout = sys.stdout, sys.stderr
    main(int(sys.argv[1]))
