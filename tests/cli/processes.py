# SPDX-License-Identifier: Apache-2.0
"""What tests of the command from outside share: the program, which is the first argument, and an environment without a launcher."""
import os
import sys

ESPALIER = sys.argv.pop(1) if len(sys.argv) > 1 else "espalier"


def clean_environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("ESPALIER_", "OMPI_", "PMI", "SLURM_")) and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
