# SPDX-License-Identifier: Apache-2.0
"""A second reader and writer of safetensors files that shares nothing with Espalier's.

  safetensors_peer.py read FILE    prints "name dtype shape values...", sorted by name, then the metadata as JSON
  safetensors_peer.py write FILE   writes a file without checksums, as other programs do
"""
import json
import struct
import sys

FORMATS = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "BOOL": "?"}


def crc64(data):
    crc = 2**64 - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xC96C5795D7870F42 if crc & 1 else 0)
    return f"{crc ^ 2**64 - 1:016x}"


def values(dtype, data):
    if dtype == "BF16":  # the upper half of a float32
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    size = struct.calcsize("<" + FORMATS[dtype])
    return list(struct.unpack(f"<{len(data) // size}{FORMATS[dtype]}", data))


def read(path):
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    assert (8 + length) % 8 == 0, "data is not aligned"
    text, data = content[8 : 8 + length], content[8 + length :]
    header = json.loads(text)
    metadata = header.pop("__metadata__")
    stated = metadata.pop("header_crc64")
    assert crc64(content[:8] + text.replace(stated.encode(), b"0" * 16, 1)) == stated, "header checksum"
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert entry["data_offsets"][0] == end, "gap before " + name
        end = entry["data_offsets"][1]
        assert crc64(data[slice(*entry["data_offsets"])]) == metadata.pop("crc64." + name), "checksum of " + name
    assert end == len(data), "bytes after the last tensor"
    for name, entry in sorted(header.items()):
        items = [float(value) for value in values(entry["dtype"], data[slice(*entry["data_offsets"])])]
        print(name, entry["dtype"], entry["shape"], *items)
    print(json.dumps(metadata, sort_keys=True))


def write(path):
    tensors = {
        "weight": ("F32", [2, 3], struct.pack("<6f", 1, 2, 3, 4, 5, 6.5)),
        "steps": ("I64", [], struct.pack("<q", -7)),
    }
    header, data = {"__metadata__": {"origin": "peer"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    {"read": read, "write": write}[sys.argv[1]](sys.argv[2])
