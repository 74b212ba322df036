"""Writes demo/sample/report.pdf: four pages of real, extractable text, byte for byte the same every time (no dates, no ids)."""

from __future__ import annotations

import textwrap
from pathlib import Path

TARGET = Path(__file__).resolve().parent / "sample" / "report.pdf"

PAGES: tuple[tuple[str, str], ...] = (
    (
        "Harbour Lights: season report",
        (
            "The harbour has fourteen lights. This report says how they did between April and September: which burned, which failed, "
            "what was mended, and what it cost. It is written for the harbour board and for whoever keeps the lights next year. "
            "Page two is about failures, page three about the north mole, page four about money."
        ),
    ),
    (
        "Failures and repairs",
        (
            "Nine lights burned the whole season without a visit. Three were out for less than a day each, after the storm of 17 May. "
            "The buoy at the fairway bend lost its battery twice; the second time the charger was replaced and the trouble ended. "
            "One lamp, at the slipway, is beyond repair and is listed for replacement."
        ),
    ),
    (
        "The light on the north mole",
        (
            "The lens of the north mole light was replaced on 23 June. The new lens has a focal length of 187 millimetres, and the light "
            "now carries 11.4 nautical miles in clear weather, against 8.9 before. The keeper of the north mole light is Ingrid Solheim. "
            "She visits it on the first Monday of every month."
        ),
    ),
    (
        "What it cost",
        (
            "The season cost 48,250 kroner: 21,900 for parts, 17,350 for boat hire and 9,000 for paint. That is 1,750 less than was set "
            "aside. The board is asked to move the rest to the replacement of the slipway lamp, which is expected to cost 6,400."
        ),
    ),
)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def _page_stream(number: int, title: str, text: str) -> bytes:
    lines = [
        "BT /F2 20 Tf 72 770 Td",
        f"({_escaped(title)}) Tj ET",
        "BT /F1 12 Tf 18 TL 72 730 Td",
        *(f"({_escaped(line)}) Tj T*" for line in textwrap.wrap(text, 78)),
        "ET",
        f"BT /F1 10 Tf 280 40 Td (page {number} of {len(PAGES)}) Tj ET",
    ]
    return "\n".join(lines).encode("ascii")


def pdf() -> bytes:
    """The whole file: PDF 1.4, the two standard fonts that need no embedding, uncompressed so that anyone can read it."""
    first_page = 5
    kids = " ".join(f"{first_page + 2 * index} 0 R" for index in range(len(PAGES)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(PAGES)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
    ]
    for index, (title, text) in enumerate(PAGES):
        stream = _page_stream(index + 1, title, text)
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {first_page + 2 * index + 1} 0 R "
            "/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> >>".encode()
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n".encode() + stream + b"\nendstream")

    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets: list[int] = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(f"{offset:010d} 00000 n \n".encode() for offset in offsets)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n".encode()
    return bytes(out)


if __name__ == "__main__":
    TARGET.write_bytes(pdf())
