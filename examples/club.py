"""Writes a small graph in the form that deepgat reads: two clubs, and who knows whom.

    python examples/club.py my-graph

makes the folder ``my-graph`` with ``nodes.csv`` and ``edges.csv``; then::

    deepgat check my-graph/
    deepgat train my-graph/ --out model/
"""

import csv
import random
import sys
from pathlib import Path

CLUBS = ("chess", "rowing", "theatre")
TOWNS = ("Ashford", "Birchwood", "Calder")


def write_club(folder: Path, members: int = 90, seed: int = 0) -> None:
    """Members mostly know members of their own club; a few have not said which club is theirs."""
    draw = random.Random(seed)
    names = [f"member-{number:03d}" for number in range(members)]
    clubs = [CLUBS[number % len(CLUBS)] for number in range(members)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "nodes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "label", "age", "visits", "town"])
        for name, club in zip(names, clubs, strict=True):
            number = CLUBS.index(club)
            said = club if draw.random() > 0.1 else ""
            age = draw.gauss(30 + 8 * number, 6)
            visits = max(0, round(draw.gauss(10 - 2 * number, 3)))
            town = TOWNS[number] if draw.random() < 0.5 else draw.choice(TOWNS)
            rows.writerow([name, said, f"{age:.0f}", visits, town])
    with (folder / "edges.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["source", "target", "weight"])
        known = set()
        for number in range(members):
            for _ in range(3):
                own = draw.random() < 0.8
                step = len(CLUBS) if own else 1
                other = (number + step * draw.randrange(1, members // step)) % members
                if other != number and frozenset((number, other)) not in known:
                    known.add(frozenset((number, other)))
                    rows.writerow([names[number], names[other], draw.randint(1, 5)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("say where: python examples/club.py my-graph")
    write_club(Path(sys.argv[1]))
