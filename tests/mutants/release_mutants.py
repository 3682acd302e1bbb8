"""The bugs of what a build says of itself. See mutants.py."""

from tests.mutants.mutant import Mutant

_COMMIT = "release/test_commit.py::"

RELEASE_MUTANTS = (
    Mutant(
        "any-checkout-around-it-is-its-own",
        "runtime/version.py",
        '    if not (root / ".git").exists():\n        return None\n',
        "",
        "in a virtual environment inside somebody's checkout `--version` tells their commit",
        (_COMMIT + "test_a_program_in_somebody_elses_checkout_is_not_of_its_commit",),
    ),
    Mutant(
        "version-needs-git",
        "runtime/version.py",
        "    except (OSError, subprocess.SubprocessError):\n",
        "    except subprocess.SubprocessError:\n",
        "`--version` of a checkout fails on a machine without git",
        (_COMMIT + "test_a_history_that_git_does_not_read_is_unknown",),
    ),
)
