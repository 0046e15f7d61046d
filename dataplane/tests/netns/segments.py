"""Frames as scapy makes them, and super-frames as scapy reads and cuts them. Called by coalesce.rs.

make SEED   prints frames, in hexadecimal digits, a line each
check       reads {"sent": [FRAME, …], "received": [[VIRTIO HEADER, FRAME, TAG or null], …]}, all in hexadecimal digits; cuts what is a
            super-frame, compares flow by flow, and prints {"super_frames": N, "frames": N}, or fails with what differs
"""

import json
import random
import struct
import sys

from scapy.all import IP, IPv6, IPv6ExtHdrDestOpt, TCP, UDP, Dot1Q, Ether, IPOption_NOP, Raw, raw

GSO_TCP4, GSO_TCP6, GSO_UDP_L4 = 1, 4, 5
PSH, FIN = 8, 1


def make(seed):
    """Runs of frames of a dozen flows, interleaved; most can be merged, some not; some come twice, or change places with the next."""
    random.seed(seed)
    flows = []
    for number in range(12):
        six, tcp, tags = number & 1, number & 2, number % 3
        link = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
        for tag in range(tags):
            link /= Dot1Q(vlan=5 + tag, type=0x8100)
        if tags:
            link.lastlayer().type = 0x86DD if six else 0x0800
        net = IPv6(src="fd09::1", dst="fd09::2", fl=number) if six else IP(src="10.9.0.1", dst="10.9.0.2", flags=random.choice(["DF", 0]))
        flows.append({"head": link / net, "tcp": tcp, "port": 20000 + number, "seq": 2**32 - 1500 * number, "id": 65530, "left": 0, "size": 0})
    lines = []
    for _ in range(850):
        # Mostly one of four, so that there is something to merge in every burst.
        flow = flows[random.randrange(4 if random.random() < 0.9 else 12)]
        if flow["left"] == 0:
            flow["left"], flow["size"] = random.choice([2, 9, 40, 70]), random.randint(1, 300)
        flow["left"] -= 1
        size = flow["size"] if flow["left"] else random.randint(1, flow["size"])
        payload = Raw(random.randbytes(size))
        frame = flow["head"].copy()
        if IP in frame:
            frame[IP].id = flow["id"]
            flow["id"] = (flow["id"] + 1) % 65536
            if random.random() < 0.01:
                frame[IP].options = [IPOption_NOP()] * 4
        if flow["tcp"]:
            options = [("NOP", None), ("NOP", None), ("Timestamp", (7, 9 + (flow["left"] == 0)))]
            flags = "PA" if flow["left"] == 0 else "A"
            if random.random() < 0.05:
                flags = random.choice(["FA", "FPA", "UA", "CA", "EA", "CEA", "SA", "RA"])
            frame /= TCP(sport=flow["port"], dport=5001, seq=flow["seq"] % 2**32, ack=77, flags=flags, urgptr=9 * ("U" in flags), options=options)
            flow["seq"] += size
        else:
            frame /= UDP(sport=flow["port"], dport=5001)
            if random.random() < 0.02:
                frame[UDP].chksum = 0
        if IPv6 in frame and random.random() < 0.01:
            rest = frame[IPv6].payload.copy()
            frame[IPv6].remove_payload()
            frame = frame / IPv6ExtHdrDestOpt() / rest
        frame = frame / payload
        data = bytearray(raw(frame))
        if random.random() < 0.01:
            data[-1] ^= 0x55  # A wrong checksum.
        parts = [data.hex()]
        if IP in frame and size > 8 and random.random() < 0.01:
            whole = Ether(bytes(data))
            whole[IP].flags = 0
            whole[IP].payload = Raw(raw(whole[IP].payload))
            parts = [raw(part).hex() for part in whole.fragment(fragsize=16)][:3]
        lines.append(parts)
        if random.random() < 0.02:
            lines.append(parts)
        if random.random() < 0.02 and len(lines) > 1:
            lines[-2:] = reversed(lines[-2:])
    for parts in lines:
        print("\n".join(parts))


def flow_of(frame):
    """Fragments are a flow of their own: only the first of a datagram names its ports."""
    net = frame[IP] if IP in frame else frame[IPv6]
    if IP in frame and (net.frag or net.flags.MF):
        return (net.src, net.dst, "fragments")
    layer = frame[TCP] if TCP in frame else frame[UDP]
    return (net.src, net.dst, layer.sport, layer.dport, type(layer).__name__)


def cut(vnet, data):
    """The frames of a super-frame, as a device would cut it."""
    flags, gso, _, size, start, offset = struct.unpack("<BBHHHH", vnet)
    frame = Ether(data)
    if gso == 0:
        assert flags & 1 == 0, "a single frame's checksum was left to the device"
        return [data]
    net = frame[IP] if IP in frame else frame[IPv6]
    transport = net.payload
    tcp = TCP in frame
    assert gso == ((GSO_TCP6 if IPv6 in frame else GSO_TCP4) if tcp else GSO_UDP_L4), f"gso type {gso}"
    assert flags & 1 and offset == (16 if tcp else 6), f"flags {flags}, checksum at {offset}"
    payload = bytes(transport.payload)
    head = len(data) - len(payload)
    assert start == head - (transport.dataofs * 4 if tcp else 8), f"checksum from {start}"
    count = -(-len(payload) // size)
    assert count > 1 and (tcp or count <= 64), f"{count} segments"
    if IP in frame:
        header = raw(net)[: net.ihl * 4]
        words = sum(struct.unpack(f">{len(header) // 2}H", header))
        assert (words & 0xFFFF) + (words >> 16) in (0xFFFF, 0x1FFFE), "the super-frame's own IP checksum is wrong"
    frames = []
    for at in range(count):
        part = Ether(data[:head] + payload[at * size : (at + 1) * size])
        inner = part[IP] if IP in part else part[IPv6]
        if IP in part:
            inner.id = (inner.id + at) % 65536
            del inner.len, inner.chksum
        else:
            del inner.plen
        layer = inner.payload
        del layer.chksum
        if tcp:
            layer.seq = (layer.seq + at * size) % 2**32
            if at + 1 < count:
                layer.flags = int(layer.flags) & ~(PSH | FIN)
        else:
            del layer.len
        frames.append(raw(part))
    return frames


def same(sent, got):
    """Equal, but for the identification of what must not be fragmented."""
    if sent == got:
        return True
    one, other = Ether(sent), Ether(got)
    if IP not in one or IP not in other or "DF" not in str(one[IP].flags):
        return False
    other[IP].id = one[IP].id
    other[IP].chksum = one[IP].chksum
    return raw(other) == sent


def check(text):
    given = json.loads(text)
    sent, got, merged = {}, {}, 0
    for line in given["sent"]:
        data = bytes.fromhex(line)
        sent.setdefault(flow_of(Ether(data)), []).append(data)
    for vnet, line, tag in given["received"]:
        data = bytes.fromhex(line)
        if tag:
            tci, tpid = tag
            data = data[:12] + struct.pack(">HH", tpid, tci) + data[12:]
            # Offsets of the virtio header count without the tag that the kernel has taken out.
            fields = list(struct.unpack("<BBHHHH", bytes.fromhex(vnet)))
            if fields[0] & 1:
                fields[4] += 4
            vnet = struct.pack("<BBHHHH", *fields).hex()
        frames = cut(bytes.fromhex(vnet), data)
        merged += len(frames) > 1
        got.setdefault(flow_of(Ether(data)), []).extend(frames)
    assert sent.keys() == got.keys(), (sent.keys(), got.keys())
    for flow, frames in sent.items():
        assert len(frames) == len(got[flow]), (flow, len(frames), len(got[flow]))
        for at, (one, other) in enumerate(zip(frames, got[flow])):
            assert same(one, other), f"{flow}, frame {at}: {one.hex()} came as {other.hex()}"
    print(json.dumps({"super_frames": merged, "frames": sum(map(len, got.values()))}))


if sys.argv[1] == "make":
    make(int(sys.argv[2]))
else:
    check(sys.stdin.read())
