"""The harness itself: what it must notice."""

import pathlib

from conftest import SANITIZER_VARIABLES, clean_environment, run_python

# Writes where a sanitizer would.
REPORT = """
import os, sys
options = dict(option.split("=", 1) for option in os.environ[sys.argv[1]].split(":"))
with open(f"{options['log_path']}.{os.getpid()}", "w") as report:
    report.write(f"by {sys.argv[1]}\\n")
"""


def test_what_sanitizers_report_is_noticed_once(sanitizer_reports):
    for name in SANITIZER_VARIABLES:
        run_python(REPORT, name, env=clean_environment())
        assert sanitizer_reports.take() == f"by {name}\n"
        assert sanitizer_reports.take() == ""


def test_settings_of_sanitizers_are_kept(tmp_path):
    script = """if True:
        import os, pathlib, sys
        sys.path.insert(0, sys.argv[1])
        os.environ["TSAN_OPTIONS"] = "second_deadlock_stack=1"
        import conftest
        conftest.SanitizerReports(pathlib.Path(sys.argv[2]))
        print(os.environ["TSAN_OPTIONS"])
    """
    tests = str(pathlib.Path(__file__).parent)
    done = run_python(script, tests, str(tmp_path), env=clean_environment())
    assert done.stdout == f"second_deadlock_stack=1:log_path={tmp_path}/report\n"
