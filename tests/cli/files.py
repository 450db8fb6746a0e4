#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `espalier` writes for other programs: JSON that agrees with itself, SVG that is XML."""
import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--command", required=True)
    command = parser.parse_args().command

    def run(*words):
        return subprocess.run([command, *words], capture_output=True, text=True, timeout=20, check=True).stdout

    # layout: every family partitions the world, and each rank's entry points at the group that holds it.
    layout = json.loads(run("layout", "pipe=2,data=4,tensor=2,expert=2", "--json"))
    assert layout["world"] == 16 and len(layout["ranks"]) == 16
    groups = {family["name"]: family["groups"] for family in layout["families"]}
    assert groups["expert"] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]], groups["expert"]
    for name, members in groups.items():
        assert sorted(itertools.chain(*members)) == list(range(16)), name
    for entry in layout["ranks"]:
        for name, index in entry["groups"].items():
            assert entry["rank"] in groups[name][index], (entry, name)
        alone = json.loads(run("layout", "pipe=2,data=4,tensor=2,expert=2", "--json", "--rank", str(entry["rank"])))
        assert alone["coordinates"] == entry["coordinates"]
        for name, group in alone["groups"].items():
            assert group["ranks"] == groups[name][group["index"]], (entry, name)
            assert group["ranks"][group["group_rank"]] == entry["rank"], (entry, name)

    # schedule: as many instructions as micro-batches and stages ask for.
    schedule = json.loads(run("schedule", "1f1b", "--stages", "3", "--micro-batches", "5", "--json"))
    assert [stage["buffers"] for stage in schedule["per_stage"]] == [3, 2, 2]
    for number, stage in enumerate(schedule["per_stage"]):
        codes = [instruction[0] for step in stage["steps"] for instruction in step]
        expected = {"F": 5, "B": 5, "Ld": 0 if number == 1 else 5, "SA": 5 * (number < 2), "RA": 5 * (number > 0),
                    "SG": 5 * (number > 0), "RG": 5 * (number < 2), "RT": 1, "RD": 1, "OS": 1}
        assert {code: codes.count(code) for code in expected} == expected, codes
    assert schedule["time"] == (5 + 2) * 3 and schedule["ideal_time"] == 15

    with tempfile.TemporaryDirectory() as folder:
        svg = pathlib.Path(folder, "picture.svg")
        text = run("schedule", "gpipe", "--stages", "3", "--micro-batches", "5", "--svg", str(svg))
        assert "gpipe: stages 3, micro-batches 5" in text
        root = xml.etree.ElementTree.parse(svg).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
        assert sum("forward of micro-batch" in title for title in titles) == 15, titles

    # partition: the loads are those of the cuts.
    weights = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    partition = json.loads(run("partition", "--weights", ",".join(map(str, weights)), "--parts", "4", "--json"))
    cuts = partition["cuts"]
    assert [part["load"] for part in partition["parts"]] == [sum(weights[a:b]) for a, b in zip(cuts, cuts[1:])]
    assert partition["largest"] == 14 == partition["smallest_possible_largest"]
    return 0


if __name__ == "__main__":
    sys.exit(main())
